// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward side of ssd's recurrence: docs/ssd.md derives it.

#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/ssd/recurrence.hpp>
#include <polystate/ssd.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

template <class Data>
class recurrence_adjoint<operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit recurrence_adjoint(const operands<Data, rule::ssd>& in)
      : in_(in),
        forward_(in),
        d_x_(in.x),
        d_dt_(in.dt),
        d_A_(in.A),
        d_B_(in.B),
        d_C_(in.C),
        d_D_(in.D),
        d_z_(in.z),
        d_dt_bias_(in.dt_bias) {}

  /// S = .. + d x B^T
  void write(const matrix<Scalar>& dS, const token& at, std::int64_t head) {
    const std::int64_t group = group_of_head(head, forward_.heads(), forward_.groups());
    const vector<Scalar> x = load_row(in_.x, at, head);
    vector<Scalar> dx = vector<Scalar>::Zero(x.size());
    vector<Scalar> dB = vector<Scalar>::Zero(dS.cols());
    Scalar dd(0);
    outer_adjoint(forward_.step_length(at, head), x, forward_.key(at, group), dS, dx, dB, dd);
    add(d_x_.view().select(0, at.b).select(0, at.t).select(0, head), dx);
    key(dB, at, group);
    step_length(dd, at, head);
  }

  /// S <- alpha S, alpha = exp(d A):  d(d A) = alpha <dS, S>
  void transition(const matrix<Scalar>& S, matrix<Scalar>& dS, const token& at, std::int64_t head) {
    using std::exp;
    const Scalar d = forward_.step_length(at, head);
    const Scalar A = static_cast<Scalar>(in_.A(head));
    const Scalar alpha = exp(d * A);
    const Scalar ddA = alpha * inner(dS, S);
    d_A_(head) += d * ddA;
    step_length(A * ddA, at, head);
    dS *= alpha;
  }

  void query(const vector<Scalar>& dC, const token& at, std::int64_t group) {
    add(d_C_.view().select(0, at.b).select(0, at.t).select(0, group), dC);
  }
  void key(const vector<Scalar>& dB, const token& at, std::int64_t group) {
    add(d_B_.view().select(0, at.b).select(0, at.t).select(0, group), dB);
  }

  /// y = s * silu(z), s = o + D x
  [[nodiscard]] vector<Scalar> finish(const vector<Scalar>& o, const vector<Scalar>& dy, const token& at,
                                      std::int64_t head) {
    const vector<Scalar> x = load_row(in_.x, at, head);
    vector<Scalar> ds = dy;
    if (in_.z) {
      vector<Scalar> s = o;
      if (in_.D) s += load(in_.D.select(0, head)).cwiseProduct(x);
      const vector<Scalar> z = load_row(in_.z, at, head);
      add(d_z_.view().select(0, at.b).select(0, at.t).select(0, head),
          dy.cwiseProduct(s).cwiseProduct(z.unaryExpr(&silu_derivative<Scalar>)));
      ds = dy.cwiseProduct(z.unaryExpr(&silu<Scalar>));
    }
    if (in_.D) {
      add(d_D_.view().select(0, head), ds.cwiseProduct(x));
      add(d_x_.view().select(0, at.b).select(0, at.t).select(0, head), ds.cwiseProduct(load(in_.D.select(0, head))));
    }
    return ds;
  }

  void store(const operand_grads<Data, rule::ssd>& out) const {
    d_x_.store(out.d_x);
    d_dt_.store(out.d_dt);
    d_A_.store(out.d_A);
    d_B_.store(out.d_B);
    d_C_.store(out.d_C);
    d_z_.store(out.d_z);
    d_dt_bias_.store(out.d_dt_bias);
    if (out.d_D && out.d_D.extent(1) == 1) {  // one number a head
      for (std::int64_t h = 0; h < out.d_D.extent(0); ++h) {
        out.d_D(h, 0) = static_cast<acc_t<Data>>(load(d_D_.view().select(0, h)).sum());
      }
    } else {
      d_D_.store(out.d_D);
    }
  }

 private:
  /// d = clamp(softplus(raw), dt_min, dt_max), raw = dt + dt_bias: the clamp passes where dt_min <= d <=
  /// dt_max.
  void step_length(const Scalar& dd, const token& at, std::int64_t head) {
    Scalar raw = static_cast<Scalar>(in_.dt(at.b, at.t, head));
    if (in_.dt_bias) raw += static_cast<Scalar>(in_.dt_bias(head));
    const Scalar unclamped = in_.dt_softplus ? softplus(raw) : raw;
    if (unclamped < Scalar(in_.dt_min) || unclamped > Scalar(in_.dt_max)) return;
    const Scalar draw = in_.dt_softplus ? dd * sigmoid(raw) : dd;
    d_dt_(at.b, at.t, head) += draw;
    if (in_.dt_bias) d_dt_bias_(head) += draw;
  }

  operands<Data, rule::ssd> in_;
  recurrence<operands<Data, rule::ssd>> forward_;
  gradient<Scalar, 4> d_x_;
  gradient<Scalar, 3> d_dt_;
  gradient<Scalar, 1> d_A_;
  gradient<Scalar, 4> d_B_, d_C_;
  gradient<Scalar, 2> d_D_;
  gradient<Scalar, 4> d_z_;
  gradient<Scalar, 1> d_dt_bias_;
};

template <class Data>
class query_adjoint<query_operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit query_adjoint(const query_operands<Data, rule::ssd>& in) : d_C_(in.C) {}

  void query(const vector<Scalar>& dC, const token& at, std::int64_t group) {
    add(d_C_.view().select(0, at.b).select(0, at.t).select(0, group), dC);
  }
  void store(const query_grads<Data, rule::ssd>& out) const { d_C_.store(out.d_C); }

 private:
  gradient<Scalar, 4> d_C_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
