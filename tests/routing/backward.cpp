// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "routing/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/routing.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;
using separation::boundaries;
using separation::uniform;
constexpr double infinity = std::numeric_limits<double>::infinity();

template <class Data, class Separation, class Router>
struct problem_and_gradients {
  weights_problem<Data, Separation, Router> p;
  weights_gradients<Data, Router> g;

  explicit problem_and_gradients(const keys_shape& keys, const weights_shape& weights = {}) {
    std::mt19937 rng(1);
    p = weights_problem<Data, Separation, Router>(keys, weights, rng);
    g = weights_gradients<Data, Router>(p, rng);
  }
  void run() { routing_backward(on_reference{}, p.args(), g.views()); }
  void expect(const std::string& what) const { expect_gradients(p, g, what); }
};

template <class Separation, class Router>
struct pair {
  using separation_type = Separation;
  using router_type = Router;
};

template <class Pair>
class RoutingBackward : public ::testing::Test {
 protected:
  template <class Data>
  using problem = problem_and_gradients<Data, typename Pair::separation_type, typename Pair::router_type>;
};
struct pair_names {
  template <class Pair>
  static std::string GetName(int) {
    return std::string(Pair::separation_type::name) + "_" + router_of<typename Pair::router_type>::name();
  }
};

using position = router::position<double>;
using meanpool = router::meanpool<double>;
using merlin = router::merlin<double>;
using cumulant = router::cumulant<double>;
template <class Router>
using k = router::top_k<Router>;
using pairs = ::testing::Types<pair<uniform, router::uniform>, pair<uniform, position>, pair<uniform, meanpool>,
                               pair<uniform, merlin>, pair<uniform, cumulant>, pair<uniform, k<router::uniform>>,
                               pair<uniform, k<position>>, pair<uniform, k<meanpool>>, pair<uniform, k<merlin>>,
                               pair<uniform, k<cumulant>>, pair<boundaries, position>, pair<boundaries, meanpool>,
                               pair<boundaries, merlin>, pair<boundaries, k<cumulant>>>;
TYPED_TEST_SUITE(RoutingBackward, pairs, pair_names);

/// Four segments of two tokens, the last one open: more than top_k keeps.
const keys_shape small{.B = 2, .T = 7, .HR = 1, .dr = 2};

TYPED_TEST(RoutingBackward, EveryOption) {
  using problem = typename TestFixture::template problem<double>;
  problem(small).expect("base");
  for (const std::int64_t w : {1, 2, 3}) {
    problem(small, {.max_visible = w, .keep_current = w == 3}).expect("max_visible " + std::to_string(w));
  }
  problem(small, {.keep_current = true}).expect("keep_current");
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    auto keys = small;
    keys.moment_rule = rule;
    problem(keys).expect("rule");
    keys.qkp_l2norm = true;
    problem(keys).expect("rule, normalised");
  }
  auto keys = small;
  keys.qkp_l2norm = true;
  problem(keys).expect("normalised");
  keys.divide_by = divide_by::count;
  problem(keys).expect("count, normalised");
  keys.qkp_l2norm = false;
  problem(keys).expect("count");
  for (const std::int64_t m : {1, 7, 64}) problem(small, {.m = m}).expect("m " + std::to_string(m));
}

TYPED_TEST(RoutingBackward, MomentHeadsSharedByAGroup) {
  using problem = typename TestFixture::template problem<double>;
  auto keys = small;
  keys.HR = 2;
  problem(keys, {.H = 2}).expect("one each");
  problem(keys, {.H = 4}).expect("two heads a moment head");
  problem(small, {.H = 3}).expect("one for all");
}

TYPED_TEST(RoutingBackward, PositionWeights) {
  using problem = typename TestFixture::template problem<double>;
  for (const auto index : {position_index::age, position_index::absolute}) {
    for (const auto norm : {position_norm::softmax, position_norm::none}) {
      for (const std::int64_t w : {0, 2}) {
        problem(small, {.max_visible = w, .position_index = index, .position_norm = norm}).expect("position");
      }
    }
  }
}

