// SPDX-License-Identifier: Apache-2.0

// The CUDA backward of routing against the reference.

#include "routing/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

using separation::boundaries;
using separation::uniform;

/// c of the elementwise bound: a derivative is a sum over four tokens at once, and of several passes.
constexpr double gradient_bound = 16;

/// Calls f(name, member of a, member of b ..) for each gradient of a router's operands.
template <class F, class... Gradients>
void for_each_router_gradient(F&& f, Gradients&... g) {
  f("d_q", g.d_q...);
  f("d_weights", g.d_weights...);
  f("d_gamma", g.d_gamma...);
  f("d_tau_mu", g.d_tau_mu...);
  f("d_tau_sigma", g.d_tau_sigma...);
  f("d_delta", g.d_delta...);
}

template <class Data>
struct device_router_gradients {
  device_tensor<Data, 4> d_q;
  device_tensor<float, 4> d_weights;
  device_tensor<float, 3> d_gamma;
  device_tensor<float, 1> d_tau_mu, d_tau_sigma, d_delta;

  explicit device_router_gradients(const router_gradients<Data>& g)
      : d_q(g.d_q),
        d_weights(g.d_weights),
        d_gamma(g.d_gamma),
        d_tau_mu(g.d_tau_mu),
        d_tau_sigma(g.d_tau_sigma),
        d_delta(g.d_delta) {}
};

template <class Data, class Router>
struct device_gradients {
  device_tensor<float, 4> d_lam;
  device_key_gradients<Data> keys;
  device_router_gradients<Data> router;

  explicit device_gradients(const weights_gradients<Data, Router>& g)
      : d_lam(g.d_lam), keys(g.keys), router(g.router) {}
  [[nodiscard]] routing_grads<Data, Router> views() const {
    return {.d_lam = d_lam.view(), .moments = keys.views(), .router = gradients_of_router<Router>::view(router)};
  }
  void download(weights_gradients<Data, Router>& g) const {
    keys.download(g.keys);
    for_each_router_gradient([](const char*, const auto& from, auto& to) { from.download(to); }, router, g.router);
  }
  /// Fresh gradients.
  void poison(weights_gradients<Data, Router>& g) {
    keys.upload(g.keys);
    for_each_router_gradient([](const char*, auto& to, auto& from) { to.upload(from); }, router, g.router);
  }
};

template <class Data, class Separation, class Router>
weights_gradients<Data, Router> backward_on_device(const weights_problem<Data, Separation, Router>& p,
                                                   weights_gradients<Data, Router> g, const on_cuda& exec = {}) {
  const device_weights<Data, Separation, Router> device(p);
  const device_gradients<Data, Router> gradients(g);
  auto args = device.args();
  args.lam = args.r_mu = args.r_sigma = {};
  routing_backward(exec, args, gradients.views());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  gradients.download(g);
  EXPECT_TRUE(device.keys.unchanged());
  EXPECT_TRUE(device.router.unchanged());
  return g;
}

/// No derivative where top_k's choice is close: it would be another choice's.
template <class Data, class Separation, class Router>
void clear_close_choices(const weights_problem<Data, Separation, Router>& p, tensor<float, 4>& d_lam) {
  const auto close = close_choices(p.in_double());
  for (std::int64_t b = 0; b < close.extents()[0]; ++b) {
    for (std::int64_t t = 0; t < close.extents()[1]; ++t) {
      for (std::int64_t h = 0; h < close.extents()[2]; ++h) {
        if (close.view()(b, t, h) == 0) continue;
        for (std::int64_t l = 0; l < d_lam.extents()[3]; ++l) d_lam.view()(b, t, h, l) = 0;
      }
    }
  }
}

template <class Data, class Separation, class Router>
void expect_gradients(const weights_problem<Data, Separation, Router>& p, weights_gradients<Data, Router> g) {
  clear_close_choices(p, g.d_lam);
  auto got = backward_on_device(p, g);
  auto want = run_reference(p.in_double(), convert<double>(g.d_lam));
  judge(got.keys, want.value.keys, want.error.keys, gradient_bound);
  for_each_router_gradient(
      [](const char* name, const auto& x, const auto& value, const auto& error) {
        if (x) EXPECT_TRUE(within_elementwise_bound(x, value, error, gradient_bound)) << name;
        EXPECT_TRUE(x.untouched_outside()) << name;
      },
      got.router, want.value.router, want.error.router);
}

