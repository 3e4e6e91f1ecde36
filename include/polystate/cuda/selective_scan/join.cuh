// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Joins the states of pieces that were walked at once: the decay over a piece is exp(A * sum of dt).

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

struct join_params {
  tensor_view<const float, 2> A;
  float* states;         ///< (pieces, rows, D, N): in, states after pieces 0 .. pieces-2, all but the first of which
                         ///< began at zero; out, states before pieces 1 .. pieces-1
  const float* lengths;  ///< (pieces, rows, D): the sum of dt over a piece
  std::int64_t pieces;
  std::int64_t rows;
};

constexpr int join_threads = 128;

template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    selective_scan_join_kernel(const __grid_constant__ join_params p) {
  constexpr float log2_e = 1.44269504088896341f;
  const std::int64_t D = p.A.extent(0);
  const std::int64_t N = p.A.extent(1);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i >= p.rows * D * N) return;
  const std::int64_t channel = i / N;
  const float A = p.A(channel % D, i % N) * log2_e;
  const std::int64_t pitch = p.rows * D * N;
  float h = p.states[i];
  for (std::int64_t k = 1; k < p.pieces; ++k) {
    float& slot = p.states[k * pitch + i];
    const float after = k + 1 < p.pieces ? slot : 0.0f;
    slot = h;
    if (k + 1 < p.pieces) h = fmaf(exp2_approximate(p.lengths[k * p.rows * D + channel] * A), h, after);
  }
}

inline POLYSTATE_HIDDEN status launch_join(const char* name, const cuda_policy auto& exec, const join_params& p) {
  const grid g{.blocks = tiles_of(p.rows * p.A.size(), join_threads), .threads = join_threads};
  return launch(name, exec, g, selective_scan_join_kernel<join_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
