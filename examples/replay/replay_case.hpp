// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Runs one case and judges it.

#include "case_file.hpp"
#include "run.hpp"

#include <optional>
#include <string>
#include <vector>

namespace replay {

enum class passes { forward, backward, all };

struct options {
  std::string exec = "reference";
  std::optional<element> type;  ///< the case's own, if absent
  passes which = passes::all;
  double tolerance_factor = 1;
  int repeat = 0;
};

enum class verdict { passed, failed, skipped };

struct outcome {
  verdict result = verdict::passed;
  std::string text;  ///< worst tensor, error, limit, times, remarks; or why it was skipped
  std::vector<computed_tensor> tensors;
};

/// Throws malformed, or polystate::argument_error where the operator refuses what the file holds.
outcome replay_case(const case_file& file, const options& chosen);

}  // namespace replay
