// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/ssd.hpp"
#include "../registry.hpp"

#include <polystate/cuda/ssd.cuh>

namespace replay::cuda {

computed ssd(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_ssd(io); });
}

computed ssd_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_ssd_backward(io); });
}

}  // namespace replay::cuda
