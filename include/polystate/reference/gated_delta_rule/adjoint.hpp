// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward side of the delta family's recurrences: docs/gated_delta_rule.md derives it.

#include <polystate/gated_delta_rule.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/gated_delta_rule/recurrence.hpp>
#include <polystate/reference/recurrence.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Adds the derivative of what normalized_row() returned to the raw row's gradient.
template <class Data, class Operands, class Scalar>
void add_normalized_row(const gradient<Scalar, 4>& sums, const tensor_view<const Data, 4>& rows,
                        const vector<Scalar>& dx, const token& at, std::int64_t group, const Operands& options) {
  const vector<Scalar> raw =
      options.qk_l2norm ? l2_normalized_adjoint(load_row(rows, at, group), options.l2norm_eps, dx) : dx;
  add(sums.view().select(0, at.b).select(0, at.t).select(0, group), raw);
}

template <class Data, class Rule>
class recurrence_adjoint<operands<Data, Rule>> {
 public:
  using Scalar = compute_t<Data>;

  explicit recurrence_adjoint(const operands<Data, Rule>& in)
      : in_(in), forward_(in), d_q_(in.q), d_k_(in.k), d_v_(in.v), d_g_(in.g), d_beta_(in.beta) {}

  /// S = .. + beta v k^T
  void write(const matrix<Scalar>& dS, const token& at, std::int64_t head) {
    const vector<Scalar> v = load_row(in_.v, at, head);
    vector<Scalar> dv = vector<Scalar>::Zero(v.size());
    vector<Scalar> dk = vector<Scalar>::Zero(dS.cols());
    Scalar dbeta(0);
    outer_adjoint(forward_.beta(at, head), v, forward_.key_of_head(at, head), dS, dv, dk, dbeta);
    add(d_v_.view().select(0, at.b).select(0, at.t).select(0, head), dv);
    add_key_and_beta(dk, dbeta, at, head);
  }

  /// S <- alpha P, P = S (I - beta k k^T):  dalpha = <dS, P>, dg = alpha dalpha, dP = alpha dS
  void transition(const matrix<Scalar>& S, matrix<Scalar>& dS, const token& at, std::int64_t head) {
    using std::exp;
    matrix<Scalar> P = S;
    if constexpr (Rule::has_beta) {
      const vector<Scalar> k = forward_.key_of_head(at, head);
      P -= forward_.beta(at, head) * vector<Scalar>(S * k) * k.transpose();
    }
    if constexpr (Rule::has_decay) {
      const Scalar alpha = exp(static_cast<Scalar>(in_.g(at.b, at.t, head)));
      d_g_(at.b, at.t, head) += alpha * inner(dS, P);
      dS *= alpha;
    }
    if constexpr (Rule::has_beta) {
      vector<Scalar> dk = vector<Scalar>::Zero(dS.cols());
      Scalar dbeta(0);
      delta_adjoint(S, forward_.beta(at, head), forward_.key_of_head(at, head), dS, dk, dbeta);
      add_key_and_beta(dk, dbeta, at, head);
    }
  }

  void query(const vector<Scalar>& dq, const token& at, std::int64_t group) {
    add_normalized_row(d_q_, in_.q, dq, at, group, in_);
  }
  void key(const vector<Scalar>& dk, const token& at, std::int64_t group) {
    add_normalized_row(d_k_, in_.k, dk, at, group, in_);
  }

  [[nodiscard]] vector<Scalar> finish(const vector<Scalar>&, const vector<Scalar>& dy, const token&,
                                      std::int64_t) const {
    return dy;
  }

  void store(const operand_grads<Data, Rule>& out) const {
    d_q_.store(out.d_q);
    d_k_.store(out.d_k);
    d_v_.store(out.d_v);
    d_g_.store(out.d_g);
    d_beta_.store(out.d_beta);
  }

 private:
  void add_key_and_beta(const vector<Scalar>& dk, const Scalar& dbeta, const token& at, std::int64_t head) {
    key(dk, at, group_of_head(head, forward_.heads(), forward_.groups()));
    if constexpr (Rule::has_beta) d_beta_(at.b, at.t, head) += dbeta;
  }

  operands<Data, Rule> in_;
  recurrence<operands<Data, Rule>> forward_;
  gradient<Scalar, 4> d_q_, d_k_, d_v_;
  gradient<Scalar, 3> d_g_, d_beta_;
};

template <class Data, class Rule>
class query_adjoint<query_operands<Data, Rule>> {
 public:
  using Scalar = compute_t<Data>;

  explicit query_adjoint(const query_operands<Data, Rule>& in) : in_(in), d_q_(in.q) {}

  void query(const vector<Scalar>& dq, const token& at, std::int64_t group) {
    add_normalized_row(d_q_, in_.q, dq, at, group, in_);
  }
  void store(const query_grads<Data, Rule>& out) const { d_q_.store(out.d_q); }

 private:
  query_operands<Data, Rule> in_;
  gradient<Scalar, 4> d_q_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
