// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in cases.hpp, of a whole layer and of a read, as support/gradient_properties.hpp asks.

#include "multi_state/cases.hpp"
#include "routing/gradients.hpp"
#include "support/tensor.hpp"

#include <polystate/multi_state.hpp>

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// The same cell with operands of another type.
template <class Cell, class To>
using cell_in =
    cell<typename Cell::Rule, typename Cell::Separation, typename router_in<typename Cell::Router, To>::type>;

/// The gradients of a recurrence's operands.
template <class Data, class Rule>
struct recurrence_gradients {
  recurrence_operands<Data, Rule> d;

  recurrence_gradients() = default;
  explicit recurrence_gradients(const recurrence_operands<Data, Rule>& in) {
    d.q = poisoned_like(in.q);
    d.k = poisoned_like(in.k);
    d.v = poisoned_like(in.v);
    d.g = poisoned_like(in.g);
    d.beta = poisoned_like(in.beta);
  }
  [[nodiscard]] operand_grads<Data, Rule> views() {
    return {.d_q = d.q.view(), .d_k = d.k.view(), .d_v = d.v.view(), .d_g = d.g.view(), .d_beta = d.beta.view()};
  }
  [[nodiscard]] query_grads<Data, Rule> query_views() { return {.d_q = d.q.view()}; }
  template <class Operands, class F>
  void for_each_query(Operands& in, F&& f) {
    f("q", in.q, d.q);
  }
  template <class Operands, class F>
  void for_each(Operands& in, F&& f) {
    for_each_query(in, f);
    f("k", in.k, d.k);
    f("v", in.v, d.v);
    f("g", in.g, d.g);
    f("beta", in.beta, d.beta);
  }
};

template <class Data>
struct recurrence_gradients<Data, rule::ssd> {
  recurrence_operands<Data, rule::ssd> d;

  recurrence_gradients() = default;
  explicit recurrence_gradients(const recurrence_operands<Data, rule::ssd>& in) {
    d.x = poisoned_like(in.x);
    d.dt = poisoned_like(in.dt);
    d.A = poisoned_like(in.A);
    d.B = poisoned_like(in.B);
    d.C = poisoned_like(in.C);
    d.D = poisoned_like(in.D);
    d.z = poisoned_like(in.z);
    d.dt_bias = poisoned_like(in.dt_bias);
  }
  [[nodiscard]] operand_grads<Data, rule::ssd> views() {
    return {.d_x = d.x.view(),
            .d_dt = d.dt.view(),
            .d_A = d.A.view(),
            .d_B = d.B.view(),
            .d_C = d.C.view(),
            .d_D = d.D.view(),
            .d_z = d.z.view(),
            .d_dt_bias = d.dt_bias.view()};
  }
  [[nodiscard]] query_grads<Data, rule::ssd> query_views() { return {.d_C = d.C.view()}; }
  template <class Operands, class F>
  void for_each_query(Operands& in, F&& f) {
    f("C", in.C, d.C);
  }
  template <class Operands, class F>
  void for_each(Operands& in, F&& f) {
    for_each_query(in, f);
    f("x", in.x, d.x);
    f("dt", in.dt, d.dt);
    f("A", in.A, d.A);
    f("B", in.B, d.B);
    f("D", in.D, d.D);
    f("z", in.z, d.z);
    f("dt_bias", in.dt_bias, d.dt_bias);
  }
};

/// A problem with outputs of its own.
template <class Data, class Cell>
struct layer_run {
  using data_type = Data;
  using args_type = typename layer_problem<Data, Cell>::forward_args;

  layer_problem<Data, Cell> problem;
  layer_results<Data> out;

  layer_run() = default;
  explicit layer_run(const layer_problem<Data, Cell>& p) : problem(p) {
    const auto& s = p.shape;
    std::int64_t L = p.entries(s.T);
    if (!s.lengths.empty()) L = 0;
    for (const auto n : s.lengths) L += p.entries(n);
    out = p.results(L);
  }

  [[nodiscard]] args_type args() { return problem.args(out); }
  template <class To>
  [[nodiscard]] auto in() const {
    layer_problem<To, cell_in<Cell, To>> p;
    p.shape = problem.shape;
    p.in = problem.in.template in<To>();
    p.keys = problem.keys.template in<To>();
    p.router = problem.router.template in<To>();
    p.cu_seqlens = problem.cu_seqlens;
    return layer_run<To, cell_in<Cell, To>>(p);
  }
  [[nodiscard]] auto in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    multi_state(exec, args);
  }
};

template <class Data, class Cell>
struct layer_gradients {
  using Rule = typename Cell::Rule;
  using Router = typename Cell::Router;
  using grads_type = multi_state_grads<Data, Rule, Router>;

  layer_results<Data> upstream;
  recurrence_gradients<Data, Rule> in;
  key_gradients<Data> keys;
  router_gradients<Data> router;

  layer_gradients() = default;
  template <class Rng>
  layer_gradients(const layer_run<Data, Cell>& run, Rng& rng)
      : upstream(run.out),
        in(run.problem.in),
        router(gradients_of_router<Router>::make(run.problem.router, run.problem.shape.shared_kq)) {
    if (Cell::Separation::has_segments) keys = key_gradients<Data>(run.problem.keys);
    if (run.problem.shape.shared_kq) keys.d_k = {};
    upstream.o.uniform(rng, -1, 1);
    upstream.lam.uniform(rng, -1, 1);
    upstream.S.uniform(rng, -1, 1);
    upstream.mu.uniform(rng, -1, 1);
    upstream.Sigma.uniform(rng, -1, 1);
  }

