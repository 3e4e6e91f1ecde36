// SPDX-License-Identifier: Apache-2.0

#include "causal_conv1d_args.cuh"

#include <polystate/cuda/causal_conv1d.cuh>

namespace c_api = polystate::c_api;

int polystate_causal_conv1d(const polystate_exec* exec, const polystate_causal_conv1d_args* args) {
  return c_api::report([&] {
    return c_api::visit_dtype<polystate::bfloat16>(
        "causal_conv1d", "data", args->data, [&]<class Data>(c_api::of<Data>) {
          return polystate::try_causal_conv1d(c_api::policy(*exec), c_api::args_of<Data>(*args));
        });
  });
}

int polystate_causal_conv1d_step(const polystate_exec* exec, const polystate_causal_conv1d_step_args* args) {
  return c_api::report([&] {
    return c_api::visit_dtype<polystate::bfloat16>(
        "causal_conv1d_step", "data", args->data, [&]<class Data>(c_api::of<Data>) {
          return polystate::try_causal_conv1d_step(c_api::policy(*exec), c_api::args_of<Data>(*args));
        });
  });
}
