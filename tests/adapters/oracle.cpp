// SPDX-License-Identifier: Apache-2.0

#include "adapters/oracle.hpp"

#include <polystate/reference/adapters/token_modulation.hpp>

namespace polystate::testing {

malora_problem<double> run_reference(malora_problem<double> p) {
  malora(on_reference{}, p.args());
  return p;
}
toplora_problem<double> run_reference(toplora_problem<double> p) {
  toplora(on_reference{}, p.args());
  return p;
}

malora_gradients<double> run_reference(malora_problem<double> p, malora_gradients<double> g) {
  malora_backward(on_reference{}, p.args(), g.views());
  return g;
}
toplora_gradients<double> run_reference(toplora_problem<double> p, toplora_gradients<double> g) {
  toplora_backward(on_reference{}, p.args(), g.views());
  return g;
}

}  // namespace polystate::testing
