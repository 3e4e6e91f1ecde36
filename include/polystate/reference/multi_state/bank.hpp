// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The two acts on a bank of states: a token is written into it, queries read it. docs/multi_state.md.

#include <polystate/multi_state.hpp>
#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/routing/weights.hpp>
#include <polystate/reference/segment_moments/moments.hpp>
#include <polystate/state_bank.hpp>

#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// One head's state of a bank's entry.
template <class Data, class State>
tensor_view<State, 2> state_of(const bank_view<Data, State>& bank, std::int64_t row, std::int64_t entry,
                               std::int64_t head) {
  return bank.S.select(0, row).select(0, entry).select(0, head);
}

/// k' of a moment head as it enters the moments: its own operand, or with shared_kq the recurrence's key.
template <class Args, class Recurrence>
vector<typename Recurrence::Scalar> layer_key(const Args& args, const Recurrence& r, const token& at, std::int64_t g) {
  if (!args.shared_kq) return moment_key(args.moments, at, g);
  const vector<typename Recurrence::Scalar> k = r.key(at, g);
  return args.moments.qkp_l2norm ? l2_normalized(k, args.moments.l2norm_eps) : k;
}

/// q' of a moment head as the router scores with it: its own operand, or with shared_kq the recurrence's
/// query.
template <class Data, class Args, class Recurrence>
vector<compute_t<Data>> layer_query(const Args& args, const Recurrence& r, const token& at, std::int64_t g) {
  return routing_query<Data>(args.router, at, g, args.moments.qkp_l2norm, args.moments.l2norm_eps,
                             args.shared_kq ? r.query(at, g) : vector<compute_t<Data>>());
}

/// One token enters row `row` of the bank: opens a segment where the last one is closed, advances the open
/// entry's states and moments. Other entries stay as they are.
template <class Args, class Separation, class Recurrence, class BankData, class State>
void write_token(const Args& args, const Separation& separation, const Recurrence& r,
                 const bank_view<BankData, State>& bank, std::int64_t row, const token& at) {
  using Scalar = typename Recurrence::Scalar;
  const bank_counters before = bank.counters(row);
  bank.counters(row) = count_token(separation, before);
  const std::int64_t entry = bank.counters(row).segments - 1;
  for (std::int64_t h = 0; h < r.heads(); ++h) {
    matrix<Scalar> S = matrix<Scalar>::Zero(r.dv(), r.dk());
    if (before.open_tokens > 0) S = load<State, Scalar>(state_of(bank, row, entry, h));
    advance(r, S, at, h);
    store(state_of(bank, row, entry, h), S);
  }
  if constexpr (Separation::has_segments) {
    write_moments(bank, row, before, args.moments, separation, at,
                  [&](std::int64_t g) { return layer_key(args, r, at, g); });
  }
}

/// The level that levels 0 .. j are merged into before token t > 0, j + 1: j is the number of trailing zero
/// bits of t.
inline std::int64_t merged_level(std::int64_t t) {
  std::int64_t level = 1;
  while ((t & 1) == 0) {
    t >>= 1;
    ++level;
  }
  return level;
}

/// One head's states of the levels in use after token t, merged and not yet advanced.
template <class Scalar, class BankData, class State>
std::vector<matrix<Scalar>> merged_levels(const bank_view<BankData, State>& bank, std::int64_t row, std::int64_t levels,
                                          std::int64_t head) {
  const bank_counters before = bank.counters(row);
  std::vector<matrix<Scalar>> S(static_cast<std::size_t>(levels),
                                matrix<Scalar>::Zero(bank.S.extent(3), bank.S.extent(4)));
  for (std::int64_t n = 0; n < before.segments; ++n) {
    S[static_cast<std::size_t>(n)] = load<State, Scalar>(state_of(bank, row, n, head));
  }
  if (before.tokens > 0) {
    const auto merged = static_cast<std::size_t>(merged_level(before.tokens));
    for (std::size_t n = 0; n < merged; ++n) {
      S[merged] += S[n];
      S[n].setZero();
    }
  }
  return S;
}

/// A token's write where the entries are the levels of a Fenwick partition: older levels are merged, then
/// every level takes the token's transition and level 0 becomes its write.
template <class Recurrence, class BankData, class State>
void write_token(const separation::fenwick& separation, const Recurrence& r, const bank_view<BankData, State>& bank,
                 std::int64_t row, const token& at) {
  using Scalar = typename Recurrence::Scalar;
  const bank_counters after = count_token(separation, bank.counters(row));
  for (std::int64_t h = 0; h < r.heads(); ++h) {
    auto S = merged_levels<Scalar>(bank, row, after.segments, h);
    for (auto& level : S) r.transition(level, at, h);
    r.write(S[0], at, h);
    for (std::int64_t n = 0; n < after.segments; ++n) store(state_of(bank, row, n, h), S[static_cast<std::size_t>(n)]);
  }
  bank.counters(row) = after;
}

