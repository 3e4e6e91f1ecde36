// SPDX-License-Identifier: Apache-2.0

// How the CUDA kernels of the delta family and ssd are cut over threads: host code.

#include <polystate/cuda/recurrence/policy.hpp>

#include <gtest/gtest.h>

#include <cstdint>

namespace polystate::testing {
namespace {

namespace rec = detail::cuda::recurrence;
using detail::cuda::tiles_of;

TEST(RecurrencePolicy, KeyDimsArePaddedToTheNextKernel) {
  EXPECT_EQ(rec::padded_key_dim(1), 32);
  EXPECT_EQ(rec::padded_key_dim(32), 32);
  EXPECT_EQ(rec::padded_key_dim(33), 64);
  EXPECT_EQ(rec::padded_key_dim(512), 512);
  EXPECT_EQ(rec::padded_key_dim(513), 0);
}

template <class Split>
void expect_whole(const Split& s, int padded) {
  EXPECT_EQ(s.lanes * s.columns, padded);
  EXPECT_EQ(32 % s.lanes, 0);
  EXPECT_EQ(s.columns % 4, 0);
  EXPECT_EQ(s.block_rows() * s.lanes, s.threads * s.rows);
}

TEST(RecurrencePolicy, GroupsHoldWholeRows) {
  for (const int padded : rec::key_dims::values) {
    expect_whole(rec::split_over_time<2>(padded), padded);
    expect_whole(rec::split_over_time<4>(padded), padded);
    expect_whole(rec::split_of_step<2>(padded), padded);
    expect_whole(rec::split_of_step<4>(padded), padded);
    // Whole 16-byte accesses of 2-byte states.
    EXPECT_EQ(rec::split_of_step<4>(padded).columns % 8, 0);
    EXPECT_EQ(rec::tile_tokens(padded) % rec::chunk_tokens, 0);
  }
}

// The groups of a row are the same for every number of rows, and so are the bits of its sums.
TEST(RecurrencePolicy, RowsOfAThreadChangeNoSum) {
  for (const int padded : rec::key_dims::values) {
    EXPECT_EQ(rec::split_over_time<2>(padded).lanes, rec::split_over_time<4>(padded).lanes);
    EXPECT_EQ(rec::split_of_step<2>(padded).lanes, rec::split_of_step<4>(padded).lanes);
  }
}

TEST(RecurrencePolicy, TwoRowsOnlyWhereAllBlocksRunAtOnce) {
  for (const int padded : rec::key_dims::values) {
    for (const int multiprocessors : {1, 108, 132}) {
      for (const std::int64_t dv : {1, 64, 128, 512}) {
        for (std::int64_t states = 1; states < 1000; states = states * 3 + 1) {
          const std::int64_t blocks = states * tiles_of(dv, rec::split_over_time<2>(padded).block_rows());
          const bool at_once = blocks <= rec::forward_blocks * multiprocessors;
          EXPECT_EQ(rec::choose_forward_rows(states, dv, padded, multiprocessors, false), at_once ? 2 : 4);
          EXPECT_EQ(rec::choose_forward_rows(states, dv, padded, multiprocessors, true), 4);
        }
      }
    }
  }
  EXPECT_EQ(rec::choose_forward_rows(32, 128, 128, 132, false), 2);
  EXPECT_EQ(rec::choose_forward_rows(8 * 16, 128, 128, 132, false), 4);
}

TEST(RecurrencePolicy, FewStatesTakeShortSteps) {
  EXPECT_EQ(rec::choose_step_rows(32, 128, 128, 132), 2);
  EXPECT_EQ(rec::choose_step_rows(64 * 32, 128, 128, 132), 4);
}

}  // namespace
}  // namespace polystate::testing
