// SPDX-License-Identifier: Apache-2.0

// Every router on every separation against scores from directly summed moments, and the choices of top_k.

#include "routing/cases.hpp"
#include "support/compare.hpp"

#include <polystate/reference/routing.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace polystate::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Keys, router operands and the rest of one call.
template <class Data>
struct routing_problem {
  routing_keys<Data> keys;
  router_operands<Data> router;
  std::int64_t max_visible = 0;

  template <class Rng>
  routing_problem(const keys_shape& k, const router_shape& r, Rng& rng, std::int64_t visible = 0)
      : keys(k, rng), router(r, rng), max_visible(visible) {}
};

template <class Data>
struct routing_results {
  tensor<acc_t<Data>, 4> lam, r_mu, r_sigma;
};

template <class Router, class Data, class Separation>
routing_results<Data> run(const routing_problem<Data>& p, const Separation& separation) {
  const auto& s = p.router.options;
  const std::int64_t L = separation.count(s.T);
  routing_results<Data> out;
  out.lam = tensor<acc_t<Data>, 4>({s.B, s.T, s.H, L});
  if (Router::reads_moments) out.r_mu = tensor<acc_t<Data>, 4>({s.B, s.T, s.HR, L});
  if (Router::reads_Sigma) out.r_sigma = tensor<acc_t<Data>, 4>({s.B, s.T, s.HR, L});
  routing_args<Data, Separation, Router> args{.separation = separation,
                                              .router = router_of<Router>::view(p.router, false),
                                              .lam = out.lam.view(),
                                              .r_mu = out.r_mu.view(),
                                              .r_sigma = out.r_sigma.view(),
                                              .max_visible = p.max_visible};
  if (Router::reads_moments) args.moments = p.keys.view();
  routing(on_reference{}, args);
  EXPECT_TRUE(out.lam.untouched_outside() && out.r_mu.untouched_outside() && out.r_sigma.untouched_outside());
  return out;
}

/// run() against direct sums.
template <class Router, class Separation>
void expect_definition(const routing_problem<double>& p, const Separation& separation) {
  const auto got = run<Router>(p, separation);
  const auto& s = p.router.options;
  const auto segments = segments_of(separation, s.T);
  const auto L = static_cast<std::int64_t>(segments.size());
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t t = 0; t < s.T; ++t) {
      for (std::int64_t h = 0; h < s.H; ++h) {
        const std::int64_t r = h / (s.H / s.HR);
        const auto scores = direct_scores<Router>(p.keys, p.router, segments, b, t, r, p.max_visible);
        const auto want = direct_weights<Router>::of(p.router, scores, b, t, h);
        for (std::int64_t l = 0; l < L; ++l) {
          const bool sees = l >= scores.first && l < scores.first + static_cast<std::int64_t>(want.size());
          const auto at = static_cast<std::size_t>(l - scores.first);
          const auto where = [&] {
            return "b " + std::to_string(b) + " t " + std::to_string(t) + " h " + std::to_string(h) + " l " +
                   std::to_string(l);
          };
          ASSERT_NEAR(got.lam.view()(b, t, h, l), sees ? want[at] : 0, 1e-12) << where();
          if (got.r_mu) {
            ASSERT_NEAR(got.r_mu.view()(b, t, r, l), sees ? scores.r_mu[at] : 0, 1e-12) << where();
          }
          if (got.r_sigma) {
            ASSERT_NEAR(got.r_sigma.view()(b, t, r, l), sees ? scores.r_sigma[at] : 0, 1e-12) << where();
          }
        }
      }
    }
  }
}

template <class Router>
class EveryRouter : public ::testing::Test {};
struct router_names {
  template <class Router>
  static std::string GetName(int) {
    return router_of<Router>::name();
  }
};
template <class Router>
using k_of = router::top_k<Router>;
using routers =
    ::testing::Types<router::uniform, router::position<double>, router::meanpool<double>, router::merlin<double>,
                     router::cumulant<double>, k_of<router::uniform>, k_of<router::position<double>>,
                     k_of<router::meanpool<double>>, k_of<router::merlin<double>>, k_of<router::cumulant<double>>>;
