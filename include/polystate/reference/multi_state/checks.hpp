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

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// Contents of the index operands and of raw weights of a whole sequence; packed, also that the bank's
/// tensors, named so, have an entry for each segment.
template <class Args, class State, class Moment>
status check_sequence_contents(const char* op, const Args& args, const char* S_name, const tensor_view<State, 5>& S,
                               const char* mu_name, const tensor_view<Moment, 4>& mu, const char* Sigma_name,
                               const tensor_view<Moment, 5>& Sigma) {
  if (status s = check_contents(op, args, S_name, S, mu_name, mu, Sigma_name, Sigma); !s.ok()) return s;
  const recurrence r(args.in);
  const sequences all(r.batch(), r.tokens(), args.cu_seqlens);
  argument_checks c(op);
  for (std::int64_t s = 0; s < all.size() && !c.failed(); ++s) {
    c.include(check_kept_weights(op, args.separation, args.router, all[s], r.heads(), args.max_visible));
  }
  return c.result();
}

/// Counters and raw weights of a read of `queries` queries a sequence.
template <class Args>
status check_read_contents(const char* op, const Args& args, std::int64_t queries) {
  if (status s = check_contents(op, args); !s.ok()) return s;
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    argument_checks c(op);
    for (std::int64_t t = 0; t < queries && !c.failed(); ++t) {
      c.include(check_kept_weights(op, args.router, token{b, t}, args.bank.S.extent(2),
                                   visible(args.bank.counters(b), args.max_visible)));
    }
    if (c.failed()) return c.result();
  }
  return {};
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands, counters and
/// raw weights.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  const status s = check<Dims>(args);
  if (!s.ok()) return s;
  return polystate_detail::reference::check_sequence_contents("multi_state", args, "S", args.S, "mu", args.mu, "Sigma",
                                                              args.Sigma);
}
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_args<Data, Rule, Separation, Router, State>& args,
                           const multi_state_grads<Data, Rule, Router, State>& grads) {
  const status s = check<Dims>(args, grads);
  if (!s.ok()) return s;
  return polystate_detail::reference::check_sequence_contents("multi_state_backward", args, "d_S", grads.d_S, "d_mu",
                                                              grads.d_mu, "d_Sigma", grads.d_Sigma);
}

template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_reference&,
                           const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = polystate_detail::reference;
  constexpr const char* op = "multi_state_step";
  if (status s = check<Dims>(args); !s.ok()) return s;
  if (status s = check_contents(args); !s.ok()) return s;
  const std::int64_t T = ref::recurrence(args.in).tokens();
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    status s = ref::check_kept_weights(op, args.separation, args.router, token_range{b, 0, T}, args.bank.S.extent(2),
                                       args.max_visible, args.bank.counters(b));
    if (!s.ok()) return s;
  }
  return {};
}

template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_read_args<Data, Rule, Router, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? polystate_detail::reference::check_read_contents("multi_state_read", args, args.o.extent(1)) : s;
}
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_reference&, const multi_state_read_args<Data, Rule, Router, State>& args,
                           const multi_state_read_grads<Data, Rule, Router>& grads) {
  const status s = check<Dims>(args, grads);
  if (!s.ok()) return s;
  return polystate_detail::reference::check_read_contents("multi_state_read_backward", args,
                                                          polystate_detail::reference::query_reader(args.in).tokens());
}

}  // namespace polystate::inline POLYSTATE_ABI
