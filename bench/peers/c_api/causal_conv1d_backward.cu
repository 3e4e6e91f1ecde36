// SPDX-License-Identifier: Apache-2.0

#include "causal_conv1d_args.cuh"

#include <polystate/cuda/causal_conv1d.cuh>

namespace c_api = polystate::c_api;

int polystate_causal_conv1d_backward(const polystate_exec* exec, const polystate_causal_conv1d_args* args,
                                     const polystate_causal_conv1d_grads* grads) {
  return c_api::report([&] {
    return c_api::visit_dtype<polystate::bfloat16>(
        "causal_conv1d_backward", "data", args->data, [&]<class Data>(c_api::of<Data>) {
          return polystate::try_causal_conv1d_backward(c_api::policy(*exec), c_api::args_of<Data>(*args),
                                                       c_api::grads_of<Data>(*grads));
        });
  });
}

int polystate_causal_conv1d_backward_workspace_bytes(const polystate_exec* exec,
                                                     const polystate_causal_conv1d_args* args,
                                                     const polystate_causal_conv1d_grads* grads, size_t* bytes) {
  return c_api::report([&] {
    return c_api::visit_dtype<polystate::bfloat16>(
        "causal_conv1d_backward", "data", args->data, [&]<class Data>(c_api::of<Data>) {
          *bytes = polystate::workspace_bytes(c_api::policy(*exec), c_api::args_of<Data>(*args),
                                              c_api::grads_of<Data>(*grads));
          return polystate::status{};
        });
  });
}
