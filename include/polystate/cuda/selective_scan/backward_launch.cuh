// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The passes of selective_scan's backward: states before each chunk, chunks from the last to the first, sums.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/selective_scan/backward.cuh>
#include <polystate/cuda/selective_scan/backward_sums.cuh>
#include <polystate/cuda/selective_scan/time_launch.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/selective_scan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// Which of backward.cuh's blocks runs.
enum class backward_block {
  wide,
  few_lanes,  ///< of a channel, for short sequences
  compact     ///< where the others take more shared memory than the device has
};

template <class Data>
struct backward_plan {
  backward_block block = backward_block::wide;
  bool compact_forward = false;     ///< the pass that leaves the checkpoints
  std::int64_t segment_tokens = 0;  ///< of a sequence in one launch, where sequences are not packed
  bool checkpointed = false;        ///< sequences of more than one chunk
  time_forward_params<Data> forward;
  backward_params<Data> backward;
  float* checkpoints = nullptr;
  float* BC_sums = nullptr;
};

/// Bytes that the tiles' sums of dB and dC may take; longer sequences are walked in segments.
inline constexpr std::int64_t BC_sums_bytes = std::int64_t{256} << 20;

/// Schedules of the backward, without memory.
template <class Data, class State>
backward_plan<Data> plan_backward(const selective_scan_args<Data, State>& args,
                                  const selective_scan_grads<Data, State>& grads, const device_limits& limits,
                                  bool batch_invariant) {
  using Wide = wide_backward<Data>;
  using Short = short_backward<Data>;
  using Compact = compact_backward<Data>;
  const int multiprocessors = limits.multiprocessors;
  backward_plan<Data> plan;
  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  const std::int64_t T = args.u.extent(1);
  const std::int64_t N = args.A.extent(1);
  const std::int64_t G = args.B.extent(2);
  const std::int64_t group_channels = G == 0 ? 0 : args.u.extent(2) / G;
  // Packed sequences by their mean length, which tells one sequence about the others.
  const std::int64_t length = !all.packed() || all.size() == 0 ? T : tiles_of(T, all.size());
  const bool is_short =
      length <= time_backward_short && N <= time_backward_short_N && !(all.packed() && batch_invariant);
  plan.block = is_short ? backward_block::few_lanes : backward_block::wide;
  if ((is_short ? Short::shared_bytes(Short::tile::channels, N) : Wide::shared_bytes(Wide::tile::channels, N)) >
      limits.shared_bytes) {
    plan.block = backward_block::compact;
  }
  const auto of_block = [&](std::int64_t wide, std::int64_t few_lanes, std::int64_t compact) {
    return plan.block == backward_block::wide ? wide : plan.block == backward_block::few_lanes ? few_lanes : compact;
  };
  const std::int64_t pass_channels = of_block(Wide::tile::channels, Short::tile::channels, Compact::tile::channels);
  const std::int64_t chunk = of_block(Wide::tile::tokens, Short::tile::tokens, Compact::tile::tokens);

  const operand_access moves =
      choose_access(args, args.u, args.delta, args.z, grads.d_y, grads.d_u, grads.d_delta, grads.d_z);
  // Twice the channels a tile halve the sums of dB and dC, where enough tiles are left.
  const std::int64_t tiles = (batch_invariant ? 1 : all.size()) * G * tiles_of(group_channels, 2 * pass_channels);
  const bool has_room = of_block(static_cast<std::int64_t>(Wide::shared_bytes(2 * pass_channels, N)),
                                 static_cast<std::int64_t>(Short::shared_bytes(2 * pass_channels, N)),
                                 static_cast<std::int64_t>(Compact::shared_bytes(2 * pass_channels, N))) <=
                        static_cast<std::int64_t>(limits.shared_bytes);
  const int passes = N <= Wide::operands::states && tiles >= 2 * multiprocessors && has_room ? 2 : 1;
  time_schedule s =
      choose_time_schedule(args, moves, passes * pass_channels, chunk, multiprocessors, batch_invariant, false);
  const bool wants_BC = grads.d_B || grads.d_C;
  plan.segment_tokens = T;
  if (!all.packed() && wants_BC && T > 0) {
    const std::int64_t token_bytes =
        args.u.extent(0) * G * s.group_tiles * N * 2 * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t most = BC_sums_bytes / (token_bytes > 0 ? token_bytes : 1) / chunk * chunk;
    plan.segment_tokens = (std::min)(T, (std::max)(most, chunk));
  }
  plan.checkpointed = T > chunk;

  plan.backward = {.u = args.u,
                   .delta = args.delta,
                   .z = args.z,
                   .d_y = grads.d_y,
                   .d_u = grads.d_u,
                   .d_delta = grads.d_delta,
                   .d_z = grads.d_z,
                   .B = args.B,
                   .C = args.C,
                   .A = args.A,
                   .D = args.D,
                   .delta_bias = args.delta_bias,
                   .initial_state = any_element_view<3>(args.initial_state),
                   .d_final_state = any_element_view<3>(grads.d_final_state),
                   .all = all,
                   .delta_softplus = args.delta_softplus,
                   .schedule = s,
                   .passes = passes};
  using Forward = wide_time_forward<Data>;
  using CompactForward = compact_time_forward<Data>;
  plan.compact_forward = Forward::shared_bytes(N) > limits.shared_bytes;
  const operand_access inputs = choose_access(args, args.u, args.delta);
  plan.forward = time_params(
      args, plan.compact_forward ? choose_time_forward<CompactForward>(args, inputs, multiprocessors, batch_invariant)
                                 : choose_time_forward<Forward>(args, inputs, multiprocessors, batch_invariant));
  plan.forward.C = {};  // states alone
  plan.forward.schedule.checkpoint_tokens = chunk;
  const int steps = plan.compact_forward ? CompactForward::steps : Forward::steps;
  while (chunk > steps << plan.forward.checkpoint_shift) ++plan.forward.checkpoint_shift;
  return plan;
}

