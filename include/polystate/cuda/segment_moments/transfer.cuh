// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From the states of moments.cuh to mu and Sigma, and from the derivatives of those to the states'.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/state_copy.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// Enqueues the moments that are wanted. `mu` (B, L, HR, dr), `Sigma` (B, L, HR, dr, dr).
inline POLYSTATE_HIDDEN status launch_moment_output(const char* name, const cuda_policy auto& exec,
                                                    const moment_problem& p, const moment_memory& m,
                                                    const tensor_view<float, 4>& mu,
                                                    const tensor_view<float, 5>& Sigma) {
  state_copy_params copy = {.from = m.states,
                            .rows = p.rows(),
                            .slots = p.tokens() == 0 ? 0 : p.slots(),
                            .slots_per_row = p.segments.all.packed() ? p.slots() : p.segments.most,
                            .entry = m.table.entry,
                            .divisor = m.table.divisor,
                            .to = any_element_view<5>(Sigma)};
  status s;
  if (Sigma) s = launch_state_copy(name, exec, copy);
  if (!s.ok() || !mu) return s;
  copy.first_row = p.mu_row();
  copy.to =
      any_element_view<5>(tensor_view<float, 5>(mu.data(), {mu.extent(0), mu.extent(1), mu.extent(2), 1, mu.extent(3)},
                                                {mu.stride(0), mu.stride(1), mu.stride(2), 0, mu.stride(3)}));
  return launch_state_copy(name, exec, copy);
}

inline constexpr int state_gradient_threads = 256;

struct state_gradient_params {
  segmentation segments;
  segment_table table;
  tensor_view<const float, 4> d_mu;     ///< (B, L, HR, dr), or absent
  tensor_view<const float, 5> d_Sigma;  ///< (B, L, HR, dr, dr), or absent
  float* d_states = nullptr;            ///< [slot][head][row][dr], out
  std::int64_t heads = 0;
  int rows = 0;
  int mu_row = 0;
  int dr = 0;
};

/// A thread has an element of a state; what has no upstream gradient is 0.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    segment_state_gradient_kernel(const __grid_constant__ state_gradient_params p) {
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
  const bool of_mu = row == p.mu_row && p.d_mu.data() != nullptr && entry < p.d_mu.extent(1);
  const bool of_Sigma = row < p.mu_row && p.d_Sigma.data() != nullptr && entry < p.d_Sigma.extent(1);
  float d = 0.0f;
  if (entry >= 0 && of_mu) {
    d = p.d_mu(b, entry, head, c) / p.table.divisor[slot];
  } else if (entry >= 0 && of_Sigma) {
    d = p.d_Sigma(b, entry, head, row, c) / p.table.divisor[slot];
  }
  p.d_states[i] = d;
}

inline POLYSTATE_HIDDEN status launch_state_gradient(const char* name, const cuda_policy auto& exec,
                                                     const moment_problem& m, const segment_table& table,
                                                     float* d_states, const tensor_view<const float, 4>& d_mu,
                                                     const tensor_view<const float, 5>& d_Sigma) {
  const state_gradient_params p = {.segments = m.segments,
                                   .table = table,
                                   .d_mu = d_mu,
                                   .d_Sigma = d_Sigma,
                                   .d_states = d_states,
                                   .heads = m.heads(),
                                   .rows = m.rows(),
                                   .mu_row = m.mu_row(),
                                   .dr = m.dr()};
  const std::int64_t elements = m.tokens() == 0 ? 0 : m.slots() * m.state();
  return launch(name, exec,
                grid{.blocks = tiles_of(elements, state_gradient_threads), .threads = state_gradient_threads},
                segment_state_gradient_kernel<state_gradient_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
