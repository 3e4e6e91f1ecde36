// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What eight tokens of a head, a chunk, have to do with each other and with the state before them, and how a warp
/// works it out from their keys, queries and gates. With D(t, s) = alpha_{s+1} .. alpha_t, D(t) = alpha_0 .. alpha_t:
///
///     e_t = v_t - D(t) S k_t - sum_{s<t} D(t, s) (k_t.k_s) write_s e_s          (e_t = v_t in forms that do not erase)
///     u_t = write_t e_t
///     o_t = scale D(t) S q_t + sum_{s<=t} scale D(t, s) (q_t.k_s) u_s
///     S  <- D(7) S + sum_s D(7, s) u_s k_s^T
///
/// The equations for e are triangular and the same for every row of S, so that their matrix is inverted once: Schreiber
/// and van Loan 1989, Yang et al. 2024 (arXiv:2406.06484), section 3. Backwards, reverse.cuh uses the same numbers.
/// Where keys and queries are normalised, the factors are in the numbers here, and S k_t means the row as it lies in
/// memory.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/tensor_core.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

struct alignas(16) chunk_system {
  static constexpr int M = 8;
  float solve[M][M];      ///< e = solve (v - forget S k), lower triangular; only in forms that erase
  float key_key[M][M];    ///< D(t, s) (k_t.k_s), s < t, else 0; only in forms that erase
  float query_key[M][M];  ///< scale D(t, s) q_t.k_s, s <= t, else 0
  float forget[M];        ///< D(t)
  float read[M];          ///< scale D(t)
  float write[M];
  float end[M];  ///< D(7, s)
  float decay;   ///< D(7)
};

/// The rows of a chunk lie in fragments, the order in which a warp's threads use them as right factors: 16 columns of
/// all eight rows are 32 float4, thread 4 g + c's the one at 32 J + 4 g + c. Over columns it holds of row g the columns
/// 16 J + {2c, 2c+1, 8+2c, 9+2c}; over rows, of rows 2c and 2c+1 the column 16 J + g, and then 16 J + 8 + g.
constexpr int fragments_of_chunk(int padded) { return 2 * padded; }

/// Two neighbours at an address that is a multiple of their size.
template <class T>
__device__ float2 load_two(const T* at) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(at);
  } else {
    const auto bits = *reinterpret_cast<const std::uint32_t*>(at);
    return make_float2(static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits))),
                       static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits >> 16))));
  }
}

/// The dot products of a chunk's keys and queries with its keys; a warp.
struct chunk_products {
  float of_keys[4] = {};  ///< a matrix of sums: rows 0-7 k_t.k_s, rows 8-15 q_t.k_s
  float key_square = 0;   ///< |k_t|^2 and |q_t|^2 of token t = thread / 4
  float query_square = 0;
};

/// Also writes the rows as fragments over columns, those that are wanted. `Squares`: key_square and query_square are.
template <bool Keys, bool Queries, bool Squares, int Padded, class T>
__device__ chunk_products multiply_chunk(const T* keys, const T* queries, int pitch, float4* key_fragments,
                                         float4* query_fragments) {
  constexpr bool exact = sizeof(T) == 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const key = keys + lane / 4 * pitch + lane % 4 * 2;
  const T* const query = queries + lane / 4 * pitch + lane % 4 * 2;
  chunk_products r;
  float small[4] = {};
#pragma unroll 4
  for (int J = 0; J < Padded / 16; ++J) {
    const float2 k = load_two(key + 16 * J);
    const float2 k8 = load_two(key + 16 * J + 8);
    const float2 q = load_two(query + 16 * J);
    const float2 q8 = load_two(query + 16 * J + 8);
    if constexpr (Keys) key_fragments[32 * J + lane] = make_float4(k.x, k.y, k8.x, k8.y);
    if constexpr (Queries) query_fragments[32 * J + lane] = make_float4(q.x, q.y, q8.x, q8.y);
    if constexpr (Squares) {
      r.key_square = fmaf(k.x, k.x, fmaf(k.y, k.y, fmaf(k8.x, k8.x, fmaf(k8.y, k8.y, r.key_square))));
      r.query_square = fmaf(q.x, q.x, fmaf(q.y, q.y, fmaf(q8.x, q8.x, fmaf(q8.y, q8.y, r.query_square))));
    }
    const float near[4] = {k.x, k.y, q.x, q.y};
    const float far[4] = {k8.x, k8.y, q8.x, q8.y};
    if constexpr (exact) {
      mma_tf32(r.of_keys, left_factor(near).hi, __float_as_uint(k.x), __float_as_uint(k.y));
      mma_tf32(small, left_factor(far).hi, __float_as_uint(k8.x), __float_as_uint(k8.y));
    } else {
      multiply_add<false>(r.of_keys, small, left_factor<true>(near), k.x, k.y);
      multiply_add<false>(r.of_keys, small, left_factor<true>(far), k8.x, k8.y);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) r.of_keys[i] += small[i];
  if constexpr (Squares) {
#pragma unroll
    for (int apart = 2; apart > 0; apart /= 2) {
      r.key_square += __shfl_xor_sync(0xffffffffu, r.key_square, apart);
      r.query_square += __shfl_xor_sync(0xffffffffu, r.query_square, apart);
    }
  }
  return r;
}

/// A tile's keys or queries as fragments over rows, of the columns from 16 first on, 16 step and so on behind them; a
/// warp.
template <int Padded, int Chunks, class T>
__device__ void transpose_chunks(const T* rows, int pitch, int first, int step,
                                 float4 (*fragments)[fragments_of_chunk(Padded)]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const row = rows + lane % 4 * 2 * pitch + lane / 4;
#pragma unroll 2
  for (int J = first; J < Padded / 16; J += step) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const T* const x = row + chunk * chunk_system::M * pitch + 16 * J;
      fragments[chunk][32 * J + lane] = make_float4(static_cast<float>(x[0]), static_cast<float>(x[pitch]),
                                                    static_cast<float>(x[8]), static_cast<float>(x[pitch + 8]));
    }
  }
}

