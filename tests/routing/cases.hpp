// SPDX-License-Identifier: Apache-2.0
#pragma once

// Router operands that tests own, and the weights of a token written out from the scores of its segments:
// loops over plain vectors, so nothing is shared with the reference.

#include "segment_moments/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/routing.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace polystate::testing {

/// Sizes and options of a router's operands.
struct router_shape {
  std::int64_t B = 2, T = 11, H = 4, HR = 2, dr = 5, A = 12;
  polystate::position_index position_index = polystate::position_index::age;
  polystate::position_norm position_norm = polystate::position_norm::softmax;
  std::int64_t k = 2;
  bool keep_current = false;
};

/// Operands of every router at once.
template <class Data>
struct router_operands {
  using acc = acc_t<Data>;
  tensor<Data, 4> q;  ///< q' or u
  tensor<acc, 4> weights;
  tensor<acc, 3> gamma;
  tensor<acc, 1> tau_mu, tau_sigma, delta;
  router_shape options;

  router_operands() = default;
  template <class Rng>
  router_operands(const router_shape& s, Rng& rng)
      : q({s.B, s.T, s.HR, s.dr}),
        weights({s.B, s.T, s.H, s.A}),
        gamma({s.B, s.T, s.H}),
        tau_mu({s.H}),
        tau_sigma({s.H}),
        delta({s.H}),
        options(s) {
    q.uniform(rng, -1.5, 1.5);
    weights.uniform(rng, 0.1, 2);
    gamma.uniform(rng, 0, 1);
    tau_mu.uniform(rng, 0.5, 3);
    tau_sigma.uniform(rng, 0.5, 3);
    delta.uniform(rng, 0.5, 2);
  }

  template <class To>
  [[nodiscard]] router_operands<To> in() const {
    router_operands<To> p;
    p.q = convert<To>(q);
    p.weights = convert<acc_t<To>>(weights);
    p.gamma = convert<acc_t<To>>(gamma);
    p.tau_mu = convert<acc_t<To>>(tau_mu);
    p.tau_sigma = convert<acc_t<To>>(tau_sigma);
    p.delta = convert<acc_t<To>>(delta);
    p.options = options;
    return p;
  }
  [[nodiscard]] router_operands<double> in_double() const { return in<double>(); }
};

/// The router struct that reads these operands, or others whose members view() likewise; `shared_kq` leaves out its
/// query. `name` is for test output.
template <class Router>
struct router_of;
template <>
struct router_of<router::none> {
  static std::string name() { return "none"; }
  template <class Operands>
  static router::none view(const Operands&, bool) {
    return {};
  }
};
template <>
struct router_of<router::uniform> {
  static std::string name() { return "uniform"; }
  template <class Operands>
  static router::uniform view(const Operands&, bool) {
    return {};
  }
};
template <class D>
struct router_of<router::position<D>> {
  static std::string name() { return "position"; }
  template <class Operands>
  static router::position<D> view(const Operands& o, bool) {
    return {.weights = o.weights.view(),
            .position_index = o.options.position_index,
            .position_norm = o.options.position_norm};
  }
};
template <class D>
struct router_of<router::meanpool<D>> {
  static std::string name() { return "meanpool"; }
  template <class Operands>
  static router::meanpool<D> view(const Operands& o, bool shared_kq) {
    if (shared_kq) return {};
    return {.u = o.q.view()};
  }
};
template <class D>
struct router_of<router::merlin<D>> {
  static std::string name() { return "merlin"; }
  template <class Operands>
  static router::merlin<D> view(const Operands& o, bool shared_kq) {
    router::merlin<D> r{.gamma = o.gamma.view(), .tau_mu = o.tau_mu.view(), .tau_sigma = o.tau_sigma.view()};
    if (!shared_kq) r.q = o.q.view();
    return r;
  }
};
template <class D>
struct router_of<router::cumulant<D>> {
  static std::string name() { return "cumulant"; }
  template <class Operands>
  static router::cumulant<D> view(const Operands& o, bool shared_kq) {
    router::cumulant<D> r{.delta = o.delta.view()};
    if (!shared_kq) r.q = o.q.view();
    return r;
  }
};
template <class Router>
struct router_of<router::top_k<Router>> {
  static std::string name() { return "top_k_" + router_of<Router>::name(); }
  template <class Operands>
  static router::top_k<Router> view(const Operands& o, bool shared_kq) {
    return {.of = router_of<Router>::view(o, shared_kq), .k = o.options.k, .keep_current = o.options.keep_current};
  }
};

/// Scores of one token against the segments it sees, first to current.
struct token_scores {
  std::vector<double> r_mu, r_sigma;
  std::int64_t first = 0;  ///< segment of the first score
};

inline std::vector<double> direct_softmax(const std::vector<double>& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  std::vector<double> w;
  double sum = 0;
  for (const double v : x) {
    w.push_back(std::exp(v - largest));
    sum += w.back();
  }
  for (double& v : w) v /= sum;
  return w;
}

