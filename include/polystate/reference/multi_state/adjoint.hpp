// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward side of a bank of states: docs/multi_state.md derives it.

#include <polystate/multi_state.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/gated_delta_rule/adjoint.hpp>
#include <polystate/reference/multi_state/bank.hpp>
#include <polystate/reference/routing/adjoint.hpp>
#include <polystate/reference/segment_moments/adjoint.hpp>
#include <polystate/reference/ssd/adjoint.hpp>
#include <polystate/reference/walk_back.hpp>

#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// o = sum_l lam_l S_l q: adds to dlam_l = do.(S_l q) and returns dq = sum_l lam_l S_l^T do. (dS_l = lam_l do
/// q^T)
template <class BankData, class State, class Scalar>
vector<Scalar> weighted_read_adjoint(const bank_view<BankData, State>& bank, std::int64_t row,
                                     const visible_segments& seen, std::int64_t head, const vector<Scalar>& lam,
                                     const vector<Scalar>& d_o, const vector<Scalar>& q, vector<Scalar>& dlam) {
  vector<Scalar> dq = vector<Scalar>::Zero(q.size());
  for (std::int64_t l = 0; l < seen.size(); ++l) {
    const matrix<Scalar> S = load<State, Scalar>(state_of(bank, row, seen.first + l, head));
    dlam(l) += d_o.dot(S * q);
    dq += lam(l) * (S.transpose() * d_o);
  }
  return dq;
}

/// The layer's operands while their gradients are summed, and how queries and keys reach them.
template <class Data, class Args>
class layer_adjoint {
 public:
  using operands_type = std::remove_cvref_t<decltype(Args::in)>;
  using router_type = std::remove_cvref_t<decltype(Args::router)>;
  using Recurrence = recurrence<operands_type>;
  using Scalar = typename Recurrence::Scalar;

  explicit layer_adjoint(const Args& args)
      : args_(args), forward_(args.in), in_(args.in), router_(args.router), moments_(args.moments) {}

  /// A token's read backwards, the bank as the token left it: from the derivatives of its o and lam (absent:
  /// zero).
  void read(const bank_view<Scalar>& bank, const visible_segments& seen, const token& at,
            const tensor_view<const Data, 4>& d_o, const tensor_view<const acc_t<Data>, 4>& d_lam,
            bank_derivatives<Scalar>& d) {
    std::vector<vector<Scalar>> dlam;
    const auto query = [&](const token& from, std::int64_t g) { return layer_query<Data>(args_, forward_, from, g); };
    read_bank(args_.router, forward_, bank, 0, seen, {at}, query,
              [&](std::int64_t, std::int64_t h, const vector<Scalar>& lam, const vector<Scalar>& o) {
                vector<Scalar> dlam_h = vector<Scalar>::Zero(seen.size());
                if (d_lam) dlam_h += load_weights<Scalar>(d_lam, at, h, seen);
                if (d_o) weighted_read(bank, seen, at, h, lam, o, load_row(d_o, at, h), dlam_h, d);
                dlam.push_back(dlam_h);
              });
    routing_token_adjoint(
        router_, bank, 0, seen, at, dlam, [&](std::int64_t g) { return query(at, g); }, &d,
        [&](std::int64_t g, const vector<Scalar>& dq) { take_query(g, dq, at); });
  }

  /// A token's write into a segment backwards: the entry's derivatives become those before the token,
  /// `before` the entry as the token found it.
  void unwrite(const bank_view<Scalar>& before, std::int64_t entry, std::int64_t length, const token& at,
               bank_derivatives<Scalar>& d) {
    const auto e = static_cast<std::size_t>(entry);
    for (std::int64_t h = 0; h < forward_.heads(); ++h) {
      matrix<Scalar>& dS = d.S[e][static_cast<std::size_t>(h)];
      in_.write(dS, at, h);
      in_.transition(load(state_of(before, 0, 0, h)), dS, at, h);
    }
    moments_.unwrite(
        before, entry, length, at, d, [&](std::int64_t g) { return layer_key(args_, forward_, at, g); },
        [&](std::int64_t g, const vector<Scalar>& dk) { take_key(g, dk, at); });
  }

  /// A token's write into the levels of a Fenwick partition backwards.
  void unwrite_levels(const bank_view<Scalar>& before, std::int64_t levels, const token& at,
                      bank_derivatives<Scalar>& d) {
    const std::int64_t t = before.counters(0).tokens;
    for (std::int64_t h = 0; h < forward_.heads(); ++h) {
      const auto dS = [&](std::int64_t n) -> matrix<Scalar>& {
        return d.S[static_cast<std::size_t>(n)][static_cast<std::size_t>(h)];
      };
      const auto S = merged_levels<Scalar>(before, 0, levels, h);
      in_.write(dS(0), at, h);
      for (std::int64_t n = 0; n < levels; ++n) in_.transition(S[static_cast<std::size_t>(n)], dS(n), at, h);
      for (std::int64_t n = 0; t > 0 && n < merged_level(t); ++n) dS(n) = dS(merged_level(t));
    }
  }

  template <class Grads>
  void store(const Grads& grads) const {
    in_.store(grads.in);
    moments_.store(grads.moments);
    router_.store(grads.router);
  }

 private:
  /// The states' part of a read: derivatives of lam, of the states and of the query.
  void weighted_read(const bank_view<Scalar>& bank, const visible_segments& seen, const token& at, std::int64_t head,
                     const vector<Scalar>& lam, const vector<Scalar>& o, const vector<Scalar>& dy, vector<Scalar>& dlam,
                     bank_derivatives<Scalar>& d) {
    const std::int64_t group = group_of_head(head, forward_.heads(), forward_.groups());
    const vector<Scalar> q = forward_.query(at, group);
    const vector<Scalar> d_o = Scalar(forward_.scale()) * in_.finish(o, dy, at, head);
    in_.query(weighted_read_adjoint(bank, 0, seen, head, lam, d_o, q, dlam), at, group);
    for (std::int64_t l = 0; l < seen.size(); ++l) {
      d.S[static_cast<std::size_t>(seen.first + l)][static_cast<std::size_t>(head)] += lam(l) * d_o * q.transpose();
    }
  }

  void take_query(std::int64_t g, const vector<Scalar>& dq, const token& at) {
    const auto& moments = args_.moments;
    if (args_.shared_kq) {
      in_.query(raw_query_adjoint<router_type>(forward_.query(at, g), moments.qkp_l2norm, moments.l2norm_eps, dq), at,
                g);
    } else {
      add_routing_query(router_, args_.router, at, g, moments.qkp_l2norm, moments.l2norm_eps, dq);
    }
  }

  void take_key(std::int64_t g, const vector<Scalar>& dk, const token& at) {
    if (!args_.shared_kq) {
      moments_.key(dk, at, g);
    } else {
      in_.key(args_.moments.qkp_l2norm ? l2_normalized_adjoint(forward_.key(at, g), args_.moments.l2norm_eps, dk) : dk,
              at, g);
    }
  }

  const Args& args_;
  Recurrence forward_;
  recurrence_adjoint<operands_type> in_;
  router_adjoint<router_type> router_;
  moments_adjoint<Data> moments_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
