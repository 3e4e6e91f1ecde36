// SPDX-License-Identifier: Apache-2.0

#include "../operators/ssd.hpp"

#include "../registry.hpp"

#include <polystate/reference/ssd.hpp>

namespace replay::reference {

computed ssd(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_ssd(io); });
}

computed ssd_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_ssd_backward(io); });
}

}  // namespace replay::reference
