// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of segment_moments against the reference.

#include "segment_moments/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

namespace polystate::testing {
namespace {

using separation::boundaries;
using separation::uniform;

template <class Data>
class SegmentMomentsCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(SegmentMomentsCuda, element_types);

// bugs B017, B026, B064, B076, B077, B083, B085: any length, dim, layout, segmentation, rule and option.
TYPED_TEST(SegmentMomentsCuda, RandomProblems) {
  std::mt19937 rng(11);
  for (int i = 0; i < 60; ++i) {
    const auto run = [&](const auto& p) {
      SCOPED_TRACE("problem " + std::to_string(i) + ", " + describe(p));
      expect_reference(p, rng() % 8 == 0 ? 1 : 0);
    };
    run(random_moments<TypeParam, uniform>(400000, rng));
    run(random_moments<TypeParam, boundaries>(400000, rng));
    if (this->HasFailure()) return;  // one report is enough
  }
}

// Every padded dim, and more rows of Sigma than a block has.
TYPED_TEST(SegmentMomentsCuda, LargeDims) {
  std::mt19937 rng(12);
  for (const std::int64_t dr : {192, 256, 300, 511, 512}) {
    for (const auto rule : {moment_rule::plain, moment_rule::delta}) {
      SCOPED_TRACE(dr);
      expect_reference(moments_problem<TypeParam, uniform>(
          {.B = 1, .T = 6, .HR = 1, .dr = dr, .moment_rule = rule, .qkp_l2norm = true}, rng, 4, {}));
    }
  }
}

// bugs B049, B055, B059: decays from 1 to 0, no write and full erasure, keys whose moments half could not hold, rows of
// zeros.
TYPED_TEST(SegmentMomentsCuda, HardValues) {
  std::mt19937 rng(13);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    moments_problem<TypeParam, uniform> p({.B = 1, .T = 60, .HR = 2, .dr = 12, .moment_rule = rule, .qkp_l2norm = true},
                                          rng, 16, {});
    const std::vector<double> decays = {0, -1e-4, -infinity, -1000, -1, 0, -88, -1e-7};
    const std::vector<double> writes = {1, 0, 0.5, 2, 1e-3};
    std::size_t i = 0;
    p.keys.g.for_each([&](float& x) { x = static_cast<float>(decays[i++ % decays.size()]); });
    p.keys.beta.for_each([&](float& x) { x = static_cast<float>(writes[i++ % writes.size()]); });
    for (std::int64_t c = 0; c < 12; ++c) p.keys.k.view()(0, 3, 0, c) = static_cast<TypeParam>(0.0f);
    expect_reference(p);
  }
  moments_problem<TypeParam, uniform> p({.B = 1, .T = 600, .HR = 1, .dr = 4}, rng, 600, {});
  p.keys.k.for_each([&](TypeParam& x) { x = static_cast<TypeParam>(300.0f * static_cast<float>(x)); });
  expect_reference(p);
}

// bugs B008, B010, B011: long, and more batch entries times heads than a grid has rows.
TYPED_TEST(SegmentMomentsCuda, LongAndMany) {
  std::mt19937 rng(14);
  expect_reference(moments_problem<TypeParam, uniform>({.B = 1, .T = 70000, .HR = 1, .dr = 4}, rng, 1000, {}));
  expect_reference(moments_problem<TypeParam, uniform>({.B = 1, .T = 70000, .HR = 1, .dr = 2}, rng, 1, {}));
  expect_reference(moments_problem<TypeParam, uniform>({.B = 33000, .T = 2, .HR = 2, .dr = 3}, rng, 2, {}));
  std::vector<std::int32_t> lengths(3000, 3);
  expect_reference(moments_problem<TypeParam, uniform>({.B = 1, .T = 9000, .HR = 1, .dr = 3}, rng, 2, {}, lengths));
}

// bugs B005, B007: offsets past 2^32.
TYPED_TEST(SegmentMomentsCuda, StridesPast2To32) {
  std::mt19937 rng(15);
  const std::int64_t strides[4] = {0, (std::int64_t{1} << 32) + 8, 16, 1};
  const moments_problem<TypeParam, uniform> p({.B = 1, .T = 2, .HR = 1, .dr = 16}, rng, 2, {});
  using spread = spread_tensor<TypeParam, 4>;
  if (!device_has_free(spread::bytes(p.keys.k, strides) + (std::size_t{1} << 28))) {
    GTEST_SKIP() << "needs " << spread::bytes(p.keys.k, strides) << " bytes";
  }
  const device_moments<TypeParam, uniform> device(p);
  auto args = device.args();
  const spread k(p.keys.k, strides);
  args.moments.k = k.view();
  segment_moments(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  judge(got, p);
}

TYPED_TEST(SegmentMomentsCuda, OneOfBoth) {
  std::mt19937 rng(16);
  const moments_problem<TypeParam, uniform> p({.B = 2, .T = 21, .HR = 2, .dr = 20}, rng, 8, {});
  for (const bool with_mu : {false, true}) {
    const device_moments<TypeParam, uniform> device(p);
    auto args = device.args();
    if (with_mu) args.Sigma = {};
    if (!with_mu) args.mu = {};
    segment_moments(on_cuda{}, args);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    auto got = p;
    device.download(got);
    if (with_mu) got.Sigma = {};
    if (!with_mu) got.mu = {};
    judge(got, p);
  }
}

// bugs B113: same bits every time, in any company, in any memory order, in the caller's workspace to the byte.
TYPED_TEST(SegmentMomentsCuda, SameBits) {
  std::mt19937 rng(17);
  using problem = moments_problem<TypeParam, uniform>;
  const problem p({.B = 3, .T = 45, .HR = 2, .dr = 40, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, rng, 16,
                  {});
  const device_moments<TypeParam, uniform> device(p);
  const auto once = on_device(p, device);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args()));
  const auto again = on_device(p, device, {.workspace = memory.whole()});
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(bitwise_equal(again.mu, once.mu));
  EXPECT_TRUE(bitwise_equal(again.Sigma, once.Sigma));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args()), error_code::workspace,
                      "exec.workspace", "needed"));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.misaligned()}, device.args()), error_code::workspace,
                      "exec.workspace", "misaligned"));

  // alone: entry 1 by itself
  device_moments<TypeParam, uniform> fresh(p);
  auto args = fresh.args();
  args.moments.k = args.moments.k.slice(0, 1, 2);
  args.moments.g = args.moments.g.slice(0, 1, 2);
  args.moments.beta = args.moments.beta.slice(0, 1, 2);
  args.mu = args.mu.slice(0, 1, 2);
  args.Sigma = args.Sigma.slice(0, 1, 2);
  segment_moments(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto alone = p;
  fresh.download(alone);
  EXPECT_TRUE(bitwise_equal(copy_of(alone.Sigma.view().slice(0, 1, 2)), copy_of(once.Sigma.view().slice(0, 1, 2))));
  EXPECT_TRUE(bitwise_equal(copy_of(alone.mu.view().slice(0, 1, 2)), copy_of(once.mu.view().slice(0, 1, 2))));

  problem strided = p;
  strided.keys.k = laid_out(p.keys.k, {{0, 3, 2, 1}, 3});
  strided.Sigma = laid_out(p.Sigma, {{0, 1, 2, 4, 3}, 1});
  EXPECT_TRUE(bitwise_equal(on_device(strided).Sigma, once.Sigma));
}

