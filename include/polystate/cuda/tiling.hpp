// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Arithmetic of schedules.

#include <polystate/core/macros.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// Tiles that cover `size`, the last one perhaps in part.
POLYSTATE_HOST_DEVICE constexpr std::int64_t tiles_of(std::int64_t size, std::int64_t tile) {
  return (size + tile - 1) / tile;
}

/// The smallest power of two at least `n`, but not above `most`, a power of two itself.
constexpr int power_of_two(std::int64_t n, int most) {
  int p = 1;
  while (p < most && p < n) p *= 2;
  return p;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
