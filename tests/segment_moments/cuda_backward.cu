// SPDX-License-Identifier: Apache-2.0

// The CUDA backward of segment_moments against the reference.

#include "segment_moments/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <limits>
#include <vector>

namespace polystate::testing {
namespace {

using separation::boundaries;
using separation::uniform;

/// c of the elementwise bound: a derivative is a sum over four tokens at once, and of two passes over a tile.
constexpr double gradient_bound = 16;

template <class Data>
struct device_gradients {
  device_tensor<float, 4> d_mu;
  device_tensor<float, 5> d_Sigma;
  device_key_gradients<Data> keys;

  explicit device_gradients(const moments_gradients<Data>& g) : d_mu(g.d_mu), d_Sigma(g.d_Sigma), keys(g.keys) {}
  [[nodiscard]] segment_moments_grads<Data> views() const {
    return {.d_mu = d_mu.view(), .d_Sigma = d_Sigma.view(), .moments = keys.views()};
  }
};

template <class Data, class Separation>
moments_gradients<Data> backward_on_device(const moments_problem<Data, Separation>& p, moments_gradients<Data> g,
                                           const on_cuda& exec = {}) {
  const device_moments<Data, Separation> device(p);
  const device_gradients<Data> gradients(g);
  auto args = device.args();
  args.mu = {};
  args.Sigma = {};
  segment_moments_backward(exec, args, gradients.views());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  gradients.keys.download(g.keys);
  EXPECT_TRUE(device.keys.unchanged());
  return g;
}

template <class Data, class Separation>
void expect_gradients(const moments_problem<Data, Separation>& p, const moments_gradients<Data>& g) {
  const auto got = backward_on_device(p, g);
  const auto want = run_reference(p.in_double(), g.in_double());
  judge(got.keys, want.value.keys, want.error.keys, gradient_bound);
}

template <class Data>
class SegmentMomentsBackwardCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(SegmentMomentsBackwardCuda, element_types);

// bugs B022, B067, B074, B077: any length, dim, layout, segmentation, rule, option, and any gradient wanted.
TYPED_TEST(SegmentMomentsBackwardCuda, RandomProblems) {
  std::mt19937 rng(31);
  for (int i = 0; i < 40; ++i) {
    const auto run = [&](const auto& p) {
      SCOPED_TRACE("problem " + std::to_string(i) + ", " + describe(p));
      moments_gradients<TypeParam> g(p, rng);
      if (rng() % 6 == 0) g.d_mu = {};
      if (g.d_mu && rng() % 4 == 0) g.d_Sigma = {};
      if (rng() % 6 == 0) g.keys.d_k = {};
      if (rng() % 4 == 0) g.keys.d_g = {};
      if (rng() % 4 == 0) g.keys.d_beta = {};
      expect_gradients(p, g);
    };
    run(random_moments<TypeParam, uniform>(100000, rng));
    run(random_moments<TypeParam, boundaries>(100000, rng));
    if (this->HasFailure()) return;  // one report is enough
  }
}

TYPED_TEST(SegmentMomentsBackwardCuda, LargeDims) {
  std::mt19937 rng(32);
  for (const std::int64_t dr : {200, 256, 500, 512}) {
    SCOPED_TRACE(dr);
    const moments_problem<TypeParam, uniform> p(
        {.B = 1, .T = 5, .HR = 1, .dr = dr, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, rng, 4, {});
    expect_gradients(p, moments_gradients<TypeParam>(p, rng));
  }
}

// bugs B049, B055: g = -inf has no gradient and lets none pass; rows of zeros.
TYPED_TEST(SegmentMomentsBackwardCuda, HardValues) {
  std::mt19937 rng(33);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    moments_problem<TypeParam, uniform> p({.B = 1, .T = 40, .HR = 2, .dr = 12, .moment_rule = rule, .qkp_l2norm = true},
                                          rng, 16, {});
    const std::vector<double> decays = {0, -1e-4, -infinity, -1000, -1, 0, -50, -1e-7};
    std::size_t i = 0;
    p.keys.g.for_each([&](float& x) { x = static_cast<float>(decays[i++ % decays.size()]); });
    for (std::int64_t c = 0; c < 12; ++c) p.keys.k.view()(0, 3, 0, c) = static_cast<TypeParam>(0.0f);
    const moments_gradients<TypeParam> g(p, rng);
    expect_gradients(p, g);
    const auto got = backward_on_device(p, g);
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t r = 0; r < 2; ++r) {
        if (std::isinf(p.keys.g.view()(0, t, r))) {
          EXPECT_EQ(got.keys.d_g.view()(0, t, r), 0.0f);
        }
      }
    }
  }
}

