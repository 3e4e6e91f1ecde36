// SPDX-License-Identifier: Apache-2.0

#include "multi_state_args.cuh"

#include <polystate/cuda/multi_state.cuh>

namespace c_api = polystate::c_api;

namespace {

constexpr const char* name = "multi_state";

template <class F>
polystate::status visit(const polystate_multi_state_args& args, F&& f) {
  return c_api::visit_dtype<polystate::bfloat16>(name, "data", args.data, [&](auto data) {
    return c_api::visit_dims<polystate::dims<128, 128>, polystate::dims<256, 512>>(
        name, args.q, args.v, [&](auto head_dims) { return f(data, head_dims); });
  });
}

}  // namespace

int polystate_multi_state(const polystate_exec* exec, const polystate_multi_state_args* args) {
  return c_api::report([&] {
    return visit(*args, [&]<class Data, class Dims>(c_api::of<Data>, c_api::of<Dims>) {
      return polystate::try_multi_state<Dims>(c_api::policy(*exec), c_api::args_of<Data>(*args));
    });
  });
}

int polystate_multi_state_workspace_bytes(const polystate_exec* exec, const polystate_multi_state_args* args,
                                          size_t* bytes) {
  return c_api::report([&] {
    return visit(*args, [&]<class Data, class Dims>(c_api::of<Data>, c_api::of<Dims>) {
      *bytes = polystate::workspace_bytes<Dims>(c_api::policy(*exec), c_api::args_of<Data>(*args));
      return polystate::status{};
    });
  });
}
