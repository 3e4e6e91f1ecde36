// SPDX-License-Identifier: Apache-2.0

// gated_delta_rule: the reference.

#include "support/rows.hpp"

#include <polystate/reference/gated_delta_rule.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, HK, HV, dk, dv;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/H" + std::to_string(HV) + "/dk" + std::to_string(dk) +
           "/dv" + std::to_string(dv);
  }
};

class delta_rule {
 public:
  static constexpr const char* name = "gated_delta_rule";
  static constexpr shape shapes[] = {{1, 64, 1, 2, 16, 16}, {1, 64, 4, 8, 128, 128}};

  explicit delta_rule(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    // an entry of the state: the decay, S k, the write, S q, each product with its addition
    const double flops_a_token = 7.0 * static_cast<double>(n_.B * n_.HV * n_.dk * n_.dv);
    const double flops = flops_a_token * static_cast<double>(n_.T);
    const auto args = [this] {
      return gated_delta_rule_args<float>{.q = q_.view(),
                                          .k = k_.view(),
                                          .v = v_.view(),
                                          .g = g_.view(),
                                          .beta = beta_.view(),
                                          .o = o_.view(),
                                          .qk_l2norm = true};
    };
    return {
        {"forward", {bytes_of(q_, k_, v_, g_, beta_, o_), flops}, [=] { gated_delta_rule(exec, args()); }},
        {"backward",
         {bytes_of(q_, k_, v_, g_, beta_, d_o_, d_q_, d_k_, d_v_, d_g_, d_beta_), backward_flops(flops)},
         [=, this] {
           gated_delta_rule_backward(exec, args(),
                                     {.d_o = d_o_.view(),
                                      .d_q = d_q_.view(),
                                      .d_k = d_k_.view(),
                                      .d_v = d_v_.view(),
                                      .d_g = d_g_.view(),
                                      .d_beta = d_beta_.view()});
         }},
        {"step",
         {bytes_of(state_, state_) + bytes_of(q_, k_, v_, g_, beta_, o_) / static_cast<double>(n_.T), flops_a_token},
         [=, this] {
           gated_delta_rule_step(exec, gated_delta_rule_step_args<float>{.q = q_.view().slice(1, 0, 1),
                                                                         .k = k_.view().slice(1, 0, 1),
                                                                         .v = v_.view().slice(1, 0, 1),
                                                                         .g = g_.view().slice(1, 0, 1),
                                                                         .beta = beta_.view().slice(1, 0, 1),
                                                                         .state = state_.view(),
                                                                         .o = o_.view().slice(1, 0, 1),
                                                                         .qk_l2norm = true});
         }},
    };
  }

 private:
  shape n_;
  operand_maker make_;
  const tensor<float, 4> q_ = make_.uniform({n_.B, n_.T, n_.HK, n_.dk}, -1, 1);
  const tensor<float, 4> k_ = make_.uniform({n_.B, n_.T, n_.HK, n_.dk}, -1, 1);
  const tensor<float, 4> v_ = make_.uniform({n_.B, n_.T, n_.HV, n_.dv}, -1, 1);
  const tensor<float, 3> g_ = make_.uniform({n_.B, n_.T, n_.HV}, -1, 0);
  const tensor<float, 3> beta_ = make_.uniform({n_.B, n_.T, n_.HV}, 0, 1);
  const tensor<float, 4> d_o_ = make_.uniform({n_.B, n_.T, n_.HV, n_.dv}, -1, 1);
  tensor<float, 4> state_ = make_.uniform({n_.B, n_.HV, n_.dv, n_.dk}, -1, 1);
  tensor<float, 4> o_ = result({n_.B, n_.T, n_.HV, n_.dv});
  tensor<float, 4> d_q_ = result({n_.B, n_.T, n_.HK, n_.dk});
  tensor<float, 4> d_k_ = result({n_.B, n_.T, n_.HK, n_.dk});
  tensor<float, 4> d_v_ = result({n_.B, n_.T, n_.HV, n_.dv});
  tensor<float, 3> d_g_ = result({n_.B, n_.T, n_.HV});
  tensor<float, 3> d_beta_ = result({n_.B, n_.T, n_.HV});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::delta_rule>("reference", on_reference{}); });
}
