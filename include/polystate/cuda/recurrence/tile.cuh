// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Rows of keys and queries from memory to floats in shared memory, and rows of states to registers.

#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Rows that lie as they are.
template <int Padded>
struct rows_in_order {
  static constexpr int pitch = Padded;
  POLYSTATE_HOST_DEVICE static constexpr int place(int column) { return column; }
};

/// Rows of keys or queries from memory to floats: zero beyond dk and beyond `tokens`, normalised if the operands say
/// so. A warp takes `Together` rows at a time. `Layout` says how far rows are apart and where a column lies.
template <int Padded, int Threads, class Layout = rows_in_order<Padded>, int Together = 1>
__device__ void stage_rows(const any_element_view<4>& from, const shared_operands& in, std::int64_t b, std::int64_t t0,
                           std::int64_t group, int tokens, int rows, float* to) {
  constexpr int each = Padded / 32;
  constexpr int warps = Threads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dk = in.dk();
  const std::int64_t stride = from.stride(3);
  const std::int64_t token_stride = from.stride(1);
  with_element(from.type(), [&]<class T>(T) {
    const T* const source = reinterpret_cast<const T*>(from.address(b, t0, group, 0));
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / 32; first < rows; first += warps * Together) {
      T loaded[Together][each];
#pragma unroll
      for (int i = 0; i < Together; ++i) {
        const int t = first + i * warps;
#pragma unroll
        for (int j = 0; j < each; ++j) {
          const int c = j * 32 + lane;
          loaded[i][j] = T{};
          if (t < tokens && c < dk) loaded[i][j] = source[t * token_stride + c * stride];
        }
      }
#pragma unroll
      for (int i = 0; i < Together; ++i) {
        const int t = first + i * warps;
        float x[each];
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < each; ++j) {
          x[j] = static_cast<float>(loaded[i][j]);
          squares = fmaf(x[j], x[j], squares);
        }
        float factor = 1.0f;
        if (in.normalize) factor = inverse_length(sum_in_group<32>(squares), in.eps);
        if (Together > 1 && t >= rows) continue;
#pragma unroll
        for (int j = 0; j < each; ++j) to[t * Layout::pitch + Layout::place(j * 32 + lane)] = x[j] * factor;
      }
    }
  });
}

/// The state's column of register i of a thread's row.
template <int Lanes>
__device__ int column_of(int i, int lane) {
  return i / 4 * (Lanes * 4) + lane * 4 + i % 4;
}

/// A thread's rows of a state from memory, zero where there is none.
template <int Lanes, int Columns, int Rows>
__device__ void load_rows(float (&S)[Rows][Columns], const any_element_view<4>& from, std::int64_t item,
                          std::int64_t head, int first_row, int dv, int dk, int lane) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int i = 0; i < Columns; ++i) S[r][i] = 0.0f;
  }
  if (!from.given()) return;
  const std::int64_t stride = from.stride(3);
  const std::int64_t jump = (Lanes * 4 - 3) * stride;  // to the next four columns
  with_element(from.type(), [&]<class T>(T) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (first_row + r >= dv) continue;
      const T* x = reinterpret_cast<const T*>(from.address(item, head, first_row + r, lane * 4));
#pragma unroll
      for (int i = 0; i < Columns; ++i, x += i % 4 == 0 ? jump : stride) {
        if (column_of<Lanes>(i, lane) < dk) S[r][i] = static_cast<float>(*x);
      }
    }
  });
}

template <int Lanes, int Columns, int Rows>
__device__ void store_rows(const float (&S)[Rows][Columns], const any_element_view<4>& to, std::int64_t item,
                           std::int64_t head, int first_row, int dv, int dk, int lane) {
  const std::int64_t stride = to.stride(3);
  const std::int64_t jump = (Lanes * 4 - 3) * stride;
  with_element(to.type(), [&]<class T>(T) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (first_row + r >= dv) continue;
      T* x = reinterpret_cast<T*>(to.address(item, head, first_row + r, lane * 4));
#pragma unroll
      for (int i = 0; i < Columns; ++i, x += i % 4 == 0 ? jump : stride) {
        if (column_of<Lanes>(i, lane) < dk) *x = static_cast<T>(S[r][i]);
      }
    }
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
