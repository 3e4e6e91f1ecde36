// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of routing against the reference.

#include "routing/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace polystate::testing {
namespace {

using separation::boundaries;
using separation::uniform;

template <class Data>
class RoutingCuda : public ::testing::Test {
 protected:
  using merlin = router::merlin<Data>;
  using problem = weights_problem<Data, uniform, merlin>;
};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(RoutingCuda, element_types);

// bugs B017, B026, B064, B076, B077, B083, B085: any length, dim, layout, grouping, segmentation, rule, router, option.
TYPED_TEST(RoutingCuda, RandomProblems) {
  std::mt19937 rng(41);
  for (int i = 0; i < 9; ++i) {
    for_each_router<TypeParam>([&]<class Router>() {
      if (this->HasFailure()) return;  // one report is enough
      const auto run = [&](const auto& p) {
        SCOPED_TRACE("problem " + std::to_string(i) + ", " + describe(p));
        expect_reference(p, rng() % 8 == 0 ? 1 : 0);
      };
      run(random_weights<TypeParam, uniform, Router>(60000, rng));
      if (i % 3 == 0) run(random_weights<TypeParam, boundaries, Router>(60000, rng));
    });
  }
}

// Every padded dim, and more rows of Sigma than a block has.
TYPED_TEST(RoutingCuda, LargeDims) {
  std::mt19937 rng(42);
  for (const std::int64_t dr : {192, 256, 511, 512}) {
    SCOPED_TRACE(dr);
    expect_reference(typename TestFixture::problem(
        {.B = 1, .T = 6, .HR = 1, .dr = dr, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, {.H = 2, .m = 2},
        rng));
  }
}

// More segments than a block scores, windows that begin inside a tile of tokens, and batch entries that share one.
TYPED_TEST(RoutingCuda, ManySegments) {
  std::mt19937 rng(43);
  for (const std::int64_t max_visible : {0, 1, 5, 40}) {
    for_each_router<TypeParam>([&]<class Router>() {
      const weights_shape w{.H = 2, .m = 3, .max_visible = max_visible};
      SCOPED_TRACE(router_of<Router>::name() + ", max_visible " + std::to_string(max_visible));
      expect_reference(weights_problem<TypeParam, uniform, Router>({.B = 2, .T = 145, .HR = 1, .dr = 6}, w, rng));
      expect_reference(weights_problem<TypeParam, uniform, Router>({.B = 9, .T = 11, .HR = 2, .dr = 6}, w, rng));
    });
  }
}

// bugs B008, B010, B011: long, and more batch entries times heads than a grid has rows.
TYPED_TEST(RoutingCuda, LongAndMany) {
  std::mt19937 rng(44);
  using problem = typename TestFixture::problem;
  expect_reference(problem({.B = 1, .T = 4000, .HR = 1, .dr = 2}, {.H = 1, .m = 100}, rng));
  expect_reference(problem({.B = 33000, .T = 1, .HR = 1, .dr = 2}, {.H = 2, .m = 1}, rng));
}

// bugs B005, B007: offsets past 2^32.
TYPED_TEST(RoutingCuda, StridesPast2To32) {
  std::mt19937 rng(45);
  const typename TestFixture::problem p({.B = 1, .T = 2, .HR = 1, .dr = 16}, {.H = 1, .m = 1}, rng);
  const std::int64_t far = (std::int64_t{1} << 32) + 8;
  const std::int64_t query_strides[4] = {0, far, 16, 1};
  const std::int64_t lam_strides[4] = {0, far, 2, 1};
  using spread_query = spread_tensor<TypeParam, 4>;
  using spread_lam = spread_tensor<float, 4>;
  const std::size_t bytes = spread_query::bytes(p.router.q, query_strides) + spread_lam::bytes(p.lam, lam_strides);
  if (!device_has_free(bytes + (std::size_t{1} << 28))) GTEST_SKIP() << "needs " << bytes << " bytes";
  const device_weights<TypeParam, uniform, typename TestFixture::merlin> device(p);
  auto args = device.args();
  const spread_query q(p.router.q, query_strides);
  const spread_lam lam(p.lam, lam_strides);
  args.router.q = q.view();
  args.lam = lam.view();
  routing(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  computed_weights<typename TestFixture::merlin> got(p);
  device.download(got);
  lam.download(got.lam);
  judge(got, p);
}

// bugs B131: ties go to the more recent segment, whatever top_k is around.
TEST(RoutingCudaTopK, Ties) {
  std::mt19937 rng(46);
  using position = router::position<float>;
  constexpr std::int64_t T = 70;
  for (const bool keep_current : {false, true}) {
    for (const std::int64_t k : {1, 2, 5, 33, 69}) {
      weights_problem<float, uniform, router::top_k<position>> p({.B = 1, .T = T, .HR = 1, .dr = 2},
                                                                 {.H = 1,
                                                                  .m = 1,
                                                                  .position_index = position_index::absolute,
                                                                  .position_norm = position_norm::none,
                                                                  .keep_current = keep_current},
                                                                 rng);
      p.router.options.k = k;
      p.router.weights.for_each([](float& w) { w = 1; });
      for (std::int64_t t = 0; t < T; ++t) {
        for (std::int64_t l = 0; l < 4; ++l) p.router.weights.view()(0, t, 0, 10 + 3 * l) = 2.0f;  // four of twice that
        if (t < 7) continue;
        p.router.weights.view()(0, t, 0, 5) = -0.0f;
        p.router.weights.view()(0, t, 0, 6) = 0.0f;
      }
      expect_reference(p);
    }
  }
  weights_problem<float, uniform, router::top_k<router::uniform>> p({.B = 1, .T = T, .HR = 1, .dr = 2},
                                                                    {.H = 1, .m = 2}, rng);
  p.router.options.k = 7;
  expect_reference(p);
}

// bugs B131: NaN and infinite scores choose k distinct segments; the NaN stays in its token and head.
TEST(RoutingCudaTopK, NanScores) {
  std::mt19937 rng(47);
  using top = router::top_k<router::merlin<float>>;
  weights_problem<float, uniform, top> p({.B = 2, .T = 40, .HR = 2, .dr = 8}, {.H = 4, .m = 4}, rng);
  p.router.options.k = 3;
  const auto clean = on_device(p);
  p.router.q.view()(1, 30, 1, 2) = std::numeric_limits<float>::quiet_NaN();
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const bool reached = b == 1 && t == 30 && h >= 2;
        int nans = 0;
        for (std::int64_t l = 0; l < 10; ++l) {
          const float x = spoilt.lam.view()(b, t, h, l);
          if (!reached) {
            ASSERT_EQ(x, clean.lam.view()(b, t, h, l));
          } else if (std::isnan(x)) {
            ++nans;
          } else {
            ASSERT_EQ(x, 0.0f);
          }
        }
        EXPECT_EQ(nans, reached ? 3 : 0);
      }
    }
  }
}

