// SPDX-License-Identifier: Apache-2.0

// Which CUDA kernel is chosen, and that the blocks cover the problem: host code.

#include <polystate/cuda/causal_conv1d/policy.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace polystate::testing {
namespace {

namespace conv1d = polystate_detail::cuda::conv1d;
using kernel = conv1d::kernel_kind;

// A view at an address that is never read.
template <class T, int Rank>
tensor_view<T, Rank> at(std::uintptr_t address, const std::int64_t (&extents)[Rank],
                        const std::int64_t (&strides)[Rank]) {
  return {reinterpret_cast<T*>(address), extents, strides};
}

struct problem {
  std::int64_t B = 2, T = 64, D = 128, W = 4;
  std::int64_t x_strides[3], y_strides[3];
  std::uintptr_t x_address = 4096, y_address = 1 << 20;

  /// Gradients of x's strides; those summed over time if asked for.
  [[nodiscard]] causal_conv1d_grads<bfloat16> grads() const {
    return {.d_y = at<const bfloat16>(y_address, {B, T, D}, y_strides),
            .d_x = at<bfloat16>(x_address, {B, T, D}, x_strides),
            .d_weight = at<float>(64, {D, W}, {W, 1})};
  }
  [[nodiscard]] causal_conv1d_args<bfloat16> args() const {
    return {.x = at<const bfloat16>(x_address, {B, T, D}, x_strides),
            .weight = at<const float>(64, {D, W}, {W, 1}),
            .y = at<bfloat16>(y_address, {B, T, D}, y_strides)};
  }
};

problem last() { return {.x_strides = {64 * 128, 128, 1}, .y_strides = {64 * 128, 128, 1}}; }
problem first() { return {.x_strides = {64 * 128, 1, 64}, .y_strides = {64 * 128, 1, 64}}; }

TEST(CausalConv1dPolicy, WholeVectorsOrTheGeneralKernel) {
  EXPECT_EQ(conv1d::choose_kernel(last().args()), kernel::channel_last);
  EXPECT_EQ(conv1d::choose_kernel(first().args()), kernel::channel_first);

  for (const auto make : {last, first}) {
    for (const std::int64_t W : {1, 5, 31}) {
      problem p = make();
      p.W = W;
      EXPECT_EQ(conv1d::choose_kernel(p.args()), kernel::general) << "W " << W;
    }
    for (const std::int64_t W : {2, 3, 4}) {
      problem p = make();
      p.W = W;
      EXPECT_NE(conv1d::choose_kernel(p.args()), kernel::general) << "W " << W;
    }
    problem misaligned = make();
    misaligned.x_address += sizeof(bfloat16);
    EXPECT_EQ(conv1d::choose_kernel(misaligned.args()), kernel::general);
    misaligned = make();
    misaligned.y_address += sizeof(bfloat16);
    EXPECT_EQ(conv1d::choose_kernel(misaligned.args()), kernel::general);
    problem odd_stride = make();
    odd_stride.x_strides[0] += 1;
    EXPECT_EQ(conv1d::choose_kernel(odd_stride.args()), kernel::general);
    odd_stride.B = 1;  // a stride that is never taken does not count
    EXPECT_NE(conv1d::choose_kernel(odd_stride.args()), kernel::general);
  }
  problem partial = last();
  partial.D = 127;
  EXPECT_EQ(conv1d::choose_kernel(partial.args()), kernel::general);
  problem mixed = last();
  mixed.y_strides[1] = 1;
  mixed.y_strides[2] = 64;
  EXPECT_EQ(conv1d::choose_kernel(mixed.args()), kernel::general);
}

TEST(CausalConv1dPolicy, NeighboursInMemoryAreNeighbourThreads) {
  problem p = last();
  p.W = 5;
  EXPECT_FALSE(conv1d::time_is_inner(p.args()));
  p = first();
  p.W = 5;
  EXPECT_TRUE(conv1d::time_is_inner(p.args()));
  p = last();
  p.D = 1;
  EXPECT_TRUE(conv1d::time_is_inner(p.args())) << "one channel does not occupy a row of threads";
}

// Every token and channel lies in a block, no block lies outside, and the grid fits.
TEST(CausalConv1dPolicy, BlocksCoverTheProblem) {
  for (const auto make : {last, first}) {
    for (const std::int64_t W : {4, 5}) {
      for (const std::int64_t B : {1, 70000}) {
        for (const std::int64_t T : {8, 64, 2048, 1 << 21}) {
          for (const std::int64_t D : {8, 64, 4096}) {
            for (const int multiprocessors : {1, 132}) {
              problem p = make();
              p.B = B;
              p.T = T;
              p.D = D;
              p.W = W;
              const bool time_inner = p.x_strides[1] == 1;
              for (auto* strides : {p.x_strides, p.y_strides}) {
                strides[0] = T * D;
                strides[1] = time_inner ? 1 : D;
                strides[2] = time_inner ? T : 1;
              }
              const auto s = conv1d::choose_schedule(p.args(), multiprocessors);
              EXPECT_EQ(s.kernel == kernel::general, W == 5);
              EXPECT_GE(s.channel_tiles * s.block_channels, D);
              EXPECT_LT((s.channel_tiles - 1) * s.block_channels, D);
              EXPECT_GE(s.time_tiles * s.block_tokens, T);
              EXPECT_LT((s.time_tiles - 1) * s.block_tokens, T);
              EXPECT_EQ(s.blocks, B * s.channel_tiles * s.time_tiles);
              EXPECT_EQ(conv1d::tiles::threads % s.lanes, 0);
            }
          }
        }
      }
    }
  }
}

TEST(CausalConv1dPolicy, EmptyProblemsHaveNoBlocks) {
  for (int i = 0; i < 3; ++i) {
    problem p = last();
    (i == 0 ? p.B : i == 1 ? p.T : p.D) = 0;
    EXPECT_EQ(conv1d::choose_schedule(p.args(), 132).blocks, 0);
  }
}

// Long runs where the device is full anyway, short ones to fill it.
TEST(CausalConv1dPolicy, RunsFillTheDeviceFirst) {
  problem p = last();
  p.B = 8;
  p.T = 2048;
  p.D = 4096;
  for (auto* strides : {p.x_strides, p.y_strides}) {
    strides[0] = p.T * p.D;
    strides[1] = p.D;
  }
  EXPECT_EQ(conv1d::choose_schedule(p.args(), 132).run, conv1d::tiles::longest_run);
  p.B = 1;
  p.T = 128;
  EXPECT_LT(conv1d::choose_schedule(p.args(), 132).run, conv1d::tiles::longest_run);
}

// The backward's kernel is chosen by what it touches: y does not matter, d_y and d_x do, an absent one allows any.
TEST(CausalConv1dPolicy, BackwardKernels) {
  for (const auto make : {last, first}) {
    const kernel whole = make == last ? kernel::channel_last : kernel::channel_first;
    problem p = make();
    EXPECT_EQ(conv1d::choose_kernel(p.args(), p.grads()), whole);
    auto args = p.args();
    args.y = {};
    EXPECT_EQ(conv1d::choose_kernel(args, p.grads()), whole);
    p.y_address += sizeof(bfloat16);
    EXPECT_EQ(conv1d::choose_kernel(p.args(), p.grads()), kernel::general);
    auto grads = p.grads();
    grads.d_y = {};
    EXPECT_EQ(conv1d::choose_kernel(p.args(), grads), whole);
  }
}

// Every tile belongs to one row of partial sums; rows and blocks stay within their limits, at least one each.
TEST(CausalConv1dPolicy, BackwardBlocksCoverTheProblem) {
  for (const auto make : {last, first}) {
    for (const std::int64_t W : {4, 5, 31}) {
      for (const std::int64_t B : {1, 8, 70000}) {
        for (const std::int64_t T : {8, 64, 2048, 1 << 21}) {
          for (const std::int64_t D : {8, 4096, 1 << 20}) {
            problem p = make();
            p.B = B;
            p.T = T;
            p.D = D;
            p.W = W;
            const bool time_inner = p.x_strides[1] == 1;
            for (auto* strides : {p.x_strides, p.y_strides}) {
              strides[0] = T * D;
              strides[1] = time_inner ? 1 : D;
              strides[2] = time_inner ? T : 1;
            }
            const auto s = conv1d::choose_schedule(p.args(), p.grads());
            const auto& tiling = s.tiling;
            EXPECT_EQ(tiling.kernel == kernel::general, W != 4);
            EXPECT_GE(tiling.channel_tiles * tiling.block_channels, D);
            EXPECT_LT((tiling.channel_tiles - 1) * tiling.block_channels, D);
            EXPECT_GE(tiling.time_tiles * tiling.block_tokens, T);
            EXPECT_LT((tiling.time_tiles - 1) * tiling.block_tokens, T);
            EXPECT_EQ(s.tasks, B * tiling.time_tiles);
            EXPECT_GE(s.rows, 1);
            EXPECT_LE(s.rows, s.tasks);
            EXPECT_LE(s.rows, conv1d::tiles::most_rows);
            EXPECT_LE(s.rows, std::max<std::int64_t>(1, conv1d::tiles::most_backward_blocks / tiling.channel_tiles));
            EXPECT_EQ(s.chunks, W == 31 ? 4 : 1);
            EXPECT_EQ(s.blocks, tiling.channel_tiles * s.chunks * s.rows);
            if (tiling.kernel == kernel::channel_first) {
              EXPECT_LE(polystate_detail::cuda::tiles_of(std::min<std::int64_t>(T, tiling.run), tiling.lanes * 8), 16)
                  << "a bit for each chunk, and to spare";
            }
          }
        }
      }
    }
  }
  problem empty = last();
  empty.T = 0;
  EXPECT_EQ(conv1d::choose_schedule(empty.args(), empty.grads()).blocks, 0);
}

// Sizes of memory-bound training: long runs, at least a round of blocks, and few rows to add up.
TEST(CausalConv1dPolicy, BackwardRunsAreLongWhereTheyMayBe) {
  for (const auto make : {last, first}) {
    problem p = make();
    p.B = 8;
    p.T = 2048;
    p.D = 4096;
    const bool time_inner = p.x_strides[1] == 1;
    for (auto* strides : {p.x_strides, p.y_strides}) {
      strides[0] = p.T * p.D;
      strides[1] = time_inner ? 1 : p.D;
      strides[2] = time_inner ? p.T : 1;
    }
    const auto s = conv1d::choose_schedule(p.args(), p.grads());
    EXPECT_EQ(s.tiling.run, time_inner ? conv1d::tiles::longest_walk : conv1d::tiles::longest_backward_run);
    EXPECT_GE(s.blocks, conv1d::tiles::enough_backward_blocks);
    EXPECT_LE(s.rows, 64);
  }
}

}  // namespace
}  // namespace polystate::testing
