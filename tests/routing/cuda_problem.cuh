// SPDX-License-Identifier: Apache-2.0
#pragma once

// A problem of routing on the device, and how the CUDA tests judge it.

#include "routing/oracle.hpp"
#include "segment_moments/cuda_problem.cuh"
#include "support/compare.hpp"
#include "support/device.cuh"
#include "support/random.hpp"

#include <polystate/cuda/routing.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// c of the elementwise bound: sums in another order than the reference's, and squares of moments that are divided
/// last.
inline constexpr double weight_bound = 8;

template <class Data>
struct device_router {
  device_tensor<Data, 4> q;
  device_tensor<float, 4> weights;
  device_tensor<float, 3> gamma;
  device_tensor<float, 1> tau_mu, tau_sigma, delta;
  router_shape options;

  explicit device_router(const router_operands<Data>& o, std::int64_t off = 0)
      : q(o.q, off),
        weights(o.weights),
        gamma(o.gamma),
        tau_mu(o.tau_mu),
        tau_sigma(o.tau_sigma),
        delta(o.delta),
        options(o.options) {}

  [[nodiscard]] bool unchanged() const {
    return q.unchanged() && weights.unchanged() && gamma.unchanged() && tau_mu.unchanged() && tau_sigma.unchanged() &&
           delta.unchanged();
  }
};

/// Weights, and the scores where the router has them.
template <class Router>
struct computed_weights {
  tensor<float, 4> lam, r_mu, r_sigma;

  template <class Data, class Separation>
  explicit computed_weights(const weights_problem<Data, Separation, Router>& p) : lam(p.lam) {
    const auto scores = [&] {
      return tensor<float, 4>({lam.extents()[0], lam.extents()[1], p.keys.options.HR, lam.extents()[3]});
    };
    if (Router::reads_moments) r_mu = scores();
    if (Router::reads_Sigma) r_sigma = scores();
  }
};

template <class Data, class Separation, class Router>
struct device_weights {
  device_keys<Data> keys;
  device_router<Data> router;
  device_tensor<std::int32_t, 1> cuts;
  device_tensor<float, 4> lam, r_mu, r_sigma;
  weights_shape shape;

  explicit device_weights(const weights_problem<Data, Separation, Router>& p, std::int64_t off = 0)
      : device_weights(p, computed_weights<Router>(p), off) {}
  device_weights(const weights_problem<Data, Separation, Router>& p, const computed_weights<Router>& out,
                 std::int64_t off)
      : keys(p.keys, off),
        router(p.router, off),
        cuts(cuts_tensor(p.shape.cuts)),
        lam(out.lam),
        r_mu(out.r_mu),
        r_sigma(out.r_sigma),
        shape(p.shape) {}

  [[nodiscard]] routing_args<Data, Separation, Router> args() const {
    return {.moments = keys.view(),
            .separation = device_separation<Separation>(shape.m, cuts),
            .router = router_of<Router>::view(router, false),
            .lam = lam.view(),
            .r_mu = r_mu.view(),
            .r_sigma = r_sigma.view(),
            .max_visible = shape.max_visible};
  }
  void download(computed_weights<Router>& out) const {
    lam.download(out.lam);
    r_mu.download(out.r_mu);
    r_sigma.download(out.r_sigma);
  }
};

