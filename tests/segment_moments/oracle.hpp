// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference, compiled apart, since it needs Eigen. Defined for both separations.

#include "segment_moments/cases.hpp"
#include "segment_moments/gradients.hpp"

namespace polystate::testing {

/// What the definition gives, and beside it the error that float arithmetic may make of each number, in units of
/// float's roundoff (support/running_error.hpp).
template <class Separation>
struct expected_moments {
  moments_problem<double, Separation> value, error;  ///< mu and Sigma of each
};
template <class Separation>
expected_moments<Separation> run_reference(const moments_problem<double, Separation>& p);

/// The same of all gradients, for the upstream ones that `g` has.
struct expected_moment_gradients {
  moments_gradients<double> value, error;
};
template <class Separation>
expected_moment_gradients run_reference(const moments_problem<double, Separation>& p,
                                        const moments_gradients<double>& g);

}  // namespace polystate::testing