// bugs B109, B112: a NaN key reaches the tokens that see its segment from then on, and no other entry or head.
TYPED_TEST(RoutingCuda, NanStaysWithWhoSeesIt) {
  std::mt19937 rng(48);
  typename TestFixture::problem p({.B = 2, .T = 40, .HR = 2, .dr = 8}, {.H = 2, .m = 10, .max_visible = 2}, rng);
  const auto clean = on_device(p);
  p.keys.k.view()(1, 15, 1, 2) = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const bool reached = b == 1 && h == 1 && t >= 15 && t < 30;  // then the window has left segment 1
        const bool in_its_tokens = b == 1 && h == 1 && t / 10 == 1;
        for (std::int64_t l = 0; l < 4; ++l) {
          const float x = spoilt.lam.view()(b, t, h, l);
          const bool sees = l <= t / 10 && l + 2 > t / 10;
          if (reached && sees) {
            ASSERT_TRUE(std::isnan(x)) << t;
          } else if (!in_its_tokens) {
            ASSERT_EQ(x, clean.lam.view()(b, t, h, l)) << b << ' ' << t << ' ' << h;
          }
        }
      }
    }
  }
}

// bugs B113: same bits every time, in any company, in any memory order, in the caller's workspace to the byte.
TYPED_TEST(RoutingCuda, SameBits) {
  std::mt19937 rng(49);
  const typename TestFixture::problem p(
      {.B = 3, .T = 75, .HR = 2, .dr = 40, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, {.H = 4, .m = 8},
      rng);
  const device_weights<TypeParam, uniform, typename TestFixture::merlin> device(p);
  const auto once = on_device(p, device);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args()));
  const auto again = on_device(p, device, {.workspace = memory.whole()});
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(bitwise_equal(again.lam, once.lam));
  EXPECT_TRUE(bitwise_equal(again.r_sigma, once.r_sigma));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args()), error_code::workspace,
                      "exec.workspace", "needed"));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.misaligned()}, device.args()), error_code::workspace,
                      "exec.workspace", "misaligned"));

  auto strided = p;
  strided.keys.k = laid_out(p.keys.k, {{0, 3, 2, 1}, 3});
  strided.router.q = laid_out(p.router.q, {{3, 1, 2, 0}, 1});
  strided.lam = laid_out(p.lam, {{3, 0, 2, 1}, 1});
  EXPECT_TRUE(bitwise_equal(on_device(strided).lam, once.lam));

  // entry 1 by itself
  auto args = device.args();
  args.moments.k = args.moments.k.slice(0, 1, 2);
  args.moments.g = args.moments.g.slice(0, 1, 2);
  args.moments.beta = args.moments.beta.slice(0, 1, 2);
  args.router.q = args.router.q.slice(0, 1, 2);
  args.router.gamma = args.router.gamma.slice(0, 1, 2);
  device_tensor<float, 4> lam(p.lam);
  args.lam = lam.view().slice(0, 1, 2);
  args.r_mu = args.r_sigma = {};
  routing(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto alone = p.lam;
  lam.download(alone);
  EXPECT_TRUE(bitwise_equal(copy_of(alone.view().slice(0, 1, 2)), copy_of(once.lam.view().slice(0, 1, 2))));
}