/// Runs the problem on the device.
template <class Data, class Separation, class Router>
computed_weights<Router> on_device(const weights_problem<Data, Separation, Router>& p,
                                   const device_weights<Data, Separation, Router>& device, const on_cuda& exec = {}) {
  routing(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  computed_weights<Router> got(p);
  device.download(got);
  return got;
}
template <class Data, class Separation, class Router>
computed_weights<Router> on_device(const weights_problem<Data, Separation, Router>& p) {
  return on_device(p, device_weights<Data, Separation, Router>(p));
}

/// The router whose weights top_k chooses among; of other routers, themselves.
template <class Router>
struct chosen_among {
  using type = Router;
};
template <class Router>
struct chosen_among<router::top_k<Router>> {
  using type = Router;
};

/// Rows (b, t, head) in which top_k chooses between weights so close that a rounding may turn the choice, though they
/// are not equal: 1 there, else 0.
template <class Separation, class Router>
tensor<float, 3> close_choices(const weights_problem<double, Separation, Router>& p) {
  tensor<float, 3> close({p.lam.extents()[0], p.lam.extents()[1], p.lam.extents()[2]});
  fill(close, 0);
  if constexpr (is_top_k<Router>) {
    using Inner = typename chosen_among<Router>::type;
    weights_problem<double, Separation, Inner> q;
    q.shape = p.shape;
    q.keys = p.keys;
    q.router = p.router;
    q.lam = p.lam;
    const expected_weights all = run_reference(q);
    const auto separation = separation_of<Separation>(p.shape.m, p.shape.cuts);
    const auto segments = segments_of(separation, p.lam.extents()[1]);
    const auto& o = p.router.options;
    const double tolerance = 4 * weight_bound * roundoff<float>::unit;
    for (std::int64_t b = 0; b < p.lam.extents()[0]; ++b) {
      for (std::int64_t t = 0; t < p.lam.extents()[1]; ++t) {
        std::int64_t current = 0;
        while (segments[static_cast<std::size_t>(current)].end <= t) ++current;
        const std::int64_t w = p.shape.max_visible;
        const std::int64_t first = w > 0 ? std::max<std::int64_t>(0, current + 1 - w) : 0;
        if (current - first + 1 <= o.k) continue;
        for (std::int64_t h = 0; h < p.lam.extents()[2]; ++h) {
          std::vector<std::pair<double, double>> candidates;  // weight and its error
          for (std::int64_t l = first; l <= current - (o.keep_current ? 1 : 0); ++l) {
            candidates.emplace_back(all.lam.view()(b, t, h, l), all.lam_error.view()(b, t, h, l));
          }
          std::sort(candidates.rbegin(), candidates.rend());
          const auto kept = static_cast<std::size_t>(o.k - (o.keep_current ? 1 : 0));
          if (kept == 0) continue;
          for (const auto& x : candidates) {  // the last one kept, or the first one not, may be any that is close to it
            const auto& last = candidates[kept - 1];
            const auto& next = candidates[kept];
            for (const auto& end : {last, next}) {
              const double gap = std::abs(x.first - end.first);
              if (gap > 0 && !(gap > tolerance * (x.second + end.second))) close.view()(b, t, h) = 1;
            }
          }
        }
      }
    }
  }
  return close;
}

template <class Data, class Separation, class Router>
void judge(computed_weights<Router> got, const weights_problem<Data, Separation, Router>& p) {
  const auto exact = p.in_double();
  const expected_weights want = run_reference(exact);
  const auto close = close_choices(exact);
  for (std::int64_t b = 0; b < close.extents()[0]; ++b) {
    for (std::int64_t t = 0; t < close.extents()[1]; ++t) {
      for (std::int64_t h = 0; h < close.extents()[2]; ++h) {
        if (close.view()(b, t, h) == 0) continue;
        for (std::int64_t l = 0; l < got.lam.extents()[3]; ++l) {
          got.lam.view()(b, t, h, l) = static_cast<float>(want.lam.view()(b, t, h, l));
        }
      }
    }
  }
  EXPECT_TRUE(within_elementwise_bound(got.lam, want.lam, want.lam_error, weight_bound)) << "lam";
  EXPECT_TRUE(got.lam.untouched_outside());
  if (got.r_mu) EXPECT_TRUE(within_elementwise_bound(got.r_mu, want.r_mu, want.r_mu_error, weight_bound)) << "r_mu";
  if (got.r_sigma) {
    EXPECT_TRUE(within_elementwise_bound(got.r_sigma, want.r_sigma, want.r_sigma_error, weight_bound)) << "r_sigma";
  }
}

template <class Data, class Separation, class Router>
void expect_reference(const weights_problem<Data, Separation, Router>& p, std::int64_t off = 0) {
  const device_weights<Data, Separation, Router> device(p, off);
  judge(on_device(p, device), p);
  EXPECT_TRUE(device.keys.unchanged());
  EXPECT_TRUE(device.router.unchanged());
}

/// Everything in other memory orders.
template <class Data, class Separation, class Router>
void lay_out(weights_problem<Data, Separation, Router>& p, std::mt19937& rng) {
  lay_out(p.keys, rng);
  p.router.q = laid_out(p.router.q, random_row_layout(rng));
  p.router.weights = laid_out(p.router.weights, random_row_layout(rng));
  p.router.gamma = laid_out(p.router.gamma, random_gate_layout(rng));
  p.lam = tensor<float, 4>(p.lam.extents(), random_row_layout(rng));
}

template <class Data, class Separation, class Router>
weights_problem<Data, Separation, Router> random_weights(std::int64_t work, std::mt19937& rng) {
  keys_shape s = random_keys_shape(work, rng);
  if (s.dr > 8) s.qkp_l2norm = true;  // longer rows make every softmax sharp
  weights_shape w{.H = s.HR * pick<std::int64_t>({1, 1, 2, 3}, rng),
                  .m = pick<std::int64_t>({1, 2, 3, 7, 16, 64, 1000}, rng),
                  .max_visible = pick<std::int64_t>({0, 0, 1, 2, 3, 9, 100}, rng),
                  .position_index = coin(rng) ? position_index::age : position_index::absolute,
                  .position_norm = coin(rng) ? position_norm::softmax : position_norm::none,
                  .keep_current = coin(rng)};
  w.cuts = random_cuts(s.T, pick<std::int64_t>({1, 5, 40, 1000}, rng), rng);
  // Scores of every token against every segment.
  while (s.B * s.HR * s.dr * s.dr * s.T * (s.T / w.m + 1) > 40 * work) w.m *= 2;
  weights_problem<Data, Separation, Router> p(s, w, rng);
  p.router.options.k = pick<std::int64_t>({1, 2, 3, 8, 40}, rng);
  lay_out(p, rng);
  return p;
}

template <class Data, class Separation, class Router>
std::string describe(const weights_problem<Data, Separation, Router>& p) {
  const keys_shape& s = p.keys.options;
  const auto& w = p.shape;
  return router_of<Router>::name() + ", " + Separation::name + ": B " + std::to_string(s.B) + ", T " +
         std::to_string(s.T) + ", H " + std::to_string(w.H) + ", HR " + std::to_string(s.HR) + ", dr " +
         std::to_string(s.dr) + ", m " + std::to_string(w.m) + ", max_visible " + std::to_string(w.max_visible) +
         ", rule " + std::to_string(static_cast<int>(s.moment_rule)) + ", count " +
         std::to_string(static_cast<int>(s.divide_by)) + ", l2norm " + std::to_string(s.qkp_l2norm) + ", k " +
         std::to_string(p.router.options.k) + ", keep_current " + std::to_string(w.keep_current);
}

/// Calls f<Router>() for every router.
template <class Data, class F>
void for_each_router(F&& f) {
  f.template operator()<router::uniform>();
  f.template operator()<router::position<Data>>();
  f.template operator()<router::meanpool<Data>>();
  f.template operator()<router::merlin<Data>>();
  f.template operator()<router::cumulant<Data>>();
  f.template operator()<router::top_k<router::uniform>>();
  f.template operator()<router::top_k<router::position<Data>>>();
  f.template operator()<router::top_k<router::meanpool<Data>>>();
  f.template operator()<router::top_k<router::merlin<Data>>>();
  f.template operator()<router::top_k<router::cumulant<Data>>>();
}

}  // namespace polystate::testing