TYPED_TEST_SUITE(EveryRouter, routers, router_names);

const std::vector<std::int32_t> cuts = {0, 1, 4, 6, 11};
const separation::boundaries four_segments{{cuts.data(), {5}}};

TYPED_TEST(EveryRouter, Definition) {
  std::mt19937 rng(1);
  for (const std::int64_t max_visible : {0, 1, 2, 3, 50}) {
    SCOPED_TRACE(max_visible);
    const routing_problem<double> p({}, {}, rng, max_visible);
    for (const std::int64_t m : {1, 3, 4, 11, 20}) expect_definition<TypeParam>(p, separation::uniform{m});
    expect_definition<TypeParam>(p, four_segments);
  }
}

TYPED_TEST(EveryRouter, Options) {
  std::mt19937 rng(2);
  for (const auto index : {position_index::age, position_index::absolute}) {
    for (const auto norm : {position_norm::softmax, position_norm::none}) {
      for (const std::int64_t k : {1, 2, 3}) {
        for (const bool keep_current : {false, true}) {
          const routing_problem<double> p(
              {}, {.position_index = index, .position_norm = norm, .k = k, .keep_current = keep_current}, rng, 4);
          expect_definition<TypeParam>(p, separation::uniform{2});
        }
      }
    }
  }
  for (const auto rule : {moment_rule::plain, moment_rule::decay_write, moment_rule::delta}) {
    for (const bool l2norm : {false, true}) {
      const routing_problem<double> p({.moment_rule = rule, .qkp_l2norm = l2norm}, {}, rng);
      expect_definition<TypeParam>(p, separation::uniform{3});
      expect_definition<TypeParam>(p, four_segments);
    }
  }
  const routing_problem<double> count({.divide_by = divide_by::count}, {}, rng);
  expect_definition<TypeParam>(count, separation::uniform{3});
  expect_definition<TypeParam>(count, four_segments);
  for (const std::int64_t HR : {1, 4}) {  // shared by all heads, and one each
    const routing_problem<double> p({.HR = HR}, {.HR = HR}, rng);
    expect_definition<TypeParam>(p, separation::uniform{3});
  }
}

TYPED_TEST(EveryRouter, WeightsSumToOneOverTheVisible) {
  std::mt19937 rng(3);
  const routing_problem<double> p({}, {}, rng, 3);
  const auto lam = run<TypeParam>(p, separation::uniform{2}).lam;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 11; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        double sum = 0;
        for (std::int64_t l = 0; l < 6; ++l) {
          sum += lam.view()(b, t, h, l);
          const bool sees = l <= t / 2 && l >= t / 2 - 2;
          EXPECT_EQ(lam.view()(b, t, h, l) != 0 && !sees, false);
        }
        EXPECT_NEAR(sum, 1, 1e-14);
      }
    }
  }
}

TYPED_TEST(EveryRouter, ZeroTokensAndOneToken) {
  std::mt19937 rng(4);
  EXPECT_TRUE(
      run<TypeParam>(routing_problem<double>({.T = 0}, {.T = 0}, rng), separation::uniform{3}).lam.values().empty());
  const auto one = run<TypeParam>(routing_problem<double>({.T = 1}, {.T = 1}, rng), separation::uniform{3});
  for (const double w : one.lam.values()) EXPECT_EQ(w, 1);
}

// The choice is over what is visible: k of at least that many changes no bit.
TYPED_TEST(EveryRouter, TopKOfAllChangesNothing) {
  std::mt19937 rng(5);
  if constexpr (!is_top_k<TypeParam>) {
    for (const auto norm : {position_norm::softmax, position_norm::none}) {
      for (const bool keep_current : {false, true}) {
        const routing_problem<double> p({}, {.position_norm = norm, .k = 6, .keep_current = keep_current}, rng);
        EXPECT_TRUE(bitwise_equal(run<TypeParam>(p, separation::uniform{2}).lam,
                                  run<router::top_k<TypeParam>>(p, separation::uniform{2}).lam));
      }
    }
  }
}

