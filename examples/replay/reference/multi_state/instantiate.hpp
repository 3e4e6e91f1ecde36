// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The definitions of runners.hpp, for the units that instantiate them.

#include "../../operators/multi_state.hpp"
#include "runners.hpp"

#include <polystate/reference/multi_state.hpp>

namespace replay::reference {

template <class Rule>
computed multi_state_runners<Rule>::forward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_multi_state<Rule>(io); });
}

template <class Rule>
computed multi_state_runners<Rule>::step(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_multi_state_step<Rule>(io); });
}

}  // namespace replay::reference
