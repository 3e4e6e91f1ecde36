// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tests for infinity and NaN that -ffast-math leaves standing.

#include <polystate/core/macros.hpp>

#include <bit>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {
namespace polystate_detail {

// By the bits: -ffinite-math-only makes std::isfinite always true and std::isnan always false, not only in the unit
// that it compiles but, where the linker merges them, in every unit of the program.

inline constexpr std::uint64_t exponent_bits = 0x7ff0000000000000u;

/// Whether x is neither infinite nor NaN.
[[nodiscard]] constexpr bool is_finite(double x) {
  return (std::bit_cast<std::uint64_t>(x) & exponent_bits) != exponent_bits;
}
[[nodiscard]] constexpr bool is_nan(double x) {
  return (std::bit_cast<std::uint64_t>(x) & ~(std::uint64_t{1} << 63)) > exponent_bits;
}

}  // namespace polystate_detail
}  // namespace polystate::inline POLYSTATE_ABI
