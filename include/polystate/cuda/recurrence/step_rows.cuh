// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A thread's part of the states, keys and queries of a step, between memory and registers.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// The address of an element whose type the caller knows, by numbers that are not negative: fewer operations than
/// any_element_view's.
template <class T>
__device__ T* address_of(const any_element_view<4>& view, unsigned b, unsigned t, unsigned head, unsigned i) {
  return reinterpret_cast<T*>(view.address(0, 0, 0, 0)) +
         (b * view.stride(0) + t * view.stride(1) + head * view.stride(2) + i * view.stride(3));
}

/// Columns of a thread: V neighbours of each access.
template <int Lanes, int V>
__device__ int step_column(int i, int lane) {
  return i / V * (Lanes * V) + lane * V + i % V;
}

/// A thread's columns of a row whose elements are `stride` apart, into vectors of zeros; addresses one after the other,
/// so that they take few registers.
template <int Lanes, int V, class T, int N, int Vectors>
__device__ void gather_columns(vector<T, N> (&x)[Vectors], const T* row, std::int64_t stride, int dk, int lane) {
  row += lane * V * stride;
#pragma unroll
  for (int i = 0; i < N * Vectors; ++i, row += i % V == 0 ? (Lanes * V - V + 1) * stride : stride) {
    if (step_column<Lanes, V>(i, lane) < dk) insert_element(x[i / N], i % N, *row);
  }
}

/// A thread's rows of a state as they lie in memory, zero where there is none. Nothing here waits for what it loads, so
/// that all of it is in flight at once: turning the elements into floats is left to the
/// caller.
template <int Lanes, bool Whole, class State, int Rows, int Vectors>
__device__ void load_state_rows(vector<State> (&x)[Rows][Vectors], const State* first, std::int64_t row_stride,
                                std::int64_t stride, int rows, int dk, int lane) {
  constexpr int V = vector_elements<State>;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int j = 0; j < Vectors; ++j) x[r][j] = {};
  }
  if constexpr (Whole) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int j = 0; j < Vectors; ++j) {
        const int c = step_column<Lanes, V>(j * V, lane);
        if (r < rows && c < dk) x[r][j] = load_vector(first + r * row_stride + c);
      }
    }
  } else {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (r < rows) gather_columns<Lanes, V>(x[r], first + r * row_stride, stride, dk, lane);
    }
  }
}

/// A thread's columns of a key or query as they lie in memory, likewise.
template <int Lanes, int V, bool Whole, class T, int Fours>
__device__ void load_columns(vector<T, 4> (&x)[Fours], const T* row, std::int64_t stride, int dk, int lane) {
#pragma unroll
  for (int j = 0; j < Fours; ++j) x[j] = {};
  if constexpr (Whole) {
#pragma unroll
    for (int j = 0; j < Fours; ++j) {
      const int c = step_column<Lanes, V>(j * 4, lane);
      if (c < dk) x[j] = load_vector<T, 4>(row + c);
    }
  } else {
    gather_columns<Lanes, V>(x, row, stride, dk, lane);
  }
}

/// What a row is multiplied by when it is normalised, from the columns that the threads of a group hold.
template <int Lanes, class T, int Fours>
__device__ float length_factor(const shared_operands& in, const vector<T, 4> (&x)[Fours]) {
  if (!in.normalize) return 1.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4 * Fours; ++i) {
    const auto y = static_cast<float>(element_of(x[i / 4], i % 4));
    squares = fmaf(y, y, squares);
  }
  return inverse_length(sum_in_group<Lanes>(squares), in.eps);
}

template <int Lanes, bool Whole, class State, int Rows, int Columns>
__device__ void store_state_rows(const float (&S)[Rows][Columns], State* first, std::int64_t row_stride,
                                 std::int64_t stride, int rows, int dk, int lane) {
  constexpr int V = vector_elements<State>;
  State* row = first + lane * V * stride;
#pragma unroll
  for (int r = 0; r < Rows; ++r, row += row_stride) {
    if (r >= rows) continue;
#pragma unroll
    for (int j = 0; j < Columns; j += V) {
      const int c = step_column<Lanes, V>(j, lane);
      float x[V];
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = S[r][j + i];
      const vector<State> rounded = round_to_vector<State>(x);
      if constexpr (Whole) {
        if (c < dk) store_vector(row + j * Lanes, rounded);
      } else {
        State* at = row + j * Lanes * stride;
#pragma unroll
        for (int i = 0; i < V; ++i, at += stride) {
          if (c + i < dk) *at = element_of(rounded, i);
        }
      }
    }
  }
}

/// Asks for a block's rows of a state, `Rows` from `first` on, of which `there` exist, to be brought to the L2 cache.
template <int Threads, int Rows, int Padded, class State>
__device__ void fetch_to_cache(const State* first, std::int64_t row_stride, int there, int dk) {
  constexpr int line = 128 / static_cast<int>(sizeof(State));
  constexpr int lines = Padded > line ? Padded / line : 1;
#pragma unroll
  for (int i = 0; i < Rows * lines; i += Threads) {
    const int row = (i + static_cast<int>(threadIdx.x)) / lines;
    const int column = (i + static_cast<int>(threadIdx.x)) % lines * line;
    if (row < there && column < dk) asm volatile("prefetch.global.L2 [%0];" ::"l"(first + row * row_stride + column));
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
