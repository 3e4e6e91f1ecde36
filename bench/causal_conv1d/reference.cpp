// SPDX-License-Identifier: Apache-2.0

// causal_conv1d: the reference.

#include "support/rows.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, D, W;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/D" + std::to_string(D) + "/W" + std::to_string(W);
  }
};

class convolution {
 public:
  static constexpr const char* name = "causal_conv1d";
  static constexpr shape shapes[] = {{1, 64, 16, 4}, {1, 512, 2048, 4}};

  explicit convolution(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    const auto [B, T, D, W] = n_;
    const double flops = 2.0 * static_cast<double>(B * T * D * W);
    const auto args = [this] {
      return causal_conv1d_args<float>{
          .x = x_.view(), .weight = weight_.view(), .bias = bias_.view(), .y = y_.view(), .act = activation::silu};
    };
    return {
        {"forward", {bytes_of(x_, weight_, bias_, y_), flops}, [=] { causal_conv1d(exec, args()); }},
        {"backward",
         {bytes_of(x_, weight_, bias_, d_y_, d_x_, d_weight_, d_bias_), backward_flops(flops)},
         [=, this] {
           causal_conv1d_backward(
               exec, args(),
               {.d_y = d_y_.view(), .d_x = d_x_.view(), .d_weight = d_weight_.view(), .d_bias = d_bias_.view()});
         }},
        {"step",
         {bytes_of(weight_, bias_, state_, state_) + bytes_of(x_, y_) / static_cast<double>(T),
          flops / static_cast<double>(T)},
         [=, this] {
           causal_conv1d_step(exec, causal_conv1d_step_args<float>{.x = x_.view().slice(1, 0, 1),
                                                                   .weight = weight_.view(),
                                                                   .bias = bias_.view(),
                                                                   .state = state_.view(),
                                                                   .y = y_.view().slice(1, 0, 1),
                                                                   .act = activation::silu});
         }},
    };
  }

 private:
  shape n_;
  operand_maker make_;
  const tensor<float, 3> x_ = make_.uniform({n_.B, n_.T, n_.D}, -1, 1);
  const tensor<float, 2> weight_ = make_.uniform({n_.D, n_.W}, -1, 1);
  const tensor<float, 1> bias_ = make_.uniform({n_.D}, -1, 1);
  const tensor<float, 3> d_y_ = make_.uniform({n_.B, n_.T, n_.D}, -1, 1);
  tensor<float, 3> state_ = make_.uniform({n_.B, n_.W - 1, n_.D}, -1, 1);
  tensor<float, 3> y_ = result({n_.B, n_.T, n_.D});
  tensor<float, 3> d_x_ = result({n_.B, n_.T, n_.D});
  tensor<float, 2> d_weight_ = result({n_.D, n_.W});
  tensor<float, 1> d_bias_ = result({n_.D});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::convolution>("reference", on_reference{}); });
}
