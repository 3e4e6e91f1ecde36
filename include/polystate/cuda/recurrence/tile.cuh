// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A tile of tokens in shared memory: from the operands' rows as they lie in memory to floats, and the small matrices
/// that four tokens have among themselves.

#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// The numbers that carry a head from a chunk's start over its four tokens, with D(t, s) = alpha_{s+1} .. alpha_t and
/// D(t) = alpha_0 .. alpha_t:
///
///     e_t = v_t - D(t) S k_t - sum_{s<t} key_key(t, s) u_s          (e_t = v_t in forms that do not erase)
///     u_t = write_t e_t
///     o_t = scale D(t) S q_t + sum_{s<=t} query_key(t, s) u_s
///     S  <- end S + sum_s end(s) u_s k_s^T
struct alignas(16) chunk_numbers {
  static constexpr int M = chunk_tokens;
  float key_key[M * (M - 1) / 2 + 2];    ///< D(t, s) k_t.k_s, s < t, at below(t, s)
  float query_key[M * (M + 1) / 2 + 2];  ///< scale D(t, s) q_t.k_s, s <= t, at upto(t, s)
  float decay[M];                        ///< D(t)
  float read[M];                         ///< scale D(t)
  float write[M];
  float end[M];  ///< D(M-1, s)

  __host__ __device__ static constexpr int below(int t, int s) { return t * (t - 1) / 2 + s; }
  __host__ __device__ static constexpr int upto(int t, int s) { return t * (t + 1) / 2 + s; }
};

/// Rows of keys or queries from memory to floats, `Padded` apart: zero beyond dk and beyond `tokens`, normalised if the
/// operands say so. A warp takes a row at a time.
template <int Padded, int Threads>
__device__ void stage_rows(const any_element_view<4>& from, const shared_operands& in, std::int64_t b, std::int64_t t0,
                           std::int64_t group, int tokens, int rows, float* to) {
  constexpr int each = Padded / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dk = in.dk();
  const std::int64_t stride = from.stride(3);
  with_element(from.type(), [&]<class T>(T) {
#pragma unroll 1
    for (int t = static_cast<int>(threadIdx.x) / 32; t < rows; t += Threads / 32) {
      T loaded[each];
#pragma unroll
      for (int j = 0; j < each; ++j) {
        const int c = j * 32 + lane;
        loaded[j] = T{};
        if (t < tokens && c < dk) loaded[j] = reinterpret_cast<const T*>(from.address(b, t0 + t, group, 0))[c * stride];
      }
      float x[each];
      float squares = 0.0f;
#pragma unroll
      for (int j = 0; j < each; ++j) {
        x[j] = static_cast<float>(loaded[j]);
        squares = fmaf(x[j], x[j], squares);
      }
      float factor = 1.0f;
      if (in.normalize) factor = inverse_length(sum_in_group<32>(squares), in.eps);
#pragma unroll
      for (int j = 0; j < each; ++j) to[t * Padded + j * 32 + lane] = x[j] * factor;
    }
  });
}

/// Fills the numbers of a tile's chunks from its keys, queries and gates. Groups of 8 threads take one dot product
/// each, of several pairs of tokens at a time.
template <bool Erases, int Padded, int Chunks, int Threads>
__device__ void fill_chunks(const float* k, const float* q, const float* alpha, const float* write, float scale,
                            chunk_numbers* to) {
  constexpr int M = chunk_tokens;
  constexpr int query_pairs = M * (M + 1) / 2;
  constexpr int pairs = query_pairs + (Erases ? M * (M - 1) / 2 : 0);
  constexpr int lanes = 8;
  constexpr int groups = Threads / lanes;
  constexpr int tasks = Chunks * pairs;
  constexpr int together = tasks <= groups ? 1 : tasks <= 2 * groups ? 2 : 4;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % lanes;
  // Whole warps stay together for the sums: tasks beyond the last are worked on, but not stored.
#pragma unroll 1
  for (int first = 0; first < tasks; first += together * groups) {
    int chunk[together];
    int t[together];
    int s[together];
    bool of_query[together];
    float sum[together];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int task = first + i * groups + tid / lanes;
      const int pair = task % pairs;
      chunk[i] = min(task / pairs, Chunks - 1);
      of_query[i] = pair < query_pairs;
      const int place = of_query[i] ? pair : pair - query_pairs;
      const int row = (place >= 1) + (place >= 3) + (place >= 6);  // of a triangle whose rows have 1, 2, .. places
      t[i] = of_query[i] ? row : row + 1;
      s[i] = place - row * (row + 1) / 2;
      const float* const a = (of_query[i] ? q : k) + (chunk[i] * M + t[i]) * Padded;
      const float* const b = k + (chunk[i] * M + s[i]) * Padded;
      sum[i] = 0.0f;
#pragma unroll 4
      for (int c = lane * 4; c < Padded; c += lanes * 4) {
        const float4 x = *reinterpret_cast<const float4*>(a + c);
        const float4 y = *reinterpret_cast<const float4*>(b + c);
        sum[i] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum[i]))));
      }
    }