template <class Data, class Router>
void expect_bitwise_equal(weights_gradients<Data, Router>& a, weights_gradients<Data, Router>& b) {
  expect_bitwise_equal(a.keys, b.keys);
  for_each_router_gradient(
      [](const char* name, const auto& x, const auto& y) { EXPECT_TRUE(bitwise_equal(x, y)) << name; }, a.router,
      b.router);
}

template <class Data>
class RoutingBackwardCuda : public ::testing::Test {
 protected:
  using merlin = router::merlin<Data>;
  using problem = weights_problem<Data, uniform, merlin>;
  using gradients = weights_gradients<Data, merlin>;
};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(RoutingBackwardCuda, element_types);

// bugs B022, B067, B074, B077: any length, dim, layout, grouping, segmentation, rule, router, option, and any of the
// gradients wanted.
TYPED_TEST(RoutingBackwardCuda, RandomProblems) {
  std::mt19937 rng(61);
  for (int i = 0; i < 6; ++i) {
    for_each_router<TypeParam>([&]<class Router>() {
      if (this->HasFailure()) return;  // one report is enough
      const auto run = [&](const auto& p) {
        SCOPED_TRACE("problem " + std::to_string(i) + ", " + describe(p));
        weights_gradients<TypeParam, Router> g(p, rng);
        if (rng() % 4 == 0) g.keys.d_k = {};
        if (rng() % 4 == 0) g.keys.d_g = {};
        if (rng() % 4 == 0) g.keys.d_beta = {};
        if (rng() % 4 == 0) g.router.d_q = {};
        if (rng() % 4 == 0) g.router.d_weights = {};
        if (rng() % 4 == 0) g.router.d_gamma = {};
        if (rng() % 4 == 0) g.router.d_tau_mu = {};
        if (rng() % 4 == 0) g.router.d_tau_sigma = {};
        if (rng() % 4 == 0) g.router.d_delta = {};
        expect_gradients(p, g);
      };
      run(random_weights<TypeParam, uniform, Router>(60000, rng));
      if (i % 3 == 0) run(random_weights<TypeParam, boundaries, Router>(60000, rng));
    });
  }
}

TYPED_TEST(RoutingBackwardCuda, LargeDims) {
  std::mt19937 rng(62);
  for (const std::int64_t dr : {200, 300, 512}) {
    SCOPED_TRACE(dr);
    const typename TestFixture::problem p(
        {.B = 1, .T = 5, .HR = 1, .dr = dr, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, {.H = 2, .m = 2},
        rng);
    expect_gradients(p, typename TestFixture::gradients(p, rng));
  }
}

// More segments than a block scores, windows that begin inside a tile of tokens, and batch entries that share one.
TYPED_TEST(RoutingBackwardCuda, ManySegments) {
  std::mt19937 rng(63);
  for (const std::int64_t max_visible : {0, 5}) {
    const auto run = [&]<class Router>() {
      const weights_shape w{.H = 2, .m = 3, .max_visible = max_visible};
      SCOPED_TRACE(router_of<Router>::name() + ", max_visible " + std::to_string(max_visible));
      const weights_problem<TypeParam, uniform, Router> p({.B = 2, .T = 145, .HR = 1, .dr = 6}, w, rng);
      expect_gradients(p, weights_gradients<TypeParam, Router>(p, rng));
      const weights_problem<TypeParam, uniform, Router> q({.B = 9, .T = 11, .HR = 2, .dr = 6}, w, rng);
      expect_gradients(q, weights_gradients<TypeParam, Router>(q, rng));
    };
    run.template operator()<router::meanpool<TypeParam>>();
    run.template operator()<router::merlin<TypeParam>>();
    run.template operator()<router::top_k<router::cumulant<TypeParam>>>();
  }
}

// bugs B109: upstream derivatives of what a token does not see do not count, NaN or not; what tokens share is 0 of
// none.
TYPED_TEST(RoutingBackwardCuda, UnseenAndNoTokens) {
  std::mt19937 rng(64);
  const typename TestFixture::problem p({.B = 1, .T = 20, .HR = 1, .dr = 8}, {.H = 1, .m = 4, .max_visible = 2}, rng);
  typename TestFixture::gradients g(p, rng);
  auto clean = backward_on_device(p, g);
  for (std::int64_t t = 0; t < 20; ++t) {
    for (std::int64_t l = 0; l < 5; ++l) {
      if (l > t / 4 || l + 2 <= t / 4) g.d_lam.view()(0, t, 0, l) = std::numeric_limits<float>::quiet_NaN();
    }
  }
  auto got = backward_on_device(p, g);
  expect_bitwise_equal(got, clean);

  const typename TestFixture::problem none({.B = 2, .T = 0, .HR = 2, .dr = 8}, {.H = 2, .m = 4}, rng);
  const auto zeros = backward_on_device(none, typename TestFixture::gradients(none, rng));
  EXPECT_EQ(zeros.router.d_tau_mu.values(), (std::vector<float>{0, 0}));
  EXPECT_EQ(zeros.router.d_tau_sigma.values(), (std::vector<float>{0, 0}));
}

// bugs B049, B055: g = -inf has no gradient and lets none pass.
TYPED_TEST(RoutingBackwardCuda, HardDecays) {
  std::mt19937 rng(65);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    typename TestFixture::problem p({.B = 1, .T = 40, .HR = 1, .dr = 12, .moment_rule = rule, .qkp_l2norm = true},
                                    {.H = 1, .m = 16}, rng);
    const std::vector<double> decays = {0, -1e-4, -infinity, -1000, -1, 0, -50, -1e-7};
    std::size_t i = 0;
    p.keys.g.for_each([&](float& x) { x = static_cast<float>(decays[i++ % decays.size()]); });
    expect_gradients(p, typename TestFixture::gradients(p, rng));
  }
}

