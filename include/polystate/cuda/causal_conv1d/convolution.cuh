// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the kernels share. Every path sums the taps in the same order with the same instructions, so all of them
/// give the same bits.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

template <class Data>
__device__ float activate(float a, activation act) {
  return act == activation::silu ? silu<Data>(a) : a;
}

/// The sums of a vector of outputs, activated and rounded.
template <class Data, int N>
__device__ vector<Data, N> activated_vector(float (&a)[N], activation act) {
  if (act == activation::silu) {
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] = silu<Data>(a[i]);
  }
  return round_to_vector<Data>(a);
}

/// The gradient of a, where dy is that of silu(a). The product is never fused with a sum around it.
template <class Data>
__device__ float silu_gradient(float a, float dy) {
  return __fmul_rn(dy, silu_slope<Data>(a));
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

/// Row q of the convolution's input, q counted in x's tokens: x itself, or the state where q is before the
/// sequence.
template <class Data>
__device__ float input_element(const causal_conv1d_args<Data>& op, const token_sequence& in, std::int64_t batch,
                               std::int64_t q, std::int64_t d) {
  if (q >= in.begin) return static_cast<float>(op.x(batch, q, d));
  if (op.initial_state.data() == nullptr) return 0.0f;
  return static_cast<float>(op.initial_state(in.row, q - in.begin + op.weight.extent(1) - 1, d));
}

/// Calls f(std::integral_constant<int, W>{}) for the one of `Widths` that W is, and returns its status.
template <class Widths, class F>
status dispatch_width(const char* name, std::int64_t width, F&& f) {
  status s{error_code::unsupported, name, "weight",
           "W = " + std::to_string(width) + ", supported by these kernels: " + Widths::text()};
  static_cast<void>(dispatch(width, Widths{}, [&](auto w) { s = f(w); }));
  return s;
}

/// A view whose last index is read and written in vectors: one access where the memory allows, else one for
/// each element.
template <class T, int Rank>
struct vector_rows {
  using Data = std::remove_const_t<T>;
  tensor_view<T, Rank> view;
  bool whole = false;

  vector_rows() = default;
  explicit vector_rows(const tensor_view<T, Rank>& v) : view(v), whole(vectorisable(v, Rank - 1)) {}

  [[nodiscard]] __device__ bool given() const { return view.data() != nullptr; }

  /// N elements from the one at these indices on, a multiple of N from the first.
  template <int N = vector_elements<Data>, class... Index>
  __device__ vector<Data, N> load(Index... index) const {
    const Data* from = &view(index...);
    return whole ? load_vector<Data, N>(from) : gather_vector<Data, N>(from, view.stride(Rank - 1));
  }
  template <class... Index>
  __device__ void store(const vector<Data>& v, Index... index) const {
    Data* to = &view(index...);
    if (whole) {
      store_vector(to, v);
    } else {
      scatter_vector(to, view.stride(Rank - 1), v);
    }
  }
};

/// rows[0 .. W-2]: the input of C channels, which x has contiguous, at the W-1 tokens before token t of a sequence.
template <int W, int C, class Data>
__device__ void load_rows_before(const tensor_view<const Data, 3>& x, const vector_rows<const Data, 3>& initial_state,
                                 const token_sequence& in, std::int64_t batch, std::int64_t t, std::int64_t d,
                                 vector<Data, C>* rows) {
#pragma unroll
  for (int i = 0; i < W - 1; ++i) {
    const std::int64_t q = t - (W - 1) + i;
    if (q >= in.begin) {
      rows[i] = load_vector_read_only<Data, C>(&x(batch, q, d));
    } else if (initial_state.given()) {
      rows[i] = initial_state.template load<C>(in.row, q - in.begin + W - 1, d);
    } else {
      rows[i] = {};
    }
  }
}

/// Weights and biases of a block's channels, C a lane, in shared memory: weight rows are W floats long, so lanes that
/// fetched their own would touch one cache line each.
template <int W, int C>
struct staged_taps {
  static constexpr int channels = tiles::lanes * C;
  // 8 floats of padding put the W taps of a channel, which neighbouring threads write, into different banks.
  static constexpr int pitch = channels + 8;
  alignas(16) float weight[W][pitch];
  alignas(16) float bias[channels];

  /// Fetches `count` channels from `first` on, zero beyond the last. All threads of the block call it.
  __device__ void fill(const tensor_view<const float, 2>& w, const tensor_view<const float, 1>& b, std::int64_t first,
                       int count) {
    const std::int64_t D = w.extent(0);
    for (int i = static_cast<int>(threadIdx.x); i < count * W; i += tiles::threads) {
      const int c = i / W;
      const int j = i % W;
      weight[j][c] = first + c < D ? w(first + c, j) : 0.0f;
    }
    for (int c = static_cast<int>(threadIdx.x); c < count; c += tiles::threads) {
      bias[c] = b.data() != nullptr && first + c < D ? b(first + c) : 0.0f;
    }
    __syncthreads();
  }
};

/// Weights and biases of C neighbouring channels, in registers.
template <int W, int C>
struct channel_taps {
  float weight[W][C];
  float bias[C];

  __device__ explicit channel_taps(const staged_taps<W, C>& staged, int first) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      bias[c] = staged.bias[first + c];
#pragma unroll
      for (int j = 0; j < W; ++j) weight[j][c] = staged.weight[j][first + c];
    }
  }

  /// The output of one token: rows[0 .. W-1] are the tokens under its taps, the token itself last.
  template <class Data>
  __device__ vector<Data, C> convolve(const vector<Data, C>* rows, activation act) const {
    float a[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      a[c] = bias[c];
#pragma unroll
      for (int j = 0; j < W; ++j) a[c] = fmaf(weight[j][c], static_cast<float>(element_of(rows[j], c)), a[c]);
    }
    return activated_vector<Data>(a, act);
  }
};

