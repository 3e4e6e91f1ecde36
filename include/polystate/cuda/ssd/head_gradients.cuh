// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Gradients of the numbers that all of a head's tokens share, A, dt_bias and D: the last sums of ssd's backward pass.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

struct head_gradient_params {
  const float2* head_sums = nullptr;  ///< [batch][head], of A and of the bias
  const float* d_skip = nullptr;      ///< [skip_sums][head][dv]
  std::int64_t batch = 0;
  std::int64_t skip_sums = 0;
  std::int64_t heads = 0;
  std::int64_t dv = 0;
  tensor_view<float, 1> d_A, d_dt_bias;  ///< (heads)
  tensor_view<float, 2> d_D;             ///< (heads, dv), or (heads, 1): summed over dv
};

/// A block has one head.
template <int Threads>  // a template, so that units share it
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    ssd_head_gradient_kernel(const __grid_constant__ head_gradient_params p) {
  __shared__ float sums[Threads / 32];
  const std::int64_t head = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x);
  if (tid == 0 && p.head_sums != nullptr) {
    float2 sum = make_float2(0.0f, 0.0f);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      sum.x += p.head_sums[b * p.heads + head].x;
      sum.y += p.head_sums[b * p.heads + head].y;
    }
    if (p.d_A.data() != nullptr) p.d_A(head) = sum.x;
    if (p.d_dt_bias.data() != nullptr) p.d_dt_bias(head) = sum.y;
  }
  if (p.d_skip == nullptr) return;
  const bool one_number = p.d_D.extent(1) == 1;
  float total = 0.0f;
  for (std::int64_t row = tid; row < p.dv; row += Threads) {
    float sum = 0.0f;
#pragma unroll 8
    for (std::int64_t s = 0; s < p.skip_sums; ++s) sum += p.d_skip[(s * p.heads + head) * p.dv + row];
    if (!one_number) p.d_D(head, row) = sum;
    total += sum;
  }
  if (!one_number) return;
  total = sum_in_group<32>(total);
  if (tid % 32 == 0) sums[tid / 32] = total;
  __syncthreads();
  if (tid != 0) return;
  total = 0.0f;
  for (int w = 0; w < Threads / 32; ++w) total += sums[w];
  p.d_D(head, 0) = total;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
