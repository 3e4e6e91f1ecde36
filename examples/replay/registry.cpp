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
    {"gated_delta_rule", "reference", pass::forward, &reference::gated_delta_rule},
    {"log_linear", "reference", pass::forward, &reference::log_linear},
    {"multi_state", "reference", pass::forward, &reference::multi_state},
    {"multi_state_read", "reference", pass::forward, &reference::multi_state_read},
    {"multi_state_step", "reference", pass::forward, &reference::multi_state_step},
    {"routing", "reference", pass::forward, &reference::routing},
    {"segment_moments", "reference", pass::forward, &reference::segment_moments},
    {"ssd", "reference", pass::forward, &reference::ssd},
#if defined(REPLAY_CUDA)
    {"causal_conv1d", "cuda", pass::forward, &cuda::causal_conv1d},
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
