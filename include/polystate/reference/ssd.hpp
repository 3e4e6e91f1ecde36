// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ssd as it is defined: docs/ssd.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/ssd.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI {

namespace detail::inline POLYSTATE_BUILD::reference {

template <class Data>
class recurrence<operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit recurrence(const operands<Data, rule::ssd>& in) : in_(in) {}

  [[nodiscard]] std::int64_t tokens() const { return in_.x.extent(1); }
  [[nodiscard]] std::int64_t heads() const { return in_.x.extent(2); }
  [[nodiscard]] std::int64_t groups() const { return in_.B.extent(2); }
  [[nodiscard]] std::int64_t dv() const { return in_.x.extent(3); }
  [[nodiscard]] std::int64_t dk() const { return in_.B.extent(3); }
  [[nodiscard]] double scale() const { return 1; }

  [[nodiscard]] vector<Scalar> key(const token& at, std::int64_t group) const {
    return load_row(in_.B, at, group);
  }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const {
    return load_row(in_.C, at, group);
  }

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

 private:
  /// d = clamp(softplus(dt + dt_bias), dt_min, dt_max)
  [[nodiscard]] Scalar step_length(const token& at, std::int64_t head) const {
    Scalar d = static_cast<Scalar>(in_.dt(at.b, at.t, head));
    if (in_.dt_bias) d += static_cast<Scalar>(in_.dt_bias(head));
    if (in_.dt_softplus) d = softplus(d);
    if (d < Scalar(in_.dt_min)) d = Scalar(in_.dt_min);
    if (d > Scalar(in_.dt_max)) d = Scalar(in_.dt_max);
    return d;
  }

  operands<Data, rule::ssd> in_;
};

template <class Data>
class query_reader<query_operands<Data, rule::ssd>> {
 public:
  using Scalar = compute_t<Data>;

  explicit query_reader(const query_operands<Data, rule::ssd>& in) : in_(in) {}

  [[nodiscard]] std::int64_t groups() const { return in_.C.extent(2); }
  [[nodiscard]] double scale() const { return 1; }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const {
    return load_row(in_.C, at, group);
  }

 private:
  query_operands<Data, rule::ssd> in_;
};

}  // namespace detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Data, class State>
[[nodiscard]] status check(const on_reference&, const ssd_args<Data, State>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Data, class State>
[[nodiscard]] status check(const on_reference&, const ssd_step_args<Data, State>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Data, class State>
status try_ssd(const on_reference& exec, const ssd_args<Data, State>& args) {
  namespace ref = detail::reference;
  if (status s = check(exec, args); !s.ok()) return s;
  ref::forward(ref::recurrence(operands_of(args)),
               sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens), args.initial_state, args.y,
               args.final_state);
  return {};
}

template <class Data, class State>
status try_ssd_step(const on_reference& exec, const ssd_step_args<Data, State>& args) {
  namespace ref = detail::reference;
  if (status s = check(exec, args); !s.ok()) return s;
  ref::step(ref::recurrence(operands_of(args)),
            state_pool(args.state.extent(0), args.read_indices, args.write_indices), args.state, args.y,
            args.intermediate_states);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
