// SPDX-License-Identifier: Apache-2.0

// Every cell of the recurrence `gated`.

#include "multi_state/every_cell.hpp"

namespace polystate::testing {

using cells = cells_of<rule::gated>;
INSTANTIATE_TYPED_TEST_SUITE_P(gated, EveryCell, cells::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated, EverySteppingCell, cells::stepping, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated, EveryReadableCell, cells::readable, cell_names);

}  // namespace polystate::testing
