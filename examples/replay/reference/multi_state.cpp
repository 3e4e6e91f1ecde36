// SPDX-License-Identifier: Apache-2.0

#include "../axes.hpp"
#include "../registry.hpp"
#include "multi_state/runners.hpp"

namespace replay::reference {

computed multi_state(const request& r) {
  computed result;
  visit_rule(r.file, every_rule{},
             [&]<class Rule>(std::type_identity<Rule>) { result = multi_state_runners<Rule>::forward(r); });
  return result;
}

computed multi_state_backward(const request& r) {
  computed result;
  visit_rule(r.file, every_rule{},
             [&]<class Rule>(std::type_identity<Rule>) { result = multi_state_backward_runner<Rule>::run(r); });
  return result;
}

computed multi_state_step(const request& r) {
  computed result;
  visit_rule(r.file, every_rule{},
             [&]<class Rule>(std::type_identity<Rule>) { result = multi_state_runners<Rule>::step(r); });
  return result;
}

}  // namespace replay::reference
