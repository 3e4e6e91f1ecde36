// SPDX-License-Identifier: Apache-2.0
#pragma once

// gated_delta_rule's C structs as args.

#include "convert.cuh"

#include <polystate/gated_delta_rule.hpp>

namespace polystate::c_api {

template <class Data, class State>
gated_delta_rule_args<Data, rule::gated_delta, State> args_of(const polystate_gated_delta_rule_args& a) {
  return {.q = operand(a.q),
          .k = operand(a.k),
          .v = operand(a.v),
          .g = operand(a.g),
          .beta = operand(a.beta),
          .initial_state = operand(a.initial_state),
          .cu_seqlens = operand(a.cu_seqlens),
          .o = operand(a.o),
          .final_state = operand(a.final_state),
          .scale = a.scale,
          .qk_l2norm = a.qk_l2norm != 0};
}

template <class Data, class State>
gated_delta_rule_grads<Data, rule::gated_delta, State> grads_of(const polystate_gated_delta_rule_grads& g) {
  return {.d_o = operand(g.d_o),
          .d_final_state = operand(g.d_final_state),
          .d_q = operand(g.d_q),
          .d_k = operand(g.d_k),
          .d_v = operand(g.d_v),
          .d_g = operand(g.d_g),
          .d_beta = operand(g.d_beta),
          .d_initial_state = operand(g.d_initial_state)};
}

template <class Data, class State>
gated_delta_rule_step_args<Data, rule::gated_delta, State> args_of(const polystate_gated_delta_rule_step_args& a) {
  return {.q = operand(a.q),
          .k = operand(a.k),
          .v = operand(a.v),
          .g = operand(a.g),
          .beta = operand(a.beta),
          .read_indices = operand(a.read_indices),
          .write_indices = operand(a.write_indices),
          .state = operand(a.state),
          .o = operand(a.o),
          .intermediate_states = operand(a.intermediate_states),
          .scale = a.scale,
          .qk_l2norm = a.qk_l2norm != 0};
}

/// f(of<Data>{}, of<State>{}, of<Dims>{}) for the types, of states those listed, and head dims built.
template <class... States, class F>
status visit_delta_types(const char* op, polystate_dtype data, polystate_dtype state, const polystate_tensor& q,
                         const polystate_tensor& v, F&& f) {
  return visit_dtype<bfloat16>(op, "data", data, [&](auto d) {
    return visit_dtype<States...>(op, "state", state, [&](auto s) {
      return visit_dims<dims<128, 128>, dims<256, 512>>(op, q, v, [&](auto head_dims) { return f(d, s, head_dims); });
    });
  });
}

}  // namespace polystate::c_api
