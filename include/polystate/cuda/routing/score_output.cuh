// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Scores as the operator gives them, by segment of the sequence.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route {

struct score_output_params {
  const visible_slots* visible = nullptr;  ///< (tokens)
  score_rows scores;
  tensor_view<float, 4> r_mu{};     ///< (B, T, HR, L), or absent
  tensor_view<float, 4> r_sigma{};  ///< likewise
  std::int64_t tokens = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;     ///< HR
  std::int64_t segments = 0;  ///< L
};

/// One thread a score; 0 for segments that are not visible.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_score_output_kernel(const __grid_constant__ score_output_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i >= p.tokens * p.heads * p.segments) return;
  const std::int64_t l = i % p.segments;
  const std::int64_t head = i / p.segments % p.heads;
  const std::int64_t token = i / p.segments / p.heads;
  const visible_slots v = p.visible[token];
  const std::int64_t c = l - (v.first - v.origin);
  const bool sees = c >= 0 && c < v.size();
  const std::int64_t from = p.scores.at(token, p.heads, head) + c;
  if (p.r_mu.data() != nullptr) {
    p.r_mu(token / p.time, token % p.time, head, l) = sees ? p.scores.r_mu[from] : 0.0f;
  }
  if (p.r_sigma.data() != nullptr) {
    p.r_sigma(token / p.time, token % p.time, head, l) = sees ? p.scores.r_sigma[from] : 0.0f;
  }
}

inline constexpr int output_threads = 256;

inline POLYSTATE_HIDDEN status launch_score_output(const char* name, const cuda_policy auto& exec,
                                                   const score_output_params& p) {
  const std::int64_t scores = p.tokens * p.heads * p.segments;
  return launch(name, exec, grid{.blocks = tiles_of(scores, output_threads), .threads = output_threads},
                routing_score_output_kernel<output_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route
