// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernels of causal_conv1d. One thread owns a channel, or a vector of them, of a batch row: nobody else
/// reads or writes its part of the state, so the update in place needs no ordering between threads.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

template <class Data>
struct step_params {
  causal_conv1d_step_args<Data> op;
  state_pool pool;
  vector_rows<Data, 3> state;
  vector_rows<Data, 4> intermediate_states;
  step_schedule schedule;
};

template <class Data>
step_params<Data> make_params(const causal_conv1d_step_args<Data>& args) {
  return {.op = args,
          .pool = state_pool(args.state.extent(0), args.read_indices, args.write_indices),
          .state = vector_rows(args.state),
          .intermediate_states = vector_rows(args.intermediate_states),
          .schedule = choose_schedule(args)};
}

/// The batch row and the first of the `channels` channels of this thread, and the block's first channel.
struct step_position {
  std::int64_t b;
  std::int64_t d;
  std::int64_t block_d;
  int lane;
};

__device__ inline step_position position_of_thread(const step_schedule& s, int channels) {
  const auto channel_tiles = static_cast<unsigned>(s.channel_tiles);
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int rows = tiles::threads / s.lanes;
  const std::int64_t block_d = static_cast<std::int64_t>(blockIdx.x % channel_tiles) * (s.lanes * channels);
  const std::int64_t b =
      static_cast<std::int64_t>(blockIdx.x / channel_tiles) * rows + static_cast<int>(threadIdx.x) / s.lanes;
  return {b, block_d + lane * channels, block_d, lane};
}

/// Any width, any strides: rows are read where they lie.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_general_step_kernel(const __grid_constant__ step_params<Data> p) {
  const auto& op = p.op;
  const auto [b, d, block_d, lane] = position_of_thread(p.schedule, 1);
  if (b >= op.x.extent(0) || d >= op.x.extent(2)) return;
  const std::int64_t T = op.x.extent(1);
  const std::int64_t history = op.weight.extent(1) - 1;
  if (p.pool.padding(b)) {
    for (std::int64_t t = 0; t < T; ++t) op.y(b, t, d) = static_cast<Data>(0.0f);
    return;
  }
  const std::int64_t source = p.pool.read(b);
  const std::int64_t target = p.pool.write(b);
  // Row i of the state followed by the new tokens.
  const auto row = [&, b = b, d = d](std::int64_t i) {
    return i < history ? op.state(source, i, d) : op.x(b, i - history, d);
  };
  for (std::int64_t t = 0; t < T; ++t) {
    float a[1];
    convolve(op.weight, op.bias, d, a, [&](std::int64_t k) { return row(t + k); });
    op.y(b, t, d) = static_cast<Data>(activate<Data>(a[0], op.act));
    if (!p.intermediate_states.given()) continue;
    for (std::int64_t r = 0; r < history; ++r) op.intermediate_states(b, t, r, d) = row(t + 1 + r);
  }
  // In place a row moves to an earlier one, so upwards.
  for (std::int64_t r = 0; r < history; ++r) op.state(target, r, d) = row(T + r);
}

/// Channels contiguous in x and y: the window stays in registers.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_step_kernel(const __grid_constant__ step_params<Data> p) {
  constexpr int V = vector_elements<Data>;
  __shared__ staged_taps<W, V> staged;
  const auto& op = p.op;
  const auto [b, d, block_d, lane] = position_of_thread(p.schedule, V);
  staged.fill(op.weight, op.bias, block_d, p.schedule.lanes * V);
  if (b >= op.x.extent(0) || d >= op.x.extent(2)) return;

  const std::int64_t T = op.x.extent(1);
  if (p.pool.padding(b)) {
    for (std::int64_t t = 0; t < T; ++t) store_vector(&op.y(b, t, d), vector<Data>{});
    return;
  }
  const std::int64_t source = p.pool.read(b);
  const std::int64_t target = p.pool.write(b);
  vector<Data> rows[W];
#pragma unroll
  for (int r = 0; r < W - 1; ++r) rows[r] = p.state.load(source, r, d);
  const channel_taps<W, V> taps(staged, lane * V);
  for (std::int64_t t = 0; t < T; ++t) {
    rows[W - 1] = load_vector_read_only(&op.x(b, t, d));
    store_vector(&op.y(b, t, d), taps.convolve(rows, op.act));
#pragma unroll
    for (int r = 0; r < W - 1; ++r) {
      rows[r] = rows[r + 1];
      if (p.intermediate_states.given()) p.intermediate_states.store(rows[r], b, t, r, d);
    }
  }
#pragma unroll
  for (int r = 0; r < W - 1; ++r) p.state.store(rows[r], target, r, d);
}

template <class Widths = causal_conv1d_fast_widths, class Data>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, const step_params<Data>& p) {
  const grid g{.blocks = p.schedule.blocks, .threads = tiles::threads};
  if (!p.schedule.vectors) return launch(name, exec, g, causal_conv1d_general_step_kernel<Data>, p);
  return dispatch_width<Widths>(name, p.op.weight.extent(1), [&](auto width) {
    return launch(name, exec, g, causal_conv1d_step_kernel<Data, width>, p);
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
