// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Backward kernels of causal_conv1d in the two layouts of 16-byte accesses. Each reads x and d_y once, computes the
/// gradients da of the sums again, writes d_x, and sums d_weight and d_bias over its tiles. d_x is that of
/// tokens without end or neighbour: causal_conv1d_bwd_ends_kernel writes those at the ends of sequences again.

#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/backward_general.cuh>
#include <polystate/cuda/causal_conv1d/backward_params.cuh>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/vector.cuh>

#include <climits>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// The sums of a channel over time, in registers.
template <int W>
struct tap_sums {
  float weight[W] = {};
  float bias = 0.0f;

  /// Adds those of a token whose taps lie on element[0 .. W-1].
  __device__ void add(float da, const float* element) {
    bias += da;
#pragma unroll
    for (int j = 0; j < W; ++j) weight[j] = fmaf(da, element[j], weight[j]);
  }
};

/// Channels contiguous: a thread owns a few channels and walks along time; the W-1 rows before the current token stay
/// in registers, and so do the gradients of the W-1 sums before it, until d_x of the oldest is complete.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads, tiles::backward_channel_last_blocks<Data>)
    causal_conv1d_channel_last_bwd_kernel(const __grid_constant__ backward_params<Data> p) {
  constexpr int C = tiles::backward_channels;
  constexpr int ahead = tiles::backward_rows_ahead;
  constexpr int reach = W - 1;
  using row = vector<Data, C>;
  __shared__ staged_taps<W, C> staged;
  __shared__ float sums[W + 1][C][tiles::threads];
  const auto& op = p.op;
  const auto& s = p.schedule;
  const std::int64_t T = p.all.end();
  const std::int64_t D = op.x.extent(2);
  const int lanes = s.tiling.lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int group = static_cast<int>(threadIdx.x) / lanes;
  const auto channel_tiles = static_cast<unsigned>(s.tiling.channel_tiles);
  const std::int64_t tile_d = blockIdx.x % channel_tiles * s.tiling.block_channels;
  const std::int64_t partial_row = blockIdx.x / channel_tiles;
  const std::int64_t d = tile_d + lane * C;
  const bool has_dy = p.grads.d_y.data() != nullptr;
  const bool has_dx = p.grads.d_x.data() != nullptr;
  const std::int64_t x_stride = op.x.stride(1);
  const std::int64_t dy_stride = p.grads.d_y.stride(1);
  const std::int64_t dx_stride = p.grads.d_x.stride(1);
  staged.fill(op.weight, op.bias, tile_d, lanes * C);
  const channel_taps<W, C> taps(staged, lane * C);
  tap_sums<W> sum[C];

  for (std::int64_t task = partial_row; task < s.tasks; task += s.rows) {
    const std::int64_t batch = task / s.tiling.time_tiles;
    const std::int64_t t0 = task % s.tiling.time_tiles * s.tiling.block_tokens + group * s.tiling.run;
    const std::int64_t left = T - t0;
    if (d >= D || left <= 0) continue;
    const int n = left < s.tiling.run ? static_cast<int>(left) : s.tiling.run;
    // With the tokens behind the run, whose sums reach back into it.
    const int given = left < n + reach ? static_cast<int>(left) : n + reach;
    const Data* x = &op.x(batch, t0, d);
    const Data* dy = has_dy ? &p.grads.d_y(batch, t0, d) : nullptr;
    Data* dx = has_dx ? &p.grads.d_x(batch, t0, d) : nullptr;

    row next_x[ahead];
    row next_dy[ahead];
    const auto load_next = [&](int from) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const bool there = from + i < given;
        next_x[i] = there ? load_vector_read_only<Data, C>(x + i * x_stride) : row{};
        next_dy[i] = there && has_dy ? load_vector_read_only<Data, C>(dy + i * dy_stride) : row{};
      }
    };
    load_next(0);
    row rows[reach + ahead];
    int end = 0;  // of the current sequence, or of what is given
    const auto enter_sequence = [&](int at) {
      const token_sequence in = sequence_around(p.all, batch, t0 + at);
      end = in.end - t0 < given ? static_cast<int>(in.end - t0) : given;
      load_rows_before<W, C>(op.x, p.initial_state, in, batch, t0 + at, d, rows);
    };
    enter_sequence(0);

    float da[reach + ahead][C];  // of the `reach` tokens before the next one, then of those in hand