// bugs B113: same bits every time; the caller's workspace is enough, to the byte.
TYPED_TEST(RoutingBackwardCuda, SameBitsInTheCallersWorkspace) {
  std::mt19937 rng(66);
  const typename TestFixture::problem p(
      {.B = 2, .T = 70, .HR = 2, .dr = 40, .moment_rule = moment_rule::delta, .qkp_l2norm = true}, {.H = 4, .m = 8},
      rng);
  const typename TestFixture::gradients g(p, rng);
  auto once = backward_on_device(p, g);
  const device_weights<TypeParam, uniform, typename TestFixture::merlin> device(p);
  const device_gradients<TypeParam, typename TestFixture::merlin> gradients(g);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args(), gradients.views()));
  auto again = backward_on_device(p, g, {.workspace = memory.whole()});
  expect_bitwise_equal(again, once);
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args(), gradients.views()),
                      error_code::workspace, "exec.workspace", "needed"));
}

TYPED_TEST(RoutingBackwardCuda, GraphReplay) {
  std::mt19937 rng(67);
  const typename TestFixture::problem p({.B = 2, .T = 40, .HR = 2, .dr = 32, .qkp_l2norm = true}, {.H = 2, .m = 8},
                                        rng);
  typename TestFixture::gradients g(p, rng);
  auto want = backward_on_device(p, g);
  const device_weights<TypeParam, uniform, typename TestFixture::merlin> device(p);
  device_gradients<TypeParam, typename TestFixture::merlin> gradients(g);
  const device_stream stream;
  const captured_graph graph(stream, [&] { routing_backward(stream.exec(), device.args(), gradients.views()); });
  for (int i = 0; i < 2; ++i) {
    gradients.poison(g);
    graph.replay(stream);
    auto got = g;
    gradients.download(got);
    expect_bitwise_equal(got, want);
  }
}

// Small ones for the sanitizers.
TYPED_TEST(RoutingBackwardCuda, SanitizerBackward) {
  std::mt19937 rng(68);
  for_each_router<TypeParam>([&]<class Router>() {
    const weights_problem<TypeParam, uniform, Router> p(
        {.B = 2, .T = 21, .HR = 1, .dr = 33, .moment_rule = moment_rule::delta, .qkp_l2norm = true},
        {.H = 2, .m = 4, .max_visible = 3}, rng);
    expect_gradients(p, weights_gradients<TypeParam, Router>(p, rng));
  });
  const weights_problem<TypeParam, boundaries, router::cumulant<TypeParam>> p({.B = 1, .T = 70, .HR = 2, .dr = 6},
                                                                              {.H = 2, .cuts = {0, 1, 30, 70}}, rng);
  expect_gradients(p, weights_gradients<TypeParam, router::cumulant<TypeParam>>(p, rng));
}

}  // namespace
}  // namespace polystate::testing
