// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/selective_scan.hpp"
#include "../registry.hpp"

#include <polystate/cuda/selective_scan.cuh>

namespace replay::cuda {

computed selective_scan(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_selective_scan(io); });
}

computed selective_scan_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_selective_scan_backward(io); });
}

}  // namespace replay::cuda
