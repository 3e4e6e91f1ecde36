// SPDX-License-Identifier: Apache-2.0

#include "segment_moments/oracle.hpp"
#include "support/running_error.hpp"

#include <polystate/reference/segment_moments.hpp>

namespace polystate::testing {

template <class Separation>
expected_moments<Separation> run_reference(const moments_problem<double, Separation>& p) {
  auto tracked = p.template in<running_error>();
  segment_moments(on_reference{}, tracked.args());
  expected_moments<Separation> e{p, p};
  split(tracked.mu, e.value.mu, e.error.mu);
  split(tracked.Sigma, e.value.Sigma, e.error.Sigma);
  return e;
}

template <class Separation>
expected_moment_gradients run_reference(const moments_problem<double, Separation>& p,
                                        const moments_gradients<double>& g) {
  auto tracked = p.template in<running_error>();
  moments_gradients<running_error> gradients;
  gradients.d_mu = convert<running_error>(g.d_mu);
  gradients.d_Sigma = convert<running_error>(g.d_Sigma);
  gradients.keys = key_gradients<running_error>(tracked.keys);
  segment_moments_backward(on_reference{}, tracked.args(), gradients.views());
  expected_moment_gradients e{g, g};
  e.value.keys = e.error.keys = key_gradients<double>(p.keys);
  split(gradients.keys.d_k, e.value.keys.d_k, e.error.keys.d_k);
  split(gradients.keys.d_g, e.value.keys.d_g, e.error.keys.d_g);
  split(gradients.keys.d_beta, e.value.keys.d_beta, e.error.keys.d_beta);
  return e;
}

template expected_moments<separation::uniform> run_reference(const moments_problem<double, separation::uniform>&);
template expected_moments<separation::boundaries> run_reference(const moments_problem<double, separation::boundaries>&);
template expected_moment_gradients run_reference(const moments_problem<double, separation::uniform>&,
                                                 const moments_gradients<double>&);
template expected_moment_gradients run_reference(const moments_problem<double, separation::boundaries>&,
                                                 const moments_gradients<double>&);

}  // namespace polystate::testing
