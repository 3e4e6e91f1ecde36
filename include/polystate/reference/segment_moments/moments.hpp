// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How keys enter the moments of a segment: docs/segment_moments.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/state_bank.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// k' of a moment head, normalised if the options say so.
template <class Data>
vector<compute_t<Data>> moment_key(const key_moments<Data>& in, const token& at, std::int64_t moment_head) {
  const vector<compute_t<Data>> k = load_row(in.k, at, moment_head);
  return in.qkp_l2norm ? l2_normalized(k, in.l2norm_eps) : k;
}

/// One key enters a segment's moments. `length` is the segment's configured length, `seen` its tokens with
/// this one. Either moment may be empty: not kept.
template <class Data, class Scalar>
void add_key(const key_moments<Data>& in, const vector<Scalar>& k, const token& at, std::int64_t moment_head,
             std::int64_t length, std::int64_t seen, vector<Scalar>& mu, matrix<Scalar>& Sigma) {
  using std::exp;
  const Scalar m = Scalar(static_cast<double>(length));
  switch (in.moment_rule) {
    case moment_rule::plain:
      if (in.divide_by == divide_by::m) {
        if (mu.size() > 0) mu += k / m;
        if (Sigma.size() > 0) Sigma += k * k.transpose() / m;
      } else {  // the mean of the keys seen so far
        const Scalar n = Scalar(static_cast<double>(seen));
        if (mu.size() > 0) mu += (k - mu) / n;
        if (Sigma.size() > 0) Sigma += (k * k.transpose() - Sigma) / n;
      }
      return;
    case moment_rule::decay_write:
    case moment_rule::delta: {
      const Scalar a = exp(static_cast<Scalar>(in.g(at.b, at.t, moment_head)));
      const Scalar b = static_cast<Scalar>(in.beta(at.b, at.t, moment_head));
      if (in.moment_rule == moment_rule::delta) {
        if (mu.size() > 0) mu -= (b * mu.dot(k)) * k;
        if (Sigma.size() > 0) Sigma -= b * vector<Scalar>(Sigma * k) * k.transpose();
      }
      if (mu.size() > 0) mu = a * mu + b / m * k;
      if (Sigma.size() > 0) Sigma = a * Sigma + b / m * k * k.transpose();
      return;
    }
  }
}

/// Writes one token's keys into the bank entry that the counters, already moved on, say. key(moment_head)
/// gives k'.
template <class Data, class BankData, class State, class Separation, class Key>
void write_moments(const bank_view<BankData, State>& bank, std::int64_t row, const bank_counters& before,
                   const key_moments<Data>& in, const Separation& separation, const token& at, const Key& key) {
  using Scalar = compute_t<Data>;
  const std::int64_t entry = bank.counters(row).segments - 1;
  const bool opens = before.open_tokens == 0;
  const std::int64_t heads = bank.mu ? bank.mu.extent(2) : (bank.Sigma ? bank.Sigma.extent(2) : 0);
  for (std::int64_t r = 0; r < heads; ++r) {
    const vector<Scalar> k = key(r);
    vector<Scalar> mu;
    matrix<Scalar> Sigma;
    if (bank.mu) mu = load<acc_t<BankData>, Scalar>(bank.mu.select(0, row).select(0, entry).select(0, r));
    if (bank.Sigma) Sigma = load<acc_t<BankData>, Scalar>(bank.Sigma.select(0, row).select(0, entry).select(0, r));
    if (opens) mu.setZero();
    if (opens) Sigma.setZero();
    add_key(in, k, at, r, separation.length(entry), before.open_tokens + 1, mu, Sigma);
    if (bank.mu) store(bank.mu.select(0, row).select(0, entry).select(0, r), mu);
    if (bank.Sigma) store(bank.Sigma.select(0, row).select(0, entry).select(0, r), Sigma);
  }
}

/// Counts a token and writes its key into a bank of moments.
template <class Data, class Scalar, class Separation>
void write_key(const key_moments<Data>& in, const bank_view<Scalar>& bank, const Separation& separation,
               const token& at) {
  const bank_counters before = bank.counters(0);
  bank.counters(0) = count_token(separation, before);
  write_moments(bank, 0, before, in, separation, at, [&](std::int64_t r) { return moment_key(in, at, r); });
}

/// Copies a bank's entries to the outputs, from entry `first` of batch entry `b` on.
template <class Scalar, class Moment>
void store_moments(const bank_view<Scalar>& bank, std::int64_t b, std::int64_t first, const tensor_view<Moment, 4>& mu,
                   const tensor_view<Moment, 5>& Sigma) {
  for (std::int64_t l = 0; l < bank.counters(0).segments; ++l) {
    for (std::int64_t r = 0; mu && r < mu.extent(2); ++r) {
      store(mu.select(0, b).select(0, first + l).select(0, r), load(bank.mu.select(0, 0).select(0, l).select(0, r)));
    }
    for (std::int64_t r = 0; Sigma && r < Sigma.extent(2); ++r) {
      store(Sigma.select(0, b).select(0, first + l).select(0, r),
            load(bank.Sigma.select(0, 0).select(0, l).select(0, r)));
    }
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
