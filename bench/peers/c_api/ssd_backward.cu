// SPDX-License-Identifier: Apache-2.0

#include "ssd_args.cuh"

#include <polystate/cuda/ssd.cuh>

namespace c_api = polystate::c_api;

int polystate_ssd_backward(const polystate_exec* exec, const polystate_ssd_args* args,
                           const polystate_ssd_grads* grads) {
  return c_api::report([&] {
    return c_api::visit_ssd_types<float>(
        "ssd_backward", args->data, args->state, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          return polystate::try_ssd_backward(c_api::policy(*exec), c_api::args_of<Data, State>(*args),
                                             c_api::grads_of<Data, State>(*grads));
        });
  });
}

int polystate_ssd_backward_workspace_bytes(const polystate_exec* exec, const polystate_ssd_args* args,
                                           const polystate_ssd_grads* grads, size_t* bytes) {
  return c_api::report([&] {
    return c_api::visit_ssd_types<float>(
        "ssd_backward", args->data, args->state, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          *bytes = polystate::workspace_bytes(c_api::policy(*exec), c_api::args_of<Data, State>(*args),
                                              c_api::grads_of<Data, State>(*grads));
          return polystate::status{};
        });
  });
}