// Computed in double and rounded once, for every type: the double run, rounded.
template <class Data>
class RoutingTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(RoutingTyped, data_types);

TYPED_TEST(RoutingTyped, RoundsOnce) {
  using acc = acc_t<TypeParam>;
  std::mt19937 rng(6);
  const routing_problem<TypeParam> p({.moment_rule = moment_rule::delta, .qkp_l2norm = true}, {}, rng);
  std::mt19937 unused;
  routing_problem<double> d({.B = 0}, {.B = 0}, unused);
  d.keys = p.keys.in_double();
  d.router = p.router.in_double();
  const separation::uniform m3{3};
  const auto got = run<router::top_k<router::merlin<TypeParam>>>(p, m3);
  const auto want = run<router::top_k<router::merlin<double>>>(d, m3);
  EXPECT_TRUE(bitwise_equal(got.lam, convert<acc>(want.lam)));
  EXPECT_TRUE(bitwise_equal(got.r_mu, convert<acc>(want.r_mu)));
  EXPECT_TRUE(bitwise_equal(got.r_sigma, convert<acc>(want.r_sigma)));
}

// Sharp scores: the largest takes all, without overflow; near-equal scores: the share is nearly equal.
TEST(RoutingReference, SharpAndNearEqualScores) {
  std::mt19937 rng(7);
  routing_problem<double> p({.B = 1}, {.B = 1}, rng);
  p.router.tau_mu.for_each([](double& x) { x = 1e6; });
  p.router.gamma.for_each([](double& x) { x = 1; });
  const separation::uniform m3{3};
  auto out = run<router::merlin<double>>(p, m3);
  for (std::int64_t t = 0; t < 11; ++t) {
    for (std::int64_t h = 0; h < 4; ++h) {
      std::int64_t best = 0;
      for (std::int64_t l = 0; l <= t / 3; ++l) {
        if (out.r_mu.view()(0, t, h / 2, l) > out.r_mu.view()(0, t, h / 2, best)) best = l;
      }
      for (std::int64_t l = 0; l < 4; ++l) EXPECT_NEAR(out.lam.view()(0, t, h, l), l == best ? 1 : 0, 1e-12);
    }
  }
  p.router.tau_mu.for_each([](double& x) { x = 1e-9; });
  out = run<router::merlin<double>>(p, m3);
  for (std::int64_t l = 0; l < 4; ++l) EXPECT_NEAR(out.lam.view()(0, 10, 0, l), 0.25, 1e-8);
}

/// Raw weights of one token that sees n segments, chosen from.
std::vector<double> choose(const std::vector<double>& weights, std::int64_t k, bool keep_current = false,
                           position_norm norm = position_norm::none) {
  const auto n = static_cast<std::int64_t>(weights.size());
  std::vector<double> all(static_cast<std::size_t>(n * n), 1.0);  // tokens before the last: anything
  std::copy(weights.begin(), weights.end(), all.end() - n);
  std::vector<double> lam(all.size(), nan);
  using router_type = router::top_k<router::position<double>>;
  routing(on_reference{}, routing_args<double, separation::uniform, router_type>{
                              .separation = {1},
                              .router = {.of = {.weights = {all.data(), {1, n, 1, n}},
                                                .position_index = position_index::absolute,
                                                .position_norm = norm},
                                         .k = k,
                                         .keep_current = keep_current},
                              .lam = {lam.data(), {1, n, 1, n}}});
  return {lam.end() - n, lam.end()};
}

using values = std::vector<double>;

