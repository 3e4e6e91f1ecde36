// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of every cell: linear gated.

#include "multi_state/cuda_every_cell.cuh"

namespace polystate::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(linear, CudaEveryCell, cells_of<rule::linear>::all, cell_names);
INSTANTIATE_TYPED_TEST_SUITE_P(gated, CudaEveryCell, cells_of<rule::gated>::all, cell_names);

}  // namespace polystate::testing
