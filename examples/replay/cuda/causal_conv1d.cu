// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/causal_conv1d.hpp"
#include "../registry.hpp"

#include <polystate/cuda/causal_conv1d.cuh>

namespace replay::cuda {

computed causal_conv1d(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_causal_conv1d(io); });
}

computed causal_conv1d_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_causal_conv1d_backward(io); });
}

}  // namespace replay::cuda