#pragma unroll
    for (int apart = lanes / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int i = 0; i < together; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], apart);
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      if (lane != 0 || first + i * groups + tid / lanes >= tasks) continue;
#pragma unroll
      for (int r = 1; r < M; ++r) sum[i] *= r > s[i] && r <= t[i] ? alpha[chunk[i] * M + r] : 1.0f;
      if (of_query[i]) {
        to[chunk[i]].query_key[chunk_numbers::upto(t[i], s[i])] = scale * sum[i];
      } else {
        to[chunk[i]].key_key[chunk_numbers::below(t[i], s[i])] = sum[i];
      }
    }
  }
  static_assert(M == 4);
  for (int chunk = tid; chunk < Chunks; chunk += Threads) {
    float decay = 1.0f;
    float end = 1.0f;
#pragma unroll
    for (int t = 0; t < M; ++t) {
      decay *= alpha[chunk * M + t];
      to[chunk].decay[t] = decay;
      to[chunk].read[t] = scale * decay;
      to[chunk].write[t] = write[chunk * M + t];
    }
#pragma unroll
    for (int s = M - 1; s >= 0; --s) {
      to[chunk].end[s] = end;
      end *= alpha[chunk * M + s];
    }
  }
}

/// The dot products of a thread's rows of the state with the chunk's rows in shared memory: dots[r * Count + m] is that
/// of row r with rows[m], which are Padded floats long.
template <int Lanes, int Columns, int Rows, int Count>
__device__ void multiply_rows(const float (&S)[Rows][Columns], const float* const (&rows)[Count], int lane,
                              float (&dots)[Rows * Count]) {
#pragma unroll
  for (int i = 0; i < Rows * Count; ++i) dots[i] = 0.0f;
#pragma unroll
  for (int j = 0; j < Columns; j += 4) {
    float4 x[Count];
#pragma unroll
    for (int m = 0; m < Count; ++m) x[m] = *reinterpret_cast<const float4*>(rows[m] + j * Lanes + lane * 4);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int m = 0; m < Count; ++m) {
        float& dot = dots[r * Count + m];
        dot = fmaf(S[r][j], x[m].x, dot);
        dot = fmaf(S[r][j + 1], x[m].y, dot);
        dot = fmaf(S[r][j + 2], x[m].z, dot);
        dot = fmaf(S[r][j + 3], x[m].w, dot);
      }
    }
  }
}

/// S <- factor S + sum_m w[r][m] rows[m]^T
template <int Lanes, int Columns, int Rows>
__device__ void add_rows(float (&S)[Rows][Columns], float factor, const float4 (&w)[Rows],
                         const float* const (&rows)[chunk_tokens], int lane) {
#pragma unroll
  for (int j = 0; j < Columns; j += 4) {
    float4 x[chunk_tokens];
#pragma unroll
    for (int m = 0; m < chunk_tokens; ++m) x[m] = *reinterpret_cast<const float4*>(rows[m] + j * Lanes + lane * 4);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const float by[chunk_tokens] = {w[r].x, w[r].y, w[r].z, w[r].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) S[r][j + i] *= factor;
#pragma unroll
      for (int m = 0; m < chunk_tokens; ++m) {
        S[r][j] = fmaf(by[m], x[m].x, S[r][j]);
        S[r][j + 1] = fmaf(by[m], x[m].y, S[r][j + 1]);
        S[r][j + 2] = fmaf(by[m], x[m].z, S[r][j + 2]);
        S[r][j + 3] = fmaf(by[m], x[m].w, S[r][j + 3]);
      }
    }
  }
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

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
