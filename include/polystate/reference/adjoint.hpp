// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the backward passes of the reference share: sums of gradients, states in reverse order, derivatives
/// of the elementary functions. dX stands for the derivative of the scalar objective with respect to X, and
/// every function here takes the derivative of an output to those of its inputs.

#include <polystate/core/tensor_view.hpp>
#include <polystate/reference/eigen.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// The gradient of an operand while it is summed, in the type that the reference computes in; empty for an
/// absent operand.
template <class Scalar, int Rank>
class gradient {
 public:
  template <class T>
  explicit gradient(const tensor_view<T, Rank>& operand) : sums_(static_cast<std::size_t>(operand.size()), Scalar(0)) {
    std::int64_t extents[static_cast<std::size_t>(Rank)];
    for (int i = 0; i < Rank; ++i) extents[i] = operand.extent(i);
    if (operand) view_ = {sums_.data(), extents};
  }
  gradient(const gradient&) = delete;
  gradient& operator=(const gradient&) = delete;

  [[nodiscard]] const tensor_view<Scalar, Rank>& view() const { return view_; }
  template <class... Index>
  Scalar& operator()(Index... index) {
    return view_(index...);
  }

  /// Rounds the sums into the caller's tensor, if there is one.
  template <class T>
  void store(const tensor_view<T, Rank>& out) const {
    if (out) store_all(out, view_);
  }

 private:
  template <class T, int R>
  static void store_all(const tensor_view<T, R>& out, const tensor_view<Scalar, R>& sums) {
    for (std::int64_t i = 0; i < out.extent(0); ++i) {
      if constexpr (R == 1) {
        out(i) = static_cast<T>(sums(i));
      } else {
        store_all(out.select(0, i), sums.select(0, i));
      }
    }
  }

  std::vector<Scalar> sums_;
  tensor_view<Scalar, Rank> view_;
};

/// Adds a vector to a row of a gradient.
template <class Scalar, class Derived>
void add(const tensor_view<Scalar, 1>& row, const Eigen::MatrixBase<Derived>& x) {
  for (std::int64_t i = 0; i < row.extent(0); ++i) row(i) += x(i);
}

/// The states of a recurrence of `steps` steps, asked for in descending order. Keeps about 2 sqrt(steps) of
/// them: one every block of sqrt(steps), and those of one block, which are recomputed from it.
template <class State, class Advance>
class reversed_states {
 public:
  /// advance(state, t) makes step t.
  reversed_states(State initial, std::int64_t steps, Advance advance)
      : advance_(std::move(advance)), steps_(steps), final_(std::move(initial)) {
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(steps)));
    block_ = std::max<std::int64_t>(1, root);
    for (std::int64_t t = 0; t < steps; ++t) {
      if (t % block_ == 0) starts_.push_back(final_);
      advance_(final_, t);
    }
  }

  /// The state that step t starts from.
  const State& before(std::int64_t t) {
    const std::int64_t block = t / block_;
    if (block != within_block_) {
      within_block_ = block;
      within_ = {starts_[static_cast<std::size_t>(block)]};
      const std::int64_t end = (std::min)(steps_, (block + 1) * block_);
      for (std::int64_t i = block * block_; i + 1 < end; ++i) {
        within_.push_back(within_.back());
        advance_(within_.back(), i);
      }
    }
    return within_[static_cast<std::size_t>(t - block * block_)];
  }

  /// The state that step t leads to.
  const State& after(std::int64_t t) {
    if (t + 1 == steps_) return final_;
    return (t + 1) % block_ == 0 ? starts_[static_cast<std::size_t>((t + 1) / block_)] : before(t + 1);
  }

 private:
  Advance advance_;
  std::int64_t steps_;
  std::int64_t block_ = 1;
  std::vector<State> starts_;
  State final_;
  std::int64_t within_block_ = -1;
  std::vector<State> within_;
};

/// <A, B>, the sum of elementwise products.
template <class DerivedA, class DerivedB>
auto inner(const Eigen::MatrixBase<DerivedA>& A, const Eigen::MatrixBase<DerivedB>& B) {
  return A.cwiseProduct(B).sum();
}

template <class Scalar>
Scalar sigmoid(const Scalar& x) {
  using std::exp;
  return Scalar(1) / (Scalar(1) + exp(-x));
}

/// d silu(x) / dx = s (1 + x (1 - s)), s = sigmoid(x)
template <class Scalar>
Scalar silu_derivative(const Scalar& x) {
  const Scalar s = sigmoid(x);
  return s * (Scalar(1) + x * (Scalar(1) - s));
}

/// y = x / n with n = sqrt(x.x + eps):  dx = (dy - y (y.dy)) / n. Without powers of n, which underflow before n does.
template <class Scalar>
vector<Scalar> l2_normalized_adjoint(const vector<Scalar>& x, double eps, const vector<Scalar>& dy) {
  using std::sqrt;
  const Scalar n = sqrt(x.squaredNorm() + Scalar(eps));
  if (n == Scalar(0)) return vector<Scalar>::Zero(x.size());
  const vector<Scalar> y = x / n;
  return (dy - y * y.dot(dy)) / n;
}

/// p = softmax(x):  dx = p (dp - p.dp)
template <class Scalar>
vector<Scalar> softmax_adjoint(const vector<Scalar>& p, const vector<Scalar>& dp) {
  const Scalar mean = p.dot(dp);
  return p.cwiseProduct(dp - vector<Scalar>::Constant(dp.size(), mean));
}

/// P = S (I - beta k k^T). Turns dS, which holds dP, into dS; adds to dk and dbeta.
///     dS = dP - beta (dP k) k^T      dbeta = -(S k).(dP k)      dk = -beta (S^T dP k + dP^T S k)
template <class Scalar>
void delta_adjoint(const matrix<Scalar>& S, const Scalar& beta, const vector<Scalar>& k, matrix<Scalar>& dS,
                   vector<Scalar>& dk, Scalar& dbeta) {
  const vector<Scalar> Sk = S * k;
  const vector<Scalar> dPk = dS * k;
  dbeta -= Sk.dot(dPk);
  dk -= beta * (S.transpose() * dPk + dS.transpose() * Sk);
  dS -= beta * dPk * k.transpose();
}

/// S = beta v k^T: adds to dv, dk and dbeta.
template <class Scalar>
void outer_adjoint(const Scalar& beta, const vector<Scalar>& v, const vector<Scalar>& k, const matrix<Scalar>& dS,
                   vector<Scalar>& dv, vector<Scalar>& dk, Scalar& dbeta) {
  const vector<Scalar> dSk = dS * k;
  dv += beta * dSk;
  dk += beta * (dS.transpose() * v);
  dbeta += v.dot(dSk);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
