// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// multi_state as it is defined: docs/multi_state.md. Forward, step and read are the same two acts on a bank:
/// a token is written into it, queries read it.

#include <polystate/multi_state.hpp>
#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/routing.hpp>
#include <polystate/reference/segment_moments.hpp>
#include <polystate/reference/ssd.hpp>
#include <polystate/state_bank.hpp>

#include <string>
#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

namespace detail::inline POLYSTATE_BUILD::reference {

/// One head's state of a bank's entry.
template <class Data, class State>
tensor_view<State, 2> state_of(const bank_view<Data, State>& bank, std::int64_t row, std::int64_t entry,
                               std::int64_t head) {
  return bank.S.select(0, row).select(0, entry).select(0, head);
}

/// One token enters row `row` of the bank: opens a segment where the last one is closed, advances the open
/// entry's states and moments. Other entries stay as they are.
template <class Args, class Recurrence, class BankData, class State>
void write_token(const Args& args, const Recurrence& r, const bank_view<BankData, State>& bank,
                 std::int64_t row, const token& at) {
  using Scalar = typename Recurrence::Scalar;
  const bank_counters before = bank.counters(row);
  bank.counters(row) = count_token(args.separation, before);
  const std::int64_t entry = bank.counters(row).segments - 1;
  for (std::int64_t h = 0; h < r.heads(); ++h) {
    matrix<Scalar> S = matrix<Scalar>::Zero(r.dv(), r.dk());
    if (before.open_tokens > 0) S = load<State, Scalar>(state_of(bank, row, entry, h));
    advance(r, S, at, h);
    store(state_of(bank, row, entry, h), S);
  }
  if constexpr (std::remove_cvref_t<decltype(args.separation)>::has_segments) {
    write_moments(bank, row, before, args.moments, args.separation, at, [&](std::int64_t g) {
      if (!args.shared_kq) return moment_key(args.moments, at, g);
      const vector<Scalar> k = r.key(at, g);
      return args.moments.qkp_l2norm ? l2_normalized(k, args.moments.l2norm_eps) : k;
    });
  }
}

/// The same where the entries are the levels of a Fenwick partition: older levels are merged, then every
/// level takes the token's transition and level 0 becomes its write.
template <class Args, class Recurrence, class BankData, class State>
void write_token_fenwick(const Args& args, const Recurrence& r, const bank_view<BankData, State>& bank,
                         std::int64_t row, const token& at) {
  using Scalar = typename Recurrence::Scalar;
  const std::int64_t t = bank.counters(row).tokens;
  const std::int64_t used = bank.counters(row).segments;
  bank.counters(row) = count_token(args.separation, bank.counters(row));
  const std::int64_t levels = bank.counters(row).segments;
  for (std::int64_t h = 0; h < r.heads(); ++h) {
    std::vector<matrix<Scalar>> S(static_cast<std::size_t>(levels), matrix<Scalar>::Zero(r.dv(), r.dk()));
    for (std::int64_t n = 0; n < used; ++n) {
      S[static_cast<std::size_t>(n)] = load<State, Scalar>(state_of(bank, row, n, h));
    }
    if (t > 0) {
      std::size_t merged = 0;  // level j + 1, j = trailing zero bits of t
      while (((t >> merged) & 1) == 0) ++merged;
      ++merged;
      for (std::size_t n = 0; n < merged; ++n) {
        S[merged] += S[n];
        S[n].setZero();
      }
    }
    for (auto& level : S) r.transition(level, at, h);
    r.write(S[0], at, h);
    for (std::int64_t n = 0; n < levels; ++n)
      store(state_of(bank, row, n, h), S[static_cast<std::size_t>(n)]);
  }
}

/// Queries at[0], at[1], ... read row `row` of the bank as it stands:
///     o = sum_l lam_l * scale * S_l q
/// `reader` gives q; query(token, moment_head) the router's query. keep(i, head, lam, o) takes the results.
template <class Router, class Reader, class BankData, class State, class Query, class Keep>
void read_bank(const Router& router, const Reader& reader, const bank_view<BankData, State>& bank,
               std::int64_t row, const visible_segments& seen, const std::vector<token>& at,
               const Query& query, const Keep& keep) {
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
void run_token(const Args& args, const Recurrence& r, const bank_view<BankData, State>& bank,
               std::int64_t row, const token& at, const tensor_view<Data, 4>& o,
               const tensor_view<acc_t<Data>, 4>& lam_out) {
  using Scalar = typename Recurrence::Scalar;
  using Separation = std::remove_cvref_t<decltype(args.separation)>;
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    write_token_fenwick(args, r, bank, row, at);
  } else {
    write_token(args, r, bank, row, at);
  }
  if (!o && !lam_out) return;
  const visible_segments seen = visible(bank.counters(row), args.max_visible);
  const auto query = [&](const token& from, std::int64_t g) {
    return routing_query<Data>(args.router, from, g, args.moments.qkp_l2norm, args.moments.l2norm_eps,
                               args.shared_kq ? r.query(from, g) : vector<Scalar>());
  };
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

/// Refuses counters that no bank of this capacity can have, and tokens that it has no room for.
template <class Args>
status check_bank(const char* op, const Args& args, std::int64_t row, std::int64_t new_tokens,
                  std::int64_t* entries) {
  argument_checks c(op);
  const bank_counters now = args.bank.counters(row);
  const std::int64_t capacity = args.bank.S.extent(1);
  const std::int64_t closed = now.segments - (now.open_tokens > 0 ? 1 : 0);  // at least one token each
  bool possible = now.open_tokens >= 0 && closed >= 0 && now.tokens - now.open_tokens >= closed &&
                  (now.tokens == 0 || now.segments > 0) && now.segments <= capacity;
  std::string whose = "a bank of capacity " + std::to_string(capacity);
  if constexpr (requires { args.separation; }) {
    possible = possible && args.separation.reaches(now);
    whose += std::string(" and separation ") + args.separation.name;
  }
  c.expect(possible, error_code::value, "bank.counters",
           "sequence " + std::to_string(row) + " has tokens = " + std::to_string(now.tokens) +
               ", segments = " + std::to_string(now.segments) +
               ", open_tokens = " + std::to_string(now.open_tokens) + ", supported: those of " + whose);
  *entries = now.segments;
  if constexpr (requires { args.separation; }) {
    bank_counters after = now;
    for (std::int64_t t = 0; t < new_tokens && !c.failed(); ++t) after = count_token(args.separation, after);
    c.expect(after.segments <= capacity, error_code::shape, "bank.S",
             "capacity = " + std::to_string(capacity) + ", sequence " + std::to_string(row) + " needs " +
                 std::to_string(after.segments) + " entries; reserve() them first");
    *entries = after.segments;
  }
  return c.result();
}

/// Refuses position weights that do not cover a sequence's entries.
template <class Router>
status check_covered(const char*, const Router&, std::int64_t) {
  return {};
}
template <class Data>
status check_covered(const char* op, const router::position<Data>& r, std::int64_t entries) {
  argument_checks c(op);
  c.expect(r.weights.extent(3) >= entries, error_code::shape, "router.weights",
           "A = " + std::to_string(r.weights.extent(3)) + ", supported: at least the number of segments, " +
               std::to_string(entries));
  return c.result();
}
template <class Router>
status check_covered(const char* op, const router::top_k<Router>& r, std::int64_t entries) {
  return check_covered(op, r.of, entries);
}

}  // namespace detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands and of raw
/// weights.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&,
                           const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = detail::reference;
  constexpr const char* op = "multi_state";
  if (status s = check<Dims>(args); !s.ok()) return s;
  const std::int64_t T = args.o.extent(1);
  if (status s = check_cu_seqlens(op, args.cu_seqlens, T); !s.ok()) return s;
  if (status s = check_contents(op, args.separation, T); !s.ok()) return s;
  const sequences all(args.o.extent(0), T, args.cu_seqlens);
  argument_checks c(op);
  if (args.cu_seqlens) {
    std::int64_t L = 0;
    for (std::int64_t s = 0; s < all.size(); ++s) {
      const std::int64_t segments = args.separation.count(all[s].size());
      c.include(ref::check_covered(op, args.router, segments));
      L += std::is_same_v<Separation, separation::fenwick> ? bank_entries(args, T) : segments;
    }
    c.bind("L", L)
        .optional("S", args.S, {"B", "L", "H", "dv", "dk"})
        .optional("mu", args.mu, {"B", "L", "HR", "dr"})
        .optional("Sigma", args.Sigma, {"B", "L", "HR", "dr", "dr"});
  }
  for (std::int64_t s = 0; s < all.size() && !c.failed(); ++s) {
    c.include(ref::check_kept_weights(op, args.separation, args.router, all[s], args.o.extent(2),
                                      args.max_visible));
  }
  return c.result();
}

