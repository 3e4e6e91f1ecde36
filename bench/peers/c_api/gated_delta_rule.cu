// SPDX-License-Identifier: Apache-2.0

#include "gated_delta_rule_args.cuh"

#include <polystate/cuda/gated_delta_rule.cuh>

namespace c_api = polystate::c_api;

int polystate_gated_delta_rule(const polystate_exec* exec, const polystate_gated_delta_rule_args* args) {
  return c_api::report([&] {
    return c_api::visit_delta_types<float>(
        "gated_delta_rule", args->data, args->state, args->q, args->v,
        [&]<class Data, class State, class Dims>(c_api::of<Data>, c_api::of<State>, c_api::of<Dims>) {
          return polystate::try_gated_delta_rule<Dims>(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
        });
  });
}

int polystate_gated_delta_rule_step(const polystate_exec* exec, const polystate_gated_delta_rule_step_args* args) {
  return c_api::report([&] {
    return c_api::visit_delta_types<float, polystate::bfloat16>(
        "gated_delta_rule_step", args->data, args->state_type, args->q, args->v,
        [&]<class Data, class State, class Dims>(c_api::of<Data>, c_api::of<State>, c_api::of<Dims>) {
          return polystate::try_gated_delta_rule_step<Dims>(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
        });
  });
}