TEST(RoutingReference, TopKByHand) {
  EXPECT_EQ(choose({4, 1, 3, 2}, 1), (values{1, 0, 0, 0}));
  EXPECT_EQ(choose({5, 1, 3, 2}, 2), (values{0.625, 0, 0.375, 0}));
  EXPECT_EQ(choose({5, 1, 3, 2}, 2, true), (values{5.0 / 7, 0, 0, 2.0 / 7}));
  EXPECT_EQ(choose({5, 1, 3, 2}, 1, true), (values{0, 0, 0, 1}));
  EXPECT_EQ(choose({2, 2, 2, 2}, 2), (values{0, 0, 0.5, 0.5}));  // ties: the more recent
  EXPECT_EQ(choose({2, 2, 2, 1}, 2, true), (values{0, 0, 2.0 / 3, 1.0 / 3}));
  EXPECT_EQ(choose({-1, -2, -3, -5}, 1), (values{1, 0, 0, 0}));  // raw weights may have any sign
  EXPECT_EQ(choose({5, 1, 3, 2}, 4), (values{5, 1, 3, 2}));      // nothing chosen, nothing divided
  EXPECT_EQ(choose({0, 0, 0, 0}, 4), (values{0, 0, 0, 0}));
}

// bugs B131: NaN scores; the chosen segments stay distinct, as many as k, and NaN.
TEST(RoutingReference, NanScoresChooseDistinctSegments) {
  const auto kept = [](const values& lam) {
    std::int64_t count = 0;
    for (const double x : lam) count += std::isnan(x) ? 1 : 0;
    return count;
  };
  for (std::int64_t k = 1; k < 4; ++k) {
    for (const bool keep_current : {false, true}) {
      EXPECT_EQ(kept(choose({nan, nan, nan, nan}, k, keep_current)), k);
      EXPECT_EQ(kept(choose({1, 2, 3, nan}, k, keep_current)), k);
      EXPECT_EQ(kept(choose({3, nan, 1, 2}, k, keep_current, position_norm::softmax)), k);
    }
    for (const values& weights : {values{nan, 1, 2, 3}, values{3, nan, 1, 2}, values{3, 2, nan, 1}})
      EXPECT_EQ(kept(choose(weights, k)), k);
  }
  // a NaN is chosen before any number, and the numbers after it in their order
  const auto lam = choose({9, nan, 1, 2}, 2);
  EXPECT_TRUE(std::isnan(lam[0]) && std::isnan(lam[1]));
  EXPECT_EQ(lam[2], 0);
  EXPECT_EQ(lam[3], 0);
}

// A NaN query spoils the heads of its moment head, of its token, and nothing else.
TEST(RoutingReference, NanStaysInItsTokenAndHeads) {
  std::mt19937 rng(8);
  routing_problem<double> p({}, {}, rng);
  p.router.q.view()(1, 5, 1, 0) = nan;
  const auto lam = run<router::merlin<double>>(p, separation::uniform{3}).lam;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 11; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(std::isnan(lam.view()(b, t, h, 0)), b == 1 && t == 5 && h >= 2);
    }
  }
}

// Weights of segments that a token does not see are not read.
TEST(RoutingReference, UnusedWeightsAreNotRead) {
  std::mt19937 rng(9);
  for (const auto index : {position_index::age, position_index::absolute}) {
    routing_problem<double> p({.B = 1}, {.B = 1, .position_index = index}, rng, 2);
    const auto before = run<router::position<double>>(p, separation::uniform{3});
    for (std::int64_t t = 0; t < 11; ++t) {
      for (std::int64_t a = 0; a < 12; ++a) {
        const std::int64_t l = index == position_index::age ? t / 3 - a : a;
        if (l > t / 3 || l < 0 || l < t / 3 - 1) {
          for (std::int64_t h = 0; h < 4; ++h) p.router.weights.view()(0, t, h, a) = nan;
        }
      }
    }
    EXPECT_TRUE(bitwise_equal(before.lam, run<router::position<double>>(p, separation::uniform{3}).lam));
  }
}

}  // namespace
}  // namespace polystate::testing
