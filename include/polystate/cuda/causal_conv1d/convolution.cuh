// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the forward and the step kernels share. Every path sums the taps in the same order with the same
/// instructions, so all of them give the same bits.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::conv1d {

template <class Data>
__device__ float activate(float a, activation act) {
  return act == activation::silu ? silu<Data>(a) : a;
}

/// The sums of a vector of outputs, activated and rounded.
template <class Data>
__device__ vector<Data> activated_vector(float (&a)[vector_elements<Data>], activation act) {
  if (act == activation::silu) {
#pragma unroll
    for (int i = 0; i < vector_elements<Data>; ++i) a[i] = silu<Data>(a[i]);
  }
  return round_to_vector<Data>(a);
}

/// Calls f(std::integral_constant<int, W>{}) for the fast width W and returns its status.
template <class F>
status dispatch_width(const char* name, std::int64_t width, F&& f) {
  status s{error_code::unsupported, name, "weight",
           "W = " + std::to_string(width) + ", supported by these kernels: " + causal_conv1d_fast_widths::text()};
  static_cast<void>(dispatch(width, causal_conv1d_fast_widths{}, [&](auto w) { s = f(w); }));
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

  /// The vector from the element at these indices on.
  template <class... Index>
  __device__ vector<Data> load(Index... index) const {
    const Data* from = &view(index...);
    return whole ? load_vector(from) : gather_vector(from, view.stride(Rank - 1));
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

/// Weights and biases of a block's channels in shared memory: weight rows are W floats long, so lanes that
/// fetched their own would touch one cache line each.
template <class Data, int W>
struct staged_taps {
  static constexpr int V = vector_elements<Data>;
  static constexpr int channels = tiles::lanes * V;
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

/// Weights and biases of one vector of channels, in registers.
template <class Data, int W>
struct channel_taps {
  static constexpr int V = vector_elements<Data>;
  float weight[W][V];
  float bias[V];

  __device__ explicit channel_taps(const staged_taps<Data, W>& staged, int first) {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      bias[c] = staged.bias[first + c];
#pragma unroll
      for (int j = 0; j < W; ++j) weight[j][c] = staged.weight[j][first + c];
    }
  }

  /// The output of one token: rows[0 .. W-1] are the tokens under its taps, the token itself last.
  __device__ vector<Data> convolve(const vector<Data>* rows, activation act) const {
    float a[V];
#pragma unroll
    for (int c = 0; c < V; ++c) {
      a[c] = bias[c];
#pragma unroll
      for (int j = 0; j < W; ++j) a[c] = fmaf(weight[j][c], element_of(rows[j], c), a[c]);
    }
    return activated_vector<Data>(a, act);
  }
};

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

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::conv1d
