// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From a run-time size to a template parameter, and the limits that checks, launchers and docs share.

#include <polystate/core/macros.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// Sizes that have code of their own. The same list serves the check, the launcher, the tests and the
/// message.
template <int... Values>
struct int_list {
  static constexpr int size = sizeof...(Values);
  static constexpr int values[sizeof...(Values) + 1] = {Values...,
                                                        0};  ///< and a 0 after the last, so that none is legal
  static constexpr bool contains(std::int64_t v) { return ((v == Values) || ...); }
  /// "2, 3, 4"
  static std::string text() {
    std::string s;
    ((s += (s.empty() ? "" : ", ") + std::to_string(Values)), ...);
    return s;
  }
};

/// Calls f(std::integral_constant<int, v>{}) for the listed v equal to value; false if none is.
template <int... Values, class F>
[[nodiscard]] bool dispatch(std::int64_t value, int_list<Values...>, F&& f) {
  return ((value == Values && (f(std::integral_constant<int, Values>{}), true)) || ...);
}

/// Sizes fixed by the caller: an operator called with dims<128, 128> compiles the kernels of that shape only and
/// refuses others; dims<> leaves the choice to run time. Each operator says which sizes, and in which order.
template <int... Values>
struct dims : int_list<Values...> {};

/// A size's supported range, ends included.
struct size_range {
  std::int64_t min = 1;
  std::int64_t max = (std::numeric_limits<std::int64_t>::max)();
  [[nodiscard]] constexpr bool contains(std::int64_t v) const { return v >= min && v <= max; }
  /// "1 to 8", "at least 1"
  [[nodiscard]] std::string text() const {
    if (max == (std::numeric_limits<std::int64_t>::max)()) return "at least " + std::to_string(min);
    return std::to_string(min) + " to " + std::to_string(max);
  }
};

}  // namespace polystate::inline POLYSTATE_ABI
