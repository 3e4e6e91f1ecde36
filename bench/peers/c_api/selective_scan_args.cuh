// SPDX-License-Identifier: Apache-2.0
#pragma once

// selective_scan's C structs as args.

#include "convert.cuh"

#include <polystate/selective_scan.hpp>

namespace polystate::c_api {

template <class Data, class State>
selective_scan_args<Data, State> args_of(const polystate_selective_scan_args& a) {
  return {.u = operand(a.u),
          .delta = operand(a.delta),
          .A = operand(a.A),
          .B = operand(a.B),
          .C = operand(a.C),
          .D = operand(a.D),
          .z = operand(a.z),
          .delta_bias = operand(a.delta_bias),
          .initial_state = operand(a.initial_state),
          .cu_seqlens = operand(a.cu_seqlens),
          .y = operand(a.y),
          .final_state = operand(a.final_state),
          .delta_softplus = a.delta_softplus != 0};
}

template <class Data, class State>
selective_scan_grads<Data, State> grads_of(const polystate_selective_scan_grads& g) {
  return {.d_y = operand(g.d_y),
          .d_final_state = operand(g.d_final_state),
          .d_u = operand(g.d_u),
          .d_delta = operand(g.d_delta),
          .d_A = operand(g.d_A),
          .d_B = operand(g.d_B),
          .d_C = operand(g.d_C),
          .d_D = operand(g.d_D),
          .d_z = operand(g.d_z),
          .d_delta_bias = operand(g.d_delta_bias),
          .d_initial_state = operand(g.d_initial_state)};
}

template <class Data, class State>
selective_scan_step_args<Data, State> args_of(const polystate_selective_scan_step_args& a) {
  return {.u = operand(a.u),
          .delta = operand(a.delta),
          .A = operand(a.A),
          .B = operand(a.B),
          .C = operand(a.C),
          .D = operand(a.D),
          .z = operand(a.z),
          .delta_bias = operand(a.delta_bias),
          .read_indices = operand(a.read_indices),
          .write_indices = operand(a.write_indices),
          .state = operand(a.state),
          .y = operand(a.y),
          .intermediate_states = operand(a.intermediate_states),
          .delta_softplus = a.delta_softplus != 0};
}

/// f(of<Data>{}, of<State>{}) for the types built.
template <class F>
status visit_scan_types(const char* op, polystate_dtype data, polystate_dtype state, F&& f) {
  return visit_dtype<bfloat16>(op, "data", data, [&](auto d) {
    return visit_dtype<float, bfloat16>(op, "state", state, [&](auto s) { return f(d, s); });
  });
}

}  // namespace polystate::c_api
