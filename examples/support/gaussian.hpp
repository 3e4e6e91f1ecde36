// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Standard normal numbers that are the same with every standard library: std::normal_distribution leaves its
/// algorithm open, std::mt19937_64 does not.

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <random>

namespace examples {

/// In [0, 1), from the generator's upper 53 bits.
inline double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

/// Fills a matrix by Box and Muller's transform, in the order of its memory. Two uniform numbers of 32 bits a pair:
/// nothing lies beyond 6.7 standard deviations.
template <class Scalar>
void fill_gaussian(std::mt19937_64& random, Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& m) {
  using array = Eigen::Array<Scalar, Eigen::Dynamic, 1>;
  constexpr Eigen::Index pairs = 512;  // their arrays stay in the first-level cache
  array radius(pairs), angle(pairs), numbers(2 * pairs);
  for (Eigen::Index begin = 0; begin < m.size(); begin += 2 * pairs) {
    for (Eigen::Index i = 0; i < pairs; ++i) {
      const std::uint64_t bits = random();
      radius(i) = (static_cast<Scalar>(bits >> 32) + Scalar(0.5)) * Scalar(0x1p-32);
      angle(i) = static_cast<Scalar>(bits & 0xffffffffU) * (Scalar(0x1p-32) * 2 * std::numbers::pi_v<Scalar>);
    }
    radius = (-2 * radius.log()).max(Scalar(0)).sqrt();
    numbers << radius * angle.cos(), radius * angle.sin();
    const Eigen::Index count = std::min(2 * pairs, m.size() - begin);
    std::copy_n(numbers.data(), count, m.data() + begin);
  }
}

/// Columns of unit length with random directions.
template <class Scalar>
Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> random_directions(std::mt19937_64& random, Eigen::Index dim,
                                                                        Eigen::Index count) {
  Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> m(dim, count);
  fill_gaussian(random, m);
  m.colwise().normalize();
  return m;
}

}  // namespace examples
