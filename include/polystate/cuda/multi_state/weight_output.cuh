// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Weights as the caller wants them back.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::layer {

/// Over all segments, from those over the visible ones.
struct weight_output_params {
  const moments::visible_slots* visible = nullptr;  ///< [token]
  weight_rows weights;
  tensor_view<float, 4> lam;  ///< (B, T, heads, L), out
  std::int64_t first = 0;     ///< tokens first .. last-1
  std::int64_t last = 0;
};

/// A thread has a weight.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_weight_output_kernel(const __grid_constant__ weight_output_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t segments = p.lam.extent(3);
  const std::int64_t heads = p.lam.extent(2);
  const std::int64_t l = i % segments;
  const std::int64_t head = i / segments % heads;
  const std::int64_t n = p.first + i / segments / heads;
  if (n >= p.last) return;
  const moments::visible_slots seen = p.visible[n];
  const std::int64_t c = l - (seen.first - seen.origin);
  const bool sees = c >= 0 && c < seen.size();
  p.lam(n / p.lam.extent(1), n % p.lam.extent(1), head, l) =
      sees ? p.weights.load(n, heads, head, static_cast<std::int32_t>(c)) : 0.0f;
}

inline POLYSTATE_HIDDEN status launch_weight_output(const char* name, const on_cuda& exec,
                                                    const weight_output_params& p) {
  constexpr int threads = 256;
  const std::int64_t weights = (p.last - p.first) * p.lam.extent(2) * p.lam.extent(3);
  return launch(name, exec, grid{.blocks = tiles_of(weights, threads), .threads = threads},
                multi_state_weight_output_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::layer
