// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/segment_moments.hpp"
#include "../registry.hpp"

#include <polystate/cuda/segment_moments.cuh>

namespace replay::cuda {

computed segment_moments(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_segment_moments(io); });
}

computed segment_moments_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_segment_moments_backward(io); });
}

}  // namespace replay::cuda
