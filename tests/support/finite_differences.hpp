// SPDX-License-Identifier: Apache-2.0
#pragma once

// Central differences of an objective in double, and how they are compared with a gradient.

#include "support/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace polystate::testing {

/// Largest relative deviation of a gradient from central differences. The truncation error goes with the square of the
/// step, the rounding error with its inverse: a step of eps^(1/3) leaves about 1e-10 of either.
inline constexpr double difference_tolerance = 1e-6;

/// A gradient smaller than this is compared as if it were of this size: where a derivative is 0, what differences leave
/// is the rounding of the objective over the step, about 1e-10.
inline constexpr double smallest_size_differences_resolve = 1e-3;

/// Largest |a - b| over the largest magnitude in either, or over `smallest_size`; infinite where one of them is NaN.
inline double relative_deviation(const std::vector<double>& a, const std::vector<double>& b, double smallest_size = 0) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double size = smallest_size;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(a[i] - b[i]));
    size = std::max({size, std::abs(a[i]), std::abs(b[i])});
  }
  return size > 0 ? difference / size : 0;
}

/// d objective() / dx. At an infinite x, which no finite step moves, it is 0.
template <class Objective>
double central_difference(double& x, const Objective& objective) {
  const double at = x;
  const double step =
      std::isfinite(at) ? std::cbrt(std::numeric_limits<double>::epsilon()) * std::max(1.0, std::abs(at)) : 1;
  x = at + step;
  const double above = objective();
  const double high = x;
  x = at - step;
  const double below = objective();
  const double width = std::isfinite(at) ? high - x : 2 * step;  // as rounded
  x = at;
  return (above - below) / width;
}

/// Compares `gradient` with central differences of objective() along every element of `input`, or, where there are
/// more than `most`, along that many directions of random signs. Returns the relative deviation.
template <class Tensor, class Objective>
double deviation_from_differences(Tensor& input, const std::vector<double>& gradient, const Objective& objective,
                                  std::size_t most = 40) {
  std::vector<double> got;
  std::vector<double> want;
  const auto at = input.values();
  if (at.size() != gradient.size()) return std::numeric_limits<double>::infinity();
  if (at.size() <= most) {
    got = gradient;
    input.for_each([&](double& x) { want.push_back(central_difference(x, objective)); });
    return relative_deviation(got, want, smallest_size_differences_resolve);
  }
  std::mt19937 rng(static_cast<unsigned>(at.size()));
  std::bernoulli_distribution coin;
  for (std::size_t k = 0; k < most; ++k) {
    std::vector<double> direction(at.size());
    double along = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      direction[i] = coin(rng) ? 1 : -1;
      along += direction[i] * gradient[i];
    }
    double distance = 0;
    want.push_back(central_difference(distance, [&] {
      auto moved = at;
      for (std::size_t i = 0; i < at.size(); ++i) moved[i] += distance * direction[i];
      input.assign(moved);
      return objective();
    }));
    got.push_back(along);
  }
  input.assign(at);
  return relative_deviation(got, want, smallest_size_differences_resolve);
}

}  // namespace polystate::testing
