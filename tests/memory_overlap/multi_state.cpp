// SPDX-License-Identifier: Apache-2.0

// Moments, routing, and layers of several states. bugs B181.

#include "memory_overlap/operand_table.hpp"

#include <polystate/multi_state.hpp>
#include <polystate/routing.hpp>
#include <polystate/segment_moments.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

// B = 2 sequences of T = 5 tokens, L = 3 segments, H = 4 heads, HK = HR = 2, dk = dr = 3, dv = 2.

template <class Data>
void add_moments(operand_table& table, key_moments<Data>& moments) {
  moments.moment_rule = moment_rule::delta;
  table.add("moments.k", moments.k, {2, 5, 2, 3})
      .add("moments.g", moments.g, {2, 5, 2})
      .add("moments.beta", moments.beta, {2, 5, 2});
}
template <class Data>
void add_moment_grads(operand_table& table, key_moment_grads<Data>& grads) {
  table.add("moments.d_k", grads.d_k, {2, 5, 2, 3})
      .add("moments.d_g", grads.d_g, {2, 5, 2})
      .add("moments.d_beta", grads.d_beta, {2, 5, 2});
}

template <class Data>
void add_router(operand_table& table, router::merlin<Data>& r) {
  table.add("router.q", r.q, {2, 5, 2, 3})
      .add("router.gamma", r.gamma, {2, 5, 4})
      .add("router.tau_mu", r.tau_mu, {4})
      .add("router.tau_sigma", r.tau_sigma, {4});
}
template <class Data>
void add_router(operand_table& table, router::cumulant<Data>& r) {
  table.add("router.q", r.q, {2, 5, 2, 3}).add("router.delta", r.delta, {4});
}
template <class Data>
void add_router(operand_table& table, router::meanpool<Data>& r) {
  table.add("router.u", r.u, {2, 5, 2, 3});
}
template <class Data>
void add_router(operand_table& table, router::position<Data>& r) {
  table.add("router.weights", r.weights, {2, 5, 4, 3});
}
template <class Router>
void add_router(operand_table& table, router::top_k<Router>& r) {
  r.k = 1;
  add_router(table, r.of);
}

template <class Data>
void add_router_grads(operand_table& table, router_grads<router::merlin<Data>>& g) {
  table.add("router.d_q", g.d_q, {2, 5, 2, 3})
      .add("router.d_gamma", g.d_gamma, {2, 5, 4})
      .add("router.d_tau_mu", g.d_tau_mu, {4})
      .add("router.d_tau_sigma", g.d_tau_sigma, {4});
}
template <class Data>
void add_router_grads(operand_table& table, router_grads<router::cumulant<Data>>& g) {
  table.add("router.d_q", g.d_q, {2, 5, 2, 3}).add("router.d_delta", g.d_delta, {4});
}
template <class Data>
void add_router_grads(operand_table& table, router_grads<router::meanpool<Data>>& g) {
  table.add("router.d_u", g.d_u, {2, 5, 2, 3});
}
template <class Data>
void add_router_grads(operand_table& table, router_grads<router::position<Data>>& g) {
  table.add("router.d_weights", g.d_weights, {2, 5, 4, 3});
}
template <class Router>
void add_router_grads(operand_table& table, router_grads<router::top_k<Router>>& g) {
  add_router_grads(table, g.of);
}

