// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference, compiled apart, since it needs Eigen. Defined for every router in
// both separations.

#include "routing/cases.hpp"
#include "routing/gradients.hpp"

namespace polystate::testing {

/// Weights and scores, and beside each number the error that float arithmetic may make of it, in units of float's
/// roundoff (support/running_error.hpp).
struct expected_weights {
  tensor<double, 4> lam, lam_error;
  tensor<double, 4> r_mu, r_mu_error, r_sigma, r_sigma_error;  ///< absent where the router reads none
};
template <class Separation, class Router>
expected_weights run_reference(const weights_problem<double, Separation, Router>& p);

/// The same of all gradients, for the upstream one that `g` has.
template <class Router>
struct expected_weight_gradients {
  weights_gradients<double, Router> value, error;
};
template <class Separation, class Router>
expected_weight_gradients<Router> run_reference(const weights_problem<double, Separation, Router>& p,
                                                const tensor<double, 4>& d_lam);

}  // namespace polystate::testing
