// SPDX-License-Identifier: Apache-2.0

// Gradients of every cell of the recurrence `ssd`.

#include "multi_state/backward_every_cell.hpp"

namespace polystate::testing {

using cells = cells_of<rule::ssd>;
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, EveryCellBackward, cells::all, cell_names);

}  // namespace polystate::testing