// bugs B116, B118: graphs, streams, threads.
TYPED_TEST(RoutingCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(50);
  using Router = router::top_k<typename TestFixture::merlin>;
  const weights_problem<TypeParam, uniform, Router> p({.B = 2, .T = 40, .HR = 2, .dr = 32, .qkp_l2norm = true},
                                                      {.H = 2, .m = 8}, rng);
  const auto want = on_device(p);
  device_weights<TypeParam, uniform, Router> device(p);
  const device_stream stream;
  const captured_graph graph(stream, [&] { routing(stream.exec(), device.args()); });
  for (int i = 0; i < 2; ++i) {
    device.lam.upload(p.lam);  // poison again
    graph.replay(stream);
    computed_weights<Router> got(p);
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.lam, want.lam));
  }
  const device_stream other;
  device_weights<TypeParam, uniform, Router> second(p);
  device.lam.upload(p.lam);
  routing(stream.exec(), device.args());
  std::thread([&] { routing(other.exec(), second.args()); }).join();
  stream.synchronize();
  other.synchronize();
  for (const auto* d : {&device, &second}) {
    computed_weights<Router> got(p);
    d->download(got);
    EXPECT_TRUE(bitwise_equal(got.lam, want.lam));
  }
}

// dims<dr> runs what dims<> chooses, and refuses others.
TEST(RoutingCudaFrame, FixedDims) {
  std::mt19937 rng(53);
  using merlin = router::merlin<float>;
  const weights_problem<float, uniform, merlin> p({.B = 1, .T = 30, .HR = 1, .dr = 40}, {.H = 2, .m = 8}, rng);
  const device_weights<float, uniform, merlin> device(p);
  const device_weights<float, uniform, merlin> fixed(p);
  routing(on_cuda{}, device.args());
  routing<dims<40>>(on_cuda{}, fixed.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  computed_weights<merlin> want(p);
  computed_weights<merlin> got(p);
  device.download(want);
  fixed.download(got);
  EXPECT_TRUE(bitwise_equal(got.lam, want.lam));
  EXPECT_TRUE(refuses(try_routing<dims<8>>(on_cuda{}, device.args()), error_code::unsupported, "moments.k",
                      "dr = 40, supported: dims<8> only"));
}

TEST(RoutingCudaFrame, Refusals) {
  std::mt19937 rng(51);
  using merlin = router::merlin<float>;
  const weights_problem<float, uniform, merlin> p({.B = 1, .T = 9, .HR = 1, .dr = 4}, {.H = 1, .m = 4}, rng);
  const device_weights<float, uniform, merlin> device(p);
  auto args = device.args();
  args.moments.k = {args.moments.k.data(), {1, 9, 1, 513}, {0, 0, 0, 0}};
  args.router.q = args.moments.k;
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "moments.k", "dr = 513, supported: 1 to 512"));
  EXPECT_TRUE(validate(on_cuda{}, device.args()).ok());
}

// Contents that validate() refuses lead no access out of the operands.
TEST(RoutingCudaFrame, UncheckedBoundaries) {
  std::mt19937 rng(52);
  using merlin = router::merlin<float>;
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{0, 12, 9}, {0, 5, 3, 9}, {-4, 2, 9}, {3, 3, 3}, {0, 9, 9, 2}}) {
    weights_problem<float, boundaries, merlin> p({.B = 2, .T = 9, .HR = 1, .dr = 4}, {.H = 1, .cuts = {0, 4, 9}}, rng);
    p.shape.cuts = bad;
    p.lam = tensor<float, 4>({2, 9, 1, static_cast<std::int64_t>(bad.size()) - 1});
    const device_weights<float, boundaries, merlin> device(p);
    EXPECT_TRUE(check(on_cuda{}, device.args()).ok());
    EXPECT_TRUE(refuses(validate(on_cuda{}, device.args()), error_code::value, "separation.boundaries", "entry"));
    EXPECT_TRUE(on_device(p, device).lam.untouched_outside());
  }
}

// Small ones for the sanitizers.
TYPED_TEST(RoutingCuda, SanitizerForward) {
  std::mt19937 rng(53);
  for_each_router<TypeParam>([&]<class Router>() {
    expect_reference(weights_problem<TypeParam, uniform, Router>(
        {.B = 2, .T = 21, .HR = 1, .dr = 33, .moment_rule = moment_rule::delta, .qkp_l2norm = true},
        {.H = 2, .m = 4, .max_visible = 3}, rng));
  });
  expect_reference(weights_problem<TypeParam, boundaries, router::cumulant<TypeParam>>(
      {.B = 1, .T = 70, .HR = 2, .dr = 6}, {.H = 2, .cuts = {0, 1, 30, 70}}, rng));
}

}  // namespace
}  // namespace polystate::testing
