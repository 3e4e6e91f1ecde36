// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the kernels leave the states of segments: in the caller's bank or in scratch memory.

#include <polystate/core/tensor_view.hpp>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

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

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
