// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernels of causal_conv1d: two layouts in 16-byte accesses, any strides and widths, and the final
/// states.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/causal_conv1d/tile.cuh>
#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

template <class Data>
struct forward_params {
  causal_conv1d_args<Data> op;
  sequences all;
  vector_rows<const Data, 3> initial_state;
  forward_schedule schedule;
};

template <class Data>
forward_params<Data> make_params(const causal_conv1d_args<Data>& args, int multiprocessors) {
  return {.op = args,
          .all = sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens),
          .initial_state = vector_rows(args.initial_state),
          .schedule = choose_schedule(args, multiprocessors)};
}

/// y of N tokens from t on, all in the sequence `in`.
template <int N, class Data>
__device__ void convolve_tokens(const causal_conv1d_args<Data>& op, const token_sequence& in, std::int64_t batch,
                                std::int64_t t, std::int64_t d) {
  float a[N];
  const std::int64_t oldest = t - (op.weight.extent(1) - 1);
  convolve(op.weight, op.bias, d, a, [&](std::int64_t k) { return input_element(op, in, batch, oldest + k, d); });
#pragma unroll
  for (int i = 0; i < N; ++i) op.y(batch, t + i, d) = static_cast<Data>(activate<Data>(a[i], op.act));
}

/// Any width, any strides.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_general_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  constexpr int run = tiles::general_run;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const tile_origin tile = origin_of_block(s);
  const auto [first, d] = origin_of_run(s, tile);
  const std::int64_t T = p.all.end();
  if (d >= op.x.extent(2) || first >= T) return;

  token_sequence in = sequence_around(p.all, tile.batch, first);
  if (first + run <= in.end) {
    convolve_tokens<run>(op, in, tile.batch, first, d);
    return;
  }
  for (std::int64_t t = first; t < first + run && t < T; ++t) {
    if (t >= in.end) in = sequence_around(p.all, tile.batch, t);
    convolve_tokens<1>(op, in, tile.batch, t, d);
  }
}

/// Channels contiguous: a thread owns a vector of channels; the W-1 rows before the current token stay in registers
/// while it walks along time.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads, tiles::channel_last_blocks)
    causal_conv1d_channel_last_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  constexpr int C = vector_elements<Data>;
  constexpr int ahead = tiles::rows_ahead;
  using row = vector<Data, C>;
  __shared__ staged_taps<W, C> staged;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const tile_origin tile = origin_of_block(s);
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int group = static_cast<int>(threadIdx.x) / s.lanes;
  const std::int64_t d = tile.d + lane * C;
  const std::int64_t t0 = tile.t + group * s.run;
  const std::int64_t left = d < op.x.extent(2) ? p.all.end() - t0 : 0;
  // Tokens of this thread; one without any still helps to stage the taps.
  const int n = left < s.run ? (left < 0 ? 0 : static_cast<int>(left)) : s.run;
  const std::int64_t x_stride = op.x.stride(1);
  const std::int64_t y_stride = op.y.stride(1);
  const Data* x = &op.x(tile.batch, t0, d);
  Data* y = &op.y(tile.batch, t0, d);

  row coming[ahead];
#pragma unroll
  for (int i = 0; i < ahead; ++i) coming[i] = i < n ? load_vector_read_only<Data, C>(x + i * x_stride) : row{};
  row rows[W - 1 + ahead];  // the W-1 tokens before the next one, then those to convolve
  int end = 0;              // of the current sequence, or of the run
  const auto enter_sequence = [&](int at) {
    const token_sequence in = sequence_around(p.all, tile.batch, t0 + at);
    end = in.end - t0 < n ? static_cast<int>(in.end - t0) : n;
    load_rows_before<W, C>(op.x, p.initial_state, in, tile.batch, t0 + at, d, rows);
  };
  if (n > 0) enter_sequence(0);
  staged.fill(op.weight, op.bias, tile.d, s.lanes * C);
  const channel_taps<W, C> taps(staged, lane * C);

  for (int u = 0; u < n; u += ahead) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) rows[W - 1 + i] = coming[i];
    const Data* const current = x;
    x += ahead * x_stride;
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      coming[i] = u + ahead + i < n ? load_vector_read_only<Data, C>(x + i * x_stride) : row{};
    }
    if (u + ahead <= end) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) store_vector(y + i * y_stride, taps.template convolve<Data>(rows + i, op.act));
#pragma unroll
      for (int i = 0; i < W - 1; ++i) rows[i] = rows[ahead + i];
    } else {
      // A sequence ends among these tokens: one by one, each read once more, since registers have no index.
#pragma unroll 1
      for (int i = 0; i < ahead && u + i < n; ++i) {
        if (u + i >= end) enter_sequence(u + i);
        rows[W - 1] = load_vector_read_only<Data, C>(current + i * x_stride);
        store_vector(y + i * y_stride, taps.template convolve<Data>(rows, op.act));
#pragma unroll
        for (int k = 0; k < W - 1; ++k) rows[k] = rows[k + 1];
      }
    }
    y += ahead * y_stride;
  }
}

