// SPDX-License-Identifier: Apache-2.0

// The masses of segments by hand, and what their moments say of them.

#include "segment_mass/mass.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace {

using namespace segment_mass;

TEST(segment_mass, exact_by_hand) {
  context c{MatrixXd(1, 4), MatrixXd(1, 1)};
  c.keys << 0, 1, 2, 3;
  c.queries << 1;
  const double e = std::exp(1.0), all = 1 + e + e * e + e * e * e;
  const MatrixXd mass = exact_mass(c, 2, 1);
  EXPECT_NEAR(mass(0, 0), (1 + e) / all, 1e-15);
  EXPECT_NEAR(mass(1, 0), (e * e + e * e * e) / all, 1e-15);
  EXPECT_NEAR(exact_mass(c, 2, 1000)(1, 0), 1, 1e-15);  // no overflow

  // both segments have variance 1/4: the second order cancels, means 0.5 and 2.5 remain
  const moments_of_segments moments(c, 2);
  const double second = 1 / (1 + std::exp(2.0));
  EXPECT_NEAR(moments.first_order(c.queries, 1)(0, 0), second, 1e-14);
  EXPECT_NEAR(moments.second_order(c.queries, 1)(0, 0), second, 1e-14);
  EXPECT_NEAR(moments.spread(c.queries), 0.5, 1e-14);
}

TEST(segment_mass, measures_by_hand) {
  MatrixXd exact(2, 2), estimate(2, 2);
  exact << 0.9, 0.5, 0.1, 0.5;
  estimate << 0.4, 0.6, 0.6, 0.4;
  EXPECT_NEAR(misplaced(estimate, exact), (0.5 + 0.1) / 2, 1e-15);
  EXPECT_EQ(misplaced(exact, exact), 0);
  EXPECT_EQ(same_first(estimate, exact), 0.5);
}

// Expanded for small delta, the first order errs by delta^2 and the second by delta^3: halving delta divides the
// misplaced mass by 4 and by 8.
TEST(segment_mass, orders_of_the_expansion) {
  std::mt19937_64 random(5);
  const sizes n{.dim = 8, .segments = 6, .m = 10, .queries = 20};
  const context c = draw(random, kind::random, n);
  const moments_of_segments moments(c, n.m);
  const auto errs = [&](double delta) {
    const MatrixXd exact = exact_mass(c, n.m, delta);
    return std::pair(misplaced(moments.first_order(c.queries, delta), exact),
                     misplaced(moments.second_order(c.queries, delta), exact));
  };
  const auto [first, second] = errs(0.04);
  const auto [first_half, second_half] = errs(0.02);
  EXPECT_NEAR(first / first_half, 4, 0.2);
  EXPECT_NEAR(second / second_half, 8, 0.4);
}

TEST(segment_mass, kinds_are_what_they_say) {
  std::mt19937_64 random(6);
  const sizes n{.dim = 64, .segments = 8, .m = 64, .queries = 8};
  for (const auto& [what, name, meaning] : kinds) {
    const context c = draw(random, what, n);
    EXPECT_LT((c.keys.colwise().norm().array() - 1).abs().maxCoeff(), 1e-12) << name;
    EXPECT_LT((c.queries.colwise().norm().array() - 1).abs().maxCoeff(), 1e-12) << name;
    // the length of a segment's mean: 1/8 by chance, about the pull with a direction of its own
    const double mean = c.keys.leftCols(n.m).rowwise().mean().norm();
    if (what == kind::topic) {
      EXPECT_NEAR(mean, 0.5, 0.1);
    } else {
      EXPECT_LT(mean, 0.3) << name;
    }
    if (what == kind::stored) {
      EXPECT_NEAR((c.keys.transpose() * c.queries).colwise().maxCoeff().minCoeff(), 1, 1e-12);
    }
  }
}

}  // namespace
