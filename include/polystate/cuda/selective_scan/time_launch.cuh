// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The forward passes whose lanes lie along time: scratch memory, and the kernels in their order.

#include <polystate/cuda/error.cuh>
#include <polystate/cuda/selective_scan/join.cuh>
#include <polystate/cuda/selective_scan/time_forward.cuh>
#include <polystate/cuda/selective_scan/time_policy.hpp>
#include <polystate/cuda/workspace.cuh>
#include <polystate/selective_scan.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

template <class Shape, class Data, class State>
[[nodiscard]] time_schedule choose_time_forward(const selective_scan_args<Data, State>& args,
                                                const operand_access& moves, int multiprocessors,
                                                bool batch_invariant) {
  return choose_time_schedule(args, moves, Shape::tile::channels, Shape::tile::tokens, multiprocessors, batch_invariant,
                              true);
}

template <class Data, class State>
[[nodiscard]] time_forward_params<Data> time_params(const selective_scan_args<Data, State>& args,
                                                    const time_schedule& schedule) {
  return {.u = args.u,
          .delta = args.delta,
          .z = args.z,
          .y = args.y,
          .B = args.B,
          .C = args.C,
          .A = args.A,
          .D = args.D,
          .delta_bias = args.delta_bias,
          .initial_state = any_element_view<3>(args.initial_state),
          .final_state = any_element_view<3>(args.final_state),
          .all = sequences(args.u.extent(0), args.u.extent(1), args.cu_seqlens),
          .delta_softplus = args.delta_softplus,
          .schedule = schedule};
}

/// Flags of a stream of tiles: to be cleared before each launch.
inline handoff carve_handoff(workspace_carver& from, const time_schedule& s) {
  if (s.how != cut::stream) return {};
  int* const flags = from.take<int>(s.tiles + 1);
  return {flags, flags == nullptr ? nullptr : flags + 1};
}
inline status clear_handoff(const char* name, const on_cuda& exec, const handoff& flags, const time_schedule& s) {
  if (s.how != cut::stream) return {};
  return runtime_status(
      name, "flags",
      cudaMemsetAsync(flags.started, 0, static_cast<std::size_t>(s.tiles + 1) * sizeof(int), exec.stream));
}

/// The memory that a forward pass hands states through; fills in the parameters' pointers.
template <class Data>
void carve_forward(workspace_carver& from, time_forward_params<Data>& p) {
  const std::int64_t channels = p.all.size() * p.u.extent(2);
  p.passing = carve_handoff(from, p.schedule);
  if (p.schedule.how == cut::stream) p.records = from.take<float>(channels * p.A.extent(1));
  if (p.schedule.how == cut::split) {
    p.piece_states = from.take<float>(p.schedule.pieces * channels * p.A.extent(1));
    p.piece_lengths = from.take<float>(p.schedule.pieces * channels);
  }
}

/// Enqueues a forward pass: the outputs, or the checkpoints.
template <class Shape, bool Outputs>
POLYSTATE_HIDDEN status run_time_forward(const char* name, const on_cuda& exec,
                                         time_forward_params<typename Shape::data> p) {
  status s = clear_handoff(name, exec, p.passing, p.schedule);
  if (s.ok() && p.schedule.how == cut::split) {
    auto first = p;
    --first.schedule.pieces;  // what comes after the last one is not asked
    first.schedule.blocks = first.schedule.tiles * first.schedule.pieces;
    first.checkpoints = nullptr;
    s = launch_time_forward<Shape, false>(name, exec, first);
    if (s.ok()) {
      s = launch_join(name, exec,
                      {.A = p.A,
                       .states = p.piece_states,
                       .lengths = p.piece_lengths,
                       .pieces = p.schedule.pieces,
                       .rows = p.all.size()});
    }
    p.joined = true;
  }
  return s.ok() ? launch_time_forward<Shape, Outputs>(name, exec, p) : s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
