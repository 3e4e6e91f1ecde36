// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What every recurrence with a matrix state shares: a walk over tokens with one state a head. The
/// recurrences themselves, `recurrence<operands<Data, Rule>>`, live with their operators.

#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/recurrence.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Token t of batch entry b.
struct token {
  std::int64_t b;
  std::int64_t t;
};

/// One row of an operand (B, T, heads, dim).
template <class Data>
vector<compute_t<Data>> load_row(const tensor_view<const Data, 4>& rows, const token& at, std::int64_t head) {
  return load(rows.select(0, at.b).select(0, at.t).select(0, head));
}

/// A recurrence in the reference, specialised per kind of operands:
///   batch(), tokens(), heads(), groups(), dv(), dk(), scale()   sizes and the factor of the read-out
///   key(token, group), query(token, group)       as the state uses them: normalised, not scaled
///   transition(S, token, head), write(S, token, head)   the two halves of a step, in this order
///   finish(o, token, head)                       what happens to the read-out once a token
template <class Operands>
class recurrence;
template <class Operands>
recurrence(const Operands&) -> recurrence<Operands>;

/// The query side alone: tokens(), groups(), scale(), query(token, group).
template <class Operands>
class query_reader;
template <class Operands>
query_reader(const Operands&) -> query_reader<Operands>;

/// x / sqrt(sum x^2 + eps); a zero row stays zero, also with eps = 0.
template <class Scalar>
vector<Scalar> l2_normalized(const vector<Scalar>& x, double eps) {
  using std::sqrt;
  const Scalar squares = x.squaredNorm() + Scalar(eps);
  if (squares == Scalar(0)) return x;
  return x / sqrt(squares);
}

/// One step: S <- transition(S) + write.
template <class Recurrence, class Scalar>
void advance(const Recurrence& r, matrix<Scalar>& S, const token& at, std::int64_t head) {
  r.transition(S, at, head);
  r.write(S, at, head);
}

/// o_t = scale * S q_t, finished.
template <class Recurrence, class Scalar>
vector<Scalar> read(const Recurrence& r, const matrix<Scalar>& S, const token& at, std::int64_t head) {
  const vector<Scalar> q = r.query(at, group_of_head(head, r.heads(), r.groups()));
  return r.finish(vector<Scalar>(Scalar(r.scale()) * (S * q)), at, head);
}

/// The single-state operator: one state a head and sequence.
template <class Recurrence, class Data, class State>
void forward(const Recurrence& r, const sequences& all, const tensor_view<const State, 4>& initial_state,
             const tensor_view<Data, 4>& o, const tensor_view<State, 4>& final_state) {
  using Scalar = compute_t<Data>;
  for (std::int64_t s = 0; s < all.size(); ++s) {
    for (std::int64_t h = 0; h < r.heads(); ++h) {
      matrix<Scalar> S = matrix<Scalar>::Zero(r.dv(), r.dk());
      if (initial_state) S = load<const State, Scalar>(initial_state.select(0, s).select(0, h));
      for (std::int64_t t = all[s].begin; t < all[s].end; ++t) {
        const token at{all[s].batch, t};
        advance(r, S, at, h);
        store(o.select(0, at.b).select(0, t).select(0, h), read(r, S, at, h));
      }
      if (final_state) store(final_state.select(0, s).select(0, h), S);
    }
  }
}

