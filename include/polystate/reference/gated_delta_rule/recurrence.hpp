// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The recurrences of the delta family, forward: docs/gated_delta_rule.md.

#include <polystate/gated_delta_rule.hpp>
#include <polystate/reference/recurrence.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// A query or key as the state uses it: normalised if the operands say so.
template <class Data, class Operands>
vector<compute_t<Data>> normalized_row(const tensor_view<const Data, 4>& rows, const token& at, std::int64_t group,
                                       const Operands& options) {
  const vector<compute_t<Data>> x = load_row(rows, at, group);
  return options.qk_l2norm ? l2_normalized(x, options.l2norm_eps) : x;
}

template <class Data, class Rule>
class recurrence<operands<Data, Rule>> {
 public:
  using Scalar = compute_t<Data>;

  explicit recurrence(const operands<Data, Rule>& in) : in_(in) {}

  [[nodiscard]] std::int64_t batch() const { return in_.v.extent(0); }
  [[nodiscard]] std::int64_t tokens() const { return in_.v.extent(1); }
  [[nodiscard]] std::int64_t heads() const { return in_.v.extent(2); }
  [[nodiscard]] std::int64_t groups() const { return in_.k.extent(2); }
  [[nodiscard]] std::int64_t dv() const { return in_.v.extent(3); }
  [[nodiscard]] std::int64_t dk() const { return in_.k.extent(3); }
  [[nodiscard]] double scale() const { return in_.scale; }

  [[nodiscard]] vector<Scalar> key(const token& at, std::int64_t group) const {
    return normalized_row(in_.k, at, group, in_);
  }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const {
    return normalized_row(in_.q, at, group, in_);
  }

  /// S <- alpha S (I - beta k k^T)
  void transition(matrix<Scalar>& S, const token& at, std::int64_t head) const {
    using std::exp;
    if constexpr (Rule::has_decay) S *= exp(static_cast<Scalar>(in_.g(at.b, at.t, head)));
    if constexpr (Rule::has_beta) {
      const vector<Scalar> k = key_of_head(at, head);
      const vector<Scalar> read = S * k;
      S -= beta(at, head) * read * k.transpose();
    }
  }

  /// S <- S + beta v k^T
  void write(matrix<Scalar>& S, const token& at, std::int64_t head) const {
    const vector<Scalar> v = load_row(in_.v, at, head);
    S += beta(at, head) * v * key_of_head(at, head).transpose();
  }

  [[nodiscard]] vector<Scalar> finish(const vector<Scalar>& o, const token&, std::int64_t) const { return o; }

  [[nodiscard]] vector<Scalar> key_of_head(const token& at, std::int64_t head) const {
    return key(at, group_of_head(head, heads(), groups()));
  }
  [[nodiscard]] Scalar beta(const token& at, std::int64_t head) const {
    if constexpr (Rule::has_beta) {
      return static_cast<Scalar>(in_.beta(at.b, at.t, head));
    } else {
      return Scalar(1);
    }
  }

 private:
  operands<Data, Rule> in_;
};

template <class Data, class Rule>
class query_reader<query_operands<Data, Rule>> {
 public:
  using Scalar = compute_t<Data>;

  explicit query_reader(const query_operands<Data, Rule>& in) : in_(in) {}

  [[nodiscard]] std::int64_t tokens() const { return in_.q.extent(1); }
  [[nodiscard]] std::int64_t groups() const { return in_.q.extent(2); }
  [[nodiscard]] double scale() const { return in_.scale; }
  [[nodiscard]] vector<Scalar> query(const token& at, std::int64_t group) const {
    return normalized_row(in_.q, at, group, in_);
  }

 private:
  query_operands<Data, Rule> in_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
