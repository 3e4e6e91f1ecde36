// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How good a ranking is, and means with their spread.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace segment_retrieval {

/// The k best by score, ties to the lowest index.
template <class Scores>
std::vector<std::size_t> best(const Scores& scores, std::size_t k) {
  using index = decltype(scores.size());
  std::vector<std::size_t> order(static_cast<std::size_t>(scores.size()));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[static_cast<index>(a)] > scores[static_cast<index>(b)];
  });
  order.resize(std::min(k, order.size()));
  return order;
}

/// The share of what is relevant that was found.
template <class Relevant, class Found>
double recall(const Relevant& relevant, const Found& found) {
  double hits = 0;
  for (const auto i : relevant) {
    hits += std::find_if(found.begin(), found.end(), [&](auto j) { return static_cast<std::size_t>(j) == i; }) !=
            found.end();
  }
  return hits / static_cast<double>(relevant.size());
}

struct summary {
  double mean = 0;
  double deviation = 0;  ///< standard deviation of the sample; 0 for one value

  explicit summary(const std::vector<double>& values) {
    const auto n = static_cast<double>(values.size());
    mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    for (const double x : values) deviation += (x - mean) * (x - mean);
    deviation = values.size() > 1 ? std::sqrt(deviation / (n - 1)) : 0;
  }
};

}  // namespace segment_retrieval
