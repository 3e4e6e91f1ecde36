// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The convolution on stream 0, in two units of one program: in the second, stream 0 is one of each thread.

#include <polystate/causal_conv1d.hpp>

namespace first {
polystate::status convolve(const polystate::causal_conv1d_args<float>& args);
}  // namespace first

namespace second {
polystate::status convolve(const polystate::causal_conv1d_args<float>& args);
}  // namespace second
