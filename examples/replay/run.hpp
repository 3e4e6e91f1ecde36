// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a backend is asked to do with a case, and what it hands back.

#include "case_file.hpp"

#include <string>
#include <vector>

namespace replay {

/// A case whose inputs are already rounded to `type`.
struct request {
  const case_file& file;
  element type;
  int repeat = 0;  ///< further calls, timed
};

struct computed_tensor {
  std::string name;  ///< as in the file: out.y
  tensor values;
  double largest_finite = 0;  ///< of the type that it was computed into
};

struct computed {
  std::vector<computed_tensor> tensors;
  std::vector<std::string> unused;  ///< inputs and upstream gradients in the file that the operator did not ask for
  double milliseconds = 0;          ///< median of the timed calls
};

/// One operator and pass on one backend. Throws malformed, skipped, or what the operator throws.
using runner = computed(const request&);

}  // namespace replay
