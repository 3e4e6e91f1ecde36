// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Sixteen rows of a state in the registers of a warp, laid out as tensor_core.cuh's matrices of sums, and what a chunk
/// of eight tokens does with them: read them under its keys and queries, and add to them.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/tensor_core.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// `Columns` columns, a multiple of 16. Thread 4 g + c has of rows g and g + 8 the columns 8 j + 2c and 8 j + 2c + 1.
/// Fragments are those of chunk_system.cuh, from the first of these columns on.
template <int Columns>
class state_fragments {
 public:
  /// sums(row, t) = row . fragments' row t, for one set of fragments over columns or two at once. `Exact`: their
  /// numbers have 11 bits. Every 64 columns are summed for themselves and then added, as sum_over_column_warps() adds
  /// what warps have: the bits do not depend on how many warps share the columns.
  template <bool Exact>
  __device__ void multiply(const float4* fragments, float (&sums)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      float hi[2][4] = {};
      float lo[2][4] = {};
#pragma unroll
      for (int J = part * part_fragments; J < (part + 1) * part_fragments; ++J) {
        const float4 x = fragments[32 * J + lane];
        multiply_add<Exact>(hi[0], lo[0], left(2 * J), x.x, x.y);
        multiply_add<Exact>(hi[1], lo[1], left(2 * J + 1), x.z, x.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = (part == 0 ? 0.0f : sums[i]) + ((hi[0][i] + hi[1][i]) + (lo[0][i] + lo[1][i]));
      }
    }
  }
  template <bool Exact>
  __device__ void multiply(const float4* first, float (&of_first)[4], const float4* second,
                           float (&of_second)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      float hi[2][4] = {};
      float lo[2][4] = {};
#pragma unroll
      for (int J = part * part_fragments; J < (part + 1) * part_fragments; ++J) {
        const float4 x = first[32 * J + lane];
        const float4 y = second[32 * J + lane];
        const tf32_left near = left(2 * J);
        multiply_add<Exact>(hi[0], lo[0], near, x.x, x.y);
        multiply_add<Exact>(hi[1], lo[1], near, y.x, y.y);
        const tf32_left far = left(2 * J + 1);
        multiply_add<Exact>(hi[0], lo[0], far, x.z, x.w);
        multiply_add<Exact>(hi[1], lo[1], far, y.z, y.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of_first[i] = (part == 0 ? 0.0f : of_first[i]) + (hi[0][i] + lo[0][i]);
        of_second[i] = (part == 0 ? 0.0f : of_second[i]) + (hi[1][i] + lo[1][i]);
      }
    }
  }

  /// multiply() makes a NaN of an infinite state, whose second part is none for a tensor core. If any row of the warp
  /// has a NaN, all products are made again by ordinary arithmetic, which keeps the definition's infinities.
  __device__ void mend_infinities(const float4* fragments, float (&sums)[4]) const {
    const bool is_nan = isnan(sums[0]) || isnan(sums[1]) || isnan(sums[2]) || isnan(sums[3]);
    if (__any_sync(0xffffffffu, is_nan) == 0) return;
    const int c = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
    for (int t = 0; t < 8; ++t) {
      float above = 0.0f;
      float below = 0.0f;
#pragma unroll
      for (int J = 0; J < Columns / 16; ++J) {
        const float4 x = fragments[32 * J + 4 * t + c];
        above = fmaf(x_[2 * J][0], x.x, fmaf(x_[2 * J][2], x.y, above));
        above = fmaf(x_[2 * J + 1][0], x.z, fmaf(x_[2 * J + 1][2], x.w, above));
        below = fmaf(x_[2 * J][1], x.x, fmaf(x_[2 * J][3], x.y, below));
        below = fmaf(x_[2 * J + 1][1], x.z, fmaf(x_[2 * J + 1][3], x.w, below));
      }
#pragma unroll
      for (int apart = 1; apart < 4; apart *= 2) {
        above += __shfl_xor_sync(0xffffffffu, above, apart);
        below += __shfl_xor_sync(0xffffffffu, below, apart);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sums[i] = t == 2 * c + i ? above : sums[i];
        sums[2 + i] = t == 2 * c + i ? below : sums[2 + i];
      }
    }
  }

  /// rows <- factor rows + sum_t by(row, t) fragments' row t, fragments over rows. The sum over the tokens is rounded
  /// by the tensor core, which truncates; that with the state is rounded to the nearest.
  template <bool Exact>
  __device__ void decay_and_add(float factor, const float (&by)[4], const float4* fragments) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const tf32_left a = left_factor<true>(by);
#pragma unroll
    for (int J = 0; J < Columns / 16; J += 2) {
      // Products that wait for each other are kept apart.
      const float4 b = fragments[32 * J + lane];
      const float4 d = fragments[32 * J + 32 + lane];
      float sums[4][4] = {};
      multiply_add_all<Exact>(sums, a, {{b.x, b.y}, {b.z, b.w}, {d.x, d.y}, {d.z, d.w}});
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = x_[2 * J + j][i / 2 + i % 2 * 2];
          x = fmaf(factor, x, sums[j][i]);
        }
      }
    }
  }

  /// To Columns / 8 x 32 float4, [8 columns][thread]: the order that place_in_record() gives its readers.
  __device__ void record(float4* to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < Columns / 8; ++j) to[32 * j + lane] = make_float4(x_[j][0], x_[j][1], x_[j][2], x_[j][3]);
  }

  /// From memory, zero where there is none: rows and columns from first_row and first_column of (item, head) on.
  __device__ void load(const any_element_view<4>& from, std::int64_t item, std::int64_t head, int first_row,
                       int first_column, int dv, int dk) {
    if (!from.given()) {
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x_[j][i] = 0.0f;
      }
      return;
    }
    with_element(from.type(), [&]<class T>(T) {
      walk_memory<const T>(from, item, head, first_row, first_column, dv, dk,
                           [](float& x, const T* at, bool there) { x = there ? static_cast<float>(*at) : 0.0f; });
    });
  }
  __device__ void store(const any_element_view<4>& to, std::int64_t item, std::int64_t head, int first_row,
                        int first_column, int dv, int dk) {
    with_element(to.type(), [&]<class T>(T) {
      walk_memory<T>(to, item, head, first_row, first_column, dv, dk, [](float x, T* at, bool there) {
        if (there) *at = static_cast<T>(x);
      });
    });
  }

 private:
  /// f(element, its place in memory, whether there is such a place): a pointer a row moves on, so that few addresses
  /// are alive at once.
  template <class T, class F>
  __device__ void walk_memory(const any_element_view<4>& memory, std::int64_t item, std::int64_t head, int first_row,
                              int first_column, int dv, int dk, F&& f) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t stride = memory.stride(3);
#pragma unroll
    for (int above = 0; above < 2; ++above) {
      const int row = first_row + lane / 4 + 8 * above;
      int column = first_column + lane % 4 * 2;
      T* at = reinterpret_cast<T*>(memory.address(item, head, row, column));
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j, column += 8, at += 8 * stride) {
        f(x_[j][above], at, row < dv && column < dk);
        f(x_[j][above + 2], at + stride, row < dv && column + 1 < dk);
      }
    }
  }

  static constexpr int part_fragments = (Columns < 64 ? Columns : 64) / 16;
  static constexpr int parts = Columns / 16 / part_fragments;

  [[nodiscard]] __device__ tf32_left left(int j) const { return left_factor(x_[j][0], x_[j][1], x_[j][2], x_[j][3]); }

  float x_[Columns / 8][4];  ///< in left_factor()'s order, so that they are one as they lie
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
