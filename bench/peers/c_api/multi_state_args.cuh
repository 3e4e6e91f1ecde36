// SPDX-License-Identifier: Apache-2.0
#pragma once

// multi_state's C structs as args.

#include "convert.cuh"

#include <polystate/multi_state.hpp>

#include <type_traits>

namespace polystate::c_api {

template <class Data>
router::merlin<Data> router_of(const polystate_merlin& r) {
  return {.q = operand(r.q), .gamma = operand(r.gamma), .tau_mu = operand(r.tau_mu), .tau_sigma = operand(r.tau_sigma)};
}

template <class Data, class State>
bank_view<Data, State> bank_of(const polystate_bank& b) {
  using counter = typename bank_view<Data, State>::counter;
  return {.S = operand(b.S),
          .mu = operand(b.mu),
          .Sigma = operand(b.Sigma),
          .counters = {static_cast<counter*>(b.counters.data), {b.counters.extents[0]}}};
}

/// The recurrence's operands of a forward or a step.
template <class Data, class Args>
operands<Data, rule::gated_delta> operands_of(const Args& a) {
  return {.q = operand(a.q),
          .k = operand(a.k),
          .v = operand(a.v),
          .g = operand(a.g),
          .beta = operand(a.beta),
          .scale = a.scale};
}

template <class Data>
multi_state_args<Data, rule::gated_delta, separation::uniform, router::merlin<Data>> args_of(
    const polystate_multi_state_args& a) {
  return {.in = c_api::operands_of<Data>(a),
          .separation = {.m = a.m},
          .moments = {.k = operand(a.moments_k)},
          .router = router_of<Data>(a.router),
          .o = operand(a.o),
          .lam = operand(a.lam)};
}

template <class Data, class State>
multi_state_step_args<Data, rule::gated_delta, separation::uniform, router::merlin<Data>, State> args_of(
    const polystate_multi_state_step_args& a) {
  return {.in = c_api::operands_of<Data>(a),
          .separation = {.m = a.m},
          .moments = {.k = operand(a.moments_k)},
          .router = router_of<Data>(a.router),
          .bank = bank_of<Data, State>(a.bank),
          .o = operand(a.o)};
}

/// The read's args with either router.
template <class Data, class State, class Router>
multi_state_read_args<Data, rule::gated_delta, Router, State> args_of(const polystate_multi_state_read_args& a) {
  const router::merlin<Data> merlin = router_of<Data>(a.router);
  multi_state_read_args<Data, rule::gated_delta, Router, State> args{
      .in = {.q = operand(a.q), .scale = a.scale}, .bank = bank_of<Data, const State>(a.bank), .o = operand(a.o)};
  if constexpr (is_top_k<Router>) {
    args.router = {.of = merlin, .k = a.top_k};
  } else {
    args.router = merlin;
  }
  return args;
}

/// f(of<Dims>{}) for the head dims that a bank is built for, where a bank's rows stand for v.
template <class Data, class State, class F>
status visit_bank_types(const char* op, polystate_dtype data, polystate_dtype state, const polystate_tensor& q,
                        const polystate_tensor& o, F&& f) {
  return visit_dtype<Data>(op, "data", data, [&](auto) {
    return visit_dtype<State>(op, "state", state,
                              [&](auto) { return visit_dims<dims<256, 512>>(op, q, o, std::forward<F>(f)); });
  });
}

}  // namespace polystate::c_api
