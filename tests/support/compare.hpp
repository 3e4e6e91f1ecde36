// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two ways results are judged: elementwise, where sums are kept in float, and relative L2 elsewhere.

#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace polystate::testing {

/// Unit roundoff u = 2^-p, and half the spacing of the subnormals.
template <class T>
struct roundoff;
template <>
struct roundoff<double> {
  static constexpr double unit = 0x1p-53, tiny = 0;
};
template <>
struct roundoff<float> {
  static constexpr double unit = 0x1p-24, tiny = 0x1p-150;
};
template <>
struct roundoff<half> {
  static constexpr double unit = 0x1p-11, tiny = 0x1p-25;
};
template <>
struct roundoff<bfloat16> {
  static constexpr double unit = 0x1p-8, tiny = 0x1p-134;
};

/// |got - want| <= u(T) |want| + c u(acc) magnitude, for every element. `magnitude` is the sum of the
/// absolute values of the terms, from the reference run on absolute values; c is one number an operator. The
/// measured c is printed beside the bound. A NaN passes only where the reference has one.
template <class T, int Rank>
::testing::AssertionResult within_elementwise_bound(const tensor<T, Rank>& got, const tensor<double, Rank>& want,
                                                    const tensor<double, Rank>& magnitude, double c) {
  const auto g = got.values();
  const auto w = want.values();
  const auto m = magnitude.values();
  if (g.size() != w.size() || g.size() != m.size()) return ::testing::AssertionFailure() << "sizes differ";
  double worst = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double x = static_cast<double>(g[i]);
    if (std::isnan(x) != std::isnan(w[i])) {
      return ::testing::AssertionFailure() << "element " << i << " is " << x << ", the reference has " << w[i];
    }
    if (std::isnan(x) || x == w[i]) continue;
    const double allowed_rounding = roundoff<T>::unit * std::abs(w[i]) + roundoff<T>::tiny;
    const double excess = std::abs(x - w[i]) - allowed_rounding;
    const double unit = roundoff<acc_t<T>>::unit * m[i];
    if (!(excess <= c * unit)) {
      return ::testing::AssertionFailure() << "element " << i << " is " << x << ", the reference has " << w[i]
                                           << ": needs c = " << excess / unit << ", the bound is c = " << c;
    }
    if (unit > 0) worst = std::max(worst, excess / unit);
  }
  ::testing::Test::RecordProperty("worst_c", std::to_string(worst));
  return ::testing::AssertionSuccess() << "worst c = " << worst << ", bound c = " << c;
}

/// ||got - want|| / ||want||, and absolute where the reference is 0.
template <class T, int Rank>
double relative_l2(const tensor<T, Rank>& got, const tensor<double, Rank>& want) {
  const auto g = got.values();
  const auto w = want.values();
  if (g.size() != w.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double d = static_cast<double>(g[i]) - w[i];
    if (!(std::isinf(w[i]) && static_cast<double>(g[i]) == w[i])) difference += d * d;
    norm += w[i] * w[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// Equal to the last bit; names the first difference.
template <class T, int Rank>
::testing::AssertionResult bitwise_equal(const tensor<T, Rank>& a, const tensor<T, Rank>& b) {
  const auto x = a.values();
  const auto y = b.values();
  if (x.size() != y.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::memcmp(&x[i], &y[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "first difference at element " << i << ": " << static_cast<double>(x[i])
                                           << " and " << static_cast<double>(y[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace polystate::testing
