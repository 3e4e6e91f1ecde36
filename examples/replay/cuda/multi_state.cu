// SPDX-License-Identifier: Apache-2.0

// All that works on a bank of states in one unit: the kernels, which are the same, are compiled once.

#include "../axes.hpp"
#include "../buffer.cuh"

#include "../operators/log_linear.hpp"
#include "../operators/multi_state.hpp"
#include "../registry.hpp"

#include <polystate/cuda/multi_state.cuh>

#include <type_traits>

namespace replay::cuda {

namespace {

/// Reading is the same for all rules with q, so one of them stands for them.
template <class Rule>
using reading_rule =
    std::conditional_t<std::is_same_v<Rule, polystate::rule::ssd>, polystate::rule::ssd, polystate::rule::gated_delta>;

}  // namespace

computed multi_state(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) {
    visit_rule(io.file(), every_rule{}, [&]<class Rule>(std::type_identity<Rule>) { run_multi_state<Rule>(io); });
  });
}

computed multi_state_step(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) {
    visit_rule(io.file(), every_rule{}, [&]<class Rule>(std::type_identity<Rule>) { run_multi_state_step<Rule>(io); });
  });
}

computed multi_state_read(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) {
    visit_rule(io.file(), every_rule{},
               [&]<class Rule>(std::type_identity<Rule>) { run_multi_state_read<reading_rule<Rule>>(io); });
  });
}

computed log_linear(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_log_linear(io); });
}

}  // namespace replay::cuda
