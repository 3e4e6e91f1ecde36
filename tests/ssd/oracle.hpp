// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "ssd/cases.hpp"
#include "ssd/gradients.hpp"

namespace polystate::testing {

/// Runs the definition: fills y and final_state.
void run_reference(ssd_problem<double>& p);

/// The gradients of a problem from g's upstream ones.
void run_reference_backward(ssd_problem<double>& p, ssd_gradients<double>& g);

}  // namespace polystate::testing
