// SPDX-License-Identifier: Apache-2.0

// Every cell of the recurrence `ssd`.

#include "multi_state/every_cell.hpp"

namespace polystate::testing {

using cells = cells_of<rule::ssd>;
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, EveryCell, cells::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, EverySteppingCell, cells::stepping, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, EveryReadableCell, cells::readable, cell_names);

}  // namespace polystate::testing