template <class Data, class Rule>
void add_recurrence(operand_table& table, operands<Data, Rule>& in) {
  table.add("q", in.q, {2, 5, 2, 3}).add("k", in.k, {2, 5, 2, 3}).add("v", in.v, {2, 5, 4, 2});
  if (Rule::has_decay) table.add("g", in.g, {2, 5, 4});
  if (Rule::has_beta) table.add("beta", in.beta, {2, 5, 4});
}
template <class Data>
void add_recurrence(operand_table& table, operands<Data, rule::ssd>& in) {
  table.add("x", in.x, {2, 5, 4, 2})
      .add("dt", in.dt, {2, 5, 4})
      .add("A", in.A, {4})
      .add("B", in.B, {2, 5, 2, 3})
      .add("C", in.C, {2, 5, 2, 3})
      .add("D", in.D, {4, 2})
      .add("z", in.z, {2, 5, 4, 2})
      .add("dt_bias", in.dt_bias, {4});
}
template <class Data, class Rule>
void add_recurrence_grads(operand_table& table, operand_grads<Data, Rule>& g) {
  table.add("d_q", g.d_q, {2, 5, 2, 3}).add("d_k", g.d_k, {2, 5, 2, 3}).add("d_v", g.d_v, {2, 5, 4, 2});
  if (Rule::has_decay) table.add("d_g", g.d_g, {2, 5, 4});
  if (Rule::has_beta) table.add("d_beta", g.d_beta, {2, 5, 4});
}
template <class Data>
void add_recurrence_grads(operand_table& table, operand_grads<Data, rule::ssd>& g) {
  table.add("d_x", g.d_x, {2, 5, 4, 2})
      .add("d_dt", g.d_dt, {2, 5, 4})
      .add("d_A", g.d_A, {4})
      .add("d_B", g.d_B, {2, 5, 2, 3})
      .add("d_C", g.d_C, {2, 5, 2, 3})
      .add("d_D", g.d_D, {4, 2})
      .add("d_z", g.d_z, {2, 5, 4, 2})
      .add("d_dt_bias", g.d_dt_bias, {4});
}

TEST(MemoryOverlap, SegmentMoments) {
  segment_moments_args<half, separation::boundaries> args;
  operand_table table;
  add_moments(table, args.moments);
  table.add("separation.boundaries", args.separation.boundaries, {4});
  auto forward = table;
  forward.add("mu", args.mu, {2, 3, 2, 3}).add("Sigma", args.Sigma, {2, 3, 2, 3, 3});
  forward.expect_overlaps_refused([&] { return check(args); });

  segment_moments_grads<half> grads;
  table.add("d_mu", grads.d_mu, {2, 3, 2, 3}).add("d_Sigma", grads.d_Sigma, {2, 3, 2, 3, 3});
  add_moment_grads(table, grads.moments);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, SegmentMomentsOfPackedSequences) {
  segment_moments_args<half> args{.moments = {}, .separation = {.m = 2}};
  operand_table()
      .add("moments.k", args.moments.k, {1, 5, 2, 3})
      .add("cu_seqlens", args.cu_seqlens, {3})
      .add("mu", args.mu, {1, 3, 2, 3})
      .expect_overlaps_refused([&] { return check(args); });
}

template <class Router>
void expect_routing_refuses() {
  routing_args<float, separation::uniform, Router> args{.separation = {.m = 2}, .router = {}, .lam = {}};
  operand_table table;
  if constexpr (Router::reads_moments) add_moments(table, args.moments);
  add_router(table, args.router);
  auto forward = table;
  forward.add("lam", args.lam, {2, 5, 4, 3});
  if (Router::reads_moments) forward.add("r_mu", args.r_mu, {2, 5, 2, 3});
  if (Router::reads_Sigma) forward.add("r_sigma", args.r_sigma, {2, 5, 2, 3});
  forward.expect_overlaps_refused([&] { return check(args); });

  routing_grads<float, Router> grads{.d_lam = {}};
  table.add("d_lam", grads.d_lam, {2, 5, 4, 3});
  if constexpr (Router::reads_moments) add_moment_grads(table, grads.moments);
  add_router_grads(table, grads.router);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, Routing) {
  expect_routing_refuses<router::merlin<float>>();
  expect_routing_refuses<router::cumulant<float>>();
  expect_routing_refuses<router::meanpool<float>>();
  expect_routing_refuses<router::position<float>>();
  expect_routing_refuses<router::top_k<router::merlin<float>>>();
}

