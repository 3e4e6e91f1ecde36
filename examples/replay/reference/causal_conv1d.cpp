// SPDX-License-Identifier: Apache-2.0

#include "../operators/causal_conv1d.hpp"

#include "../registry.hpp"

#include <polystate/reference/causal_conv1d.hpp>

namespace replay::reference {

computed causal_conv1d(const request& r) {
  return run_on<polystate::on_reference>(r, [](auto& io) { run_causal_conv1d(io); });
}

computed causal_conv1d_backward(const request& r) {
  return run_on<polystate::on_reference>(r, [](auto& io) { run_causal_conv1d_backward(io); });
}

}  // namespace replay::reference
