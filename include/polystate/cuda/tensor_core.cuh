// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Matrix products of floats on tensor cores, in the accuracy of float. A tensor core multiplies numbers of 11 bits
/// (tf32) and adds in float; a float is two of them, x = hi + lo + 2^-21 x or less, and a product of floats is three
/// products, hi hi + hi lo + lo hi. A factor that comes from half or bfloat16 is one such number, and two products do.
///
/// Of a warp's 32 threads, thread 4 g + c holds of a 16 x 8 matrix of sums the elements (g, 2c), (g, 2c+1), (g+8, 2c),
/// (g+8, 2c+1). As the left factor of a product over its 8 columns the hardware wants the columns c and c+4 there: the
/// order of the 8 is free as long as both factors have the same, so that a matrix of sums is a left factor as it lies.
/// The right factor's elements of a thread are then (2c, g) and (2c+1, g).

#include <polystate/core/macros.hpp>
#include <polystate/cuda/compiler.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// The parts of a float that a tensor core takes: `hi` has its first 11 bits.
struct tf32_pair {
  std::uint32_t hi;
  std::uint32_t lo;
};

__device__ inline tf32_pair split_tf32(float x) {
  const std::uint32_t hi = __float_as_uint(x) & 0xffffe000u;
  return {hi, __float_as_uint(x - __uint_as_float(hi))};
}

/// `hi` rounded to the nearest: half the error, for one operation more.
__device__ inline tf32_pair split_tf32_nearest(float x) {
  const std::uint32_t hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  return {hi, __float_as_uint(x - __uint_as_float(hi))};
}

/// A left factor, 16 x 8.
struct tf32_left {
  std::uint32_t hi[4];
  std::uint32_t lo[4];
};

/// From (g, 2c), (g+8, 2c), (g, 2c+1), (g+8, 2c+1), the order in which the hardware takes them.
template <bool Nearest = false>
__device__ tf32_left left_factor(float a, float b, float c, float d) {
  const float x[4] = {a, b, c, d};
  tf32_left result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const tf32_pair p = Nearest ? split_tf32_nearest(x[i]) : split_tf32(x[i]);
    result.hi[i] = p.hi;
    result.lo[i] = p.lo;
  }
  return result;
}

/// From a matrix of sums, or from numbers that lie like one.
template <bool Nearest = false>
__device__ tf32_left left_factor(const float (&x)[4]) {
  return left_factor<Nearest>(x[0], x[2], x[1], x[3]);
}

/// d += a b, whose element (k, n) a thread holds at n = g and, in b0 and b1, at its two k.
__device__ inline void mma_tf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// hi and lo += a b: the large products and the small ones, to be added by the caller; two chains are shorter than one.
/// `Exact`: b has 11 bits.
template <bool Exact>
__device__ void multiply_add(float (&hi)[4], float (&lo)[4], const tf32_left& a, float b0, float b1) {
  if constexpr (Exact) {
    mma_tf32(hi, a.hi, __float_as_uint(b0), __float_as_uint(b1));
    mma_tf32(lo, a.lo, __float_as_uint(b0), __float_as_uint(b1));
  } else {
    const tf32_pair x = split_tf32_nearest(b0);
    const tf32_pair y = split_tf32_nearest(b1);
    mma_tf32(hi, a.hi, x.hi, y.hi);
    mma_tf32(lo, a.lo, x.hi, y.hi);
    mma_tf32(lo, a.hi, x.lo, y.lo);
  }
}

/// sums[j] += a b[j], each product in one chain.
template <bool Exact, int Count>
__device__ void multiply_add_all(float (&sums)[Count][4], const tf32_left& a, const float (&b)[Count][2]) {
  tf32_pair x[Count][2];
#pragma unroll
  for (int j = 0; j < Count; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[j][i] = Exact ? tf32_pair{__float_as_uint(b[j][i]), 0u} : split_tf32_nearest(b[j][i]);
  }
#pragma unroll
  for (int j = 0; j < Count; ++j) mma_tf32(sums[j], a.lo, x[j][0].hi, x[j][1].hi);
  if constexpr (!Exact) {
#pragma unroll
    for (int j = 0; j < Count; ++j) mma_tf32(sums[j], a.hi, x[j][0].lo, x[j][1].lo);
  }
#pragma unroll
  for (int j = 0; j < Count; ++j) mma_tf32(sums[j], a.hi, x[j][0].hi, x[j][1].hi);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