/// Hands out the plan's memory.
template <class Data>
void carve_backward(workspace_carver& from, backward_plan<Data>& plan, bool wants_BC) {
  backward_params<Data>& b = plan.backward;
  const std::int64_t D = b.u.extent(2);
  const std::int64_t N = b.A.extent(1);
  const std::int64_t rows = b.all.size();
  b.passing = carve_handoff(from, b.schedule);
  b.records = {.dh = from.take<float>(rows * D * N),
               .dA = from.take<float>(rows * D * N),
               .sums = from.take<float>(rows * D * 2)};
  if (wants_BC) {
    b.BC_sums = from.take<float>(b.u.extent(0) * b.B.extent(2) * b.schedule.group_tiles * N * 2 * plan.segment_tokens);
  }
  if (plan.checkpointed) {
    carve_forward(from, plan.forward);
    const std::int64_t T = b.u.extent(1);
    const std::int64_t chunk = b.schedule.chunk_tokens;
    const std::int64_t count = b.schedule.packed ? rows + T / chunk : rows * tiles_of(T, chunk);
    plan.checkpoints = from.take<float>(count * D * N);
  }
}

template <class Data>
POLYSTATE_HIDDEN status launch_block(const char* name, const on_cuda& exec, backward_block block,
                                     const backward_params<Data>& p) {
  if (block == backward_block::compact) return launch_backward<compact_backward<Data>>(name, exec, p);
  return block == backward_block::wide ? launch_backward<wide_backward<Data>>(name, exec, p)
                                       : launch_backward<short_backward<Data>>(name, exec, p);
}

/// Refuses an N that the device's shared memory has no room for.
template <class Data>
status check_backward_fits(const char* name, std::int64_t N, const device_limits& limits) {
  return check_shared_memory(name, "A", "N = " + std::to_string(N),
                             (std::max)(compact_backward<Data>::shared_bytes(compact_backward<Data>::tile::channels, N),
                                        compact_time_forward<Data>::shared_bytes(N)),
                             limits.shared_bytes);
}

template <class Data, class State>
[[nodiscard]] std::size_t backward_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                                         const selective_scan_grads<Data, State>& grads) {
  backward_plan<Data> plan = plan_backward(args, grads, limits_of(exec), exec.batch_invariant);
  workspace_carver count;
  carve_backward(count, plan, grads.d_B || grads.d_C);
  return count.bytes();
}

template <class Data, class State>
POLYSTATE_HIDDEN status run_backward(const char* name, const on_cuda& exec,
                                     const selective_scan_args<Data, State>& args,
                                     const selective_scan_grads<Data, State>& grads) {
  backward_plan<Data> plan = plan_backward(args, grads, limits_of(exec), exec.batch_invariant);
  const bool wants_BC = grads.d_B || grads.d_C;
  const scratch memory(name, exec, backward_bytes(exec, args, grads));
  if (!memory.result().ok()) return memory.result();
  workspace_carver from(memory.data());
  carve_backward(from, plan, wants_BC);

  status s;
  backward_params<Data>& b = plan.backward;
  if (plan.checkpointed) {
    plan.forward.checkpoints = plan.checkpoints;
    b.checkpoints = plan.checkpoints;
    s = plan.compact_forward ? run_time_forward<compact_time_forward<Data>, false>(name, exec, plan.forward)
                             : run_time_forward<wide_time_forward<Data>, false>(name, exec, plan.forward);
  }
  const std::int64_t T = args.u.extent(1);
  const std::int64_t segments = T == 0 ? 1 : tiles_of(T, plan.segment_tokens);
  for (std::int64_t i = segments - 1; i >= 0 && s.ok(); --i) {
    b.segment_begin = i * plan.segment_tokens;
    b.segment_end = (std::min)(T, b.segment_begin + plan.segment_tokens);
    b.continues = i + 1 < segments;
    if (!b.schedule.packed) b.schedule.chunks = tiles_of(b.segment_end - b.segment_begin, b.schedule.chunk_tokens);
    s = clear_handoff(name, exec, b.passing, b.schedule);
    if (s.ok()) {
      s = launch_block(name, exec, plan.block, b);
    }
    if (s.ok() && wants_BC) {
      s = launch_BC_sum<Data>(name, exec,
                              {.d_B = grads.d_B,
                               .d_C = grads.d_C,
                               .sums = b.BC_sums,
                               .B = args.u.extent(0),
                               .G = args.B.extent(2),
                               .tiles = b.schedule.group_tiles,
                               .N = args.A.extent(1),
                               .segment_begin = b.segment_begin,
                               .segment_end = b.segment_end});
    }
  }
  if (!s.ok()) return s;
  return launch_record_sum(name, exec,
                           {.records = b.records,
                            .d_initial_state = any_element_view<3>(grads.d_initial_state),
                            .d_A = grads.d_A,
                            .d_D = grads.d_D,
                            .d_delta_bias = grads.d_delta_bias,
                            .rows = b.all.size(),
                            .D = args.u.extent(2),
                            .N = args.A.extent(1)});
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
