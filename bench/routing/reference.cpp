// SPDX-License-Identifier: Apache-2.0

// routing: the reference.

#include "support/rows.hpp"

#include <polystate/reference/routing.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, m, H, dr;
  [[nodiscard]] std::string text() const {
    return "merlin/B" + std::to_string(B) + "/T" + std::to_string(T) + "/m" + std::to_string(m) + "/H" +
           std::to_string(H) + "/dr" + std::to_string(dr);
  }
};

class merlin_routing {
 public:
  static constexpr const char* name = "routing";
  static constexpr shape shapes[] = {{1, 64, 16, 2, 8}, {1, 256, 64, 6, 64}};

  explicit merlin_routing(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    const double per_head = static_cast<double>(n_.B * n_.H * n_.dr * (n_.dr + 1));
    // the moments; mu . q' and q'^T Sigma q' of every visible segment
    const double flops = 2 * per_head * (static_cast<double>(n_.T) + static_cast<double>(visible_segments(n_.T, n_.m)));
    const auto args = [this] {
      return routing_args<float, separation::uniform, router::merlin<float>>{
          .moments = {.k = k_.view()},
          .separation = {.m = n_.m},
          .router = {.q = q_.view(), .gamma = gamma_.view(), .tau_mu = tau_.view(), .tau_sigma = tau_.view()},
          .lam = lam_.view()};
    };
    return {
        {"forward", {bytes_of(k_, q_, gamma_, tau_, tau_, lam_), flops}, [=] { routing(exec, args()); }},
        {"backward",
         {bytes_of(k_, q_, gamma_, tau_, tau_, d_lam_, d_k_, d_q_, d_gamma_, d_tau_mu_, d_tau_sigma_),
          backward_flops(flops)},
         [=, this] {
           routing_backward(
               exec, args(),
               routing_grads<float, router::merlin<float>>{.d_lam = d_lam_.view(),
                                                           .moments = {.d_k = d_k_.view()},
                                                           .router = {.d_q = d_q_.view(),
                                                                      .d_gamma = d_gamma_.view(),
                                                                      .d_tau_mu = d_tau_mu_.view(),
                                                                      .d_tau_sigma = d_tau_sigma_.view()}});
         }},
    };
  }

 private:
  shape n_;
  std::int64_t L_ = separation::uniform{.m = n_.m}.count(n_.T);
  operand_maker make_;
  const tensor<float, 4> k_ = make_.uniform({n_.B, n_.T, n_.H, n_.dr}, -1, 1);
  const tensor<float, 4> q_ = make_.uniform({n_.B, n_.T, n_.H, n_.dr}, -1, 1);
  const tensor<float, 3> gamma_ = make_.uniform({n_.B, n_.T, n_.H}, 0, 1);
  const tensor<float, 1> tau_ = make_.uniform({n_.H}, 1, 2);
  const tensor<float, 4> d_lam_ = make_.uniform({n_.B, n_.T, n_.H, L_}, -1, 1);
  tensor<float, 4> lam_ = result({n_.B, n_.T, n_.H, L_});
  tensor<float, 4> d_k_ = result({n_.B, n_.T, n_.H, n_.dr});
  tensor<float, 4> d_q_ = result({n_.B, n_.T, n_.H, n_.dr});
  tensor<float, 3> d_gamma_ = result({n_.B, n_.T, n_.H});
  tensor<float, 1> d_tau_mu_ = result({n_.H});
  tensor<float, 1> d_tau_sigma_ = result({n_.H});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::merlin_routing>("reference", on_reference{}); });
}
