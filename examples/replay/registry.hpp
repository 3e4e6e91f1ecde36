// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which operators run where. A row that is missing is an operator, pass or backend that is not there yet.

#include "run.hpp"

#include <string_view>

namespace replay {

enum class pass { forward, backward };

// One unit each, reference/<operator>.cpp and cuda/<operator>.cu.
namespace reference {
runner causal_conv1d;
runner gated_delta_rule;
}  // namespace reference
namespace cuda {
runner causal_conv1d;
}

/// Whether an operator of that name has any row.
bool has_operator(std::string_view op);

/// The runner, or null.
runner* find_runner(std::string_view op, std::string_view exec, pass which);

/// Whether this program was built with the CUDA backend.
bool built_with_cuda();

}  // namespace replay
