// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward side of the segment moments: docs/segment_moments.md derives it.

#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/segment_moments/moments.hpp>
#include <polystate/reference/walk_back.hpp>
#include <polystate/segment_moments.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Sums the gradients of the routing keys and of their gates.
template <class Data>
class moments_adjoint {
 public:
  using Scalar = compute_t<Data>;

  explicit moments_adjoint(const key_moments<Data>& in) : in_(in), d_k_(in.k), d_g_(in.g), d_beta_(in.beta) {}

  /// add_key() backwards: mu and Sigma are those before the key. Turns dmu and dSigma into the derivatives
  /// before it, adds to the gates' gradients and returns dk' of the key as it entered.
  [[nodiscard]] vector<Scalar> add_key(const vector<Scalar>& k, const token& at, std::int64_t moment_head,
                                       std::int64_t length, std::int64_t seen, const vector<Scalar>& mu,
                                       const matrix<Scalar>& Sigma, vector<Scalar>& dmu, matrix<Scalar>& dSigma) {
    using std::exp;
    const bool counted = in_.divide_by == divide_by::count;
    const Scalar m(static_cast<double>(counted ? seen : length));
    // the write b/m k' and b/m k' k'^T, b = 1 where there is no beta
    vector<Scalar> dk = dmu / m + (dSigma + dSigma.transpose()) * k / m;
    if (in_.moment_rule == moment_rule::plain) {
      if (counted) {  // mu <- mu (1 - 1/n) + k'/n
        const Scalar kept = Scalar(1) - Scalar(1) / m;
        dmu *= kept;
        dSigma *= kept;
      }
      return dk;
    }

    const Scalar a = exp(static_cast<Scalar>(in_.g(at.b, at.t, moment_head)));
    const Scalar b = static_cast<Scalar>(in_.beta(at.b, at.t, moment_head));
    Scalar da(0);
    Scalar db = k.dot(dmu + dSigma * k) / m;
    dk *= b;
    if (in_.moment_rule == moment_rule::decay_write) {
      da += dmu.dot(mu) + inner(dSigma, Sigma);
      dmu *= a;
      dSigma *= a;
    } else {  // the delta rule, with mu as a state of one row
      const auto decayed_delta = [&](const matrix<Scalar>& S, matrix<Scalar>& dS) {
        const matrix<Scalar> P = S - b * vector<Scalar>(S * k) * k.transpose();
        da += inner(dS, P);
        dS *= a;
        delta_adjoint(S, b, k, dS, dk, db);
      };
      matrix<Scalar> row = dmu.transpose();
      decayed_delta(mu.transpose(), row);
      dmu = row.transpose();
      decayed_delta(Sigma, dSigma);
    }
    d_g_(at.b, at.t, moment_head) += a * da;
    d_beta_(at.b, at.t, moment_head) += db;
    return dk;
  }

  /// What moment_key() returned had this derivative.
  void key(const vector<Scalar>& dk, const token& at, std::int64_t moment_head) {
    const vector<Scalar> raw = load_row(in_.k, at, moment_head);
    add(d_k_.view().select(0, at.b).select(0, at.t).select(0, moment_head),
        in_.qkp_l2norm ? l2_normalized_adjoint(raw, in_.l2norm_eps, dk) : dk);
  }

  /// A token's keys out of an entry's moments again: takes the entry's derivatives to those before the token,
  /// `before` the entry as the token found it. key(moment_head) is the key that entered,
  /// take_key(moment_head, dk') receives its derivative.
  template <class Key, class TakeKey>
  void unwrite(const bank_view<Scalar>& before, std::int64_t entry, std::int64_t length, const token& at,
               bank_derivatives<Scalar>& d, const Key& key, const TakeKey& take_key) {
    auto& dmu = d.mu[static_cast<std::size_t>(entry)];
    auto& dSigma = d.Sigma[static_cast<std::size_t>(entry)];
    for (std::size_t r = 0; r < dmu.size(); ++r) {
      const auto g = static_cast<std::int64_t>(r);
      const vector<Scalar> mu = load(before.mu.select(0, 0).select(0, 0).select(0, g));
      const matrix<Scalar> Sigma = load(before.Sigma.select(0, 0).select(0, 0).select(0, g));
      take_key(g, add_key(key(g), at, g, length, before.counters(0).open_tokens + 1, mu, Sigma, dmu[r], dSigma[r]));
    }
  }

  /// The same where the key is the operand's own.
  void unwrite_key(const bank_view<Scalar>& before, std::int64_t entry, std::int64_t length, const token& at,
                   bank_derivatives<Scalar>& d) {
    unwrite(
        before, entry, length, at, d, [&](std::int64_t g) { return moment_key(in_, at, g); },
        [&](std::int64_t g, const vector<Scalar>& dk) { key(dk, at, g); });
  }

  void store(const key_moment_grads<Data>& out) const {
    d_k_.store(out.d_k);
    d_g_.store(out.d_g);
    d_beta_.store(out.d_beta);
  }

 private:
  key_moments<Data> in_;
  gradient<Scalar, 4> d_k_;
  gradient<Scalar, 3> d_g_, d_beta_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