// bugs B109, B112: a NaN stays in its segment and head.
TYPED_TEST(SegmentMomentsCuda, NanStaysInItsSegment) {
  std::mt19937 rng(18);
  moments_problem<TypeParam, uniform> p({.B = 2, .T = 40, .HR = 2, .dr = 8}, rng, 10, {});
  const auto clean = on_device(p);
  p.keys.k.view()(1, 21, 1, 3) = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t l = 0; l < 4; ++l) {
      for (std::int64_t r = 0; r < 2; ++r) {
        for (std::int64_t i = 0; i < 8; ++i) {
          for (std::int64_t j = 0; j < 8; ++j) {
            const bool own = b == 1 && l == 2 && r == 1;
            const bool reached = own && (i == 3 || j == 3);
            const float x = spoilt.Sigma.view()(b, l, r, i, j);
            if (reached) {
              ASSERT_TRUE(std::isnan(x)) << i << ' ' << j;
            } else if (!own) {
              ASSERT_EQ(x, clean.Sigma.view()(b, l, r, i, j));
            }
          }
        }
      }
    }
  }
}

// bugs B116, B118: graphs, streams, threads.
TYPED_TEST(SegmentMomentsCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(19);
  const moments_problem<TypeParam, uniform> p({.B = 1, .T = 40, .HR = 2, .dr = 32}, rng, 16, {}, {30, 0, 10});
  const auto want = on_device(p);
  device_moments<TypeParam, uniform> device(p);
  const device_stream stream;
  const captured_graph graph(stream, [&] { segment_moments(stream.exec(), device.args()); });
  for (int i = 0; i < 2; ++i) {
    device.Sigma.upload(p.Sigma);  // poison again
    graph.replay(stream);
    auto got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.Sigma, want.Sigma));
    EXPECT_TRUE(bitwise_equal(got.mu, want.mu));
  }
  const device_stream other;
  device_moments<TypeParam, uniform> second(p);
  device.Sigma.upload(p.Sigma);
  segment_moments(stream.exec(), device.args());
  std::thread([&] { segment_moments(other.exec(), second.args()); }).join();
  stream.synchronize();
  other.synchronize();
  for (const auto* d : {&device, &second}) {
    auto got = p;
    d->download(got);
    EXPECT_TRUE(bitwise_equal(got.Sigma, want.Sigma));
  }
}

