// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The matrix products that adapters are composed of, as adapters/compose_mamba_block.hpp asks, token by token: a
/// token's result does not depend on how many there are.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/reference/eigen.hpp>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

template <class Scalar>
class eigen_products {
 public:
  status product(const tensor_view<const Scalar, 2>& W, const tensor_view<const Scalar, 3>& x,
                 const tensor_view<Scalar, 3>& y, bool add) const {
    multiply(load(W), x, y, add);
    return {};
  }
  status transposed(const tensor_view<const Scalar, 2>& W, const tensor_view<const Scalar, 3>& dy,
                    const tensor_view<Scalar, 3>& dx, bool add) const {
    multiply(matrix<Scalar>(load(W).transpose()), dy, dx, add);
    return {};
  }
  status outer(const tensor_view<const Scalar, 3>& dy, const tensor_view<const Scalar, 3>& x,
               const tensor_view<Scalar, 2>& dW) const {
    matrix<Scalar> sum = matrix<Scalar>::Zero(dW.extent(0), dW.extent(1));
    for (std::int64_t b = 0; b < x.extent(0); ++b) {
      for (std::int64_t t = 0; t < x.extent(1); ++t) sum += token(dy, b, t) * token(x, b, t).transpose();
    }
    store(dW, sum);
    return {};
  }
  status decay(const tensor_view<const Scalar, 2>& A_log, const tensor_view<Scalar, 2>& A) const {
    using std::exp;
    store(A, load(A_log).unaryExpr([](const Scalar& a) { return Scalar(-exp(a)); }));
    return {};
  }
  status decay_adjoint(const tensor_view<const Scalar, 2>& A, const tensor_view<const Scalar, 2>& dA,
                       const tensor_view<Scalar, 2>& d_A_log) const {
    store(d_A_log, load(A).cwiseProduct(load(dA)));
    return {};
  }

 private:
  static vector<Scalar> token(const tensor_view<const Scalar, 3>& x, std::int64_t b, std::int64_t t) {
    return reference::load<const Scalar, Scalar>(x.select(0, b).select(0, t));
  }
  static matrix<Scalar> load(const tensor_view<const Scalar, 2>& view) {
    return reference::load<const Scalar, Scalar>(view);
  }
  static void multiply(const matrix<Scalar>& W, const tensor_view<const Scalar, 3>& x, const tensor_view<Scalar, 3>& y,
                       bool add) {
    for (std::int64_t b = 0; b < x.extent(0); ++b) {
      for (std::int64_t t = 0; t < x.extent(1); ++t) {
        const tensor_view<Scalar, 1> out = y.select(0, b).select(0, t);
        vector<Scalar> product = W * token(x, b, t);
        if (add) product += reference::load<Scalar, Scalar>(out);
        store(out, product);
      }
    }
  }
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
