// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Backward kernels of causal_conv1d for any width and strides, and what every backward ends with: the rows that the
/// end of a sequence touches, and the sums over time.

#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/backward_params.cuh>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/causal_conv1d/tile.cuh>
#include <polystate/cuda/launch.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// d_x of N tokens from t on, all in the sequence `in`, but for what its final state hands back.
template <int N, class Data>
__device__ void hand_back_tokens(const backward_params<Data>& p, const token_sequence& in, std::int64_t batch,
                                 std::int64_t t, std::int64_t d) {
  const std::int64_t W = p.op.weight.extent(1);
  float sum[N] = {};
  float tap[N] = {};  // tap[i]: the weight under which the current token sees token i
  for (std::int64_t k = 0; k < W - 1 + N && t + k < in.end; ++k) {
#pragma unroll
    for (int i = N - 1; i > 0; --i) tap[i] = tap[i - 1];
    tap[0] = k < W ? p.op.weight(d, W - 1 - k) : 0.0f;
    const float da = gradient_of_sum(p, in, batch, t + k, d);
    // As in convolve(): no product with a zero.
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (k >= i && k - i < W) sum[i] = fmaf(tap[i], da, sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) p.grads.d_x(batch, t + i, d) = static_cast<Data>(sum[i]);
}

/// d_x, any width, any strides.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_general_bwd_kernel(const __grid_constant__ backward_params<Data> p) {
  constexpr int run = tiles::general_run;
  const auto& s = p.schedule.tiling;
  const tile_origin tile = origin_of_block(s);
  const run_origin at = origin_of_run(s, tile);
  const std::int64_t T = p.all.end();
  if (at.d >= p.op.x.extent(2) || at.t >= T) return;

  token_sequence in = sequence_around(p.all, tile.batch, at.t);
  if (at.t + run <= in.end) {
    hand_back_tokens<run>(p, in, tile.batch, at.t, at.d);
    return;
  }
  for (std::int64_t t = at.t; t < at.t + run && t < T; ++t) {
    if (t >= in.end) in = sequence_around(p.all, tile.batch, t);
    hand_back_tokens<1>(p, in, tile.batch, t, at.d);
  }
}

