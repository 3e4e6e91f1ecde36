// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random choices of sweeps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

template <class T>
const T& pick(const std::vector<T>& from, std::mt19937& rng) {
  return from[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(rng)];
}

inline bool coin(std::mt19937& rng) { return (rng() & 1u) != 0; }

/// Lengths of packed sequences that cover `tokens`, each one of `pieces` or what is left; sometimes an empty one at
/// the end.
inline std::vector<std::int32_t> random_lengths(std::int64_t tokens, const std::vector<std::int32_t>& pieces,
                                                std::mt19937& rng) {
  std::vector<std::int32_t> lengths;
  auto rest = static_cast<std::int32_t>(tokens);
  while (rest > 0) {
    lengths.push_back(std::min(rest, pick(pieces, rng)));
    rest -= lengths.back();
  }
  if (coin(rng) || lengths.empty()) lengths.push_back(0);
  return lengths;
}

}  // namespace polystate::testing
