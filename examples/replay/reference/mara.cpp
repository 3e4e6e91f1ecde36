// SPDX-License-Identifier: Apache-2.0

#include "../operators/mara.hpp"

#include "../registry.hpp"

#include <polystate/reference/adapters/segment_retrieval.hpp>

namespace replay::reference {

computed mara(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_mara(io); });
}

computed mara_chain(const request& r) {
  return run_on_reference_in_double(r, [](auto& io) { run_mara_chain(io); });
}

}  // namespace replay::reference