/// Partial sums of the weights' gradients, any width, any strides: a block sums a chunk of taps over its tiles.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_general_bwd_weight_kernel(const __grid_constant__ backward_params<Data> p) {
  constexpr int run = tiles::general_run;
  constexpr int chunk = tiles::tap_chunk;
  __shared__ float sums[chunk + 1][tiles::threads];  // the bias's last
  const auto& op = p.op;
  const auto& s = p.schedule;
  const std::int64_t T = p.all.end();
  const std::int64_t D = op.x.extent(2);
  const std::int64_t W = op.weight.extent(1);
  const auto channel_tiles = static_cast<unsigned>(s.tiling.channel_tiles);
  const auto chunks = static_cast<unsigned>(s.chunks);
  const std::int64_t tile_d = blockIdx.x % channel_tiles * s.tiling.block_channels;
  const std::int64_t first_tap = static_cast<std::int64_t>(blockIdx.x / channel_tiles % chunks) * chunk;
  const std::int64_t row = blockIdx.x / channel_tiles / chunks;

  float dw[chunk] = {};
  float dbias = 0.0f;
  for (std::int64_t task = row; task < s.tasks; task += s.rows) {
    const std::int64_t batch = task / s.tiling.time_tiles;
    const std::int64_t tile_t = task % s.tiling.time_tiles * s.tiling.block_tokens;
    const run_origin at = origin_of_run(s.tiling, {batch, tile_t, tile_d});
    if (at.d >= D) continue;
    token_sequence in{0, 0, 0};
    for (std::int64_t t = at.t; t < at.t + run && t < T; ++t) {
      if (t >= in.end) in = sequence_around(p.all, batch, t);
      const float da = gradient_of_sum(p, in, batch, t, at.d);
      dbias += da;
      const std::int64_t oldest = t - (W - 1) + first_tap;
#pragma unroll
      for (int j = 0; j < chunk; ++j) {
        if (first_tap + j < W) dw[j] = fmaf(da, input_element(op, in, batch, oldest + j, at.d), dw[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < chunk; ++j) sums[j][threadIdx.x] = dw[j];
  sums[chunk][threadIdx.x] = dbias;
  __syncthreads();

  const int channels = static_cast<int>(s.tiling.block_channels);
  const int peers = tiles::threads / channels;  // threads that share a channel
  const int channel_step = s.tiling.time_is_inner ? peers : 1;
  const int peer_step = s.tiling.time_is_inner ? 1 : channels;
  for (int i = static_cast<int>(threadIdx.x); i < (chunk + 1) * channels; i += tiles::threads) {
    const int j = i / channels;
    const int c = i % channels;
    const bool wanted = j < chunk ? first_tap + j < W : first_tap == 0;
    if (!wanted || tile_d + c >= D) continue;
    float sum = 0.0f;
    for (int peer = 0; peer < peers; ++peer) sum += sums[j][c * channel_step + peer * peer_step];
    partial_sum(p, row, j < chunk ? first_tap + j : W, tile_d + c) = sum;
  }
}

/// W-1 rows of a sequence's input, as wide as the state.
enum class end_rows {
  state,  ///< its initial state
  first,  ///< its first tokens
  last    ///< its last tokens
};

template <class Data>
struct ends_params {
  backward_params<Data> backward;
  end_rows which[3] = {};
  int count = 0;  ///< of them

  void add(end_rows rows) { which[count++] = rows; }
};

/// The gradients of rows at the ends of a sequence. The kernels before, behind which it runs, have written d_x of its
/// last W-1 tokens as if no final state and no other sequence followed, and that of its first ones perhaps as if the
/// sequence before were theirs.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_bwd_ends_kernel(const __grid_constant__ ends_params<Data> ends) {
  const auto& p = ends.backward;
  const std::int64_t D = p.op.x.extent(2);
  const std::int64_t history = p.op.weight.extent(1) - 1;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * tiles::threads + threadIdx.x;
  const std::int64_t d = i % D;
  const std::int64_t r = i / D % history;
  const end_rows which = ends.which[i / D / history % ends.count];
  const std::int64_t s = i / D / history / ends.count;
  if (s >= p.all.size()) return;
  const token_range tokens = p.all[s];
  const std::int64_t first_of_final_state = tokens.end - history;
  std::int64_t q = 0;  // the row, in x's tokens
  switch (which) {
    case end_rows::state:
      q = tokens.begin - history + r;
      break;
    case end_rows::first:
      q = tokens.begin + r;
      if (q >= first_of_final_state) return;  // one of the last
      break;
    case end_rows::last:
      q = first_of_final_state + r;
      if (q < tokens.begin) return;  // a row of the state
      break;
  }
  float sum = gradient_of_row(p, {s, tokens.begin, tokens.end}, tokens.batch, q, tokens.begin, tokens.end - 1, d);
  if (q >= first_of_final_state && p.grads.d_final_state.data() != nullptr) {
    sum += static_cast<float>(p.grads.d_final_state(s, q - first_of_final_state, d));
  }
  if (which == end_rows::state) {
    p.grads.d_initial_state(s, r, d) = static_cast<Data>(sum);
  } else {
    p.grads.d_x(tokens.batch, q, d) = static_cast<Data>(sum);
  }
}

/// The rows of partial sums, each column by a few warps in turns, and those together: always in the same order.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::sum_threads)
    causal_conv1d_bwd_sum_kernel(const __grid_constant__ backward_params<Data> p) {
  constexpr int warps = tiles::sum_threads / 32;
  constexpr int at_once = 4;
  __shared__ float sums[warps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t D = p.op.weight.extent(0);
  const std::int64_t W = p.op.weight.extent(1);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  const std::int64_t columns = (W + 1) * D;
  float part[at_once] = {};
  if (column < columns) {
    const float* from = p.partials + column;
    std::int64_t row = warp;
    for (; row + (at_once - 1) * warps < p.schedule.rows; row += at_once * warps) {
#pragma unroll
      for (int k = 0; k < at_once; ++k) part[k] += from[(row + k * warps) * columns];
    }
    for (; row < p.schedule.rows; row += warps) part[0] += from[row * columns];
  }
  sums[warp][lane] = (part[0] + part[1]) + (part[2] + part[3]);
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < warps; ++i) sum += sums[i][lane];
  const std::int64_t j = column / D;
  const std::int64_t d = column % D;
  if (j < W) {
    if (p.grads.d_weight.data() != nullptr) p.grads.d_weight(d, j) = sum;
  } else {
    if (p.grads.d_bias.data() != nullptr) p.grads.d_bias(d) = sum;
  }
}

/// Enqueues d_x of the general kernel.
template <class Data>
POLYSTATE_HIDDEN status launch_general_backward(const char* name, const on_cuda& exec, const backward_params<Data>& p) {
  status s;
  if (p.grads.d_x) {
    const grid tokens{.blocks = p.schedule.tiling.blocks, .threads = tiles::threads};
    s = launch(name, exec, tokens, causal_conv1d_general_bwd_kernel<Data>, p);
  }
  if (s.ok() && wants_sums(p.grads)) {
    const grid taps{.blocks = p.schedule.blocks, .threads = tiles::threads};
    s = launch(name, exec, taps, causal_conv1d_general_bwd_weight_kernel<Data>, p);
  }
  return s;
}

/// Enqueues d_initial_state, and d_x at the ends of the sequences, where those matter.
template <class Data>
POLYSTATE_HIDDEN status launch_backward_ends(const char* name, const on_cuda& exec, const backward_params<Data>& p) {
  const std::int64_t history = p.op.weight.extent(1) - 1;
  const bool packed = p.all.packed();
  ends_params<Data> ends{.backward = p};
  if (p.grads.d_initial_state) ends.add(end_rows::state);
  if (p.grads.d_x && packed) ends.add(end_rows::first);
  if (p.grads.d_x && (packed || p.grads.d_final_state)) ends.add(end_rows::last);
  const std::int64_t rows = p.all.size() * ends.count * history;
  const grid g{.blocks = tiles_of(rows * p.op.x.extent(2), tiles::threads), .threads = tiles::threads};
  return launch(name, exec, g, causal_conv1d_bwd_ends_kernel<Data>, ends);
}

/// Enqueues d_weight and d_bias.
template <class Data>
POLYSTATE_HIDDEN status launch_backward_sums(const char* name, const on_cuda& exec, const backward_params<Data>& p) {
  if (!wants_sums(p.grads)) return {};
  const std::int64_t columns = (p.op.weight.extent(1) + 1) * p.op.weight.extent(0);
  const grid g{.blocks = tiles_of(columns, 32), .threads = tiles::sum_threads};
  return launch(name, exec, g, causal_conv1d_bwd_sum_kernel<Data>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
