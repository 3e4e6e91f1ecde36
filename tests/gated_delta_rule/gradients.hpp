// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in cases.hpp, as support/gradient_properties.hpp asks.

#include "gated_delta_rule/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/gated_delta_rule.hpp>

namespace polystate::testing {

template <class Data, class Rule = rule::gated_delta, class State = acc_t<Data>>
struct delta_gradients {
  tensor<Data, 4> d_o;             ///< upstream
  tensor<State, 4> d_final_state;  ///< upstream
  tensor<Data, 4> d_q, d_k, d_v;
  tensor<acc_t<Data>, 3> d_g, d_beta;
  tensor<State, 4> d_initial_state;

  delta_gradients() = default;
  template <class Rng>
  delta_gradients(const delta_shape& s, Rng& rng) {
    const std::int64_t S = s.sequences();
    d_o = tensor<Data, 4>({s.B, s.T, s.HV, s.dv}, s.memory).uniform(rng, -1, 1);
    if (s.final_state) d_final_state = tensor<State, 4>({S, s.HV, s.dv, s.dk}, s.state_memory).uniform(rng, -1, 1);
    d_q = tensor<Data, 4>({s.B, s.T, s.HK, s.dk}, s.memory);
    d_k = tensor<Data, 4>({s.B, s.T, s.HK, s.dk}, s.memory);
    d_v = tensor<Data, 4>({s.B, s.T, s.HV, s.dv}, s.memory);
    if constexpr (Rule::has_decay) d_g = tensor<acc_t<Data>, 3>({s.B, s.T, s.HV}, s.gate_memory);
    if constexpr (Rule::has_beta) d_beta = tensor<acc_t<Data>, 3>({s.B, s.T, s.HV}, s.gate_memory);
    d_initial_state = tensor<State, 4>({S, s.HV, s.dv, s.dk}, s.state_memory);
  }

  [[nodiscard]] gated_delta_rule_grads<Data, Rule, State> views() {
    return {.d_o = d_o.view(),
            .d_final_state = d_final_state.view(),
            .d_q = d_q.view(),
            .d_k = d_k.view(),
            .d_v = d_v.view(),
            .d_g = d_g.view(),
            .d_beta = d_beta.view(),
            .d_initial_state = d_initial_state.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                  const gated_delta_rule_grads<Data, Rule, State>& grads) {
    gated_delta_rule_backward(exec, args, grads);
  }
  [[nodiscard]] delta_gradients<double, Rule> in_double() const {
    delta_gradients<double, Rule> g;
    g.d_o = convert<double>(d_o);
    g.d_final_state = convert<double>(d_final_state);
    g.d_q = convert<double>(d_q);
    g.d_k = convert<double>(d_k);
    g.d_v = convert<double>(d_v);
    g.d_g = convert<double>(d_g);
    g.d_beta = convert<double>(d_beta);
    g.d_initial_state = convert<double>(d_initial_state);
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("o", p.o, d_o);
    f("final_state", p.final_state, d_final_state);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("q", p.q, d_q);
    f("k", p.k, d_k);
    f("v", p.v, d_v);
    if constexpr (Rule::has_decay) f("g", p.g, d_g);
    if constexpr (Rule::has_beta) f("beta", p.beta, d_beta);
    f("initial_state", p.initial_state, d_initial_state);
  }
};

}  // namespace polystate::testing