/// Queries at[0], at[1], ... read row `row` of the bank as it stands:
///     o = sum_l lam_l * scale * S_l q
/// `reader` gives q; query(token, moment_head) the router's query. keep(i, head, lam, o) takes the results.
template <class Router, class Reader, class BankData, class State, class Query, class Keep>
void read_bank(const Router& router, const Reader& reader, const bank_view<BankData, State>& bank, std::int64_t row,
               const visible_segments& seen, const std::vector<token>& at, const Query& query, const Keep& keep) {
  using Scalar = typename Reader::Scalar;
  using scores_type = query_scores<Router, BankData, State, Scalar>;
  const std::int64_t H = bank.S.extent(2);
  const auto n = static_cast<std::int64_t>(at.size());

  std::vector<scores_type> scores;  // of each moment head
  if constexpr (Router::reads_moments) {
    for (std::int64_t g = 0; g < bank.mu.extent(2); ++g) {
      matrix<Scalar> Q(bank.mu.extent(3), n);
      for (std::int64_t i = 0; i < n; ++i) Q.col(i) = query(at[static_cast<std::size_t>(i)], g);
      scores.emplace_back(bank, row, g, seen, Q);
    }
  }
  for (std::int64_t h = 0; h < H; ++h) {
    matrix<Scalar> Q(bank.S.extent(4), n);
    matrix<Scalar> lam(seen.size(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      const token& token_i = at[static_cast<std::size_t>(i)];
      segment_scores<Scalar> of_token;
      if constexpr (Router::reads_moments) {
        of_token = scores[static_cast<std::size_t>(group_of_head(h, H, bank.mu.extent(2)))].of_query(i);
      }
      lam.col(i) = weights(router, token_i, h, seen, of_token);
      Q.col(i) = reader.query(token_i, group_of_head(h, H, reader.groups()));
    }
    matrix<Scalar> o = matrix<Scalar>::Zero(bank.S.extent(3), n);
    for (std::int64_t l = 0; l < seen.size(); ++l) {
      const matrix<Scalar> S = load<State, Scalar>(state_of(bank, row, seen.first + l, h));
      o += (S * Q) * lam.row(l).asDiagonal();
    }
    o *= Scalar(reader.scale());
    for (std::int64_t i = 0; i < n; ++i) {
      keep(i, h, vector<Scalar>(lam.col(i)), vector<Scalar>(o.col(i)));
    }
  }
}

/// One token of a forward or a step: written into the bank, then, where an output wants it, read back.
template <class Args, class Recurrence, class BankData, class State, class Data>
void run_token(const Args& args, const Recurrence& r, const bank_view<BankData, State>& bank, std::int64_t row,
               const token& at, const tensor_view<Data, 4>& o, const tensor_view<acc_t<Data>, 4>& lam_out) {
  using Scalar = typename Recurrence::Scalar;
  using Separation = std::remove_cvref_t<decltype(args.separation)>;
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    write_token(args.separation, r, bank, row, at);
  } else {
    write_token(args, args.separation, r, bank, row, at);
  }
  if (!o && !lam_out) return;
  const visible_segments seen = visible(bank.counters(row), args.max_visible);
  const auto query = [&](const token& from, std::int64_t g) { return layer_query<Data>(args, r, from, g); };
  read_bank(args.router, r, bank, row, seen, {at}, query,
            [&](std::int64_t, std::int64_t h, const vector<Scalar>& lam, const vector<Scalar>& read) {
              if (o) store(o.select(0, at.b).select(0, at.t).select(0, h), r.finish(read, at, h));
              if (lam_out) store_weights(lam_out.select(0, at.b).select(0, at.t).select(0, h), seen, lam);
            });
}

/// Whether k' exists, and so moments are kept: HR and dr of the bank, or 0.
template <class Args, class Recurrence>
bank_shape shape_of(const Args& args, const Recurrence& r) {
  bank_shape shape{.H = r.heads(), .dv = r.dv(), .dk = r.dk()};
  if (!std::remove_cvref_t<decltype(args.separation)>::has_segments) return shape;
  if (args.shared_kq) {
    shape.HR = r.groups();
    shape.dr = r.dk();
  } else if (args.moments.k) {
    shape.HR = args.moments.k.extent(2);
    shape.dr = args.moments.k.extent(3);
  }
  return shape;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
