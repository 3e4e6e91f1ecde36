// SPDX-License-Identifier: Apache-2.0

#include "gated_delta_rule_args.cuh"

#include <polystate/cuda/gated_delta_rule.cuh>

namespace c_api = polystate::c_api;

int polystate_gated_delta_rule_backward(const polystate_exec* exec, const polystate_gated_delta_rule_args* args,
                                        const polystate_gated_delta_rule_grads* grads) {
  return c_api::report([&] {
    return c_api::visit_delta_types<float>(
        "gated_delta_rule_backward", args->data, args->state, args->q, args->v,
        [&]<class Data, class State, class Dims>(c_api::of<Data>, c_api::of<State>, c_api::of<Dims>) {
          return polystate::try_gated_delta_rule_backward<Dims>(
              c_api::policy(*exec), c_api::args_of<Data, State>(*args), c_api::grads_of<Data, State>(*grads));
        });
  });
}

int polystate_gated_delta_rule_backward_workspace_bytes(const polystate_exec* exec,
                                                        const polystate_gated_delta_rule_args* args,
                                                        const polystate_gated_delta_rule_grads* grads, size_t* bytes) {
  return c_api::report([&] {
    return c_api::visit_delta_types<float>(
        "gated_delta_rule_backward", args->data, args->state, args->q, args->v,
        [&]<class Data, class State, class Dims>(c_api::of<Data>, c_api::of<State>, c_api::of<Dims>) {
          *bytes = polystate::workspace_bytes(c_api::policy(*exec), c_api::args_of<Data, State>(*args),
                                              c_api::grads_of<Data, State>(*grads));
          return polystate::status{};
        });
  });
}
