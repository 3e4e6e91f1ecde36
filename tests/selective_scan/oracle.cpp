// SPDX-License-Identifier: Apache-2.0

#include "selective_scan/oracle.hpp"

#include <polystate/reference/selective_scan.hpp>

#include <cmath>

namespace polystate::testing {

void run_reference(scan_problem<double>& p) { selective_scan(on_reference{}, p.args()); }

scan_problem<double> magnitudes(scan_problem<double> p) {
  const auto absolute = [](double& x) { x = std::abs(x); };
  p.u.for_each(absolute);
  p.B.for_each(absolute);
  p.C.for_each(absolute);
  p.D.for_each(absolute);
  p.z.for_each(absolute);
  p.initial_state.for_each(absolute);
  run_reference(p);
  return p;
}

}  // namespace polystate::testing
