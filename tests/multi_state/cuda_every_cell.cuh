// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the CUDA forward of every cell of the axes passes. A source of its own instantiates it for each kind of
// recurrence.

#include "multi_state/cuda_problem.cuh"
#include "support/random.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {

/// Shapes that change one thing each, beyond a tile of tokens and of rows. With these numbers no two weights between
/// which top_k must choose are nearer than 1e-5 of each other: nearer ones, which segments of one token have, whose
/// variance is 0, are no question of right or wrong in float.
inline std::vector<layer_shape> device_layer_shapes() {
  using cuts = std::vector<std::int32_t>;
  return {
      {.T = 70, .m = 16, .cuts = {0, 1, 30, 34, 70}},
      {.B = 1, .T = 150, .H = 2, .HK = 1, .HR = 2, .dk = 33, .dv = 66, .dr = 40, .m = 9, .cuts = {0, 100, 149, 150}},
      {.T = 19, .HK = 1, .HR = 1, .m = 5, .cuts = {0, 19}},
      {.T = 19, .HK = 4, .HR = 4, .m = 2, .cuts = {0, 2, 19}},
      {.T = 19, .HK = 2, .HR = 4, .dk = 1, .dv = 1, .dr = 1, .m = 64, .cuts = {0, 18, 19}},
      {.T = 33, .m = 4, .max_visible = 1, .cuts = {0, 3, 7, 20, 33}},
      {.T = 90, .m = 4, .max_visible = 3, .cuts = {0, 3, 7, 20, 90}},
      {.T = 33, .m = 8, .qk_l2norm = true, .cuts = {0, 33}},
      {.T = 33, .m = 8, .qkp_l2norm = true, .cuts = {0, 5, 33}},
      {.T = 33, .m = 8, .shared_kq = true, .cuts = {0, 5, 33}},
      {.T = 33, .m = 8, .qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true, .cuts = {0, 5, 33}},
      {.T = 40, .m = 7, .moment_rule = moment_rule::decay_write, .cuts = {0, 5, 40}},
      {.T = 40, .m = 7, .moment_rule = moment_rule::delta, .cuts = {0, 5, 40}},
      {.T = 40, .m = 7, .shared_kq = true, .moment_rule = moment_rule::delta, .cuts = {0, 5, 40}},
      {.T = 40, .m = 7, .divide_by = divide_by::count, .cuts = {0, 5, 40}},
      {.T = 40, .m = 7, .keep_current = true, .cuts = {0, 5, 40}},
      {.T = 0, .cuts = cuts{0}},
      {.T = 1, .cuts = cuts{0, 1}},
      {.T = 2, .m = 1, .cuts = cuts{0, 1, 2}},
  };
}

template <class Cell>
class CudaEveryCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(CudaEveryCell);

// bugs B020, B086, B131, B133: segments, levels, weights and tails of every kind.
TYPED_TEST_P(CudaEveryCell, Definition) {
  std::mt19937 rng(1);
  int row = 0;
  for (const auto& shape : device_layer_shapes()) {
    SCOPED_TRACE("row " + std::to_string(row++));
    expect_reference(layer_problem<float, cell_in<TypeParam, float>>(shape, rng));
    if (this->HasFailure()) return;  // one report is enough
  }
}

TYPED_TEST_P(CudaEveryCell, ShortTypes) {
  std::mt19937 rng(2);
  const layer_shape shape{.T = 70, .H = 4, .HK = 2, .dk = 16, .dv = 24, .dr = 8, .m = 16, .cuts = {0, 1, 30, 34, 70}};
  expect_reference(layer_problem<bfloat16, cell_in<TypeParam, bfloat16>>(shape, rng));
}

TYPED_TEST_P(CudaEveryCell, Packed) {
  if constexpr (std::is_same_v<typename TypeParam::Separation, separation::boundaries>) {
    GTEST_SKIP() << "boundaries are shared by a batch of equal lengths";
  } else {
    std::mt19937 rng(3);
    using problem = layer_problem<float, cell_in<TypeParam, float>>;
    expect_reference(problem({.B = 1, .T = 16, .lengths = {0, 5, 1, 0, 0, 10, 0}}, rng));
    expect_reference(problem({.B = 1, .T = 131, .m = 8, .max_visible = 2, .lengths = {1, 0, 64, 33, 33}}, rng));
  }
}

// The bank and the weights are by-products: the outputs are the same bits without them, every time.
TYPED_TEST_P(CudaEveryCell, SameBits) {
  std::mt19937 rng(4);
  const layer_problem<half, cell_in<TypeParam, half>> p({.T = 70, .m = 16, .cuts = {0, 1, 30, 34, 70}}, rng);
  const auto once = on_device(p, entries_of(p));
  EXPECT_TRUE(bitwise_equal(on_device(p, entries_of(p)).o, once.o));
  layer_results<half> alone;
  alone.o = poisoned_like(once.o);
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, alone);
  multi_state(on_cuda{}, mirrored(mirror, p.args(alone)));
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  download(mirror, alone);
  EXPECT_TRUE(bitwise_equal(alone.o, once.o));
}

REGISTER_TYPED_TEST_SUITE_P(CudaEveryCell, Definition, ShortTypes, Packed, SameBits);

}  // namespace polystate::testing
