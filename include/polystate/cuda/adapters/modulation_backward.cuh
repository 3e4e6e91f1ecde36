// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From the derivatives of m = lam * (A x) to those of its operands: reference/adapters/modulation.hpp has the
/// formulas.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters {

template <class Data>
struct modulation_adjoint_params {
  tensor_view<const Data, 3> u;       ///< phi_w o, or y of toplora
  tensor_view<const float, 1> shift;  ///< phi_b, or rms_w, which may be absent
  tensor_view<const Data, 3> a;
  tensor_view<const Data, 3> d_m;
  tensor_view<const float, 3> d_lam;  ///< may be absent
  tensor_view<Data, 3> d_u;
  tensor_view<Data, 3> d_a;
  tensor_view<float, 3> d_shift;  ///< toplora: each token's part of d_rms_w; may be absent
  float rms_eps = 0;
};

/// Of softplus. A warp has a token; in the scalar form its lanes sum over the entries.
template <int Threads, class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    modulate_softplus_adjoint_kernel(const __grid_constant__ modulation_adjoint_params<Data> p) {
  const std::int64_t token = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t r = p.a.extent(2), q = p.u.extent(2), T = p.a.extent(1);
  if (token >= p.a.extent(0) * T) return;
  const std::int64_t t = token % T, b = token / T;
  const auto argument = [&](std::int64_t factor) { return static_cast<float>(p.u(b, t, factor)) + p.shift(factor); };
  const auto finish = [&](std::int64_t factor, float d) {
    if (p.d_lam) d += p.d_lam(b, t, factor);
    p.d_u(b, t, factor) = static_cast<Data>(d * sigmoid<float>(argument(factor)));
  };
  float sum = 0.0f;
  for (std::int64_t k = lane; k < r; k += 32) {
    const auto d_m = static_cast<float>(p.d_m(b, t, k));
    const float d = static_cast<float>(p.a(b, t, k)) * d_m;
    p.d_a(b, t, k) = static_cast<Data>(softplus<float>(argument(q == r ? k : 0)) * d_m);
    if (q == r) {
      finish(k, d);
    } else {
      sum += d;
    }
  }
  if (q == r) return;
  sum = recurrence::sum_in_group<32>(sum);
  if (lane == 0) finish(0, sum);
}

/// Of exp(RMSNorm). A warp has a token.
template <int Threads, class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    modulate_rms_adjoint_kernel(const __grid_constant__ modulation_adjoint_params<Data> p) {
  const std::int64_t token = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t r = p.a.extent(2), T = p.a.extent(1);
  if (token >= p.a.extent(0) * T) return;
  const std::int64_t t = token % T, b = token / T;
  float squares = 0.0f;
  for (std::int64_t k = lane; k < r; k += 32) {
    const auto y = static_cast<float>(p.u(b, t, k));
    squares = fmaf(y, y, squares);
  }
  squares = recurrence::sum_in_group<32>(squares);
  const float by = 1.0f / sqrtf(squares / static_cast<float>(r) + p.rms_eps);
  const auto weight = [&](std::int64_t k) { return p.shift ? p.shift(k) : 1.0f; };
  // The derivative with respect to the exponent, s * weight, where s = y by.
  const auto of_exponent = [&](std::int64_t k, float lam) {
    float d = static_cast<float>(p.a(b, t, k)) * static_cast<float>(p.d_m(b, t, k));
    if (p.d_lam) d += p.d_lam(b, t, k);
    return d * lam;
  };
  float along = 0.0f;
  for (std::int64_t k = lane; k < r; k += 32) {
    const float s = static_cast<float>(p.u(b, t, k)) * by;
    const float lam = expf(s * weight(k));
    const float e = of_exponent(k, lam);
    along = fmaf(s, e * weight(k), along);
    p.d_a(b, t, k) = static_cast<Data>(lam * static_cast<float>(p.d_m(b, t, k)));
    if (p.d_shift) p.d_shift(b, t, k) = e * s;
  }
  along = recurrence::sum_in_group<32>(along) / static_cast<float>(r);
  for (std::int64_t k = lane; k < r; k += 32) {
    const float s = static_cast<float>(p.u(b, t, k)) * by;
    const float e = of_exponent(k, expf(s * weight(k)));
    p.d_u(b, t, k) = static_cast<Data>((e * weight(k) - s * along) * by);
  }
}

template <class T>
struct token_sum_params {
  tensor_view<const T, 3> x;
  tensor_view<float, 1> sum;
};

/// The sum over all tokens, in the same order each time. A block has an entry.
template <int Threads, class T>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    token_sum_kernel(const __grid_constant__ token_sum_params<T> p) {
  __shared__ float of_warps[Threads / 32];
  const std::int64_t k = blockIdx.x, time = p.x.extent(1), count = p.x.extent(0) * time;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x; i < count; i += Threads) {
    sum += static_cast<float>(p.x(i / time, i % time, k));
  }
  sum = recurrence::sum_in_group<32>(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < Threads / 32; ++w) sum += of_warps[w];
  p.sum(k) = sum;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters
