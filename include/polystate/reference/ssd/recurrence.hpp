// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The recurrence of ssd, forward: docs/ssd.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/ssd.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

template <class Data>
class recurrence<operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit recurrence(const operands<Data, rule::ssd>& in) : in_(in) {}

  [[nodiscard]] std::int64_t batch() const { return in_.x.extent(0); }
  [[nodiscard]] std::int64_t tokens() const { return in_.x.extent(1); }
  [[nodiscard]] std::int64_t heads() const { return in_.x.extent(2); }
  [[nodiscard]] std::int64_t groups() const { return in_.B.extent(2); }
  [[nodiscard]] std::int64_t dv() const { return in_.x.extent(3); }
  [[nodiscard]] std::int64_t dk() const { return in_.B.extent(3); }
  [[nodiscard]] double scale() const { return 1; }

  [[nodiscard]] vector<Scalar> key(const token& at, std::int64_t group) const { return load_row(in_.B, at, group); }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const { return load_row(in_.C, at, group); }

  /// S <- exp(d A) S
  void transition(matrix<Scalar>& S, const token& at, std::int64_t head) const {
    using std::exp;
    S *= exp(step_length(at, head) * static_cast<Scalar>(in_.A(head)));
  }

  /// S <- S + d x B^T
  void write(matrix<Scalar>& S, const token& at, std::int64_t head) const {
    const vector<Scalar> x = load_row(in_.x, at, head);
    S += step_length(at, head) * x * key(at, group_of_head(head, heads(), groups())).transpose();
  }

  /// (o + D x) * silu(z)
  [[nodiscard]] vector<Scalar> finish(vector<Scalar> o, const token& at, std::int64_t head) const {
    if (in_.D) o += load(in_.D.select(0, head)).cwiseProduct(load_row(in_.x, at, head));
    if (in_.z) o = o.cwiseProduct(load_row(in_.z, at, head).unaryExpr(&silu<Scalar>));
    return o;
  }

  /// d = clamp(softplus(dt + dt_bias), dt_min, dt_max)
  [[nodiscard]] Scalar step_length(const token& at, std::int64_t head) const {
    Scalar d = static_cast<Scalar>(in_.dt(at.b, at.t, head));
    if (in_.dt_bias) d += static_cast<Scalar>(in_.dt_bias(head));
    if (in_.dt_softplus) d = softplus(d);
    if (d < Scalar(in_.dt_min)) d = Scalar(in_.dt_min);
    if (d > Scalar(in_.dt_max)) d = Scalar(in_.dt_max);
    return d;
  }

 private:
  operands<Data, rule::ssd> in_;
};

template <class Data>
class query_reader<query_operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit query_reader(const query_operands<Data, rule::ssd>& in) : in_(in) {}

  [[nodiscard]] std::int64_t tokens() const { return in_.C.extent(1); }
  [[nodiscard]] std::int64_t groups() const { return in_.C.extent(2); }
  [[nodiscard]] double scale() const { return 1; }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const { return load_row(in_.C, at, group); }

 private:
  query_operands<Data, rule::ssd> in_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
