// SPDX-License-Identifier: Apache-2.0

#include "../operators/routing.hpp"

#include "../registry.hpp"

#include <polystate/reference/routing.hpp>

namespace replay::reference {

computed routing(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_routing(io); });
}

computed routing_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_routing_backward(io); });
}

}  // namespace replay::reference
