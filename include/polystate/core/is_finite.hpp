// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A test for infinity and NaN that -ffast-math leaves standing.

#include <polystate/core/macros.hpp>

#include <bit>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {
namespace polystate_detail {

/// Whether x is neither infinite nor NaN. By its bits: with -ffinite-math-only std::isfinite is always true, and checks
/// have one name whatever the flags.
[[nodiscard]] constexpr bool is_finite(double x) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000u;
  return (std::bit_cast<std::uint64_t>(x) & exponent) != exponent;
}

}  // namespace polystate_detail
}  // namespace polystate::inline POLYSTATE_ABI