TYPED_TEST(RoutingBackward, ShortSequences) {
  using problem = typename TestFixture::template problem<double>;
  for (std::int32_t T = 0; T < 4; ++T) {
    auto keys = small;
    keys.T = T;
    problem(keys, {.cuts = T > 0 ? std::vector<std::int32_t>{0, T} : std::vector<std::int32_t>{0}})
        .expect("T " + std::to_string(T));
  }
}

TYPED_TEST(RoutingBackward, Independent) {
  typename TestFixture::template problem<double> c(small);
  expect_gradients_independent(c.p, c.g);
}

// Derivatives of weights that a token does not see do not count.
TYPED_TEST(RoutingBackward, UnseenWeights) {
  typename TestFixture::template problem<double> c(small, {.m = 1, .max_visible = 1, .cuts = {0, 1, 2, 3, 4, 5, 6, 7}});
  c.run();
  const auto want = gradients_of(c.p, c.g);
  const auto d_lam = c.g.d_lam.view();
  for (std::int64_t t = 0; t < 7; ++t) {
    for (std::int64_t l = 0; l < 7; ++l) {
      if (l != t) d_lam(0, t, 1, l) = 1e6;
    }
  }
  c.run();
  expect_same_gradients(gradients_of(c.p, c.g), want, "unseen");
}

// Gates at the ends of their range, and what is forgotten whole.
TYPED_TEST(RoutingBackward, ExtremeGates) {
  if constexpr (TypeParam::router_type::reads_moments) {
    for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
      auto keys = small;
      keys.moment_rule = rule;
      for (const double g : {-1000.0, -infinity}) {
        for (const double beta : {0.0, 2.0}) {
          typename TestFixture::template problem<double> c(keys);
          c.p.keys.g.assign(values(14, g));
          c.p.keys.beta.assign(values(14, beta));
          // Where beta = 0 all moments are 0, so all weights are equal, and top_k's choice is a tie.
          if (is_top_k<typename TypeParam::router_type> && beta == 0) {
            c.run();
            for (const auto& d : gradients_of(c.p, c.g)) {
              for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << d.name;
            }
          } else {
            c.expect("g " + std::to_string(g) + ", beta " + std::to_string(beta));
          }
        }
      }
    }
  }
}

TYPED_TEST(RoutingBackward, ZeroRows) {
  if constexpr (TypeParam::router_type::reads_moments) {
    auto keys = small;
    keys.qkp_l2norm = true;
    typename TestFixture::template problem<double> c(keys);
    auto rows = c.p.keys.k.values();
    rows[6] = rows[7] = 0;
    c.p.keys.k.assign(rows);
    c.p.router.q.assign(rows);
    expect_dual_derivatives(c.p, c.g, "zero rows");
    auto args = c.p.args();
    args.moments.l2norm_eps = 0;
    routing_backward(on_reference{}, args, c.g.views());
    EXPECT_EQ(c.g.keys.d_k.values()[6], 0);
    for (const auto& d : gradients_of(c.p, c.g)) {
      for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << d.name;
    }
  }
}

// Scores so far apart that the softmax is all or nothing.
TYPED_TEST(RoutingBackward, SharpScores) {
  typename TestFixture::template problem<double> c(small);
  fill(c.p.router.tau_mu, 1e6);
  fill(c.p.router.tau_sigma, 1e6);
  fill(c.p.router.delta, 1e3);
  c.run();
  for (const auto& d : gradients_of(c.p, c.g)) {
    for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << d.name;
  }
}

// lam = softmax over two segments of one token each, by weights 0 and log 3: 1/4 and 3/4. The first token sees one.
TEST(RoutingBackwardByHand, Position) {
  problem_and_gradients<double, uniform, position> c({.B = 1, .T = 2}, {.H = 1, .m = 1});
  c.p.router.weights.assign({7, 7, 7, std::log(3.0), 0, 7});  // by age: the current segment first
  c.g.d_lam.assign({1, 5, 1, 0});
  c.run();
  const values want = {0, 0, 0, -0.1875, 0.1875, 0};
  const auto got = c.g.router.d_weights.values();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-16) << i;
}

