// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which operators run where. A row that is missing is an operator, pass or backend that is not there yet.

#include "run.hpp"

#include <string_view>

namespace replay {

enum class pass { forward, backward };

// Defined in reference/<operator>.cpp.
namespace reference {
runner causal_conv1d;
runner causal_conv1d_backward;
runner gated_delta_rule;
runner gated_delta_rule_backward;
runner gated_readout;
runner gating_flow;
runner gating_theory;
runner log_linear;
runner log_linear_backward;
runner malora;
runner mara;
runner mara_chain;
runner multi_state;
runner multi_state_backward;
runner multi_state_read;
runner multi_state_read_backward;
runner multi_state_step;
runner recall_gap;
runner routing;
runner routing_backward;
runner segment_moments;
runner segment_moments_backward;
runner selective_scan;
runner selective_scan_backward;
runner ssd;
runner ssd_backward;
runner toplora;
}  // namespace reference

// Defined in cuda/<operator>.cu.
namespace cuda {
runner causal_conv1d;
runner causal_conv1d_backward;
runner gated_delta_rule;
runner gated_delta_rule_backward;
runner log_linear;
runner multi_state;
runner multi_state_read;
runner multi_state_step;
runner routing;
runner routing_backward;
runner segment_moments;
runner segment_moments_backward;
runner selective_scan;
runner selective_scan_backward;
runner ssd;
runner ssd_backward;
}  // namespace cuda

/// Whether an operator of that name has any row.
bool has_operator(std::string_view op);

/// The runner, or null.
runner* find_runner(std::string_view op, std::string_view exec, pass which);

/// Whether this program was built with the CUDA backend.
bool built_with_cuda();

}  // namespace replay
