// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in cases.hpp, as support/gradient_properties.hpp asks.

#include "ssd/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/ssd.hpp>

namespace polystate::testing {

template <class Data, class State = acc_t<Data>>
struct ssd_gradients {
  tensor<Data, 4> d_y;             ///< upstream
  tensor<State, 4> d_final_state;  ///< upstream
  tensor<Data, 4> d_x, d_B, d_C, d_z;
  tensor<Data, 3> d_dt;
  tensor<acc_t<Data>, 1> d_A, d_dt_bias;
  tensor<acc_t<Data>, 2> d_D;  ///< (H, P), or (H, 1) for a number a head
  tensor<State, 4> d_initial_state;

  ssd_gradients() = default;
  template <class Rng>
  ssd_gradients(const ssd_shape& s, Rng& rng) {
    const std::int64_t S = s.sequences();
    d_y = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory).uniform(rng, -1, 1);
    if (s.final_state) d_final_state = tensor<State, 4>({S, s.H, s.P, s.N}, s.state_memory).uniform(rng, -1, 1);
    d_x = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory);
    d_dt = tensor<Data, 3>({s.B, s.T, s.H}, s.gate_memory);
    d_A = tensor<acc_t<Data>, 1>({s.H});
    d_B = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.memory);
    d_C = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.memory);
    if (s.D != skip::none) d_D = tensor<acc_t<Data>, 2>({s.H, s.D == skip::per_head ? 1 : s.P});
    if (s.z) d_z = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory);
    if (s.dt_bias) d_dt_bias = tensor<acc_t<Data>, 1>({s.H});
    d_initial_state = tensor<State, 4>({S, s.H, s.P, s.N}, s.state_memory);
  }

  [[nodiscard]] ssd_grads<Data, State> views() {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_x = d_x.view(),
            .d_dt = d_dt.view(),
            .d_A = d_A.view(),
            .d_B = d_B.view(),
            .d_C = d_C.view(),
            .d_D = d_D.view(),
            .d_z = d_z.view(),
            .d_dt_bias = d_dt_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const ssd_args<Data, State>& args, const ssd_grads<Data, State>& grads) {
    ssd_backward(exec, args, grads);
  }
  [[nodiscard]] ssd_gradients<double> in_double() const {
    ssd_gradients<double> g;
    g.d_y = convert<double>(d_y);
    g.d_final_state = convert<double>(d_final_state);
    g.d_x = convert<double>(d_x);
    g.d_dt = convert<double>(d_dt);
    g.d_A = convert<double>(d_A);
    g.d_B = convert<double>(d_B);
    g.d_C = convert<double>(d_C);
    g.d_D = convert<double>(d_D);
    g.d_z = convert<double>(d_z);
    g.d_dt_bias = convert<double>(d_dt_bias);
    g.d_initial_state = convert<double>(d_initial_state);
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
    f("dt", p.dt, d_dt);
    f("A", p.A, d_A);
    f("B", p.B, d_B);
    f("C", p.C, d_C);
    f("D", p.D, d_D);
    f("z", p.z, d_z);
    f("dt_bias", p.dt_bias, d_dt_bias);
    f("initial_state", p.initial_state, d_initial_state);
  }
};

}  // namespace polystate::testing
