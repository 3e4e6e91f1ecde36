// SPDX-License-Identifier: Apache-2.0

// Every cell of the recurrence `gated_delta`.

#include "multi_state/every_cell.hpp"

namespace polystate::testing {

using cells = cells_of<rule::gated_delta>;
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, EveryCell, cells::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, EverySteppingCell, cells::stepping, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, EveryReadableCell, cells::readable, cell_names);

}  // namespace polystate::testing
