// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The part of a (B, T, D) operand that a block holds in a tile.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/compiler.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// Tokens t .. t_end-1 and channels c .. c_end-1; what lies beyond is zero.
struct tile_place {
  std::int64_t batch;
  std::int64_t t;
  std::int64_t t_end;
  std::int64_t c;
  std::int64_t c_end;

  /// Tokens and channels that are there, counted from t and c, up to `most`.
  [[nodiscard]] __device__ int tokens(int most) const { return count(t_end - t, most); }
  [[nodiscard]] __device__ int channels(int most) const { return count(c_end - c, most); }

 private:
  static __device__ int count(std::int64_t n, int most) { return n < most ? static_cast<int>(n) : most; }
};

/// A tile's elements by token and channel within it. Offsets are 32 bits wide: only whole vectors are accessed through
/// it, and choose_access() takes those where strides allow it.
template <class T>
struct tile_view {
  T* data;
  int token_stride;
  int channel_stride;

  __device__ tile_view(const tensor_view<T, 3>& of, const tile_place& p)
      : data(&of(p.batch, p.t, p.c)),
        token_stride(static_cast<int>(of.stride(1))),
        channel_stride(static_cast<int>(of.stride(2))) {}
  [[nodiscard]] __device__ T* at(int t, int c) const { return data + (t * token_stride + c * channel_stride); }
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
