// SPDX-License-Identifier: Apache-2.0

#include "../axes.hpp"
#include "../operators/multi_state.hpp"
#include "../registry.hpp"

#include <polystate/reference/multi_state.hpp>

#include <type_traits>

namespace replay::reference {

namespace {

/// f(type of the case's rule): reading is the same for all rules with q, so one of them stands for them.
template <class F>
void visit_reading_rule(const case_file& file, F&& f) {
  namespace rule = polystate::rule;
  visit_rule(file, every_rule{}, [&]<class Rule>(std::type_identity<Rule>) {
    f(std::type_identity<std::conditional_t<std::is_same_v<Rule, rule::ssd>, rule::ssd, rule::gated_delta>>{});
  });
}

}  // namespace

computed multi_state_read(const request& r) {
  computed result;
  visit_reading_rule(r.file, [&]<class Rule>(std::type_identity<Rule>) {
    result = run_on_reference_in_double(r, [](auto& io) { run_multi_state_read<Rule>(io); });
  });
  return result;
}

computed multi_state_read_backward(const request& r) {
  computed result;
  visit_reading_rule(r.file, [&]<class Rule>(std::type_identity<Rule>) {
    result = run_on_reference_in_double(r, [](auto& io) { run_multi_state_read_backward<Rule>(io); });
  });
  return result;
}

}  // namespace replay::reference
