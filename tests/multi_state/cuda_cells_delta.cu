// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of every cell: delta gated_delta.

#include "multi_state/cuda_every_cell.cuh"

namespace polystate::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(delta, CudaEveryCell, cells_of<rule::delta>::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, CudaEveryCell, cells_of<rule::gated_delta>::all, cell_names);

}  // namespace polystate::testing