/// The system of a chunk from its products, where each thread has the gate of token thread / 4; a warp. `Forward`: a
/// token of write strength 0 adds nothing, not even 0 times a factor that is infinite. Its derivative is not 0, so the
/// walk back keeps the factors.
template <bool Erases, bool Forward>
__device__ void solve_chunk(const chunk_products& products, const gate& own, const shared_operands& in,
                            chunk_system& to) {
  constexpr int M = chunk_system::M;
  constexpr unsigned all = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = lane / 4;
  const int s = lane % 4 * 2;  // and s + 1
  const float key = in.normalize ? inverse_length(products.key_square, in.eps) : 1.0f;
  const float query = in.scale * (in.normalize ? inverse_length(products.query_square, in.eps) : 1.0f);
  float decay = 1.0f;  // D(t)
  float end = 1.0f;    // D(7, t)
  float between[2] = {1.0f, 1.0f};
#pragma unroll
  for (int r = 0; r < M; ++r) {
    const float alpha = __shfl_sync(all, own.alpha, 4 * r);
    decay *= r <= t ? alpha : 1.0f;
    end *= r > t ? alpha : 1.0f;
    between[0] *= r > s && r <= t ? alpha : 1.0f;
    between[1] *= r > s + 1 && r <= t ? alpha : 1.0f;
  }
  const float total = __shfl_sync(all, decay, 4 * (M - 1));
  float query_key[2];
  float key_key[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float key_s = __shfl_sync(all, key, 4 * (s + i));
    const bool writes = !Forward || __shfl_sync(all, own.write, 4 * (s + i)) != 0.0f;
    query_key[i] = writes && s + i <= t ? query * between[i] * key_s * products.of_keys[2 + i] : 0.0f;
    key_key[i] = writes && s + i < t ? key * between[i] * key_s * products.of_keys[i] : 0.0f;
  }
  *reinterpret_cast<float2*>(&to.query_key[t][s]) = make_float2(query_key[0], query_key[1]);
  if (lane % 4 == 0) {
    to.forget[t] = key * decay;
    to.read[t] = query * decay;
    to.write[t] = own.write;
    to.end[t] = !Forward || own.write != 0.0f ? key * end : 0.0f;
    if (lane == 0) to.decay = total;
  }
  if constexpr (Erases) {
    // Column `lane` of the inverse of 1 + key_key write.
    *reinterpret_cast<float2*>(&to.key_key[t][s]) = make_float2(key_key[0], key_key[1]);
    __syncwarp();
    float x[M];
    float written[M];
#pragma unroll
    for (int row = 0; row < M; ++row) {
      const float4 left = *reinterpret_cast<const float4*>(&to.key_key[row][0]);
      const float4 right = *reinterpret_cast<const float4*>(&to.key_key[row][4]);
      const float L[M] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
      float sum = row == lane % M ? 1.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < row; ++i) sum = fmaf(-L[i], written[i], sum);
      x[row] = row < lane % M ? 0.0f : sum;
      written[row] = __shfl_sync(all, own.write, 4 * row) * x[row];
    }
    if (lane < M) {
#pragma unroll
      for (int row = 0; row < M; ++row) to.solve[row][lane] = x[row];
    }
  }
}

/// y_t = sum_{s<=t} matrix(t, s) x_s, or with `Later` y_s = sum_{t>=s} matrix(t, s) x_t, of 16 rows, which lie like a
/// matrix of sums; a warp. The product's zeros would carry an x that is not finite to tokens which do not depend on it:
/// then each token's sum is made of its own ones alone, in the same bits.
template <bool Later = false>
__device__ void multiply_causal(float (&y)[4], const float (&x)[4], const float (&matrix)[8][8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own = lane % 4 * 2;  // and own + 1
  const float2 m = Later ? make_float2(matrix[own][lane / 4], matrix[own + 1][lane / 4])
                         : *reinterpret_cast<const float2*>(&matrix[lane / 4][own]);
  const auto product = [&m](float(&sum)[4], const float(&of)[4]) {
    float large[4] = {};
    float small[4] = {};
    multiply_add<false>(large, small, left_factor<true>(of), m.x, m.y);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = large[i] + small[i];
  };
  const float nothing = fmaf(x[0], 0.0f, fmaf(x[1], 0.0f, fmaf(x[2], 0.0f, x[3] * 0.0f)));
  const bool finite = __all_sync(0xffffffffu, nothing == 0.0f) != 0;
  product(y, x);
  if (finite) return;
#pragma unroll 1
  for (int t = 0; t < 8; ++t) {
    const bool first = Later ? own >= t : own <= t;
    const bool second = Later ? own + 1 >= t : own < t;
    float sum[4];
    const float of_t[4] = {first ? x[0] : 0.0f, second ? x[1] : 0.0f, first ? x[2] : 0.0f, second ? x[3] : 0.0f};
    product(sum, of_t);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = own + i % 2 == t ? sum[i] : y[i];
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
