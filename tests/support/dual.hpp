// SPDX-License-Identifier: Apache-2.0
#pragma once

// Dual numbers: a value and its derivative along one direction. The reference takes any scalar, so its forward run on
// them differentiates it without a line of the backward.

#include <Eigen/Core>

#include <cmath>

namespace polystate::testing {

struct dual {
  double value;
  double derivative;

  dual() = default;
  constexpr dual(double v) : value(v), derivative(0) {}  // implicit: a number is a constant
  constexpr dual(double v, double d) : value(v), derivative(d) {}

  constexpr dual& operator+=(const dual& b) {
    value += b.value;
    derivative += b.derivative;
    return *this;
  }
  constexpr dual& operator-=(const dual& b) {
    value -= b.value;
    derivative -= b.derivative;
    return *this;
  }
  constexpr dual& operator*=(const dual& b) {
    derivative = derivative * b.value + value * b.derivative;
    value *= b.value;
    return *this;
  }
  constexpr dual& operator/=(const dual& b) {
    value /= b.value;
    derivative = (derivative - value * b.derivative) / b.value;
    return *this;
  }
  friend constexpr dual operator+(dual a, const dual& b) { return a += b; }
  friend constexpr dual operator-(dual a, const dual& b) { return a -= b; }
  friend constexpr dual operator*(dual a, const dual& b) { return a *= b; }
  friend constexpr dual operator/(dual a, const dual& b) { return a /= b; }
  friend constexpr dual operator-(const dual& a) { return {-a.value, -a.derivative}; }

  // Branches follow the value.
  friend constexpr bool operator==(const dual& a, const dual& b) { return a.value == b.value; }
  friend constexpr bool operator!=(const dual& a, const dual& b) { return a.value != b.value; }
  friend constexpr bool operator<(const dual& a, const dual& b) { return a.value < b.value; }
  friend constexpr bool operator>(const dual& a, const dual& b) { return a.value > b.value; }
  friend constexpr bool operator<=(const dual& a, const dual& b) { return a.value <= b.value; }
  friend constexpr bool operator>=(const dual& a, const dual& b) { return a.value >= b.value; }

  friend dual exp(const dual& x) {
    const double e = std::exp(x.value);
    return {e, e * x.derivative};
  }
  friend dual log(const dual& x) { return {std::log(x.value), x.derivative / x.value}; }
  friend dual log1p(const dual& x) { return {std::log1p(x.value), x.derivative / (1 + x.value)}; }
  friend dual tanh(const dual& x) {
    const double t = std::tanh(x.value);
    return {t, (1 - t * t) * x.derivative};
  }
  friend dual sqrt(const dual& x) {
    const double r = std::sqrt(x.value);
    return {r, x.derivative / (2 * r)};
  }
};

}  // namespace polystate::testing

namespace Eigen {
template <>
struct NumTraits<polystate::testing::dual> : GenericNumTraits<polystate::testing::dual> {
  using Real = polystate::testing::dual;
  using NonInteger = polystate::testing::dual;
  using Nested = polystate::testing::dual;
  using Literal = polystate::testing::dual;
  enum {
    IsComplex = 0,
    IsInteger = 0,
    IsSigned = 1,
    RequireInitialization = 1,
    ReadCost = 2,
    AddCost = 2,
    MulCost = 4
  };
  static Real epsilon() { return NumTraits<double>::epsilon(); }
  static Real dummy_precision() { return NumTraits<double>::dummy_precision(); }
  static Real highest() { return NumTraits<double>::highest(); }
  static Real lowest() { return NumTraits<double>::lowest(); }
  static Real infinity() { return NumTraits<double>::infinity(); }
  static Real quiet_NaN() { return NumTraits<double>::quiet_NaN(); }
};
}  // namespace Eigen