// Raw weights 1, 2, 5 of three segments, two kept: y = (2, 5)/7, the first one has no gradient.
TEST(RoutingBackwardByHand, TopKDivides) {
  problem_and_gradients<double, uniform, k<position>> c(
      {.B = 1, .T = 3},
      {.H = 1, .m = 1, .position_index = position_index::absolute, .position_norm = position_norm::none});
  c.p.router.weights.assign({1, 0, 0, 0, 1, 1, 0, 0, 1, 2, 5, 9});
  c.g.d_lam.assign({0, 0, 0, 0, 0, 0, 100, 49, 0});
  c.run();
  const values want = {0, 0, 0, 0, 0, 0, 0, 0, 0, 5, -2, 0};
  const auto got = c.g.router.d_weights.values();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << i;
}

// One segment: its weight is 1 whatever scores it, so nothing has a gradient.
TEST(RoutingBackwardByHand, OneSegment) {
  problem_and_gradients<double, uniform, merlin> c(small, {.m = 64});
  c.run();
  for (const auto& d : gradients_of(c.p, c.g)) {
    for (const double x : d.values) EXPECT_NEAR(x, 0, 1e-15) << d.name;
  }
}

template <class Router>
void expect_refusals(const std::string& member, const std::string& text) {
  auto keys = small;
  keys.moment_rule = Router::reads_moments ? moment_rule::delta : moment_rule::plain;
  problem_and_gradients<double, uniform, Router> c(keys);
  EXPECT_TRUE(check(c.p.args(), c.g.views()).ok()) << check(c.p.args(), c.g.views()).message();
  c.g.router.for_each(c.p.router, [&](const char*, const auto&, auto& gradient) {
    if (!gradient) return;
    const auto whole = gradient;
    auto extents = gradient.extents();
    --extents.back();
    gradient = std::remove_reference_t<decltype(gradient)>(extents);
    const status s = check(c.p.args(), c.g.views());
    if (s.argument == member) {
      EXPECT_TRUE(refuses(s, error_code::shape, member, text));
    }
    EXPECT_EQ(s.code, error_code::shape);
    EXPECT_TRUE(s.argument.starts_with("router.d_")) << s.argument;
    EXPECT_THROW(c.run(), argument_error);
    gradient = whole;
    EXPECT_TRUE(all_are(gradient.view(), std::nan("")));
  });
  auto grads = c.g.views();
  grads.d_lam = {};
  EXPECT_TRUE(refuses(check(c.p.args(), grads), error_code::missing, "d_lam", "routing_backward"));
  grads = c.g.views();
  grads.d_lam = grads.d_lam.slice(3, 0, 2);
  EXPECT_TRUE(refuses(check(c.p.args(), grads), error_code::shape, "d_lam", "the number of segments, 4"));
}

TEST(RoutingBackwardRefusals, EveryRouter) {
  expect_refusals<router::uniform>("", "");
  expect_refusals<position>("router.d_weights", "(B, T, H, A)");
  expect_refusals<meanpool>("router.d_u", "(B, T, HR, dr)");
  expect_refusals<merlin>("router.d_gamma", "(B, T, H)");
  expect_refusals<cumulant>("router.d_delta", "(H)");
  expect_refusals<k<merlin>>("router.d_tau_sigma", "(H)");
}

TEST(RoutingBackwardRefusals, KeysThatAreNotRead) {
  problem_and_gradients<double, uniform, position> c(small);
  tensor<double, 4> d_k({2, 7, 1, 2});
  auto grads = c.g.views();
  grads.moments.d_k = d_k.view();
  EXPECT_TRUE(refuses(check(c.p.args(), grads), error_code::unexpected, "moments.d_k", "moments.k is not"));
}

TEST(RoutingBackwardRefusals, Contents) {
  problem_and_gradients<double, boundaries, merlin> c(small);
  c.p.shape.cuts = {0, 4, 1, 6, 7};
  EXPECT_TRUE(refuses(check(on_reference{}, c.p.args(), c.g.views()), error_code::value, "separation.boundaries",
                      "more than the entry before"));
  problem_and_gradients<double, uniform, k<position>> zero(small, {.position_norm = position_norm::none});
  fill(zero.p.router.weights, 0);
  EXPECT_TRUE(
      refuses(check(on_reference{}, zero.p.args(), zero.g.views()), error_code::value, "router.weights", "sum to 0"));
}

}  // namespace
}  // namespace polystate::testing
