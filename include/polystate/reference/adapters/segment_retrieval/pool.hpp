// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Attention pooling of one segment, and its derivatives.

#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>
#include <polystate/reference/routing/weights.hpp>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// H: the segment's hidden states, one a row; at least one.
///     a_j = tanh(W_k h_j)      w = softmax_j(q_a . a_j)      p = sum_j w_j h_j
template <class Scalar>
struct attention_pool {
  const matrix<Scalar>& H;
  const matrix<Scalar>& W_k;
  const vector<Scalar>& q_a;
  matrix<Scalar> a;  ///< (tokens, da)
  vector<Scalar> w;  ///< (tokens)

  attention_pool(const matrix<Scalar>& hidden, const matrix<Scalar>& keys, const vector<Scalar>& query)
      : H(hidden), W_k(keys), q_a(query), a(hidden * keys.transpose()) {
    for (Scalar& x : a.reshaped()) {
      using std::tanh;
      x = tanh(x);
    }
    w = softmax<Scalar>(a * q_a);
  }

  [[nodiscard]] vector<Scalar> pooled() const { return H.transpose() * w; }

  /// Adds to the gradients of the parameters; returns that of H.
  ///     dw_j = dp.h_j      x_j = q_a . a_j, dx = softmax'(dw)      dz_j = dx_j q_a (1 - a_j^2), z_j = W_k h_j
  ///     dh_j = w_j dp + W_k^T dz_j
  matrix<Scalar> adjoint(const vector<Scalar>& dp, matrix<Scalar>& d_W_k, vector<Scalar>& d_q_a) const {
    const vector<Scalar> dx = softmax_adjoint<Scalar>(w, H * dp);
    d_q_a += a.transpose() * dx;
    const matrix<Scalar> slope = matrix<Scalar>::Constant(a.rows(), a.cols(), Scalar(1)) - a.cwiseProduct(a);
    const matrix<Scalar> dz = (dx * q_a.transpose()).cwiseProduct(slope);
    d_W_k += dz.transpose() * H;
    return w * dp.transpose() + dz * W_k;
  }
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
