// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// multi_state, its backward and multi_state_step for one rule. Every rule meets every separation and router, so each
/// has units of its own, <rule>.cpp and <rule>_backward.cpp.

#include "../../run.hpp"

namespace replay::reference {

template <class Rule>
struct multi_state_runners {
  static computed forward(const request& r);
  static computed step(const request& r);
};

template <class Rule>
struct multi_state_backward_runner {
  static computed run(const request& r);
};

}  // namespace replay::reference