/// What the last of the lanes that walk along channel d gives to the first: its vector before token t, ahead of time 0
/// the initial state. Zero in the other lanes.
template <int W, class Data>
__device__ vector<Data> vector_before_run(const causal_conv1d_args<Data>& op, const sequences& all, int lanes,
                                          std::int64_t batch, std::int64_t t, std::int64_t d) {
  constexpr int V = vector_elements<Data>;
  static_assert(W - 1 <= V, "the taps before a vector lie in the one vector before it");
  vector<Data> before = {};
  if (static_cast<int>(threadIdx.x) % lanes != lanes - 1) return before;
  if (t > 0) return load_vector_read_only(&op.x(batch, t - V, d));
  if (op.initial_state.data() == nullptr) return before;
  const std::int64_t row = sequence_around(all, batch, 0).row;
#pragma unroll
  for (int i = 0; i < W - 1; ++i) insert_element(before, V - (W - 1) + i, op.initial_state(row, i, d));
  return before;
}

/// The last W-1 elements, at least, of the vector that lies before `current` in time: that of the lane before, and for
/// the first lane `previous` of the last one.
template <int W, class Data>
__device__ vector<Data> vector_of_lane_before(const vector<Data>& current, const vector<Data>& previous, int lane,
                                              int lanes) {
  constexpr int first_word = (vector_elements<Data> - (W - 1)) * static_cast<int>(sizeof(Data)) / 4;
  const int giver = lane == 0 ? lanes - 1 : lane - 1;
  vector<Data> before = {};
#pragma unroll
  for (int i = first_word; i < vector<Data>::words; ++i) {
    const std::uint32_t given = lane == lanes - 1 ? previous.word[i] : current.word[i];
    before.word[i] = __shfl_sync(0xffffffffu, given, giver, lanes);
  }
  return before;
}

/// The vectors of a lane that have tokens, under a tap or of their own, of more than one sequence: bit c for that of
/// chunk c, from token t0 on and `chunk` tokens apart, `n` of them in all. Found ahead of the walk, whose registers the
/// search would take. At t = 0 the lane before has given the state.
template <int W, class Data>
__device__ unsigned split_vectors(const sequences& all, std::int64_t batch, std::int64_t t0, int chunk, int n) {
  unsigned split = 0;
  if (!all.packed()) return split;
#pragma unroll 1
  for (int c = 0; c * chunk < n; ++c) {
    const std::int64_t t = t0 + static_cast<std::int64_t>(c) * chunk;
    const token_sequence in = sequence_around(all, batch, t);
    if ((t > 0 && t - in.begin < W - 1) || t + vector_elements < Data >> in.end) split |= 1u << c;
  }
  return split;
}

/// The elements under the taps of a vector of tokens.
template <int W, class Data>
__device__ void unpack_window(const vector<Data>& before, const vector<Data>& current,
                              float (&element)[W - 1 + vector_elements<Data>]) {
  constexpr int V = vector_elements<Data>;
#pragma unroll
  for (int i = 0; i < W - 1; ++i) element[i] = static_cast<float>(element_of(before, V - (W - 1) + i));
#pragma unroll
  for (int i = 0; i < V; ++i) element[W - 1 + i] = static_cast<float>(element_of(current, i));
}

/// Adds, to the sums a[i] of N tokens that follow one another in channel d, their taps in ascending order.
/// element(k) is row k of the W-1+N rows under the taps, the oldest first; each is read once.
template <int N, class Element>
__device__ void convolve(const tensor_view<const float, 2>& weight, const tensor_view<const float, 1>& bias,
                         std::int64_t d, float (&a)[N], Element&& element) {
  const std::int64_t W = weight.extent(1);
  float tap[N] = {};  // tap[i]: the weight under which token i sees the current row
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = bias.data() != nullptr ? bias(d) : 0.0f;
  for (std::int64_t k = 0; k < W - 1 + N; ++k) {
#pragma unroll
    for (int i = N - 1; i > 0; --i) tap[i] = tap[i - 1];
    tap[0] = k < W ? weight(d, k) : 0.0f;
    const auto p = static_cast<float>(element(k));
    // A row that token i has no tap for must not be multiplied by zero: it may be a NaN.
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (k >= i && k - i < W) a[i] = fmaf(tap[i], p, a[i]);
    }
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
