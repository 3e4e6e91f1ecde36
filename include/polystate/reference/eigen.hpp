// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Between tensor views and the Eigen objects that the definitions are written in.

#include <polystate/core/element.hpp>
#include <polystate/core/tensor_view.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

template <class Scalar>
using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

/// A copy of the operand in the type that the reference computes in.
template <class T, class Scalar = compute_t<std::remove_cv_t<T>>>
vector<Scalar> load(const tensor_view<T, 1>& view) {
  vector<Scalar> v(view.extent(0));
  for (std::int64_t i = 0; i < v.size(); ++i) v(i) = static_cast<Scalar>(view(i));
  return v;
}
template <class T, class Scalar = compute_t<std::remove_cv_t<T>>>
matrix<Scalar> load(const tensor_view<T, 2>& view) {
  matrix<Scalar> m(view.extent(0), view.extent(1));
  for (std::int64_t i = 0; i < m.rows(); ++i) {
    for (std::int64_t j = 0; j < m.cols(); ++j) m(i, j) = static_cast<Scalar>(view(i, j));
  }
  return m;
}

/// Rounds a result into the operand.
template <class T, class Derived>
void store(const tensor_view<T, 1>& view, const Eigen::MatrixBase<Derived>& v) {
  for (std::int64_t i = 0; i < view.extent(0); ++i) view(i) = static_cast<T>(v(i));
}
template <class T, class Derived>
void store(const tensor_view<T, 2>& view, const Eigen::MatrixBase<Derived>& m) {
  for (std::int64_t i = 0; i < view.extent(0); ++i) {
    for (std::int64_t j = 0; j < view.extent(1); ++j) view(i, j) = static_cast<T>(m(i, j));
  }
}

/// x * sigmoid(x)
template <class Scalar>
Scalar silu(const Scalar& x) {
  using std::exp;
  return x / (Scalar(1) + exp(-x));
}

/// log(1 + e^x), without overflow
template <class Scalar>
Scalar softplus(const Scalar& x) {
  using std::exp;
  using std::log1p;
  return x > Scalar(0) ? x + log1p(exp(-x)) : log1p(exp(x));
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