// dims<dr> runs what dims<> chooses, and refuses others.
TEST(SegmentMomentsCudaFrame, FixedDims) {
  std::mt19937 rng(22);
  for (const auto rule : {moment_rule::plain, moment_rule::delta}) {
    const moments_problem<float, uniform> p({.B = 1, .T = 30, .HR = 2, .dr = 40, .moment_rule = rule}, rng, 8, {});
    const device_moments<float, uniform> device(p);
    const device_moments<float, uniform> fixed(p);
    segment_moments(on_cuda{}, device.args());
    segment_moments<dims<40>>(on_cuda{}, fixed.args());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    auto want = p;
    auto got = p;
    device.download(want);
    fixed.download(got);
    EXPECT_TRUE(bitwise_equal(got.mu, want.mu) && bitwise_equal(got.Sigma, want.Sigma));
    EXPECT_TRUE(refuses(try_segment_moments<dims<8>>(on_cuda{}, device.args()), error_code::unsupported, "moments.k",
                        "dr = 40, supported: dims<8> only"));
  }
}

// Devices with less shared memory run other tiles, to the same values, or refuse what has no room.
TEST(SegmentMomentsCudaFrame, LessSharedMemory) {
  std::mt19937 rng(23);
  for (const std::size_t kib : {99, 163}) {
    const on_cuda exec{.shared_memory_limit = kib * 1024};
    for (const auto rule : {moment_rule::plain, moment_rule::delta}) {
      for (const std::int64_t dr : {40, 200, 512}) {
        const moments_problem<float, uniform> p({.B = 1, .T = 30, .HR = 2, .dr = dr, .moment_rule = rule}, rng, 8, {});
        const device_moments<float, uniform> device(p);
        const device_moments<float, uniform> all(p);
        if (kib == 99 && dr == 512) {
          EXPECT_TRUE(refuses(check(exec, device.args()), error_code::unsupported, "moments.k", "up to 101376"));
          continue;
        }
        segment_moments(exec, device.args());
        segment_moments(on_cuda{}, all.args());
        POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
        auto got = p;
        auto want = p;
        device.download(got);
        all.download(want);
        EXPECT_TRUE(bitwise_equal(got.Sigma, want.Sigma)) << kib << " KiB, dr " << dr;
      }
    }
  }
}

