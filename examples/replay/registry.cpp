// SPDX-License-Identifier: Apache-2.0

#include "registry.hpp"

#include <algorithm>
#include <iterator>

namespace replay {

namespace {

struct row {
  const char* op;
  const char* exec;
  pass which;
  runner* run;
};

constexpr row rows[] = {
    {"causal_conv1d", "reference", pass::forward, &reference::causal_conv1d},
    {"causal_conv1d", "reference", pass::backward, &reference::causal_conv1d_backward},
    {"gated_delta_rule", "reference", pass::forward, &reference::gated_delta_rule},
    {"gated_delta_rule", "reference", pass::backward, &reference::gated_delta_rule_backward},
    {"gated_readout", "reference", pass::forward, &reference::gated_readout},
    {"gating_flow", "reference", pass::forward, &reference::gating_flow},
    {"gating_theory", "reference", pass::forward, &reference::gating_theory},
    {"log_linear", "reference", pass::forward, &reference::log_linear},
    {"log_linear", "reference", pass::backward, &reference::log_linear_backward},
    {"malora", "reference", pass::forward, &reference::malora},
    {"mara", "reference", pass::forward, &reference::mara},
    {"mara_chain", "reference", pass::forward, &reference::mara_chain},
    {"multi_state", "reference", pass::forward, &reference::multi_state},
    {"multi_state", "reference", pass::backward, &reference::multi_state_backward},
    {"multi_state_read", "reference", pass::forward, &reference::multi_state_read},
    {"multi_state_read", "reference", pass::backward, &reference::multi_state_read_backward},
    {"multi_state_step", "reference", pass::forward, &reference::multi_state_step},
    {"recall_gap", "reference", pass::forward, &reference::recall_gap},
    {"routing", "reference", pass::forward, &reference::routing},
    {"routing", "reference", pass::backward, &reference::routing_backward},
    {"segment_moments", "reference", pass::forward, &reference::segment_moments},
    {"segment_moments", "reference", pass::backward, &reference::segment_moments_backward},
    {"selective_scan", "reference", pass::forward, &reference::selective_scan},
    {"selective_scan", "reference", pass::backward, &reference::selective_scan_backward},
    {"ssd", "reference", pass::forward, &reference::ssd},
    {"ssd", "reference", pass::backward, &reference::ssd_backward},
    {"toplora", "reference", pass::forward, &reference::toplora},
#if defined(REPLAY_CUDA)
    {"causal_conv1d", "cuda", pass::forward, &cuda::causal_conv1d},
    {"causal_conv1d", "cuda", pass::backward, &cuda::causal_conv1d_backward},
    {"selective_scan", "cuda", pass::forward, &cuda::selective_scan},
    {"selective_scan", "cuda", pass::backward, &cuda::selective_scan_backward},
    {"gated_delta_rule", "cuda", pass::forward, &cuda::gated_delta_rule},
    {"gated_delta_rule", "cuda", pass::backward, &cuda::gated_delta_rule_backward},
    {"log_linear", "cuda", pass::forward, &cuda::log_linear},
    {"multi_state", "cuda", pass::forward, &cuda::multi_state},
    {"multi_state_read", "cuda", pass::forward, &cuda::multi_state_read},
    {"multi_state_step", "cuda", pass::forward, &cuda::multi_state_step},
    {"routing", "cuda", pass::forward, &cuda::routing},
    {"routing", "cuda", pass::backward, &cuda::routing_backward},
    {"segment_moments", "cuda", pass::forward, &cuda::segment_moments},
    {"segment_moments", "cuda", pass::backward, &cuda::segment_moments_backward},
    {"ssd", "cuda", pass::forward, &cuda::ssd},
    {"ssd", "cuda", pass::backward, &cuda::ssd_backward},
#endif
};

}  // namespace

bool has_operator(std::string_view op) {
  return std::any_of(std::begin(rows), std::end(rows), [&](const row& r) { return op == r.op; });
}

runner* find_runner(std::string_view op, std::string_view exec, pass which) {
  for (const row& r : rows) {
    if (op == r.op && exec == r.exec && which == r.which) return r.run;
  }
  return nullptr;
}

bool built_with_cuda() {
#if defined(REPLAY_CUDA)
  return true;
#else
  return false;
#endif
}

}  // namespace replay
