// SPDX-License-Identifier: Apache-2.0

// selective_scan: the reference.

#include "support/rows.hpp"

#include <polystate/reference/selective_scan.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, D, N, G;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/D" + std::to_string(D) + "/N" + std::to_string(N);
  }
};

class scan {
 public:
  static constexpr const char* name = "selective_scan";
  static constexpr shape shapes[] = {{1, 64, 16, 4, 1}, {1, 128, 1536, 16, 1}};

  explicit scan(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    // a state: dt A, exp, the decay, dt u B with its addition, C with its addition
    const double flops_a_token = 7.0 * static_cast<double>(n_.B * n_.D * n_.N);
    const double flops = flops_a_token * static_cast<double>(n_.T);
    const auto args = [this] {
      return selective_scan_args<float>{.u = u_.view(),
                                        .delta = delta_.view(),
                                        .A = A_.view(),
                                        .B = B_.view(),
                                        .C = C_.view(),
                                        .D = D_.view(),
                                        .z = z_.view(),
                                        .y = y_.view(),
                                        .delta_softplus = true};
    };
    return {
        {"forward", {bytes_of(u_, delta_, A_, B_, C_, D_, z_, y_), flops}, [=] { selective_scan(exec, args()); }},
        {"backward",
         {bytes_of(u_, delta_, A_, B_, C_, D_, z_, d_y_, d_u_, d_delta_, d_A_, d_B_, d_C_, d_D_, d_z_),
          backward_flops(flops)},
         [=, this] {
           selective_scan_backward(exec, args(),
                                   {.d_y = d_y_.view(),
                                    .d_u = d_u_.view(),
                                    .d_delta = d_delta_.view(),
                                    .d_A = d_A_.view(),
                                    .d_B = d_B_.view(),
                                    .d_C = d_C_.view(),
                                    .d_D = d_D_.view(),
                                    .d_z = d_z_.view()});
         }},
        {"step",
         {bytes_of(A_, D_, state_, state_) + bytes_of(u_, delta_, B_, C_, z_, y_) / static_cast<double>(n_.T),
          flops_a_token},
         [=, this] {
           selective_scan_step(exec, selective_scan_step_args<float>{.u = u_.view().slice(1, 0, 1),
                                                                     .delta = delta_.view().slice(1, 0, 1),
                                                                     .A = A_.view(),
                                                                     .B = B_.view().slice(1, 0, 1),
                                                                     .C = C_.view().slice(1, 0, 1),
                                                                     .D = D_.view(),
                                                                     .z = z_.view().slice(1, 0, 1),
                                                                     .state = state_.view(),
                                                                     .y = y_.view().slice(1, 0, 1),
                                                                     .delta_softplus = true});
         }},
    };
  }

 private:
  shape n_;
  operand_maker make_;
  const tensor<float, 3> u_ = make_.uniform({n_.B, n_.T, n_.D}, -1, 1);
  const tensor<float, 3> delta_ = make_.uniform({n_.B, n_.T, n_.D}, -4, 0);
  const tensor<float, 2> A_ = make_.uniform({n_.D, n_.N}, -16, -1);
  const tensor<float, 4> B_ = make_.uniform({n_.B, n_.T, n_.G, n_.N}, -1, 1);
  const tensor<float, 4> C_ = make_.uniform({n_.B, n_.T, n_.G, n_.N}, -1, 1);
  const tensor<float, 1> D_ = make_.uniform({n_.D}, -1, 1);
  const tensor<float, 3> z_ = make_.uniform({n_.B, n_.T, n_.D}, -1, 1);
  const tensor<float, 3> d_y_ = make_.uniform({n_.B, n_.T, n_.D}, -1, 1);
  tensor<float, 3> state_ = make_.uniform({n_.B, n_.D, n_.N}, -1, 1);
  tensor<float, 3> y_ = result({n_.B, n_.T, n_.D});
  tensor<float, 3> d_u_ = result({n_.B, n_.T, n_.D});
  tensor<float, 3> d_delta_ = result({n_.B, n_.T, n_.D});
  tensor<float, 2> d_A_ = result({n_.D, n_.N});
  tensor<float, 4> d_B_ = result({n_.B, n_.T, n_.G, n_.N});
  tensor<float, 4> d_C_ = result({n_.B, n_.T, n_.G, n_.N});
  tensor<float, 1> d_D_ = result({n_.D});
  tensor<float, 3> d_z_ = result({n_.B, n_.T, n_.D});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::scan>("reference", on_reference{}); });
}
