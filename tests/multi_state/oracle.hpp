// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "multi_state/cases.hpp"

#include <polystate/multi_state.hpp>

namespace polystate::testing {

/// Runs the definition. `Cell` is one of cells_of (cells.hpp).
template <class Cell>
void run_reference(
    const multi_state_args<double, typename Cell::Rule, typename Cell::Separation, typename Cell::Router>& args);
template <class Cell>
void step_reference(
    const multi_state_step_args<double, typename Cell::Rule, typename Cell::Separation, typename Cell::Router>& args);
template <class Cell>
void read_reference(const multi_state_read_args<double, typename Cell::Rule, typename Cell::Router>& args);

}  // namespace polystate::testing
