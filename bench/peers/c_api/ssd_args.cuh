// SPDX-License-Identifier: Apache-2.0
#pragma once

// ssd's C structs as args.

#include "convert.cuh"

#include <polystate/ssd.hpp>

namespace polystate::c_api {

template <class Data, class State>
ssd_args<Data, State> args_of(const polystate_ssd_args& a) {
  return {.x = operand(a.x),
          .dt = operand(a.dt),
          .A = operand(a.A),
          .B = operand(a.B),
          .C = operand(a.C),
          .D = operand(a.D),
          .z = operand(a.z),
          .dt_bias = operand(a.dt_bias),
          .initial_state = operand(a.initial_state),
          .cu_seqlens = operand(a.cu_seqlens),
          .y = operand(a.y),
          .final_state = operand(a.final_state),
          .dt_softplus = a.dt_softplus != 0};
}

template <class Data, class State>
ssd_grads<Data, State> grads_of(const polystate_ssd_grads& g) {
  return {.d_y = operand(g.d_y),
          .d_final_state = operand(g.d_final_state),
          .d_x = operand(g.d_x),
          .d_dt = operand(g.d_dt),
          .d_A = operand(g.d_A),
          .d_B = operand(g.d_B),
          .d_C = operand(g.d_C),
          .d_D = operand(g.d_D),
          .d_z = operand(g.d_z),
          .d_dt_bias = operand(g.d_dt_bias),
          .d_initial_state = operand(g.d_initial_state)};
}

template <class Data, class State>
ssd_step_args<Data, State> args_of(const polystate_ssd_step_args& a) {
  return {.x = operand(a.x),
          .dt = operand(a.dt),
          .A = operand(a.A),
          .B = operand(a.B),
          .C = operand(a.C),
          .D = operand(a.D),
          .z = operand(a.z),
          .dt_bias = operand(a.dt_bias),
          .read_indices = operand(a.read_indices),
          .write_indices = operand(a.write_indices),
          .state = operand(a.state),
          .y = operand(a.y),
          .intermediate_states = operand(a.intermediate_states),
          .dt_softplus = a.dt_softplus != 0};
}

/// f(of<Data>{}, of<State>{}) for the types, of states those listed, built.
template <class... States, class F>
status visit_ssd_types(const char* op, polystate_dtype data, polystate_dtype state, F&& f) {
  return visit_dtype<bfloat16>(op, "data", data, [&](auto d) {
    return visit_dtype<States...>(op, "state", state, [&](auto s) { return f(d, s); });
  });
}

}  // namespace polystate::c_api
