// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "selective_scan/cases.hpp"

namespace polystate::testing {

/// Runs the definition: fills y and final_state.
void run_reference(scan_problem<double>& p);

/// The problem run on absolute values: its y and final_state are the sums of the absolute values of the terms, the
/// gate's slope at most 1.1 aside.
scan_problem<double> magnitudes(scan_problem<double> p);

}  // namespace polystate::testing