  [[nodiscard]] grads_type views() {
    return {.d_o = upstream.o.view(),
            .d_lam = upstream.lam.view(),
            .d_S = upstream.S.view(),
            .d_mu = upstream.mu.view(),
            .d_Sigma = upstream.Sigma.view(),
            .in = in.views(),
            .moments = keys.views(),
            .router = gradients_of_router<Router>::view(router)};
  }
  template <class Exec, class Args>
  static void run(const Exec& exec, const Args& args, const grads_type& grads) {
    multi_state_backward(exec, args, grads);
  }
  template <class Run, class F>
  void for_each_upstream(Run& r, F&& f) {
    f("o", r.out.o, upstream.o);
    f("lam", r.out.lam, upstream.lam);
    f("S", r.out.S, upstream.S);
    f("mu", r.out.mu, upstream.mu);
    f("Sigma", r.out.Sigma, upstream.Sigma);
  }
  template <class Run, class F>
  void for_each_input(Run& r, F&& f) {
    in.for_each(r.problem.in, f);
    keys.for_each(r.problem.keys, f);
    router.for_each(r.problem.router, f);
  }
};

/// A read of a bank that is a constant, with outputs of its own.
template <class Data, class Cell>
struct read_run {
  using data_type = Data;
  using args_type = typename layer_problem<Data, Cell>::read_args;

  layer_problem<Data, Cell> problem;
  tensor<acc_t<Data>, 5> S, Sigma;
  tensor<acc_t<Data>, 4> mu;
  std::vector<bank_counters> counters;
  layer_results<Data> out;

  read_run() = default;
  /// A bank of random contents: sequence b has `entries` - b of them.
  template <class Rng>
  read_run(const layer_problem<Data, Cell>& p, std::int64_t entries, Rng& rng) : problem(p) {
    const auto& s = p.shape;
    S = tensor<acc_t<Data>, 5>({s.B, entries, s.H, s.dv, s.dk}).uniform(rng, -1, 1);
    mu = tensor<acc_t<Data>, 4>({s.B, entries, s.HR, s.dr}).uniform(rng, -1, 1);
    Sigma = tensor<acc_t<Data>, 5>({s.B, entries, s.HR, s.dr, s.dr}).uniform(rng, -1, 1);
    for (std::int64_t b = 0; b < s.B; ++b) counters.push_back({.tokens = 9, .segments = entries - b, .open_tokens = 0});
    make_outputs();
  }
  void make_outputs() {
    const auto& s = problem.shape;
    out.o = tensor<Data, 4>({s.B, s.T, s.H, s.dv});
    out.lam = tensor<acc_t<Data>, 4>({s.B, s.T, s.H, S.extents()[1]});
  }

  [[nodiscard]] args_type args() {
    const std::int64_t B = problem.shape.B;
    const bank_view<Data, const acc_t<Data>> bank{
        .S = S.view(), .mu = mu.view(), .Sigma = Sigma.view(), .counters = {counters.data(), {B}}};
    auto a = problem.read(bank, {every_entry, 0, problem.shape.T});
    a.o = out.o.view();
    a.lam = out.lam.view();
    return a;
  }
  template <class To>
  [[nodiscard]] auto in() const {
    read_run<To, cell_in<Cell, To>> r;
    r.problem.shape = problem.shape;
    r.problem.in = problem.in.template in<To>();
    r.problem.router = problem.router.template in<To>();
    r.S = convert<To>(S);
    r.mu = convert<To>(mu);
    r.Sigma = convert<To>(Sigma);
    r.counters = counters;
    r.make_outputs();
    return r;
  }
  [[nodiscard]] auto in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    multi_state_read(exec, args);
  }
};

template <class Data, class Cell>
struct read_gradients {
  using Rule = typename Cell::Rule;
  using Router = typename Cell::Router;
  using grads_type = multi_state_read_grads<Data, Rule, Router>;

  tensor<Data, 4> d_o;           ///< upstream
  tensor<acc_t<Data>, 4> d_lam;  ///< upstream
  recurrence_gradients<Data, Rule> in;
  router_gradients<Data> router;

  read_gradients() = default;
  template <class Rng>
  read_gradients(const read_run<Data, Cell>& run, Rng& rng)
      : d_o(run.out.o),
        d_lam(run.out.lam),
        in(run.problem.in),
        router(gradients_of_router<Router>::make(run.problem.router, run.problem.shape.shared_kq)) {
    d_o.uniform(rng, -1, 1);
    d_lam.uniform(rng, -1, 1);
  }

  [[nodiscard]] grads_type views() {
    return {.d_o = d_o.view(),
            .d_lam = d_lam.view(),
            .in = in.query_views(),
            .router = gradients_of_router<Router>::view(router)};
  }
  template <class Exec, class Args>
  static void run(const Exec& exec, const Args& args, const grads_type& grads) {
    multi_state_read_backward(exec, args, grads);
  }
  template <class Run, class F>
  void for_each_upstream(Run& r, F&& f) {
    f("o", r.out.o, d_o);
    f("lam", r.out.lam, d_lam);
  }
  template <class Run, class F>
  void for_each_input(Run& r, F&& f) {
    in.for_each_query(r.problem.in, f);
    router.for_each(r.problem.router, f);
  }
};

}  // namespace polystate::testing
