// SPDX-License-Identifier: Apache-2.0

// Every cell of the recurrence `linear`.

#include "multi_state/every_cell.hpp"

namespace polystate::testing {

using cells = cells_of<rule::linear>;
INSTANTIATE_TYPED_TEST_SUITE_P(linear, EveryCell, cells::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(linear, EverySteppingCell, cells::stepping, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(linear, EveryReadableCell, cells::readable, cell_names);

}  // namespace polystate::testing
