// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of every cell: ssd.

#include "multi_state/cuda_every_cell.cuh"

namespace polystate::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(ssd, CudaEveryCell, cells_of<rule::ssd>::all, cell_names);

}  // namespace polystate::testing
