// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "selective_scan/cases.hpp"
#include "selective_scan/gradients.hpp"

namespace polystate::testing {

/// What the definition gives, and beside it the error that float arithmetic may make of each number, in units of
/// float's roundoff (support/running_error.hpp).
struct expected_scan {
  scan_problem<double> value, error;  ///< y and final_state of each
};
expected_scan run_reference(const scan_problem<double>& p);

/// The same of the gradients that `g` has, for its upstream ones.
struct expected_gradients {
  scan_gradients<double> value, error;
};
expected_gradients run_reference(const scan_problem<double>& p, const scan_gradients<double>& g);

}  // namespace polystate::testing
