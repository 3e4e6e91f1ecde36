// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Keys and queries of four kinds. A matrix has one unit vector a column; segments are m keys in a row.

#include "support/gaussian.hpp"

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>

namespace segment_mass {

using Eigen::MatrixXd;

enum class kind { random, stored, topic, axis };

struct kind_text {
  kind value;
  const char* name;
  const char* meaning;
};
inline constexpr std::array<kind_text, 4> kinds = {{
    {kind::random, "random", "keys and queries in random directions"},
    {kind::stored, "stored", "the same keys; a query is one of them"},
    {kind::topic, "topic", "a segment's keys lie around a direction of its own; a query around one of these"},
    {kind::axis, "axis", "the same, but to both sides: a segment's mean is near 0"},
}};

struct context {
  MatrixXd keys;     ///< (d, segments m)
  MatrixXd queries;  ///< (d, n)
};

struct sizes {
  std::int64_t dim = 64, segments = 64, m = 64, queries = 64;
  double pull = 0.5;  ///< of a key towards its segment's direction: about its cosine with it
};

inline context draw(std::mt19937_64& random, kind what, const sizes& n) {
  const auto directions = [&](std::int64_t count) { return examples::random_directions<double>(random, n.dim, count); };
  context c{directions(n.segments * n.m), directions(n.queries)};
  if (what == kind::random) return c;
  const auto below = [&](std::int64_t count) {
    return static_cast<Eigen::Index>(random() % static_cast<std::uint64_t>(count));
  };
  if (what == kind::stored) {
    for (Eigen::Index q = 0; q < c.queries.cols(); ++q) c.queries.col(q) = c.keys.col(below(c.keys.cols()));
    return c;
  }
  const MatrixXd centres = directions(n.segments);
  const double rest = std::sqrt(1 - n.pull * n.pull);
  for (Eigen::Index i = 0; i < c.keys.cols(); ++i) {
    const double side = what == kind::axis && (random() >> 63) != 0 ? -1 : 1;
    c.keys.col(i) = (side * n.pull * centres.col(i / n.m) + rest * c.keys.col(i)).normalized();
  }
  for (Eigen::Index q = 0; q < c.queries.cols(); ++q) {
    c.queries.col(q) = (n.pull * centres.col(below(n.segments)) + rest * c.queries.col(q)).normalized();
  }
  return c;
}

}  // namespace segment_mass
