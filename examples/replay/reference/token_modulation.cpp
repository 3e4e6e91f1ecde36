// SPDX-License-Identifier: Apache-2.0

#include "../operators/token_modulation.hpp"

#include "../registry.hpp"

#include <polystate/reference/adapters/token_modulation.hpp>

namespace replay::reference {

computed malora(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_malora(io); });
}

computed toplora(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_toplora(io); });
}

}  // namespace replay::reference
