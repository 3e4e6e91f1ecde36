// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What each of the two libraries offers. Both embed polystate, built in different ways, and pass its types
/// through this interface.

#include <polystate/causal_conv1d.hpp>

#define LIBRARY_API __attribute__((visibility("default")))

namespace first {
LIBRARY_API polystate::status check(const polystate::causal_conv1d_args<float>& args);
/// Throws polystate::argument_error on a fault.
LIBRARY_API void convolve(const polystate::causal_conv1d_args<float>& args);
/// The operator's code that this library calls.
LIBRARY_API const void* operator_address();
}  // namespace first

namespace second {
LIBRARY_API polystate::status check(const polystate::causal_conv1d_args<float>& args);
LIBRARY_API void convolve(const polystate::causal_conv1d_args<float>& args);
LIBRARY_API const void* operator_address();
}  // namespace second
