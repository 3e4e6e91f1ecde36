// SPDX-License-Identifier: Apache-2.0

#include "selective_scan_args.cuh"

#include <polystate/cuda/selective_scan.cuh>

namespace c_api = polystate::c_api;

int polystate_selective_scan_backward(const polystate_exec* exec, const polystate_selective_scan_args* args,
                                      const polystate_selective_scan_grads* grads) {
  return c_api::report([&] {
    return c_api::visit_scan_types("selective_scan_backward", args->data, args->state,
                                   [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
                                     return polystate::try_selective_scan_backward(
                                         c_api::policy(*exec), c_api::args_of<Data, State>(*args),
                                         c_api::grads_of<Data, State>(*grads));
                                   });
  });
}

int polystate_selective_scan_backward_workspace_bytes(const polystate_exec* exec,
                                                      const polystate_selective_scan_args* args,
                                                      const polystate_selective_scan_grads* grads, size_t* bytes) {
  return c_api::report([&] {
    return c_api::visit_scan_types("selective_scan_backward", args->data, args->state,
                                   [&]<class Data, class State>(c_api::of<Data>, c_api::of<State>) {
                                     *bytes = polystate::workspace_bytes(c_api::policy(*exec),
                                                                         c_api::args_of<Data, State>(*args),
                                                                         c_api::grads_of<Data, State>(*grads));
                                     return polystate::status{};
                                   });
  });
}
