// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in cases.hpp, as support/gradient_properties.hpp asks.

#include "causal_conv1d/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/causal_conv1d.hpp>

namespace polystate::testing {

template <class Data>
struct conv_gradients {
  tensor<Data, 3> d_y, d_final_state;  ///< upstream
  tensor<Data, 3> d_x, d_initial_state;
  tensor<acc_t<Data>, 2> d_weight;
  tensor<acc_t<Data>, 1> d_bias;

  conv_gradients() = default;
  template <class Rng>
  conv_gradients(const conv_shape& s, Rng& rng) {
    const std::int64_t S = s.sequences();
    d_y = tensor<Data, 3>({s.B, s.T, s.D}, s.memory).uniform(rng, -1, 1);
    if (s.final_state) d_final_state = tensor<Data, 3>({S, s.W - 1, s.D}).uniform(rng, -1, 1);
    d_x = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    d_weight = tensor<acc_t<Data>, 2>({s.D, s.W});
    if (s.bias) d_bias = tensor<acc_t<Data>, 1>({s.D});
    d_initial_state = tensor<Data, 3>({S, s.W - 1, s.D});
  }

  [[nodiscard]] causal_conv1d_grads<Data> views() {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_x = d_x.view(),
            .d_weight = d_weight.view(),
            .d_bias = d_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const causal_conv1d_args<Data>& args, const causal_conv1d_grads<Data>& grads) {
    causal_conv1d_backward(exec, args, grads);
  }
  [[nodiscard]] conv_gradients<double> in_double() const {
    conv_gradients<double> g;
    g.d_y = convert<double>(d_y);
    g.d_final_state = convert<double>(d_final_state);
    g.d_x = tensor<double, 3>(d_x.extents());
    g.d_weight = tensor<double, 2>(d_weight.extents());
    if (d_bias) g.d_bias = tensor<double, 1>(d_bias.extents());
    g.d_initial_state = tensor<double, 3>(d_initial_state.extents());
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("y", p.y, d_y);
    f("final_state", p.final_state, d_final_state);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("x", p.x, d_x);
    f("weight", p.weight, d_weight);
    f("bias", p.bias, d_bias);
    f("initial_state", p.initial_state, d_initial_state);
  }
};

}  // namespace polystate::testing