template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&,
                           const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = detail::reference;
  constexpr const char* op = "multi_state_step";
  if (status s = check<Dims>(args); !s.ok()) return s;
  const std::int64_t T = ref::recurrence(args.in).tokens();
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    std::int64_t entries = 0;
    if (status s = ref::check_bank(op, args, b, T, &entries); !s.ok()) return s;
    if (status s = ref::check_covered(op, args.router, entries); !s.ok()) return s;
    status s = ref::check_kept_weights(op, args.separation, args.router, token_range{b, 0, T},
                                       args.bank.S.extent(2), args.max_visible, args.bank.counters(b));
    if (!s.ok()) return s;
  }
  return {};
}

template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_reference&,
                           const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace ref = detail::reference;
  constexpr const char* op = "multi_state_read";
  if (status s = check<Dims>(args); !s.ok()) return s;
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    std::int64_t entries = 0;
    if (status s = ref::check_bank(op, args, b, 0, &entries); !s.ok()) return s;
    argument_checks c(op);
    c.expect(entries > 0, error_code::value, "bank.counters",
             "sequence " + std::to_string(b) + " has no segment; there is nothing to read");
    c.include(ref::check_covered(op, args.router, entries));
    for (std::int64_t t = 0; t < args.o.extent(1) && !c.failed(); ++t) {
      c.include(ref::check_kept_weights(op, args.router, ref::token{b, t}, args.o.extent(2),
                                        ref::visible(args.bank.counters(b), args.max_visible)));
    }
    if (c.failed()) return c.result();
  }
  return {};
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state(const on_reference& exec,
                       const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::recurrence recurrence(args.in);
  const sequences all(args.o.extent(0), args.o.extent(1), args.cu_seqlens);
  std::int64_t first = 0;  // entry of the outputs: packed sequences follow one another
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const std::int64_t entries = bank_entries(args, tokens.size());
    state_bank<Scalar> memory(ref::shape_of(args, recurrence), entries);
    const auto bank = memory.view();
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      ref::run_token(args, recurrence, bank, 0, {tokens.batch, t}, args.o, args.lam);
    }
    const std::int64_t offset = all.packed() ? first : 0;
    for (std::int64_t l = 0; args.S && l < entries; ++l) {
      for (std::int64_t h = 0; h < recurrence.heads(); ++h) {
        ref::store(
            ref::state_of(bank_view<Data, State>{.S = args.S, .counters = {}}, tokens.batch, offset + l, h),
            ref::load(ref::state_of(bank, 0, l, h)));
      }
    }
    ref::store_moments<Scalar>(bank, tokens.batch, offset, args.mu, args.Sigma);
    first += entries;
  }
  return {};
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state_step(const on_reference& exec,
                            const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::recurrence recurrence(args.in);
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    for (std::int64_t t = 0; t < recurrence.tokens(); ++t) {
      ref::run_token(args, recurrence, args.bank, b, {b, t}, args.o, tensor_view<acc_t<Data>, 4>{});
    }
  }
  return {};
}

template <class Dims, class Data, class Rule, class Router, class State>
status try_multi_state_read(const on_reference& exec,
                            const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace ref = detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::query_reader reader(args.in);
  for (std::int64_t b = 0; b < args.o.extent(0); ++b) {
    std::vector<ref::token> at;
    for (std::int64_t t = 0; t < args.o.extent(1); ++t) at.push_back({b, t});
    const ref::visible_segments seen = ref::visible(args.bank.counters(b), args.max_visible);
    const auto query = [&](const ref::token& from, std::int64_t g) {
      return ref::routing_query<Data>(args.router, from, g, args.qkp_l2norm, args.l2norm_eps,
                                      args.shared_kq ? reader.query(from, g) : ref::vector<Scalar>());
    };
    ref::read_bank(
        args.router, reader, args.bank, b, seen, at, query,
        [&](std::int64_t t, std::int64_t h, const ref::vector<Scalar>& lam, const ref::vector<Scalar>& o) {
          ref::store(args.o.select(0, b).select(0, t).select(0, h), o);
          if (args.lam) ref::store_weights(args.lam.select(0, b).select(0, t).select(0, h), seen, lam);
        });
  }
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