/// The single-state operator's step: states in a pool, in place.
template <class Recurrence, class Data, class State>
void step(const Recurrence& r, const state_pool& pool, const tensor_view<State, 4>& state,
          const tensor_view<Data, 4>& o, const tensor_view<State, 5>& intermediate_states) {
  using Scalar = compute_t<Data>;
  for (std::int64_t b = 0; b < o.extent(0); ++b) {
    for (std::int64_t h = 0; h < r.heads(); ++h) {
      if (pool.padding(b)) {
        store(o.select(0, b).select(1, h), matrix<Scalar>::Zero(o.extent(1), r.dv()));
        continue;
      }
      matrix<Scalar> S = load<State, Scalar>(state.select(0, pool.read(b)).select(0, h));
      for (std::int64_t t = 0; t < o.extent(1); ++t) {
        advance(r, S, {b, t}, h);
        store(o.select(0, b).select(0, t).select(0, h), read(r, S, {b, t}, h));
        if (intermediate_states) store(intermediate_states.select(0, b).select(0, t).select(0, h), S);
      }
      store(state.select(0, pool.write(b)).select(0, h), S);
    }
  }
}

/// The backward side of a recurrence, specialised beside it. Sums the gradients of its operands:
///   write(dS, token, head), transition(S, dS, token, head)   the two halves of a step; transition turns dS,
///   the
///       derivative after it, into that before it, S
///   query(dq, token, group), key(dk, token, group)   of what recurrence::query and key return
///   finish(o, dy, token, head)   returns do
///   store(grads)   into the caller's tensors
template <class Operands>
class recurrence_adjoint;
template <class Operands>
recurrence_adjoint(const Operands&) -> recurrence_adjoint<Operands>;

/// The backward side of a query_reader: query(dq, token, group) sums, store(grads) rounds into the caller's
/// tensors.
template <class Operands>
class query_adjoint;
template <class Operands>
query_adjoint(const Operands&) -> query_adjoint<Operands>;

/// o = scale * S q, finished: adds to dS and to the operands' gradients. `dy` is the derivative of what
/// finish() returned.
template <class Recurrence, class Adjoint, class Scalar>
void read_adjoint(const Recurrence& r, Adjoint& adjoint, const matrix<Scalar>& S, const vector<Scalar>& dy,
                  const token& at, std::int64_t head, matrix<Scalar>& dS) {
  const std::int64_t group = group_of_head(head, r.heads(), r.groups());
  const Scalar scale(r.scale());
  const vector<Scalar> q = r.query(at, group);
  const vector<Scalar> d_o = adjoint.finish(vector<Scalar>(scale * (S * q)), dy, at, head);
  dS += scale * d_o * q.transpose();
  adjoint.query(vector<Scalar>(scale * (S.transpose() * d_o)), at, group);
}

/// The single-state operator's backward: from the derivatives of o and of the final state (absent: zero) to
/// those of the operands, which `adjoint` sums, and of the initial state.
template <class Recurrence, class Adjoint, class Data, class State>
void backward(const Recurrence& r, Adjoint& adjoint, const sequences& all,
              const tensor_view<const State, 4>& initial_state, const tensor_view<const Data, 4>& d_o,
              const tensor_view<const State, 4>& d_final_state, const tensor_view<State, 4>& d_initial_state) {
  using Scalar = compute_t<Data>;
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    for (std::int64_t h = 0; h < r.heads(); ++h) {
      matrix<Scalar> S0 = matrix<Scalar>::Zero(r.dv(), r.dk());
      matrix<Scalar> dS = matrix<Scalar>::Zero(r.dv(), r.dk());
      if (initial_state) S0 = load<const State, Scalar>(initial_state.select(0, s).select(0, h));
      if (d_final_state) dS = load<const State, Scalar>(d_final_state.select(0, s).select(0, h));
      reversed_states states(S0, tokens.size(), [&](matrix<Scalar>& S, std::int64_t i) {
        advance(r, S, token{tokens.batch, tokens.begin + i}, h);
      });
      for (std::int64_t i = tokens.size() - 1; i >= 0; --i) {
        const token at{tokens.batch, tokens.begin + i};
        if (d_o) read_adjoint(r, adjoint, states.after(i), load_row(d_o, at, h), at, h, dS);
        adjoint.write(dS, at, h);
        adjoint.transition(states.before(i), dS, at, h);
      }
      if (d_initial_state) store(d_initial_state.select(0, s).select(0, h), dS);
    }
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
