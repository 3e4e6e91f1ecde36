// SPDX-License-Identifier: Apache-2.0
#pragma once

// A number in double and a bound of the error that the same arithmetic in float may make of it (Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.3: running error analysis). The reference takes any scalar, so its run
// on these gives expected values and what each of them may deviate by.

#include "support/tensor.hpp"

#include <Eigen/Core>

#include <cmath>
#include <vector>

namespace polystate::testing {

struct running_error {
  double value;
  double error;  ///< in units of float's roundoff

  running_error() = default;
  constexpr running_error(double v) : value(v), error(0) {}  // implicit: operands are exact
  running_error(double v, double e) : value(v), error(e) {
    // An infinity on the way to a number, such as e^1000 in a sigmoid.
    if (std::isnan(error)) error = std::abs(value);
  }

  /// Float's smallest normal number: what lies below may be flushed to 0.
  static constexpr double smallest = 0x1p-126 / 0x1p-24;

  // Adding 0 or multiplying by 1 rounds nothing.
  friend running_error operator+(const running_error& a, const running_error& b) {
    const double sum = a.value + b.value;
    return {sum, a.error + b.error + (a.value == 0 || b.value == 0 ? 0 : std::abs(sum))};
  }
  friend running_error operator-(const running_error& a) { return {-a.value, a.error}; }
  friend running_error operator-(const running_error& a, const running_error& b) { return a + -b; }
  friend running_error operator*(const running_error& a, const running_error& b) {
    const double product = a.value * b.value;
    return {product, std::abs(a.value) * b.error + std::abs(b.value) * a.error + std::abs(product) + smallest};
  }
  friend running_error operator/(const running_error& a, const running_error& b) {
    const double quotient = a.value / b.value;
    return {quotient, (a.error + std::abs(quotient) * b.error) / std::abs(b.value) + std::abs(quotient) + smallest};
  }
  running_error& operator+=(const running_error& b) { return *this = *this + b; }
  running_error& operator-=(const running_error& b) { return *this = *this - b; }
  running_error& operator*=(const running_error& b) { return *this = *this * b; }
  running_error& operator/=(const running_error& b) { return *this = *this / b; }

  // Branches follow the value.
  friend constexpr bool operator==(const running_error& a, const running_error& b) { return a.value == b.value; }
  friend constexpr bool operator!=(const running_error& a, const running_error& b) { return a.value != b.value; }
  friend constexpr bool operator<(const running_error& a, const running_error& b) { return a.value < b.value; }
  friend constexpr bool operator>(const running_error& a, const running_error& b) { return a.value > b.value; }
  friend constexpr bool operator<=(const running_error& a, const running_error& b) { return a.value <= b.value; }
  friend constexpr bool operator>=(const running_error& a, const running_error& b) { return a.value >= b.value; }

  /// Two roundings of its own, and that of x / log(2) for the base that hardware has.
  friend running_error exp(const running_error& x) {
    const double e = std::exp(x.value);
    return {e, e * (x.error + std::abs(x.value) + 2) + smallest};
  }
  friend running_error sqrt(const running_error& x) {
    const double y = std::sqrt(x.value);
    return {y, (y > 0 ? x.error / (2 * y) : 0) + std::abs(y)};
  }
  friend running_error log1p(const running_error& x) {
    const double y = std::log1p(x.value);
    return {y, x.error / std::abs(1 + x.value) + std::abs(y)};
  }
};

/// Copies values and errors into tensors of the same shape; nothing where the results are absent.
template <int Rank>
void split(const tensor<running_error, Rank>& results, tensor<double, Rank>& value, tensor<double, Rank>& error) {
  if (!results) return;
  std::vector<double> values, errors;
  for (const running_error& x : results.values()) {
    values.push_back(x.value);
    errors.push_back(x.error);
  }
  value.assign(values);
  error.assign(errors);
}

}  // namespace polystate::testing

namespace Eigen {
template <>
struct NumTraits<polystate::testing::running_error> : GenericNumTraits<polystate::testing::running_error> {
  using Real = polystate::testing::running_error;
  using NonInteger = polystate::testing::running_error;
  using Nested = polystate::testing::running_error;
  using Literal = polystate::testing::running_error;
  enum {
    IsComplex = 0,
    IsInteger = 0,
    IsSigned = 1,
    RequireInitialization = 1,
    ReadCost = 2,
    AddCost = 4,
    MulCost = 6
  };
};
}  // namespace Eigen
