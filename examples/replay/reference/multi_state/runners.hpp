// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// multi_state and multi_state_step for one rule. Every rule meets every separation and router, so each has a
/// unit of its own, <rule>.cpp.

#include "../../run.hpp"

namespace replay::reference {

template <class Rule>
struct multi_state_runners {
  static computed forward(const request& r);
  static computed step(const request& r);
};

}  // namespace replay::reference
