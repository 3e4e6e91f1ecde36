// SPDX-License-Identifier: Apache-2.0

#include "../buffer.cuh"

#include "../operators/gated_delta_rule.hpp"
#include "../registry.hpp"

#include <polystate/cuda/gated_delta_rule.cuh>

namespace replay::cuda {

computed gated_delta_rule(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_gated_delta_rule(io); });
}

computed gated_delta_rule_backward(const request& r) {
  require_device();
  return run_on<polystate::on_cuda>(r, [](auto& io) { run_gated_delta_rule_backward(io); });
}

}  // namespace replay::cuda
