// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of routing and their gradients, as support/gradient_properties.hpp asks.

#include "routing/cases.hpp"
#include "segment_moments/gradients.hpp"
#include "support/tensor.hpp"

#include <polystate/routing.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// The same router with operands of another type.
template <class Router, class To>
struct router_in {
  using type = Router;
};
template <template <class> class Router, class Data, class To>
struct router_in<Router<Data>, To> {
  using type = Router<To>;
};
template <class Router, class To>
struct router_in<router::top_k<Router>, To> {
  using type = router::top_k<typename router_in<Router, To>::type>;
};

/// The gradients of a router's operands: all that it has.
template <class Data>
struct router_gradients {
  tensor<Data, 4> d_q;  ///< of q' or u
  tensor<acc_t<Data>, 4> d_weights;
  tensor<acc_t<Data>, 3> d_gamma;
  tensor<acc_t<Data>, 1> d_tau_mu, d_tau_sigma, d_delta;

  template <class Operands, class F>
  void for_each(Operands& o, F&& f) {
    f("router.q", o.q, d_q);
    f("router.weights", o.weights, d_weights);
    f("router.gamma", o.gamma, d_gamma);
    f("router.tau_mu", o.tau_mu, d_tau_mu);
    f("router.tau_sigma", o.tau_sigma, d_tau_sigma);
    f("router.delta", o.delta, d_delta);
  }

  [[nodiscard]] router_gradients<double> in_double() const {
    router_gradients<double> g;
    g.d_q = convert<double>(d_q);
    g.d_weights = convert<double>(d_weights);
    g.d_gamma = convert<double>(d_gamma);
    g.d_tau_mu = convert<double>(d_tau_mu);
    g.d_tau_sigma = convert<double>(d_tau_sigma);
    g.d_delta = convert<double>(d_delta);
    return g;
  }
};

/// make(): fresh gradients of what the router reads. view(): its grads.
template <class Router>
struct gradients_of_router {
  template <class Data>
  static router_gradients<Data> make(const router_operands<Data>&, bool) {
    return {};
  }
  template <class Gradients>
  static router_grads<Router> view(Gradients&) {
    return {};
  }
};
template <class D>
struct gradients_of_router<router::position<D>> {
  static router_gradients<D> make(const router_operands<D>& o, bool) {
    router_gradients<D> g;
    g.d_weights = poisoned_like(o.weights);
    return g;
  }
  template <class Gradients>
  static router_grads<router::position<D>> view(Gradients& g) {
    return {.d_weights = g.d_weights.view()};
  }
};
template <class D>
struct gradients_of_router<router::meanpool<D>> {
  static router_gradients<D> make(const router_operands<D>& o, bool shared_kq) {
    router_gradients<D> g;
    if (!shared_kq) g.d_q = poisoned_like(o.q);
    return g;
  }
  template <class Gradients>
  static router_grads<router::meanpool<D>> view(Gradients& g) {
    return {.d_u = g.d_q.view()};
  }
};
template <class D>
struct gradients_of_router<router::merlin<D>> {
  static router_gradients<D> make(const router_operands<D>& o, bool shared_kq) {
    router_gradients<D> g;
    if (!shared_kq) g.d_q = poisoned_like(o.q);
    g.d_gamma = poisoned_like(o.gamma);
    g.d_tau_mu = poisoned_like(o.tau_mu);
    g.d_tau_sigma = poisoned_like(o.tau_sigma);
    return g;
  }
  template <class Gradients>
  static router_grads<router::merlin<D>> view(Gradients& g) {
    return {.d_q = g.d_q.view(),
            .d_gamma = g.d_gamma.view(),
            .d_tau_mu = g.d_tau_mu.view(),
            .d_tau_sigma = g.d_tau_sigma.view()};
  }
};
template <class D>
struct gradients_of_router<router::cumulant<D>> {
  static router_gradients<D> make(const router_operands<D>& o, bool shared_kq) {
    router_gradients<D> g;
    if (!shared_kq) g.d_q = poisoned_like(o.q);
    g.d_delta = poisoned_like(o.delta);
    return g;
  }
  template <class Gradients>
  static router_grads<router::cumulant<D>> view(Gradients& g) {
    return {.d_q = g.d_q.view(), .d_delta = g.d_delta.view()};
  }
};
template <class Router>
struct gradients_of_router<router::top_k<Router>> {
  template <class Data>
  static router_gradients<Data> make(const router_operands<Data>& o, bool shared_kq) {
    return gradients_of_router<Router>::make(o, shared_kq);
  }
  template <class Gradients>
  static router_grads<router::top_k<Router>> view(Gradients& g) {
    return {.of = gradients_of_router<Router>::view(g)};
  }
};

