// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernels of causal_conv1d: two layouts in 16-byte accesses, any strides and widths, and the final
/// states.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::conv1d {

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

/// The sequence around a token.
struct token_sequence {
  std::int64_t row;    ///< its row of the states
  std::int64_t begin;  ///< at or before the token
  std::int64_t end;    ///< after the token
};

/// begin <= t < end holds whatever cu_seqlens contains, so no tap leaves the operands.
__device__ inline token_sequence sequence_around(const sequences& all, std::int64_t batch, std::int64_t t) {
  const std::int64_t row = all.packed() ? all.of_token(t) : batch;
  const token_range tokens = all[row];
  return {row, tokens.begin < t ? tokens.begin : t, tokens.end > t ? tokens.end : t + 1};
}

/// Where a block starts.
struct tile_origin {
  std::int64_t batch;
  std::int64_t t;
  std::int64_t d;
};

/// Blocks that follow one another are neighbours along the inner index. A grid has fewer than 2^31 blocks, so
/// the divisions are 32 bits wide.
__device__ inline tile_origin origin_of_block(const forward_schedule& s) {
  const auto channel_tiles = static_cast<unsigned>(s.channel_tiles);
  const auto time_tiles = static_cast<unsigned>(s.time_tiles);
  const unsigned inner_tiles = s.time_is_inner ? time_tiles : channel_tiles;
  const unsigned outer_tiles = s.time_is_inner ? channel_tiles : time_tiles;
  const unsigned inner = blockIdx.x % inner_tiles;
  const unsigned rest = blockIdx.x / inner_tiles;
  const unsigned outer = rest % outer_tiles;
  return {rest / outer_tiles, (s.time_is_inner ? inner : outer) * s.block_tokens,
          (s.time_is_inner ? outer : inner) * s.block_channels};
}

/// Row q of the convolution's input, q counted in x's tokens: x itself, or the state where q is before the
/// sequence.
template <class Data>
__device__ float input_element(const causal_conv1d_args<Data>& op, const token_sequence& in, std::int64_t batch,
                               std::int64_t q, std::int64_t d) {
  if (q >= in.begin) return static_cast<float>(op.x(batch, q, d));
  if (op.initial_state.data() == nullptr) return 0.0f;
  return static_cast<float>(op.initial_state(in.row, q - in.begin + op.weight.extent(1) - 1, d));
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
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int group = static_cast<int>(threadIdx.x) / s.lanes;
  const std::int64_t d = tile.d + (s.time_is_inner ? group : lane);
  const std::int64_t first = tile.t + (s.time_is_inner ? lane : group) * run;
  const std::int64_t T = op.x.extent(1);
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

/// Channels contiguous: a thread owns a vector of channels; the W-1 rows before the current token stay in
/// registers while it walks along time.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_channel_last_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  constexpr int V = vector_elements<Data>;
  constexpr int ahead = tiles::rows_ahead;
  __shared__ staged_taps<Data, W> staged;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const tile_origin tile = origin_of_block(s);
  staged.fill(op.weight, op.bias, tile.d, s.lanes * V);

  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int group = static_cast<int>(threadIdx.x) / s.lanes;
  const std::int64_t d = tile.d + lane * V;
  std::int64_t t = tile.t + group * s.run;
  const std::int64_t T = op.x.extent(1);
  const std::int64_t stop = t + s.run < T ? t + s.run : T;
  if (d >= op.x.extent(2) || t >= stop) return;

  const std::int64_t x_stride = op.x.stride(1);
  const std::int64_t y_stride = op.y.stride(1);
  const Data* x = &op.x(tile.batch, t, d);
  Data* y = &op.y(tile.batch, t, d);

  vector<Data> coming[ahead];
  const auto load_coming = [&](std::int64_t from) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      coming[i] = from + i < stop ? load_vector_read_only(x + i * x_stride) : vector<Data>{};
    }
  };
  load_coming(t);

  token_sequence in;
  vector<Data> rows[W - 1 + ahead];  // the W-1 tokens before the next one, then those to convolve
  const auto enter_sequence = [&](std::int64_t at, vector<Data>* before) {
    in = sequence_around(p.all, tile.batch, at);
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
      const std::int64_t q = at - (W - 1) + i;
      if (q >= in.begin) {
        before[i] = load_vector_read_only(&op.x(tile.batch, q, d));
      } else if (p.initial_state.given()) {
        before[i] = p.initial_state.load(in.row, q - in.begin + W - 1, d);
      } else {
        before[i] = {};
      }
    }
  };
  enter_sequence(t, rows);

  const channel_taps<Data, W> taps(staged, lane * V);
  for (; t < stop; t += ahead) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) rows[W - 1 + i] = coming[i];
    x += ahead * x_stride;
    load_coming(t + ahead);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (t + i < stop) {
        if (t + i >= in.end) enter_sequence(t + i, rows + i);
        store_vector(y + i * y_stride, taps.convolve(rows + i, op.act));
      }
    }
    y += ahead * y_stride;
#pragma unroll
    for (int i = 0; i < W - 1; ++i) rows[i] = rows[ahead + i];
  }
}