/// lam of the visible segments.
template <class Router>
struct direct_weights;
template <>
struct direct_weights<router::uniform> {
  static std::vector<double> of(const router_operands<double>&, const token_scores& s, std::int64_t, std::int64_t,
                                std::int64_t) {
    return std::vector<double>(s.r_mu.size(), 1 / static_cast<double>(s.r_mu.size()));
  }
};
template <>
struct direct_weights<router::position<double>> {
  static std::vector<double> of(const router_operands<double>& o, const token_scores& s, std::int64_t b, std::int64_t t,
                                std::int64_t h) {
    const auto n = static_cast<std::int64_t>(s.r_mu.size());
    std::vector<double> w;
    for (std::int64_t l = 0; l < n; ++l) {
      w.push_back(o.weights.view()(b, t, h, o.options.position_index == position_index::age ? n - 1 - l : s.first + l));
    }
    return o.options.position_norm == position_norm::none ? w : direct_softmax(w);
  }
};
template <>
struct direct_weights<router::meanpool<double>> {
  static std::vector<double> of(const router_operands<double>&, const token_scores& s, std::int64_t, std::int64_t,
                                std::int64_t) {
    return direct_softmax(s.r_mu);
  }
};
template <>
struct direct_weights<router::merlin<double>> {
  static std::vector<double> of(const router_operands<double>& o, token_scores s, std::int64_t b, std::int64_t t,
                                std::int64_t h) {
    for (double& x : s.r_mu) x *= o.tau_mu.view()(h);
    for (double& x : s.r_sigma) x *= o.tau_sigma.view()(h);
    const auto by_mean = direct_softmax(s.r_mu);
    const auto by_variance = direct_softmax(s.r_sigma);
    const double gamma = o.gamma.view()(b, t, h);
    std::vector<double> w;
    for (std::size_t l = 0; l < by_mean.size(); ++l) w.push_back(gamma * by_mean[l] + (1 - gamma) * by_variance[l]);
    return w;
  }
};
template <>
struct direct_weights<router::cumulant<double>> {
  static std::vector<double> of(const router_operands<double>& o, token_scores s, std::int64_t, std::int64_t,
                                std::int64_t h) {
    const double delta = o.delta.view()(h);
    for (std::size_t l = 0; l < s.r_mu.size(); ++l) s.r_mu[l] = delta * s.r_mu[l] + delta * delta / 2 * s.r_sigma[l];
    return direct_softmax(s.r_mu);
  }
};
template <class Router>
struct direct_weights<router::top_k<Router>> {
  static std::vector<double> of(const router_operands<double>& o, const token_scores& s, std::int64_t b, std::int64_t t,
                                std::int64_t h) {
    auto w = direct_weights<Router>::of(o, s, b, t, h);
    const auto k = static_cast<std::size_t>(o.options.k);
    if (w.size() <= k) return w;
    std::vector<std::size_t> order;  // the more recent first, then by weight
    for (std::size_t l = w.size(); l-- > 0;) order.push_back(l);
    const auto heavier = [&](std::size_t x, std::size_t y) { return w[x] > w[y]; };
    std::stable_sort(order.begin() + (o.options.keep_current ? 1 : 0), order.end(), heavier);
    double sum = 0;
    for (std::size_t n = 0; n < k; ++n) sum += w[order[n]];
    std::vector<double> kept(w.size(), 0.0);
    for (std::size_t n = 0; n < k; ++n) kept[order[n]] = w[order[n]] / sum;
    return kept;
  }
};

/// Scores of token t, with q' or u as the router uses it, against the moments of the segments that it sees.
template <class Router>
token_scores direct_scores(const routing_keys<double>& keys, const router_operands<double>& o,
                           const std::vector<segment>& segments, std::int64_t b, std::int64_t t,
                           std::int64_t moment_head, std::int64_t max_visible) {
  std::int64_t current = 0;
  while (segments[static_cast<std::size_t>(current)].end <= t) ++current;
  token_scores s;
  s.first = max_visible > 0 ? std::max<std::int64_t>(0, current + 1 - max_visible) : 0;
  if (!Router::reads_moments) {
    s.r_mu.resize(static_cast<std::size_t>(current - s.first + 1));
    return s;
  }
  auto q = row_of(o.q, b, t, moment_head);
  if (keys.options.qkp_l2norm && Router::normalizes_query) q = unit_row(q);
  for (std::int64_t l = s.first; l <= current; ++l) {
    const auto& of = segments[static_cast<std::size_t>(l)];
    const auto m = direct_moments(keys, b, moment_head, of, std::min(t, of.end - 1));
    s.r_mu.push_back(dot(m.mu, q));
    double square = 0;
    for (std::size_t i = 0; i < q.size(); ++i) square += q[i] * dot(m.Sigma[i], q);
    s.r_sigma.push_back(square - s.r_mu.back() * s.r_mu.back());
  }
  return s;
}

}  // namespace polystate::testing