TYPED_TEST(SegmentMomentsBackwardCuda, LongSequences) {
  std::mt19937 rng(34);
  const moments_problem<TypeParam, uniform> p({.B = 1, .T = 9000, .HR = 1, .dr = 4}, rng, 1000, {});
  expect_gradients(p, moments_gradients<TypeParam>(p, rng));
  const moments_problem<TypeParam, uniform> q({.B = 1, .T = 1010, .HR = 1, .dr = 4}, rng, 64, {}, {2, 0, 1000, 1, 7});
  expect_gradients(q, moments_gradients<TypeParam>(q, rng));
}

// bugs B113: same bits every time; the caller's workspace is enough, to the byte.
TYPED_TEST(SegmentMomentsBackwardCuda, SameBitsInTheCallersWorkspace) {
  std::mt19937 rng(35);
  const moments_problem<TypeParam, uniform> p(
      {.B = 2, .T = 70, .HR = 2, .dr = 40, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, rng, 32, {});
  const moments_gradients<TypeParam> g(p, rng);
  const auto once = backward_on_device(p, g);
  const device_moments<TypeParam, uniform> device(p);
  const device_gradients<TypeParam> gradients(g);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args(), gradients.views()));
  expect_bitwise_equal(backward_on_device(p, g, {.workspace = memory.whole()}).keys, once.keys);
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args(), gradients.views()),
                      error_code::workspace, "exec.workspace", "needed"));
}

TYPED_TEST(SegmentMomentsBackwardCuda, GraphReplay) {
  std::mt19937 rng(36);
  const moments_problem<TypeParam, uniform> p({.B = 2, .T = 40, .HR = 2, .dr = 32}, rng, 16, {});
  const moments_gradients<TypeParam> g(p, rng);
  const auto want = backward_on_device(p, g);
  const device_moments<TypeParam, uniform> device(p);
  device_gradients<TypeParam> gradients(g);
  const device_stream stream;
  const captured_graph graph(stream,
                             [&] { segment_moments_backward(stream.exec(), device.args(), gradients.views()); });
  for (int i = 0; i < 2; ++i) {
    gradients.keys.upload(g.keys);  // poison again
    graph.replay(stream);
    auto got = g;
    gradients.keys.download(got.keys);
    expect_bitwise_equal(got.keys, want.keys);
  }
}

// bugs B109, B112: a NaN stays in its segment and head.
TYPED_TEST(SegmentMomentsBackwardCuda, NanStaysInItsSegment) {
  std::mt19937 rng(37);
  moments_problem<TypeParam, uniform> p({.B = 2, .T = 40, .HR = 2, .dr = 8}, rng, 10, {});
  const moments_gradients<TypeParam> g(p, rng);
  const auto clean = backward_on_device(p, g);
  p.keys.k.view()(1, 21, 1, 3) = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = backward_on_device(p, g);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t r = 0; r < 2; ++r) {
        if (b == 1 && t / 10 == 2 && r == 1) continue;
        for (std::int64_t i = 0; i < 8; ++i) {
          ASSERT_EQ(static_cast<float>(spoilt.keys.d_k.view()(b, t, r, i)),
                    static_cast<float>(clean.keys.d_k.view()(b, t, r, i)))
              << b << ' ' << t << ' ' << r;
        }
      }
    }
  }
}

// Small ones for the sanitizers.
TYPED_TEST(SegmentMomentsBackwardCuda, SanitizerBackward) {
  std::mt19937 rng(38);
  const auto run = [&](const auto& p) { expect_gradients(p, moments_gradients<TypeParam>(p, rng)); };
  run(moments_problem<TypeParam, uniform>(
      {.B = 2, .T = 21, .HR = 2, .dr = 20, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, rng, 8, {}));
  run(moments_problem<TypeParam, uniform>({.B = 1, .T = 21, .HR = 2, .dr = 33, .divide_by = divide_by::count}, rng, 4,
                                          {}, {3, 0, 18}));
  run(moments_problem<TypeParam, boundaries>({.B = 2, .T = 21, .HR = 1, .dr = 70}, rng, 1, {0, 5, 6, 21}));
}

// bugs B166: tokens behind the last offset are of no sequence: their gradients are 0.
TYPED_TEST(SegmentMomentsBackwardCuda, RowsOfNoSequence) {
  std::mt19937 rng(39);
  const moments_problem<TypeParam, uniform> whole({.B = 1, .T = 36, .HR = 2, .dr = 12}, rng, 8, {}, {20, 16});
  const moments_gradients<TypeParam> g(whole, rng);
  auto cut = whole;
  cut.cu_seqlens.assign({0, 20, 33});
  EXPECT_TRUE(cleared_from(33, backward_on_device(cut, g).keys.d_k, backward_on_device(whole, g).keys.d_k));
}

}  // namespace
}  // namespace polystate::testing
