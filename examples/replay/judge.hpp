// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The judging rule of docs/replay.md.

#include "case_file.hpp"

#include <string>

namespace replay {

/// The largest error that a tensor of the case may have when it is run in `type`, for a tolerance factor
/// of 1.
double tolerance(const case_file& c, const std::string& tensor_name, element type);

struct judgement {
  std::string tensor;
  double error = 0;  ///< relative L2; absolute where all expected values are 0; of indices, how many differ
  double limit = 0;
  bool passed = false;
};

/// Which of two judgements is nearer to failing, or fails worse.
const judgement& worse(const judgement& a, const judgement& b);

/// `computed` must have the shape of `expected`.
judgement judge(const std::string& tensor_name, const tensor& expected, const tensor& computed, double limit);

}  // namespace replay
