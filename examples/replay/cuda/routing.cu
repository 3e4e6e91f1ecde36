// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/routing.hpp"
#include "../registry.hpp"

#include <polystate/cuda/routing.cuh>

namespace replay::cuda {

computed routing(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_routing(io); });
}

computed routing_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_routing_backward(io); });
}

}  // namespace replay::cuda