/// Time contiguous: the lanes of a row own a channel and walk along time in chunks of a vector each; the W-1 tokens
/// before a vector come from the lane before.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads, tiles::channel_first_blocks<Data>)
    causal_conv1d_channel_first_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  constexpr int V = vector_elements<Data>;
  constexpr int ahead = tiles::vectors_ahead;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const tile_origin tile = origin_of_block(s);
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const std::int64_t channel = tile.d + static_cast<int>(threadIdx.x) / s.lanes;
  const std::int64_t D = op.x.extent(2);
  // Lanes beyond the last channel take part in the exchange, and write nothing.
  const bool owned = channel < D;
  const std::int64_t d = owned ? channel : D - 1;
  const std::int64_t left = op.x.extent(1) - tile.t;
  const int n = left < s.run ? static_cast<int>(left) : s.run;
  const int chunk = s.lanes * V;
  const int first = lane * V;
  const std::int64_t t0 = tile.t + first;
  const Data* x = &op.x(tile.batch, t0, d);
  Data* y = &op.y(tile.batch, t0, d);

  vector<Data> coming[ahead];
#pragma unroll
  for (int k = 0; k < ahead; ++k) {
    coming[k] = first + k * chunk < n ? load_vector_read_only(x + k * chunk) : vector<Data>{};
  }
  vector<Data> previous = vector_before_run<W>(op, p.all, s.lanes, tile.batch, tile.t, d);
  float weight[W];
#pragma unroll
  for (int j = 0; j < W; ++j) weight[j] = op.weight(d, j);
  const float bias = op.bias.data() != nullptr ? op.bias(d) : 0.0f;
  unsigned split = owned ? split_vectors<W, Data>(p.all, tile.batch, t0, chunk, n - first) : 0;

  // Every lane runs as often as the first.
  for (int from = 0; from * chunk < n; from += ahead) {
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const int c = from + k;
      const int at = c * chunk;
      if (at >= n) break;
      const vector<Data> current = coming[k];
      const int next = at + ahead * chunk;
      coming[k] = first + next < n ? load_vector_read_only(x + next) : vector<Data>{};
      const vector<Data> before = vector_of_lane_before<W>(current, previous, lane, s.lanes);
      previous = current;
      if (!owned || first + at >= n || (split >> c & 1u) != 0) continue;
      float element[W - 1 + V];
      unpack_window<W>(before, current, element);
      float a[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        a[i] = bias;
#pragma unroll
        for (int j = 0; j < W; ++j) a[i] = fmaf(weight[j], element[i + j], a[i]);
      }
      store_vector(y + at, activated_vector<Data>(a, op.act));
    }
  }
  for (int c = 0; split != 0; ++c, split >>= 1) {
    if ((split & 1u) == 0) continue;
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const std::int64_t t = t0 + static_cast<std::int64_t>(c) * chunk + i;
      convolve_tokens<1>(op, sequence_around(p.all, tile.batch, t), tile.batch, t, d);
    }
  }
}

/// What is written at the ends: the last W-1 rows of every sequence's input, and zeros in the rows of no sequence.
template <class Data>
struct forward_ends_params {
  forward_params<Data> forward;
  clear_tail_params tail;
};

/// Runs after the kernels above, which read the initial states: final_state may be the same memory, then a row moves to
/// an earlier one, so each thread goes upwards.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_forward_ends_kernel(const __grid_constant__ forward_ends_params<Data> ends) {
  clear_tail(ends.tail, blockIdx.x, gridDim.x);
  const forward_params<Data>& p = ends.forward;
  const auto& op = p.op;
  const std::int64_t D = op.x.extent(2);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * tiles::threads + threadIdx.x;
  const std::int64_t row = i / D;
  const std::int64_t d = i % D;
  if (row >= p.all.size() || op.final_state.data() == nullptr) return;
  const token_range tokens = p.all[row];
  const std::int64_t history = op.weight.extent(1) - 1;
  for (std::int64_t r = 0; r < history; ++r) {
    const std::int64_t from = tokens.size() + r;  // row of the state, then of the sequence
    Data last = static_cast<Data>(0.0f);
    if (from >= history) {
      last = op.x(tokens.batch, tokens.begin + from - history, d);
    } else if (op.initial_state.data() != nullptr) {
      last = op.initial_state(row, from, d);
    }
    op.final_state(row, r, d) = last;
  }
}

/// Enqueues y.
template <class Widths = causal_conv1d_fast_widths, class Data>
POLYSTATE_HIDDEN status launch_forward(const char* name, const on_cuda& exec, const forward_params<Data>& p) {
  const grid g{.blocks = p.schedule.blocks, .threads = tiles::threads};
  if (p.schedule.kernel == kernel_kind::general) {
    return launch(name, exec, g, causal_conv1d_general_fwd_kernel<Data>, p);
  }
  const bool channel_last = p.schedule.kernel == kernel_kind::channel_last;
  return dispatch_width<Widths>(name, p.op.weight.extent(1), [&](auto width) {
    return launch(name, exec, g,
                  channel_last ? causal_conv1d_channel_last_fwd_kernel<Data, width>
                               : causal_conv1d_channel_first_fwd_kernel<Data, width>,
                  p);
  });
}

/// Enqueues final_state, and zeros in the rows of no sequence.
template <class Data>
POLYSTATE_HIDDEN status launch_forward_ends(const char* name, const on_cuda& exec, const forward_params<Data>& p) {
  const std::int64_t D = p.op.x.extent(2);
  const std::int64_t threads = p.op.final_state && p.op.final_state.size() > 0 ? p.all.size() * D : 0;
  const std::int64_t clearing = p.all.packed() && p.op.y.size() > 0 ? clear_tail_blocks : 0;
  forward_ends_params<Data> ends = {.forward = p, .tail = {.all = p.all, .rows = {}}};
  if (clearing > 0) ends.tail.rows.add(p.op.y);
  const grid g{.blocks = (std::max)(tiles_of(threads, tiles::threads), clearing), .threads = tiles::threads};
  return launch(name, exec, g, causal_conv1d_forward_ends_kernel<Data>, ends);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
