// SPDX-License-Identifier: Apache-2.0

#include "selective_scan_args.cuh"

#include <polystate/cuda/selective_scan.cuh>

namespace c_api = polystate::c_api;

int polystate_selective_scan(const polystate_exec* exec, const polystate_selective_scan_args* args) {
  return c_api::report([&] {
    return c_api::visit_scan_types(
        "selective_scan", args->data, args->state, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          return polystate::try_selective_scan(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
        });
  });
}

int polystate_selective_scan_workspace_bytes(const polystate_exec* exec, const polystate_selective_scan_args* args,
                                             size_t* bytes) {
  return c_api::report([&] {
    return c_api::visit_scan_types(
        "selective_scan", args->data, args->state, [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
          *bytes = polystate::workspace_bytes(c_api::policy(*exec), c_api::args_of<Data, State>(*args));
          return polystate::status{};
        });
  });
}

int polystate_selective_scan_step(const polystate_exec* exec, const polystate_selective_scan_step_args* args) {
  return c_api::report([&] {
    return c_api::visit_scan_types("selective_scan_step", args->data, args->state_type,
                                   [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
                                     return polystate::try_selective_scan_step(c_api::policy(*exec),
                                                                               c_api::args_of<Data, State>(*args));
                                   });
  });
}
