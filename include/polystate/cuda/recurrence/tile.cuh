// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A tile of tokens in shared memory: from the operands' rows as they lie in memory to floats, and the small matrices
/// that four tokens have among themselves.

#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>

#include <cuda_pipeline.h>
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

/// Copies `count` elements along dim 3, from index `first` of it on, of `tokens` tokens from t0 on to rows that are
/// `pitch` elements apart; 16 bytes at a time and asynchronously where they allow it. Waits for nothing.
template <int Threads>
__device__ void fetch_rows(const any_element_view<4>& from, bool whole, std::int64_t b, std::int64_t t0, int tokens,
                           std::int64_t head, int first, int count, char* to, int pitch) {
  const int bytes = bytes_of(from.type());
  const char* const source = from.address(b, t0, head, first);
  const std::int64_t token_bytes = from.stride(1) * bytes;
  const int tid = static_cast<int>(threadIdx.x);
  if (whole) {
    const int vectors = count * bytes / static_cast<int>(vector_bytes);
    for (int i = tid; i < tokens * vectors; i += Threads) {
      const int t = i / vectors;
      const int at = i % vectors * static_cast<int>(vector_bytes);
      __pipeline_memcpy_async(to + t * pitch * bytes + at, source + t * token_bytes + at, vector_bytes);
    }
  } else {
    const std::int64_t element_bytes = from.stride(3) * bytes;
#pragma unroll 1
    for (int i = tid; i < tokens * count; i += Threads) {
      const int t = i / count;
      const int c = i % count;
      const char* const x = source + t * token_bytes + c * element_bytes;
      char* const y = to + (t * pitch + c) * bytes;
      if (bytes == 4) {
        *reinterpret_cast<std::uint32_t*>(y) = *reinterpret_cast<const std::uint32_t*>(x);
      } else {
        *reinterpret_cast<std::uint16_t*>(y) = *reinterpret_cast<const std::uint16_t*>(x);
      }
    }
  }
}

/// Rows of keys or queries as they lie in memory (`Padded` elements apart) to floats: zero beyond dk and beyond
/// `tokens`, normalised if the operands say so. Every warp of the block takes part.
template <int Padded, int Tokens, int Threads>
__device__ void convert_rows(const char* from, element_type type, const shared_operands& in, int tokens, float* to) {
  constexpr int lanes = Padded / 4 < 32 ? Padded / 4 : 32;
  constexpr int each = Padded / 4 / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int dk = in.dk();
  static_assert(Tokens * lanes % Threads == 0, "all lanes of a warp take part in the sums");
  for (int t = static_cast<int>(threadIdx.x) / lanes; t < Tokens; t += Threads / lanes) {
    float4 x[each];
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = (j * lanes + lane) * 4;
      x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (t >= tokens || c >= dk) continue;
      x[j] = load_four(from + (t * Padded + c) * bytes_of(type), type);
      if (c + 1 >= dk) x[j].y = 0.0f;
      if (c + 2 >= dk) x[j].z = 0.0f;
      if (c + 3 >= dk) x[j].w = 0.0f;
      squares += x[j].x * x[j].x + x[j].y * x[j].y + x[j].z * x[j].z + x[j].w * x[j].w;
    }
    float factor = 1.0f;
    if (in.normalize) factor = inverse_length(sum_in_group<lanes>(squares), in.eps);
#pragma unroll
    for (int j = 0; j < each; ++j) {
      *reinterpret_cast<float4*>(to + t * Padded + (j * lanes + lane) * 4) =
          make_float4(x[j].x * factor, x[j].y * factor, x[j].z * factor, x[j].w * factor);
    }
  }
}

/// Rows of keys or queries straight from memory, else as convert_rows(): a warp takes a row at a time.
template <int Padded, int Threads>
__device__ void stage_rows(const any_element_view<4>& from, const shared_operands& in, std::int64_t b, std::int64_t t0,
                           std::int64_t group, int tokens, int rows, float* to) {
  constexpr int each = Padded / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dk = in.dk();
  const std::int64_t stride = from.stride(3);
  for (int t = static_cast<int>(threadIdx.x) / 32; t < rows; t += Threads / 32) {
    const char* const row = t < tokens ? from.address(b, t0 + t, group, 0) : nullptr;
    float x[each];
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = j * 32 + lane;
      x[j] = t < tokens && c < dk ? load_element(row, from.type(), c * stride) : 0.0f;
      squares = fmaf(x[j], x[j], squares);
    }
    float factor = 1.0f;
    if (in.normalize) factor = inverse_length(sum_in_group<32>(squares), in.eps);
#pragma unroll
    for (int j = 0; j < each; ++j) to[t * Padded + j * 32 + lane] = x[j] * factor;
  }
}

/// Fills the numbers of a tile's chunks from its keys, queries and gates. Groups of 8 threads take one dot product
/// each.
template <bool Erases, int Padded, int Chunks, int Threads>
__device__ void fill_chunks(const float* k, const float* q, const float* alpha, const float* write, float scale,
                            chunk_numbers* to) {
  constexpr int M = chunk_tokens;
  constexpr int query_pairs = M * (M + 1) / 2;
  constexpr int pairs = query_pairs + (Erases ? M * (M - 1) / 2 : 0);
  constexpr int lanes = 8;
  constexpr int tasks = Chunks * pairs;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % lanes;
  // Whole warps stay together for the sums: the tasks are rounded up.
  for (int task = tid / lanes; task < (tasks + 3) / 4 * 4; task += Threads / lanes) {
    const int chunk = min(task / pairs, Chunks - 1);
    const int pair = task % pairs;
    const bool of_query = pair < query_pairs;
    int t = of_query ? 0 : 1;
    int s = of_query ? pair : pair - query_pairs;
    while (s > t - (of_query ? 0 : 1)) {
      s -= t + (of_query ? 1 : 0);
      ++t;
    }
    const float* const a = (of_query ? q : k) + (chunk * M + t) * Padded;
    const float* const b = k + (chunk * M + s) * Padded;
    float sum = 0.0f;
#pragma unroll 4
    for (int c = lane * 4; c < Padded; c += lanes * 4) {
      const float4 x = *reinterpret_cast<const float4*>(a + c);
      const float4 y = *reinterpret_cast<const float4*>(b + c);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    }
    sum = sum_in_group<lanes>(sum);
    if (lane != 0 || task >= tasks) continue;
    for (int r = s + 1; r <= t; ++r) sum *= alpha[chunk * M + r];
    if (of_query) {
      to[chunk].query_key[chunk_numbers::upto(t, s)] = scale * sum;
    } else {
      to[chunk].key_key[chunk_numbers::below(t, s)] = sum;
    }
  }
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
