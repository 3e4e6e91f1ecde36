// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From the states of moments.cuh to mu and Sigma, and from the derivatives of those to the states'.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::moments {

inline constexpr int transfer_threads = 256;

template <class Float>
struct transfer_params {
  segmentation segments;
  segment_table table;
  tensor_view<Float, 4> mu;     ///< (B, L, HR, dr), or absent
  tensor_view<Float, 5> Sigma;  ///< (B, L, HR, dr, dr), or absent
  float* states = nullptr;      ///< [slot][head][row][dr]
  std::int64_t heads = 0;
  int rows = 0;
  int mu_row = 0;
  int dr = 0;
};

/// One thread an element of a state. Outwards: states to moments; else the moments' derivatives to the states'.
template <int Threads, class Float>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    segment_moments_transfer_kernel(const __grid_constant__ transfer_params<Float> p) {
  constexpr bool outwards = !std::is_const_v<Float>;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const int state = p.rows * p.dr;
  const std::int64_t unit = i / state;
  const std::int64_t slot = unit / p.heads;
  if (slot >= p.segments.slots()) return;
  const std::int64_t head = unit % p.heads;
  const int row = static_cast<int>(i % state) / p.dr;
  const int c = static_cast<int>(i % state) % p.dr;
  const std::int64_t entry = p.table.entry[slot];
  const std::int64_t b = p.segments.all.packed() ? 0 : slot / p.segments.most;
  const auto pass = [&](Float& moment) {
    if constexpr (outwards) {
      moment = p.states[i] / p.table.divisor[slot];
    } else {
      p.states[i] = moment / p.table.divisor[slot];
    }
  };
  const bool of_mu = row == p.mu_row && p.mu.data() != nullptr && entry < p.mu.extent(1);
  const bool of_Sigma = row < p.mu_row && p.Sigma.data() != nullptr && entry < p.Sigma.extent(1);
  if (entry >= 0 && of_mu) {
    pass(p.mu(b, entry, head, c));
  } else if (entry >= 0 && of_Sigma) {
    pass(p.Sigma(b, entry, head, row, c));
  } else if (!outwards) {
    p.states[i] = 0.0f;
  }
}

template <class Float>
POLYSTATE_HIDDEN status launch_transfer(const char* name, const on_cuda& exec, const moment_problem& m,
                                        const segment_table& table, float* states, const tensor_view<Float, 4>& mu,
                                        const tensor_view<Float, 5>& Sigma) {
  const transfer_params<Float> p = {.segments = m.segments,
                                    .table = table,
                                    .mu = mu,
                                    .Sigma = Sigma,
                                    .states = states,
                                    .heads = m.heads(),
                                    .rows = m.rows(),
                                    .mu_row = m.mu_row(),
                                    .dr = m.dr()};
  const std::int64_t elements = m.tokens() == 0 ? 0 : m.slots() * m.state();
  return launch(name, exec, grid{.blocks = tiles_of(elements, transfer_threads), .threads = transfer_threads},
                segment_moments_transfer_kernel<transfer_threads, Float>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::moments
