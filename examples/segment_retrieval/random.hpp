// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Random numbers that are the same with every standard library, whose distributions are not.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <utility>

namespace segment_retrieval {

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : bits_(seed) {}

  /// In [0, 1), of 53 bits.
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  /// 0 .. count-1; the bias of the multiplication is below 2^-50 for the counts here.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(unit() * static_cast<double>(count)); }
  /// Standard normal, by Box and Muller.
  double gaussian() {
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }
  template <class Container>
  void shuffle(Container& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace segment_retrieval
