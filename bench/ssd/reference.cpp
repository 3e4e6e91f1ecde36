// SPDX-License-Identifier: Apache-2.0

// ssd: the reference.

#include "support/rows.hpp"

#include <polystate/reference/ssd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, H, P, G, N;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/H" + std::to_string(H) + "/P" + std::to_string(P) +
           "/N" + std::to_string(N);
  }
};

class mamba2 {
 public:
  static constexpr const char* name = "ssd";
  static constexpr shape shapes[] = {{1, 64, 2, 16, 1, 16}, {1, 64, 24, 64, 1, 128}};

  explicit mamba2(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    // an entry of the state: the decay, the write with its addition, the read with its addition
    const double flops_a_token = 5.0 * static_cast<double>(n_.B * n_.H * n_.P * n_.N);
    const double flops = flops_a_token * static_cast<double>(n_.T);
    const auto args = [this] {
      return ssd_args<float>{.x = x_.view(),
                             .dt = dt_.view(),
                             .A = A_.view(),
                             .B = B_.view(),
                             .C = C_.view(),
                             .D = D_.view(),
                             .z = z_.view(),
                             .y = y_.view(),
                             .dt_softplus = true};
    };
    return {
        {"forward", {bytes_of(x_, dt_, A_, B_, C_, D_, z_, y_), flops}, [=] { ssd(exec, args()); }},
        {"backward",
         {bytes_of(x_, dt_, A_, B_, C_, D_, z_, d_y_, d_x_, d_dt_, d_A_, d_B_, d_C_, d_D_, d_z_),
          backward_flops(flops)},
         [=, this] {
           ssd_backward(exec, args(),
                        {.d_y = d_y_.view(),
                         .d_x = d_x_.view(),
                         .d_dt = d_dt_.view(),
                         .d_A = d_A_.view(),
                         .d_B = d_B_.view(),
                         .d_C = d_C_.view(),
                         .d_D = d_D_.view(),
                         .d_z = d_z_.view()});
         }},
        {"step",
         {bytes_of(A_, D_, state_, state_) + bytes_of(x_, dt_, B_, C_, z_, y_) / static_cast<double>(n_.T),
          flops_a_token},
         [=, this] {
           ssd_step(exec, ssd_step_args<float>{.x = x_.view().slice(1, 0, 1),
                                               .dt = dt_.view().slice(1, 0, 1),
                                               .A = A_.view(),
                                               .B = B_.view().slice(1, 0, 1),
                                               .C = C_.view().slice(1, 0, 1),
                                               .D = D_.view(),
                                               .z = z_.view().slice(1, 0, 1),
                                               .state = state_.view(),
                                               .y = y_.view().slice(1, 0, 1),
                                               .dt_softplus = true});
         }},
    };
  }

 private:
  shape n_;
  operand_maker make_;
  const tensor<float, 4> x_ = make_.uniform({n_.B, n_.T, n_.H, n_.P}, -1, 1);
  const tensor<float, 3> dt_ = make_.uniform({n_.B, n_.T, n_.H}, -4, 0);
  const tensor<float, 1> A_ = make_.uniform({n_.H}, -16, -1);
  const tensor<float, 4> B_ = make_.uniform({n_.B, n_.T, n_.G, n_.N}, -1, 1);
  const tensor<float, 4> C_ = make_.uniform({n_.B, n_.T, n_.G, n_.N}, -1, 1);
  const tensor<float, 2> D_ = make_.uniform({n_.H, n_.P}, -1, 1);
  const tensor<float, 4> z_ = make_.uniform({n_.B, n_.T, n_.H, n_.P}, -1, 1);
  const tensor<float, 4> d_y_ = make_.uniform({n_.B, n_.T, n_.H, n_.P}, -1, 1);
  tensor<float, 4> state_ = make_.uniform({n_.B, n_.H, n_.P, n_.N}, -1, 1);
  tensor<float, 4> y_ = result({n_.B, n_.T, n_.H, n_.P});
  tensor<float, 4> d_x_ = result({n_.B, n_.T, n_.H, n_.P});
  tensor<float, 3> d_dt_ = result({n_.B, n_.T, n_.H});
  tensor<float, 1> d_A_ = result({n_.H});
  tensor<float, 4> d_B_ = result({n_.B, n_.T, n_.G, n_.N});
  tensor<float, 4> d_C_ = result({n_.B, n_.T, n_.G, n_.N});
  tensor<float, 2> d_D_ = result({n_.H, n_.P});
  tensor<float, 4> d_z_ = result({n_.B, n_.T, n_.H, n_.P});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::mamba2>("reference", on_reference{}); });
}
