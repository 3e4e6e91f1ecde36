// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward's definition of runners.hpp, for the units that instantiate it.

#include "../../operators/multi_state.hpp"
#include "runners.hpp"

#include <polystate/reference/multi_state.hpp>

namespace replay::reference {

template <class Rule>
computed multi_state_backward_runner<Rule>::run(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_multi_state_backward<Rule>(io); });
}

}  // namespace replay::reference