#pragma unroll
    for (int i = 0; i < reach; ++i) {
#pragma unroll
      for (int c = 0; c < C; ++c) da[i][c] = 0.0f;
    }
    const auto gradient = [&](const row* under, const row& upstream, float(&out)[C], bool own) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float element[W];
#pragma unroll
        for (int j = 0; j < W; ++j) element[j] = static_cast<float>(element_of(under[j], c));
        out[c] = static_cast<float>(element_of(upstream, c));
        if (op.act == activation::silu) {
          float a = taps.bias[c];
#pragma unroll
          for (int j = 0; j < W; ++j) a = fmaf(taps.weight[j][c], element[j], a);
          out[c] = silu_gradient<Data>(a, out[c]);
        }
        if (own) sum[c].add(out[c], element);
      }
    };
    // d_x of a token, whose gradient and those of the next tokens are g[0 .. W-1].
    const auto hand_back = [&](Data* to, const float(*g)[C]) {
      float total[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        total[c] = 0.0f;
#pragma unroll
        for (int k = 0; k < W; ++k) total[c] = fmaf(taps.weight[W - 1 - k][c], g[k][c], total[c]);
      }
      store_vector(to, round_to_vector<Data>(total));
    };
    const int own_dx = has_dx ? n : 0;

    for (int u = 0; u < n + reach; u += ahead) {
      row upstream[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        rows[reach + i] = next_x[i];
        upstream[i] = next_dy[i];
      }
      x += ahead * x_stride;
      dy += ahead * dy_stride;
      load_next(u + ahead);
      if (u + ahead <= end && u + ahead <= n) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          gradient(rows + i, upstream[i], da[reach + i], true);
          if (u + i >= reach && has_dx) hand_back(dx + (i - reach) * dx_stride, da + i);
        }
#pragma unroll
        for (int i = 0; i < reach; ++i) {
          rows[i] = rows[ahead + i];
#pragma unroll
          for (int c = 0; c < C; ++c) da[i][c] = da[ahead + i][c];
        }
      } else {
        // The run or a sequence ends among these tokens: one by one, each read once more, since registers have no
        // index.
#pragma unroll 1
        for (int i = 0; i < ahead && u + i < n + reach; ++i) {
          const int t = u + i;
          if (t < given) {
            if (t >= end) enter_sequence(t);
            rows[reach] = load_vector_read_only<Data, C>(x + (i - ahead) * x_stride);
            const row one = has_dy ? load_vector_read_only<Data, C>(dy + (i - ahead) * dy_stride) : row{};
            gradient(rows, one, da[reach], t < n);
          } else {
#pragma unroll
            for (int c = 0; c < C; ++c) da[reach][c] = 0.0f;
          }
          if (t >= reach && t - reach < own_dx) hand_back(dx + (i - reach) * dx_stride, da);
#pragma unroll
          for (int k = 0; k < reach; ++k) {
            rows[k] = rows[k + 1];
#pragma unroll
            for (int c = 0; c < C; ++c) da[k][c] = da[k + 1][c];
          }
        }
      }
      dx += ahead * dx_stride;
    }
  }

  if (p.partials == nullptr) return;
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int j = 0; j < W; ++j) sums[j][c][threadIdx.x] = sum[c].weight[j];
    sums[W][c][threadIdx.x] = sum[c].bias;
  }
  __syncthreads();
  const int channels = lanes * C;
  for (int i = static_cast<int>(threadIdx.x); i < (W + 1) * channels; i += tiles::threads) {
    const int j = i / channels;
    const int channel = i % channels;
    if (tile_d + channel >= D) continue;
    float total = 0.0f;
    for (int of_group = channel / C; of_group < tiles::threads; of_group += lanes) {
      total += sums[j][channel % C][of_group];
    }
    partial_sum(p, partial_row, j, tile_d + channel) = total;
  }
}

