// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "adapters/modulation_cases.hpp"
#include "adapters/modulation_gradients.hpp"

namespace polystate::testing {

/// The same problem with its outputs.
malora_problem<double> run_reference(malora_problem<double> p);
toplora_problem<double> run_reference(toplora_problem<double> p);

/// The same upstream gradients, with those of the problem's operands.
malora_gradients<double> run_reference(malora_problem<double> p, malora_gradients<double> g);
toplora_gradients<double> run_reference(toplora_problem<double> p, toplora_gradients<double> g);

}  // namespace polystate::testing
