// SPDX-License-Identifier: Apache-2.0

#include "../operators/gated_delta_rule.hpp"

#include "../registry.hpp"

#include <polystate/reference/gated_delta_rule.hpp>

namespace replay::reference {

computed gated_delta_rule(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_gated_delta_rule(io); });
}

computed gated_delta_rule_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_gated_delta_rule_backward(io); });
}

}  // namespace replay::reference
