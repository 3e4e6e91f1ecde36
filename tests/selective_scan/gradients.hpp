// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in cases.hpp, as support/gradient_properties.hpp asks.

#include "selective_scan/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/selective_scan.hpp>

namespace polystate::testing {

template <class Data, class State = acc_t<Data>>
struct scan_gradients {
  tensor<Data, 3> d_y;             ///< upstream
  tensor<State, 3> d_final_state;  ///< upstream
  tensor<Data, 3> d_u, d_delta, d_z;
  tensor<Data, 4> d_B, d_C;
  tensor<acc_t<Data>, 2> d_A;
  tensor<acc_t<Data>, 1> d_D, d_delta_bias;
  tensor<State, 3> d_initial_state;

  scan_gradients() = default;
  template <class Rng>
  scan_gradients(const scan_shape& s, Rng& rng) {
    const std::int64_t S = s.sequences();
    d_y = tensor<Data, 3>({s.B, s.T, s.D}, s.memory).uniform(rng, -1, 1);
    if (s.final_state) d_final_state = tensor<State, 3>({S, s.D, s.N}, s.state_memory).uniform(rng, -1, 1);
    d_u = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    d_delta = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    d_A = tensor<acc_t<Data>, 2>({s.D, s.N});
    d_B = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.group_memory);
    d_C = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.group_memory);
    if (s.skip) d_D = tensor<acc_t<Data>, 1>({s.D});
    if (s.z) d_z = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    if (s.delta_bias) d_delta_bias = tensor<acc_t<Data>, 1>({s.D});
    d_initial_state = tensor<State, 3>({S, s.D, s.N}, s.state_memory);
  }

  [[nodiscard]] selective_scan_grads<Data, State> views() {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_u = d_u.view(),
            .d_delta = d_delta.view(),
            .d_A = d_A.view(),
            .d_B = d_B.view(),
            .d_C = d_C.view(),
            .d_D = d_D.view(),
            .d_z = d_z.view(),
            .d_delta_bias = d_delta_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const selective_scan_args<Data, State>& args,
                  const selective_scan_grads<Data, State>& grads) {
    selective_scan_backward(exec, args, grads);
  }
  /// The same upstream gradients in another type, and those to be written where they are.
  template <class To>
  [[nodiscard]] scan_gradients<To> in() const {
    scan_gradients<To> g;
    g.d_y = convert<To>(d_y);
    g.d_final_state = convert<acc_t<To>>(d_final_state);
    g.d_u = convert<To>(d_u);
    g.d_delta = convert<To>(d_delta);
    g.d_A = convert<acc_t<To>>(d_A);
    g.d_B = convert<To>(d_B);
    g.d_C = convert<To>(d_C);
    g.d_D = convert<acc_t<To>>(d_D);
    g.d_z = convert<To>(d_z);
    g.d_delta_bias = convert<acc_t<To>>(d_delta_bias);
    g.d_initial_state = convert<acc_t<To>>(d_initial_state);
    return g;
  }
  [[nodiscard]] scan_gradients<double> in_double() const { return in<double>(); }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("y", p.y, d_y);
    f("final_state", p.final_state, d_final_state);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("u", p.u, d_u);
    f("delta", p.delta, d_delta);
    f("A", p.A, d_A);
    f("B", p.B, d_B);
    f("C", p.C, d_C);
    f("D", p.D, d_D);
    f("z", p.z, d_z);
    f("delta_bias", p.delta_bias, d_delta_bias);
    f("initial_state", p.initial_state, d_initial_state);
  }
};

/// Calls f(name, gradient...) with the same gradient of each of the sets, for each that backward writes.
template <class F, class... Gradients>
void for_each_gradient(F&& f, Gradients&&... g) {
  f("d_u", g.d_u...);
  f("d_delta", g.d_delta...);
  f("d_A", g.d_A...);
  f("d_B", g.d_B...);
  f("d_C", g.d_C...);
  f("d_D", g.d_D...);
  f("d_z", g.d_z...);
  f("d_delta_bias", g.d_delta_bias...);
  f("d_initial_state", g.d_initial_state...);
}

}  // namespace polystate::testing
