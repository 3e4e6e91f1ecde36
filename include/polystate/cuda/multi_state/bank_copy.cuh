// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// States from scratch memory to a caller's bank, whose type and memory order may be any.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::layer {

struct bank_copy_params {
  const float* from = nullptr;  ///< [slot][head][dv][dk]
  std::int64_t slots = 0;
  std::int64_t slots_per_row = 1;       ///< of a batch entry
  const std::int32_t* entry = nullptr;  ///< (slots), the slot's entry in its row, -1 for none; null: in their order
  any_element_view<5> to;               ///< (B, L, heads, dv, dk)
};

/// A thread has an element.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_bank_copy_kernel(const __grid_constant__ bank_copy_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t dk = p.to.extent(4);
  const std::int64_t dv = p.to.extent(3);
  const std::int64_t row = i / dk;
  const std::int64_t unit = row / dv;
  const std::int64_t slot = unit / p.to.extent(2);
  if (slot >= p.slots) return;
  const std::int64_t entry = p.entry != nullptr ? p.entry[slot] : slot % p.slots_per_row;
  if (entry < 0 || entry >= p.to.extent(1)) return;
  p.to.store(p.from[i], slot / p.slots_per_row, entry, unit % p.to.extent(2), row % dv, i % dk);
}

inline POLYSTATE_HIDDEN status launch_bank_copy(const char* name, const on_cuda& exec, const bank_copy_params& p) {
  constexpr int threads = 256;
  const std::int64_t elements = p.slots * p.to.extent(2) * p.to.extent(3) * p.to.extent(4);
  return launch(name, exec, grid{.blocks = tiles_of(elements, threads), .threads = threads},
                multi_state_bank_copy_kernel<threads>, p);
}

/// Whether the kernels may leave their states in the caller's bank as they are: float, and its entries one after the
/// other over all batch entries.
template <class State>
[[nodiscard]] bool takes_states(const tensor_view<State, 5>& bank) {
  if constexpr (!std::is_same_v<State, float>) {
    return false;
  } else {
    return bank && (bank.extent(0) == 1 || bank.stride(0) == bank.extent(1) * bank.stride(1));
  }
}

/// Such a bank's states, or those in scratch memory: entry by entry.
template <class State>
[[nodiscard]] tensor_view<float, 4> states_in_rows(const tensor_view<State, 5>& bank, float* scratch,
                                                   std::int64_t slots, std::int64_t heads, std::int64_t dv,
                                                   std::int64_t dk) {
  if constexpr (std::is_same_v<State, float>) {
    if (scratch == nullptr && bank) {
      return {bank.data(),
              {bank.extent(0) * bank.extent(1), heads, dv, dk},
              {bank.stride(1), bank.stride(2), bank.stride(3), bank.stride(4)}};
    }
  }
  return {scratch, {slots, heads, dv, dk}};
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::layer
