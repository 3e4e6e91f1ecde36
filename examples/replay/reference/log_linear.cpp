// SPDX-License-Identifier: Apache-2.0

#include "../operators/log_linear.hpp"

#include "../registry.hpp"

#include <polystate/reference/multi_state.hpp>

namespace replay::reference {

computed log_linear(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_log_linear(io); });
}

computed log_linear_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_log_linear_backward(io); });
}

}  // namespace replay::reference
