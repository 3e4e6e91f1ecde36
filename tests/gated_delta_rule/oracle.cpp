// SPDX-License-Identifier: Apache-2.0

#include "gated_delta_rule/oracle.hpp"

#include <polystate/reference/gated_delta_rule.hpp>

namespace polystate::testing {

template <class Rule>
void run_reference(delta_problem<double, Rule>& p) {
  gated_delta_rule(on_reference{}, p.args());
}

template <class Rule>
void run_reference_backward(delta_problem<double, Rule>& p, delta_gradients<double, Rule>& g) {
  gated_delta_rule_backward(on_reference{}, p.args(), g.views());
}

template void run_reference(delta_problem<double, rule::linear>&);
template void run_reference(delta_problem<double, rule::gated>&);
template void run_reference(delta_problem<double, rule::delta>&);
template void run_reference(delta_problem<double, rule::gated_delta>&);
template void run_reference_backward(delta_problem<double, rule::linear>&, delta_gradients<double, rule::linear>&);
template void run_reference_backward(delta_problem<double, rule::gated>&, delta_gradients<double, rule::gated>&);
template void run_reference_backward(delta_problem<double, rule::delta>&, delta_gradients<double, rule::delta>&);
template void run_reference_backward(delta_problem<double, rule::gated_delta>&,
                                     delta_gradients<double, rule::gated_delta>&);

}  // namespace polystate::testing
