// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What on_reference checks beside the shapes: contents of index operands, counters of banks, raw weights.

#include <polystate/multi_state.hpp>
#include <polystate/reference/gated_delta_rule/recurrence.hpp>
#include <polystate/reference/routing/weights.hpp>
#include <polystate/reference/ssd/recurrence.hpp>

#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

namespace detail::inline POLYSTATE_BUILD::reference {

/// Refuses counters that no bank of this capacity can have, and tokens that it has no room for.
template <class Args>
status check_bank(const char* op, const Args& args, std::int64_t row, std::int64_t new_tokens, std::int64_t* entries) {
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
               ", segments = " + std::to_string(now.segments) + ", open_tokens = " + std::to_string(now.open_tokens) +
               ", supported: those of " + whose);
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

/// Contents of the index operands and of raw weights of a whole sequence; packed, also that the bank's
/// tensors, named so, have an entry for each segment.
template <class Args, class State, class Moment>
status check_sequence_contents(const char* op, const Args& args, const char* S_name, const tensor_view<State, 5>& S,
                               const char* mu_name, const tensor_view<Moment, 4>& mu, const char* Sigma_name,
                               const tensor_view<Moment, 5>& Sigma) {
  const recurrence r(args.in);
  const std::int64_t T = r.tokens();
  if (status s = check_cu_seqlens(op, args.cu_seqlens, T); !s.ok()) return s;
  if (status s = check_contents(op, args.separation, T); !s.ok()) return s;
  const sequences all(r.batch(), T, args.cu_seqlens);
  argument_checks c(op);
  if (args.cu_seqlens) {
    std::int64_t L = 0;
    for (std::int64_t s = 0; s < all.size(); ++s) {
      c.include(check_covered(op, args.router, args.separation.count(all[s].size())));
      L += bank_entries(args, all[s].size());
    }
    c.bind("L", L)
        .optional(S_name, S, {"B", "L", "H", "dv", "dk"})
        .optional(mu_name, mu, {"B", "L", "HR", "dr"})
        .optional(Sigma_name, Sigma, {"B", "L", "HR", "dr", "dr"});
  }
  for (std::int64_t s = 0; s < all.size() && !c.failed(); ++s) {
    c.include(check_kept_weights(op, args.separation, args.router, all[s], r.heads(), args.max_visible));
  }
  return c.result();
}

/// Counters and weights of a read of `queries` queries a sequence.
template <class Args>
status check_read_contents(const char* op, const Args& args, std::int64_t queries) {
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    std::int64_t entries = 0;
    if (status s = check_bank(op, args, b, 0, &entries); !s.ok()) return s;
    argument_checks c(op);
    c.expect(entries > 0, error_code::value, "bank.counters",
             "sequence " + std::to_string(b) + " has no segment; there is nothing to read");
    c.include(check_covered(op, args.router, entries));
    for (std::int64_t t = 0; t < queries && !c.failed(); ++t) {
      c.include(check_kept_weights(op, args.router, token{b, t}, args.bank.S.extent(2),
                                   visible(args.bank.counters(b), args.max_visible)));
    }
    if (c.failed()) return c.result();
  }
  return {};
}

}  // namespace detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands, counters and
/// raw weights.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  const status s = check<Dims>(args);
  if (!s.ok()) return s;
  return detail::reference::check_sequence_contents("multi_state", args, "S", args.S, "mu", args.mu, "Sigma",
                                                    args.Sigma);
}
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_args<Data, Rule, Separation, Router, State>& args,
                           const multi_state_grads<Data, Rule, Router, State>& grads) {
  const status s = check<Dims>(args, grads);
  if (!s.ok()) return s;
  return detail::reference::check_sequence_contents("multi_state_backward", args, "d_S", grads.d_S, "d_mu", grads.d_mu,
                                                    "d_Sigma", grads.d_Sigma);
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
    status s = ref::check_kept_weights(op, args.separation, args.router, token_range{b, 0, T}, args.bank.S.extent(2),
                                       args.max_visible, args.bank.counters(b));
    if (!s.ok()) return s;
  }
  return {};
}

template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_read_args<Data, Rule, Router, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? detail::reference::check_read_contents("multi_state_read", args, args.o.extent(1)) : s;
}
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_read_args<Data, Rule, Router, State>& args,
                           const multi_state_read_grads<Data, Rule, Router>& grads) {
  const status s = check<Dims>(args, grads);
  if (!s.ok()) return s;
  return detail::reference::check_read_contents("multi_state_read_backward", args,
                                                detail::reference::query_reader(args.in).tokens());
}

}  // namespace polystate::inline POLYSTATE_ABI
