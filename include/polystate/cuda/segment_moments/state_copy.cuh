// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// States of segments from scratch memory to the caller's tensor, whose type and memory order may be any.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

struct state_copy_params {
  const float* from = nullptr;  ///< [slot][head][row][column]
  std::int64_t rows = 0;        ///< of a state there
  std::int64_t first_row = 0;   ///< copied: from this one on as many as `to` has
  std::int64_t slots = 0;
  std::int64_t slots_per_row = 1;       ///< of a batch entry
  const std::int32_t* entry = nullptr;  ///< (slots), the slot's entry in its batch row, -1: none; null: in their order
  const float* divisor = nullptr;       ///< (slots), or null
  any_element_view<5> to;               ///< (B, L, heads, rows, columns)
};

/// A thread has an element.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    segment_state_copy_kernel(const __grid_constant__ state_copy_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t columns = p.to.extent(4);
  const std::int64_t column = i % columns;
  const std::int64_t row = i / columns % p.to.extent(3);
  const std::int64_t unit = i / columns / p.to.extent(3);
  const std::int64_t slot = unit / p.to.extent(2);
  if (slot >= p.slots) return;
  const std::int64_t entry = p.entry != nullptr ? p.entry[slot] : slot % p.slots_per_row;
  if (entry < 0 || entry >= p.to.extent(1)) return;
  const float x = p.from[(unit * p.rows + p.first_row + row) * columns + column];
  p.to.store(p.divisor != nullptr ? x / p.divisor[slot] : x, slot / p.slots_per_row, entry, unit % p.to.extent(2), row,
             column);
}

inline POLYSTATE_HIDDEN status launch_state_copy(const char* name, const cuda_policy auto& exec,
                                                 const state_copy_params& p) {
  constexpr int threads = 256;
  const std::int64_t elements = p.slots * p.to.extent(2) * p.to.extent(3) * p.to.extent(4);
  return launch(name, exec, grid{.blocks = tiles_of(elements, threads), .threads = threads},
                segment_state_copy_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
