// SPDX-License-Identifier: Apache-2.0

#include "selective_scan/oracle.hpp"
#include "support/running_error.hpp"

#include <polystate/reference/selective_scan.hpp>

namespace polystate::testing {

expected_scan run_reference(const scan_problem<double>& p) {
  auto tracked = p.in<running_error>();
  selective_scan(on_reference{}, tracked.args());
  expected_scan e{p, p};
  split(tracked.y, e.value.y, e.error.y);
  split(tracked.final_state, e.value.final_state, e.error.final_state);
  return e;
}

expected_gradients run_reference(const scan_problem<double>& p, const scan_gradients<double>& g) {
  auto tracked = p.in<running_error>();
  auto gradients = g.in<running_error>();
  selective_scan_backward(on_reference{}, tracked.args(), gradients.views());
  expected_gradients e{g, g};
  for_each_gradient([](const char*, const auto& results, auto& value, auto& error) { split(results, value, error); },
                    gradients, e.value, e.error);
  return e;
}

}  // namespace polystate::testing