/// Time contiguous: a thread owns `vectors` vectors of tokens of one channel, a row of lanes apart, and gets
/// the W-1 tokens before each from the lane before.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_channel_first_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  constexpr int V = vector_elements<Data>;
  constexpr int vectors = tiles::vectors;
  static_assert(W - 1 <= V, "the taps before a vector lie in the one vector before it");
  // The words of a vector that hold its last W-1 elements.
  constexpr int words = static_cast<int>(sizeof(vector<Data>) / sizeof(std::uint32_t));
  constexpr int first_word = (V - (W - 1)) * static_cast<int>(sizeof(Data)) / 4;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const tile_origin tile = origin_of_block(s);
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int last_lane = s.lanes - 1;
  const std::int64_t channel = tile.d + static_cast<int>(threadIdx.x) / s.lanes;
  const std::int64_t T = op.x.extent(1);
  const std::int64_t D = op.x.extent(2);
  // Lanes beyond the last channel take part in the exchange, and write nothing.
  const std::int64_t d = channel < D ? channel : D - 1;
  const std::int64_t row_tokens = static_cast<std::int64_t>(s.lanes) * V;
  const std::int64_t first = tile.t + lane * V;
  const Data* x = &op.x(tile.batch, 0, d);
  Data* y = &op.y(tile.batch, 0, d);

  vector<Data> current[vectors];
#pragma unroll
  for (int k = 0; k < vectors; ++k) {
    const std::int64_t t = first + k * row_tokens;
    current[k] = t < T ? load_vector_read_only(x + t) : vector<Data>{};
  }
  // What the last lane gives to the first: its vector of the row before, ahead of time 0 the initial state.
  vector<Data> row_before = {};
  if (lane == last_lane) {
    if (tile.t > 0) {
      row_before = load_vector_read_only(x + tile.t - V);
    } else if (op.initial_state.data() != nullptr) {
      const std::int64_t row = sequence_around(p.all, tile.batch, 0).row;
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        insert_element(row_before, V - (W - 1) + i, op.initial_state(row, i, d));
      }
    }
  }

  vector<Data> before[vectors];
  const int giver = lane == 0 ? last_lane : lane - 1;
#pragma unroll
  for (int k = 0; k < vectors; ++k) {
#pragma unroll
    for (int i = first_word; i < words; ++i) {
      const std::uint32_t given = lane == last_lane ? row_before.word[i] : current[k].word[i];
      before[k].word[i] = __shfl_sync(0xffffffffu, given, giver, s.lanes);
    }
    row_before = current[k];
  }
  if (channel >= D) return;

  float weight[W];
#pragma unroll
  for (int j = 0; j < W; ++j) weight[j] = op.weight(d, j);
  const float bias = op.bias.data() != nullptr ? op.bias(d) : 0.0f;

  unsigned split = 0;  // bit k: vector k has tokens, under a tap or of its own, of more than one sequence
#pragma unroll
  for (int k = 0; k < vectors; ++k) {
    const std::int64_t t = first + k * row_tokens;
    if (t >= T) break;
    if (p.all.packed()) {
      const token_sequence in = sequence_around(p.all, tile.batch, t);
      if ((t > 0 && t - in.begin < W - 1) || t + V > in.end) {
        split |= 1u << k;
        continue;
      }
    }
    float element[W - 1 + V];
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
      element[i] = static_cast<float>(element_of(before[k], V - (W - 1) + i));
    }
#pragma unroll
    for (int i = 0; i < V; ++i) element[W - 1 + i] = static_cast<float>(element_of(current[k], i));
    float a[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      a[i] = bias;
#pragma unroll
      for (int j = 0; j < W; ++j) a[i] = fmaf(weight[j], element[i + j], a[i]);
    }
    store_vector(y + t, activated_vector<Data>(a, op.act));
  }
  for (int k = 0; split != 0; ++k, split >>= 1) {
    if ((split & 1u) == 0) continue;
    const std::int64_t t = first + k * row_tokens;
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      convolve_tokens<1>(op, sequence_around(p.all, tile.batch, t + i), tile.batch, t + i, d);
    }
  }
}

/// The last W-1 rows of every sequence's input. Runs after the kernels above, which read the initial states:
/// final_state may be the same memory, then a row moves to an earlier one, so each thread goes upwards.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads)
    causal_conv1d_final_state_kernel(const __grid_constant__ forward_params<Data> p) {
  const auto& op = p.op;
  const std::int64_t D = op.x.extent(2);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * tiles::threads + threadIdx.x;
  const std::int64_t row = i / D;
  const std::int64_t d = i % D;
  if (row >= p.all.size()) return;
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
template <class Data>
POLYSTATE_HIDDEN status launch_forward(const char* name, const on_cuda& exec, const forward_params<Data>& p) {
  const grid g{.blocks = p.schedule.blocks, .threads = tiles::threads};
  if (p.schedule.kernel == kernel_kind::general) {
    return launch(name, exec, g, causal_conv1d_general_fwd_kernel<Data>, p);
  }
  const bool channel_last = p.schedule.kernel == kernel_kind::channel_last;
  return dispatch_width(name, p.op.weight.extent(1), [&](auto width) {
    return launch(name, exec, g,
                  channel_last ? causal_conv1d_channel_last_fwd_kernel<Data, width>
                               : causal_conv1d_channel_first_fwd_kernel<Data, width>,
                  p);
  });
}

/// Enqueues final_state.
template <class Data>
POLYSTATE_HIDDEN status launch_final_state(const char* name, const on_cuda& exec, const forward_params<Data>& p) {
  const std::int64_t threads = p.op.final_state.size() > 0 ? p.all.size() * p.op.x.extent(2) : 0;
  const grid g{.blocks = tiles_of(threads, tiles::threads), .threads = tiles::threads};
  return launch(name, exec, g, causal_conv1d_final_state_kernel<Data>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::conv1d