/// Sizes and options of a routing problem beside those of its keys. `cuts`: the boundaries.
struct weights_shape {
  std::int64_t H = 2, m = 2, max_visible = 0;
  polystate::position_index position_index = polystate::position_index::age;
  polystate::position_norm position_norm = polystate::position_norm::softmax;
  bool keep_current = false;
  std::vector<std::int32_t> cuts = {0, 1, 4, 6, 7};
};

template <class Data, class SeparationType, class RouterType>
struct weights_problem {
  using data_type = Data;
  using Separation = SeparationType;
  using Router = RouterType;
  using args_type = routing_args<Data, Separation, Router>;

  weights_shape shape;
  routing_keys<Data> keys;
  router_operands<Data> router;
  tensor<acc_t<Data>, 4> lam;

  weights_problem() = default;
  template <class Rng>
  weights_problem(const keys_shape& s, const weights_shape& w, Rng& rng)
      : shape(w),
        keys(s, rng),
        router({.B = s.B,
                .T = s.T,
                .H = w.H,
                .HR = s.HR,
                .dr = s.dr,
                .A = s.T + 1,
                .position_index = w.position_index,
                .position_norm = w.position_norm,
                .keep_current = w.keep_current},
               rng),
        lam({s.B, s.T, w.H, separation_of<Separation>(w.m, w.cuts).count(s.T)}) {
    if (!Router::reads_moments) keys.k = {};
    if (!Router::reads_moments) keys.g = keys.beta = {};
  }

  [[nodiscard]] args_type args() {
    return {.moments = keys.view(),
            .separation = separation_of<Separation>(shape.m, shape.cuts),
            .router = router_of<Router>::view(router, false),
            .lam = lam.view(),
            .max_visible = shape.max_visible};
  }
  template <class To>
  [[nodiscard]] auto in() const {
    weights_problem<To, Separation, typename router_in<Router, To>::type> p;
    p.shape = shape;
    p.keys = keys.template in<To>();
    p.router = router.template in<To>();
    p.lam = tensor<acc_t<To>, 4>(lam.extents());
    return p;
  }
  [[nodiscard]] auto in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    routing(exec, args);
  }
};

template <class Data, class Router>
struct weights_gradients {
  tensor<acc_t<Data>, 4> d_lam;  ///< upstream
  key_gradients<Data> keys;
  router_gradients<Data> router;

  weights_gradients() = default;
  template <class Separation, class Rng>
  weights_gradients(const weights_problem<Data, Separation, Router>& p, Rng& rng)
      : d_lam(poisoned_like(p.lam)), keys(p.keys), router(gradients_of_router<Router>::make(p.router, false)) {
    d_lam.uniform(rng, -1, 1);
  }

  [[nodiscard]] routing_grads<Data, Router> views() {
    return {.d_lam = d_lam.view(), .moments = keys.views(), .router = gradients_of_router<Router>::view(router)};
  }
  template <class Exec, class Args>
  static void run(const Exec& exec, const Args& args, const routing_grads<Data, Router>& grads) {
    routing_backward(exec, args, grads);
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("lam", p.lam, d_lam);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    keys.for_each(p.keys, f);
    router.for_each(p.router, f);
  }
};

}  // namespace polystate::testing
