// SPDX-License-Identifier: Apache-2.0

#include "ssd/oracle.hpp"

#include <polystate/reference/ssd.hpp>

namespace polystate::testing {

void run_reference(ssd_problem<double>& p) { ssd(on_reference{}, p.args()); }

void run_reference_backward(ssd_problem<double>& p, ssd_gradients<double>& g) {
  ssd_backward(on_reference{}, p.args(), g.views());
}

}  // namespace polystate::testing