template <class Rule, class Router>
void expect_multi_state_refuses() {
  multi_state_args<half, Rule, separation::uniform, Router> args{.in = {}, .separation = {.m = 2}, .o = {}};
  operand_table table;
  add_recurrence(table, args.in);
  if constexpr (Router::reads_moments) add_moments(table, args.moments);
  add_router(table, args.router);
  auto forward = table;
  forward.add("o", args.o, {2, 5, 4, 2}).add("lam", args.lam, {2, 5, 4, 3}).add("S", args.S, {2, 3, 4, 2, 3});
  if (Router::reads_moments) {
    forward.add("mu", args.mu, {2, 3, 2, 3}).add("Sigma", args.Sigma, {2, 3, 2, 3, 3});
  }
  forward.expect_overlaps_refused([&] { return check(args); });

  multi_state_grads<half, Rule, Router> grads;
  table.add("d_o", grads.d_o, {2, 5, 4, 2})
      .add("d_lam", grads.d_lam, {2, 5, 4, 3})
      .add("d_S", grads.d_S, {2, 3, 4, 2, 3});
  add_recurrence_grads(table, grads.in);
  if constexpr (Router::reads_moments) {
    table.add("d_mu", grads.d_mu, {2, 3, 2, 3}).add("d_Sigma", grads.d_Sigma, {2, 3, 2, 3, 3});
    add_moment_grads(table, grads.moments);
  }
  add_router_grads(table, grads.router);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

template <class Rule, class Router>
void expect_step_refuses() {
  multi_state_step_args<half, Rule, separation::uniform, Router> args{.in = {}, .separation = {.m = 2}, .bank = {}};
  operand_table table;
  add_recurrence(table, args.in);
  add_router(table, args.router);
  if constexpr (Router::reads_moments) {
    add_moments(table, args.moments);
    table.add("bank.mu", args.bank.mu, {2, 6, 2, 3}).add("bank.Sigma", args.bank.Sigma, {2, 6, 2, 3, 3});
  }
  table.add("bank.S", args.bank.S, {2, 6, 4, 2, 3})
      .add("bank.counters", args.bank.counters, {2})
      .add("o", args.o, {2, 5, 4, 2})
      .expect_overlaps_refused([&] { return check(args); });
}

template <class Rule, class Router>
void expect_read_refuses() {
  multi_state_read_args<half, Rule, Router> args{.in = {}, .bank = {}, .o = {}};
  multi_state_read_grads<half, Rule, Router> grads;
  operand_table table;
  if constexpr (std::is_same_v<Rule, rule::ssd>) {
    table.add("C", args.in.C, {2, 5, 2, 3});
  } else {
    table.add("q", args.in.q, {2, 5, 2, 3});
  }
  add_router(table, args.router);
  if constexpr (Router::reads_moments) table.add("bank.mu", args.bank.mu, {2, 6, 2, 3});
  if constexpr (Router::reads_Sigma) table.add("bank.Sigma", args.bank.Sigma, {2, 6, 2, 3, 3});
  table.add("bank.S", args.bank.S, {2, 6, 4, 2, 3}).add("bank.counters", args.bank.counters, {2});
  auto forward = table;
  forward.add("o", args.o, {2, 5, 4, 2}).add("lam", args.lam, {2, 5, 4, 6}).expect_overlaps_refused([&] {
    return check(args);
  });

  table.add("d_o", grads.d_o, {2, 5, 4, 2}).add("d_lam", grads.d_lam, {2, 5, 4, 6});
  if constexpr (std::is_same_v<Rule, rule::ssd>) {
    table.add("d_C", grads.in.d_C, {2, 5, 2, 3});
  } else {
    table.add("d_q", grads.in.d_q, {2, 5, 2, 3});
  }
  add_router_grads(table, grads.router);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

template <class Rule, class Router>
void expect_layer_refuses() {
  expect_multi_state_refuses<Rule, Router>();
  expect_step_refuses<Rule, Router>();
  expect_read_refuses<Rule, Router>();
}

TEST(MemoryOverlap, MultiState) {
  expect_layer_refuses<rule::gated_delta, router::merlin<half>>();
  expect_layer_refuses<rule::ssd, router::top_k<router::merlin<half>>>();
  expect_layer_refuses<rule::linear, router::position<half>>();
}

}  // namespace
}  // namespace polystate::testing
