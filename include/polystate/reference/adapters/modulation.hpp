// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The factors of malora and toplora and their product with A x, and what the derivatives of these are: as
/// adapters/compose_token_modulation.hpp asks.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/reference/adapters/products.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

template <class Scalar>
class modulated_products : public eigen_products<Scalar> {
  using tokens = tensor_view<Scalar, 3>;
  using const_tokens = tensor_view<const Scalar, 3>;
  using parameter = tensor_view<const Scalar, 1>;
  using row = vector<Scalar>;

 public:
  status modulate_softplus(const const_tokens& u, const parameter& phi_b, const const_tokens& a, const tokens& lam,
                           const tokens& m) const {
    for_each_token(u, [&](std::int64_t b, std::int64_t t) {
      row factors = at(u, b, t) + vector_of(phi_b);
      for (Scalar& f : factors) f = softplus(f);
      put(lam, b, t, factors);
      put(m, b, t, row(spread(factors, a.extent(2)).cwiseProduct(at(a, b, t))));
    });
    return {};
  }

  /// m = lam * a, lam = softplus(v), v = u + phi_b:  d_a = lam * d_m,  d_v = (d_lam + a * d_m) sigmoid(v)
  status modulate_softplus_adjoint(const const_tokens& u, const parameter& phi_b, const const_tokens& a,
                                   const const_tokens& d_m, const const_tokens& d_lam, const tokens& d_u,
                                   const tokens& d_a, const tensor_view<Scalar, 1>& d_phi_b) const {
    row sum = row::Zero(phi_b.extent(0));
    for_each_token(u, [&](std::int64_t b, std::int64_t t) {
      const row v = at(u, b, t) + vector_of(phi_b);
      row factors = v;
      for (Scalar& f : factors) f = softplus(f);
      row d = gather(row(at(a, b, t).cwiseProduct(at(d_m, b, t))), v.size());
      if (d_lam) d += at(d_lam, b, t);
      for (std::int64_t i = 0; i < d.size(); ++i) d(i) *= sigmoid(v(i));
      sum += d;
      put(d_u, b, t, d);
      put(d_a, b, t, row(spread(factors, a.extent(2)).cwiseProduct(at(d_m, b, t))));
    });
    if (d_phi_b) store(d_phi_b, sum);
    return {};
  }

  status modulate_rms(const const_tokens& y, const parameter& rms_w, double rms_eps, const const_tokens& a,
                      const tokens& lam, const tokens& m) const {
    for_each_token(y, [&](std::int64_t b, std::int64_t t) {
      const row factors = rms_factors(at(y, b, t), rms_w, rms_eps);
      put(lam, b, t, factors);
      put(m, b, t, row(factors.cwiseProduct(at(a, b, t))));
    });
    return {};
  }

  /// m = lam * a, lam = exp(w * s), s = y / n, n = sqrt(mean(y^2) + eps):
  ///     d_n' = (d_lam + a * d_m) * lam,  d_w = d_n' * s,  d_s = d_n' * w,  d_y = (d_s - s mean(s * d_s)) / n
  status modulate_rms_adjoint(const const_tokens& y, const parameter& rms_w, double rms_eps, const const_tokens& a,
                              const const_tokens& d_m, const const_tokens& d_lam, const tokens& d_y, const tokens& d_a,
                              const tensor_view<Scalar, 1>& d_rms_w) const {
    row sum = row::Zero(y.extent(2));
    for_each_token(y, [&](std::int64_t b, std::int64_t t) {
      const row values = at(y, b, t);
      const row factors = rms_factors(values, rms_w, rms_eps);
      const Scalar n = rms(values, rms_eps);
      const row s = values / n;
      row d = at(a, b, t).cwiseProduct(at(d_m, b, t));
      if (d_lam) d += at(d_lam, b, t);
      d = row(d.cwiseProduct(factors));
      sum += d.cwiseProduct(s);
      if (rms_w) d = row(d.cwiseProduct(vector_of(rms_w)));
      const Scalar mean = s.dot(d) / Scalar(static_cast<double>(s.size()));
      put(d_y, b, t, row((d - s * mean) / n));
      put(d_a, b, t, row(factors.cwiseProduct(at(d_m, b, t))));
    });
    if (d_rms_w) store(d_rms_w, sum);
    return {};
  }

 private:
  template <class F>
  static void for_each_token(const const_tokens& x, F&& f) {
    for (std::int64_t b = 0; b < x.extent(0); ++b) {
      for (std::int64_t t = 0; t < x.extent(1); ++t) f(b, t);
    }
  }
  static row vector_of(const parameter& p) { return load<const Scalar, Scalar>(p); }
  static row at(const const_tokens& x, std::int64_t b, std::int64_t t) {
    return load<const Scalar, Scalar>(x.select(0, b).select(0, t));
  }
  static void put(const tokens& x, std::int64_t b, std::int64_t t, const row& values) {
    store(x.select(0, b).select(0, t), values);
  }
  /// One factor for all entries, or each its own.
  static row spread(const row& factors, std::int64_t r) {
    return factors.size() == r ? factors : row(row::Constant(r, factors(0)));
  }
  /// Its adjoint.
  static row gather(const row& of_entries, std::int64_t q) {
    return of_entries.size() == q ? of_entries : row(row::Constant(1, of_entries.sum()));
  }
  static Scalar rms(const row& y, double eps) {
    using std::sqrt;
    return sqrt(y.squaredNorm() / Scalar(static_cast<double>(y.size())) + Scalar(eps));
  }
  static row rms_factors(const row& y, const parameter& rms_w, double eps) {
    using std::exp;
    row n = y / rms(y, eps);
    if (rms_w) n = row(n.cwiseProduct(vector_of(rms_w)));
    for (Scalar& x : n) x = exp(x);
    return n;
  }
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
