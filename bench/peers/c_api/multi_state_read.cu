// SPDX-License-Identifier: Apache-2.0

#include "multi_state_args.cuh"

#include <polystate/cuda/multi_state.cuh>

namespace c_api = polystate::c_api;

namespace {

template <class F>
polystate::status visit(const polystate_multi_state_read_args& args, F&& f) {
  using data = polystate::bfloat16;
  using state = polystate::bfloat16;
  using merlin = polystate::router::merlin<data>;
  using top_k = polystate::router::top_k<merlin>;
  return c_api::visit_bank_types<data, state>("multi_state_read", args.data, args.state_type, args.q, args.o,
                                              [&](auto head_dims) {
                                                if (args.top_k != 0)
                                                  return f(head_dims, c_api::args_of<data, state, top_k>(args));
                                                return f(head_dims, c_api::args_of<data, state, merlin>(args));
                                              });
}

}  // namespace

int polystate_multi_state_read(const polystate_exec* exec, const polystate_multi_state_read_args* args) {
  return c_api::report([&] {
    return visit(*args, [&]<class Dims>(c_api::of<Dims>, const auto& a) {
      return polystate::try_multi_state_read<Dims>(c_api::policy(*exec), a);
    });
  });
}

int polystate_multi_state_read_workspace_bytes(const polystate_exec* exec, const polystate_multi_state_read_args* args,
                                               size_t* bytes) {
  return c_api::report([&] {
    return visit(*args, [&]<class Dims>(c_api::of<Dims>, const auto& a) {
      *bytes = polystate::workspace_bytes<Dims>(c_api::policy(*exec), a);
      return polystate::status{};
    });
  });
}
