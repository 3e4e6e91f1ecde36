// SPDX-License-Identifier: Apache-2.0

#include "routing/oracle.hpp"
#include "support/running_error.hpp"

#include <polystate/reference/routing.hpp>

#include <type_traits>

namespace polystate::testing {

template <class Separation, class Router>
expected_weights run_reference(const weights_problem<double, Separation, Router>& p) {
  auto tracked = p.template in<running_error>();
  auto args = tracked.args();
  expected_weights e{p.lam, p.lam, {}, {}, {}, {}};
  const auto scores = [&](bool read) {
    if (!read) return tensor<running_error, 4>();
    return tensor<running_error, 4>({p.lam.extents()[0], p.lam.extents()[1], p.keys.options.HR, p.lam.extents()[3]});
  };
  auto r_mu = scores(Router::reads_moments);
  auto r_sigma = scores(Router::reads_Sigma);
  args.r_mu = r_mu.view();
  args.r_sigma = r_sigma.view();
  routing(on_reference{}, args);
  split(tracked.lam, e.lam, e.lam_error);
  if (r_mu) e.r_mu = e.r_mu_error = tensor<double, 4>(r_mu.extents());
  if (r_sigma) e.r_sigma = e.r_sigma_error = tensor<double, 4>(r_sigma.extents());
  split(r_mu, e.r_mu, e.r_mu_error);
  split(r_sigma, e.r_sigma, e.r_sigma_error);
  return e;
}

template <class Separation, class Router>
expected_weight_gradients<Router> run_reference(const weights_problem<double, Separation, Router>& p,
                                                const tensor<double, 4>& d_lam) {
  using TrackedRouter = typename router_in<Router, running_error>::type;
  auto tracked = p.template in<running_error>();
  weights_gradients<running_error, TrackedRouter> gradients;
  gradients.d_lam = convert<running_error>(d_lam);
  gradients.keys = key_gradients<running_error>(tracked.keys);
  gradients.router = gradients_of_router<TrackedRouter>::make(tracked.router, false);
  routing_backward(on_reference{}, tracked.args(), gradients.views());
  expected_weight_gradients<Router> e;
  const auto halves = [](const auto& results, auto& value, auto& error) {
    if (!results) return;
    value = error = std::remove_cvref_t<decltype(value)>(results.extents());
    split(results, value, error);
  };
  auto& value = e.value;
  auto& error = e.error;
  halves(gradients.keys.d_k, value.keys.d_k, error.keys.d_k);
  halves(gradients.keys.d_g, value.keys.d_g, error.keys.d_g);
  halves(gradients.keys.d_beta, value.keys.d_beta, error.keys.d_beta);
  halves(gradients.router.d_q, value.router.d_q, error.router.d_q);
  halves(gradients.router.d_weights, value.router.d_weights, error.router.d_weights);
  halves(gradients.router.d_gamma, value.router.d_gamma, error.router.d_gamma);
  halves(gradients.router.d_tau_mu, value.router.d_tau_mu, error.router.d_tau_mu);
  halves(gradients.router.d_tau_sigma, value.router.d_tau_sigma, error.router.d_tau_sigma);
  halves(gradients.router.d_delta, value.router.d_delta, error.router.d_delta);
  return e;
}

// Both functions of every router in the separation that this unit is compiled for.
#define POLYSTATE_TEST_ROUTER(...)                                                                                 \
  template expected_weights run_reference(const weights_problem<double, POLYSTATE_TEST_SEPARATION, __VA_ARGS__>&); \
  template expected_weight_gradients<__VA_ARGS__> run_reference(                                                   \
      const weights_problem<double, POLYSTATE_TEST_SEPARATION, __VA_ARGS__>&, const tensor<double, 4>&)

POLYSTATE_TEST_ROUTER(router::uniform);
POLYSTATE_TEST_ROUTER(router::position<double>);
POLYSTATE_TEST_ROUTER(router::meanpool<double>);
POLYSTATE_TEST_ROUTER(router::merlin<double>);
POLYSTATE_TEST_ROUTER(router::cumulant<double>);
POLYSTATE_TEST_ROUTER(router::top_k<router::uniform>);
POLYSTATE_TEST_ROUTER(router::top_k<router::position<double>>);
POLYSTATE_TEST_ROUTER(router::top_k<router::meanpool<double>>);
POLYSTATE_TEST_ROUTER(router::top_k<router::merlin<double>>);
POLYSTATE_TEST_ROUTER(router::top_k<router::cumulant<double>>);

}  // namespace polystate::testing