/// Time contiguous: the lanes of a row own a channel and walk against time in chunks of a vector each, so that the
/// gradients of the sums behind a vector are those of the lane behind, and for the last lane of the chunk before.
template <class Data, int W>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tiles::threads, tiles::backward_channel_first_blocks<Data>)
    causal_conv1d_channel_first_bwd_kernel(const __grid_constant__ backward_params<Data> p) {
  constexpr int V = vector_elements<Data>;
  constexpr int ahead = tiles::backward_vectors_ahead;
  static_assert(ahead >= 2, "the chunk before the current one gives it its first taps");
  constexpr int reach = W - 1;
  const auto& op = p.op;
  const auto& s = p.schedule;
  const std::int64_t T = op.x.extent(1);
  const std::int64_t D = op.x.extent(2);
  const int lanes = s.tiling.lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const auto channel_tiles = static_cast<unsigned>(s.tiling.channel_tiles);
  const std::int64_t channel =
      blockIdx.x % channel_tiles * s.tiling.block_channels + static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t partial_row = blockIdx.x / channel_tiles;
  // Lanes beyond the last channel take part in the exchange, and write nothing.
  const bool owned = channel < D;
  const std::int64_t d = owned ? channel : D - 1;
  const bool has_dy = p.grads.d_y.data() != nullptr;
  const bool has_dx = p.grads.d_x.data() != nullptr;
  const int chunk = lanes * V;
  const int first = lane * V;
  float weight[W];
#pragma unroll
  for (int j = 0; j < W; ++j) weight[j] = op.weight(d, j);
  const float bias = op.bias.data() != nullptr ? op.bias(d) : 0.0f;
  tap_sums<W> sum;

  for (std::int64_t task = partial_row; task < s.tasks; task += s.rows) {
    const std::int64_t batch = task / s.tiling.time_tiles;
    const std::int64_t tile_t = task % s.tiling.time_tiles * s.tiling.run;
    const std::int64_t left = T - tile_t;
    const int n = left < s.tiling.run ? static_cast<int>(left) : s.tiling.run;
    const int chunks = (n + chunk - 1) / chunk;
    const int last = left > n ? chunks : chunks - 1;  // the chunk behind the run, of which one vector reaches back
    const std::int64_t t0 = tile_t + first;
    const Data* x = &op.x(batch, t0, d);
    const Data* dy = has_dy ? &p.grads.d_y(batch, t0, d) : nullptr;
    Data* dx = has_dx ? &p.grads.d_x(batch, t0, d) : nullptr;
    const auto has = [&](int c) { return c >= 0 && (c < chunks ? first + c * chunk < n : lane == 0); };

    vector<Data> next_x[ahead];  // slot k: of the chunk k before the current one
    vector<Data> next_dy[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const bool there = has(last - k);
      next_x[k] = there ? load_vector_read_only(x + (last - k) * chunk) : vector<Data>{};
      next_dy[k] = there && has_dy ? load_vector_read_only(dy + (last - k) * chunk) : vector<Data>{};
    }
    const vector<Data> before_run = vector_before_run<W>(op, p.all, lanes, batch, tile_t, d);
    float behind[reach];  // the first gradients of this lane in the chunk behind
#pragma unroll
    for (int i = 0; i < reach; ++i) behind[i] = 0.0f;

    unsigned split = owned ? split_vectors<W, Data>(p.all, batch, t0, chunk, n - first) : 0;
    // Behind the last token there is nothing, whatever the lanes there compute.
    const int no_more = left > n ? INT_MAX : n;

    for (int from = last; from >= 0; from -= ahead) {
#pragma unroll
      for (int k = 0; k < ahead; ++k) {
        const int c = from - k;
        if (c < 0) break;
        const vector<Data> current = next_x[k];
        const vector<Data> upstream = next_dy[k];
        const vector<Data> previous = c == 0 ? before_run : next_x[(k + 1) % ahead];
        const bool more = has(c - ahead);
        next_x[k] = more ? load_vector_read_only(x + (c - ahead) * chunk) : vector<Data>{};
        next_dy[k] = more && has_dy ? load_vector_read_only(dy + (c - ahead) * chunk) : vector<Data>{};
        const vector<Data> before = vector_of_lane_before<W>(current, previous, lane, lanes);
        const bool own = c < chunks && first + c * chunk < n;
        float element[reach + V];
        float da[V + reach];
        unpack_window<W>(before, current, element);
#pragma unroll
        for (int i = 0; i < V; ++i) da[i] = static_cast<float>(element_of(upstream, i));
        if (op.act == activation::silu) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            float a = bias;
#pragma unroll
            for (int j = 0; j < W; ++j) a = fmaf(weight[j], element[i + j], a);
            da[i] = silu_gradient<Data>(a, da[i]);
          }
        }
        if (own && (split >> c & 1u) == 0) {
#pragma unroll
          for (int i = 0; i < V; ++i) sum.add(da[i], element + i);
        }
#pragma unroll
        for (int i = 0; i < reach; ++i) {
          const float given = lane == 0 ? behind[i] : da[i];
          da[V + i] = __shfl_sync(0xffffffffu, given, lane == lanes - 1 ? 0 : lane + 1, lanes);
          behind[i] = da[i];
        }
        if (!own || !owned || !has_dx) continue;
        if (first + c * chunk + V >= no_more) {
#pragma unroll
          for (int i = 0; i < reach; ++i) da[V + i] = 0.0f;
        }
        float total[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
          total[i] = 0.0f;
#pragma unroll
          for (int j = 0; j < W; ++j) total[i] = fmaf(weight[W - 1 - j], da[i + j], total[i]);
        }
        store_vector(dx + c * chunk, round_to_vector<Data>(total));
      }
    }
    // The sums of those, token by token. Their d_x is wrong at the first and last W-1 tokens of a sequence alone.
    for (int c = 0; split != 0; ++c, split >>= 1) {
      if ((split & 1u) == 0) continue;
#pragma unroll 1
      for (int i = 0; i < V; ++i) {
        const std::int64_t t = t0 + static_cast<std::int64_t>(c) * chunk + i;
        if (t >= p.all.end()) break;
        const token_sequence in = sequence_around(p.all, batch, t);
        float element[W];
#pragma unroll
        for (int j = 0; j < W; ++j) element[j] = input_element(op, in, batch, t - reach + j, d);
        sum.add(gradient_of_sum(p, in, batch, t, d), element);
      }
    }
  }

  if (p.partials == nullptr) return;
  for (int apart = lanes / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int j = 0; j < W; ++j) sum.weight[j] += __shfl_xor_sync(0xffffffffu, sum.weight[j], apart, lanes);
    sum.bias += __shfl_xor_sync(0xffffffffu, sum.bias, apart, lanes);
  }
  if (!owned || lane != 0) return;
#pragma unroll
  for (int j = 0; j < W; ++j) partial_sum(p, partial_row, j, d) = sum.weight[j];
  partial_sum(p, partial_row, W, d) = sum.bias;
}

/// Enqueues the gradients that are wanted.
template <class Widths = causal_conv1d_fast_widths, class Data>
POLYSTATE_HIDDEN status launch_backward(const char* name, const on_cuda& exec, const backward_params<Data>& p) {
  status s;
  if (p.schedule.tiling.kernel == kernel_kind::general) {
    s = launch_general_backward(name, exec, p);
  } else if (p.grads.d_x || wants_sums(p.grads)) {
    const grid g{.blocks = p.schedule.blocks, .threads = tiles::threads};
    const bool channel_last = p.schedule.tiling.kernel == kernel_kind::channel_last;
    s = dispatch_width<Widths>(name, p.op.weight.extent(1), [&](auto width) {
      return launch(name, exec, g,
                    channel_last ? causal_conv1d_channel_last_bwd_kernel<Data, width>
                                 : causal_conv1d_channel_first_bwd_kernel<Data, width>,
                    p);
    });
  }
  if (s.ok()) s = launch_backward_ends(name, exec, p);
  return s.ok() ? launch_backward_sums(name, exec, p) : s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
