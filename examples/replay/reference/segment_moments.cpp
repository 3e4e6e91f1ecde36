// SPDX-License-Identifier: Apache-2.0

#include "../operators/segment_moments.hpp"

#include "../registry.hpp"

#include <polystate/reference/segment_moments.hpp>

namespace replay::reference {

computed segment_moments(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_segment_moments(io); });
}

computed segment_moments_backward(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_segment_moments_backward(io); });
}

}  // namespace replay::reference
