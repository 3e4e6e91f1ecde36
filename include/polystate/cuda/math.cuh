// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Elementary functions at the accuracy that the data's type deserves.

#include <polystate/core/element.hpp>
#include <polystate/cuda/compiler.cuh>

#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// 2^x by the special-function unit: 2 ulp, results below 2^-126 are 0.
__device__ inline float exp2_approximate(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// 1/x by the special-function unit: 1 ulp.
__device__ inline float reciprocal_approximate(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// 1 / (1 + e^-x) of a float to be rounded to Data: a few ulp of float for float data, the special-function unit for
/// 16-bit data, where rounding to Data is 2^13 times coarser. No |x| makes a NaN, and the left tail keeps its relative
/// accuracy, for float by way of e = exp(-|x|) <= 1; for 16-bit data e^-x may overflow to infinity, whose reciprocal
/// is the 0 that e^x, below 2^-126, would have been flushed to.
template <class Data>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<Data, float>) {
    const float e = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : e) / (1.0f + e);
  } else {
    constexpr float log2_e = 1.44269504088896341f;
    return reciprocal_approximate(1.0f + exp2_approximate(-log2_e * x));
  }
}

/// x * sigmoid(x), likewise.
template <class Data>
__device__ float silu(float x) {
  if constexpr (std::is_same_v<Data, float>) {
    const float e = expf(-fabsf(x));
    return (x >= 0 ? x : x * e) / (1.0f + e);
  } else {
    return x * sigmoid<Data>(x);
  }
}

/// The derivative of silu(), s + s x (1 - s) with s the sigmoid.
template <class Data>
__device__ float silu_slope(float x) {
  const float s = sigmoid<Data>(x);
  return fmaf(fmaf(-x, s, x), s, s);
}

/// log(1 + e^x) of a float to be rounded to Data: max(x, 0) + log1p(e), e = exp(-|x|) <= 1, so that nothing overflows
/// and small results keep their relative accuracy. For 16-bit data log1p(e)/e is a polynomial, 3.4e-7 relative.
template <class Data>
__device__ float softplus(float x) {
  if constexpr (std::is_same_v<Data, float>) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  } else {
    constexpr float log2_e = 1.44269504088896341f;
    const float e = exp2_approximate(-log2_e * fabsf(x));
    float p = -8.53914488e-3f;
    p = fmaf(p, e, 4.40894105e-2f);
    p = fmaf(p, e, -1.07681409e-1f);
    p = fmaf(p, e, 1.77452207e-1f);
    p = fmaf(p, e, -2.44954556e-1f);
    p = fmaf(p, e, 3.32754791e-1f);
    p = fmaf(p, e, -4.99974042e-1f);
    p = fmaf(p, e, 9.99999821e-1f);
    return fmaf(p, e, fmaxf(x, 0.0f));
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
