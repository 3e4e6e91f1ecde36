// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which parameters an operator has. A case with another one is of a later version: without it, its expected values are
/// those of something else.

#include "case_file.hpp"

namespace replay {

/// Throws malformed for a parameter that the case's operator does not have, under any of its options.
void refuse_unknown_parameters(const case_file& file);

}  // namespace replay
