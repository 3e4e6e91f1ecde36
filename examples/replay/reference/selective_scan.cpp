// SPDX-License-Identifier: Apache-2.0

#include "../operators/selective_scan.hpp"

#include "../registry.hpp"

#include <polystate/reference/selective_scan.hpp>

namespace replay::reference {

computed selective_scan(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_selective_scan(io); });
}

computed selective_scan_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_selective_scan_backward(io); });
}

}  // namespace replay::reference
