// SPDX-License-Identifier: Apache-2.0

#include "ssd_args.cuh"

#include <polystate/cuda/ssd.cuh>

namespace c_api = polystate::c_api;

int polystate_ssd(const polystate_exec* exec, const polystate_ssd_args* args) {
  return c_api::report([&] {
    return c_api::visit_ssd_types<float>(
        "ssd", args->data, args->state, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          return polystate::try_ssd(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
        });
  });
}

int polystate_ssd_step(const polystate_exec* exec, const polystate_ssd_step_args* args) {
  return c_api::report([&] {
    return c_api::visit_ssd_types<float, polystate::bfloat16>(
        "ssd_step", args->data, args->state_type, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          return polystate::try_ssd_step(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
        });
  });
}
