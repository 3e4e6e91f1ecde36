// SPDX-License-Identifier: Apache-2.0
#pragma once

// causal_conv1d's C structs as args.

#include "convert.cuh"

#include <polystate/causal_conv1d.hpp>

namespace polystate::c_api {

inline activation activation_of(polystate_activation act) {
  return act == POLYSTATE_SILU ? activation::silu : activation::none;
}

template <class Data>
causal_conv1d_args<Data> args_of(const polystate_causal_conv1d_args& a) {
  return {.x = operand(a.x),
          .weight = operand(a.weight),
          .bias = operand(a.bias),
          .initial_state = operand(a.initial_state),
          .cu_seqlens = operand(a.cu_seqlens),
          .y = operand(a.y),
          .final_state = operand(a.final_state),
          .act = activation_of(a.act)};
}

template <class Data>
causal_conv1d_grads<Data> grads_of(const polystate_causal_conv1d_grads& g) {
  return {.d_y = operand(g.d_y),
          .d_final_state = operand(g.d_final_state),
          .d_x = operand(g.d_x),
          .d_weight = operand(g.d_weight),
          .d_bias = operand(g.d_bias),
          .d_initial_state = operand(g.d_initial_state)};
}

template <class Data>
causal_conv1d_step_args<Data> args_of(const polystate_causal_conv1d_step_args& a) {
  return {.x = operand(a.x),
          .weight = operand(a.weight),
          .bias = operand(a.bias),
          .read_indices = operand(a.read_indices),
          .write_indices = operand(a.write_indices),
          .state = operand(a.state),
          .y = operand(a.y),
          .intermediate_states = operand(a.intermediate_states),
          .act = activation_of(a.act)};
}

}  // namespace polystate::c_api
