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
  /// The same upstream gradients in another type, and those to be written where they are.
  template <class To>
  [[nodiscard]] conv_gradients<To> in() const {
    conv_gradients<To> g;
    g.d_y = convert<To>(d_y);
    g.d_final_state = convert<To>(d_final_state);
    g.d_x = convert<To>(d_x);
    g.d_weight = convert<acc_t<To>>(d_weight);
    g.d_bias = convert<acc_t<To>>(d_bias);
    g.d_initial_state = convert<To>(d_initial_state);
    return g;
  }
  [[nodiscard]] conv_gradients<double> in_double() const { return in<double>(); }
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

/// Calls f(name, gradient...) with the same gradient of each of the sets, for each that backward writes.
template <class F, class... Gradients>
void for_each_gradient(F&& f, Gradients&&... g) {
  f("d_x", g.d_x...);
  f("d_weight", g.d_weight...);
  f("d_bias", g.d_bias...);
  f("d_initial_state", g.d_initial_state...);
}

}  // namespace polystate::testing
