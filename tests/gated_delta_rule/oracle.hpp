// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "gated_delta_rule/cases.hpp"
#include "gated_delta_rule/gradients.hpp"

namespace polystate::testing {

/// Runs the definition: fills o and final_state.
template <class Rule>
void run_reference(delta_problem<double, Rule>& p);

/// The gradients of a problem from g's upstream ones.
template <class Rule>
void run_reference_backward(delta_problem<double, Rule>& p, delta_gradients<double, Rule>& g);

}  // namespace polystate::testing
