// SPDX-License-Identifier: Apache-2.0

#include "../axes.hpp"
#include "../operators/multi_state.hpp"
#include "../registry.hpp"

#include <polystate/reference/multi_state.hpp>

#include <type_traits>

namespace replay::reference {

computed multi_state_read(const request& r) {
  namespace rule = polystate::rule;
  computed result;
  visit_rule(r.file, every_rule{}, [&]<class Rule>(std::type_identity<Rule>) {
    // Reading is the same for all rules with q: one of them stands for them.
    using Reads = std::conditional_t<std::is_same_v<Rule, rule::ssd>, rule::ssd, rule::gated_delta>;
    result = run_on_reference_in_double(r, [](auto& io) { run_multi_state_read<Reads>(io); });
  });
  return result;
}

}  // namespace replay::reference
