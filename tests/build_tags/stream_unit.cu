// SPDX-License-Identifier: Apache-2.0
// UNIT is first or second; the second is built with --default-stream per-thread.

#include "stream_unit.hpp"

#include <polystate/cuda/causal_conv1d.cuh>

namespace UNIT {

polystate::status convolve(const polystate::causal_conv1d_args<float>& args) {
  return polystate::try_causal_conv1d<polystate::dims<2>>(polystate::on_cuda{}, args);
}

}  // namespace UNIT
