// SPDX-License-Identifier: Apache-2.0
// A user's library: the one function that it exports, over kernels that it keeps to itself.

#include <layers/causal_conv1d.hpp>

namespace ps = polystate;

ps::status convolve(CUstream_st* stream, const ps::causal_conv1d_step_args<float>& args);

ps::status convolve(CUstream_st* stream, const ps::causal_conv1d_step_args<float>& args) {
  if (layers::workspace_bytes(args) != 0)
    return {ps::error_code::workspace, "convolve", "scratch", "a step needs none"};
  return layers::try_causal_conv1d_step(stream, args);
}