TEST(SegmentMomentsCudaFrame, Refusals) {
  std::mt19937 rng(20);
  const moments_problem<float, uniform> p({.B = 1, .T = 9, .HR = 1, .dr = 4}, rng, 4, {}, {4, 5});
  const device_moments<float, uniform> device(p);
  auto args = device.args();
  args.moments.k = {args.moments.k.data(), {1, 9, 1, 513}, {0, 0, 0, 0}};
  tensor<float, 4> wide({1, 3, 1, 513});
  args.mu = wide.view();
  args.Sigma = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "moments.k", "dr = 513, supported: 1 to 512"));
  args = device.args();
  args.mu = args.mu.slice(1, 0, 2);
  args.Sigma = {};
  EXPECT_TRUE(check(on_cuda{}, args).ok());
  EXPECT_TRUE(
      refuses(validate(on_cuda{}, args), error_code::shape, "mu", "supported: (B, L, HR, dr) = (1, 3, any, any)"));
  EXPECT_TRUE(validate(on_cuda{}, device.args()).ok());
}

// Contents that validate() refuses lead no access out of the operands.
TEST(SegmentMomentsCudaFrame, UncheckedContents) {
  std::mt19937 rng(21);
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{0, 12, 9}, {0, 5, 3, 9}, {-4, 2, 9}, {3, 3, 3}}) {
    moments_problem<float, uniform> p({.B = 1, .T = 9, .HR = 1, .dr = 4}, rng, 2, {}, {4, 5});
    p.cu_seqlens = cuts_tensor(bad);
    const device_moments<float, uniform> device(p);
    EXPECT_TRUE(check(on_cuda{}, device.args()).ok());
    EXPECT_TRUE(refuses(validate(on_cuda{}, device.args()), error_code::value, "cu_seqlens", "entry"));
    EXPECT_TRUE(on_device(p, device).Sigma.untouched_outside());

    moments_problem<float, boundaries> q({.B = 2, .T = 9, .HR = 1, .dr = 4}, rng, 2, {0, 4, 9});
    q.cuts = bad;
    const std::int64_t L = static_cast<std::int64_t>(bad.size()) - 1;
    q.mu = tensor<float, 4>({2, L, 1, 4});
    q.Sigma = tensor<float, 5>({2, L, 1, 4, 4});
    const device_moments<float, boundaries> cut(q);
    EXPECT_TRUE(check(on_cuda{}, cut.args()).ok());
    EXPECT_TRUE(refuses(validate(on_cuda{}, cut.args()), error_code::value, "separation.boundaries", "entry"));
    EXPECT_TRUE(on_device(q, cut).Sigma.untouched_outside());
  }
}

// Small ones for the sanitizers.
TYPED_TEST(SegmentMomentsCuda, SanitizerForward) {
  std::mt19937 rng(22);
  expect_reference(moments_problem<TypeParam, uniform>(
      {.B = 2, .T = 21, .HR = 2, .dr = 20, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, rng, 8, {}));
  expect_reference(moments_problem<TypeParam, uniform>(
      {.B = 1, .T = 21, .HR = 2, .dr = 33, .divide_by = divide_by::count}, rng, 4, {}, {3, 0, 18}));
  expect_reference(moments_problem<TypeParam, boundaries>({.B = 2, .T = 21, .HR = 1, .dr = 70}, rng, 1, {0, 5, 6, 21}));
}

}  // namespace
}  // namespace polystate::testing
