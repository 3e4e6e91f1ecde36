// SPDX-License-Identifier: Apache-2.0

// Parameters that a router adds, by hand.

#include <polystate/parameter_plan.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

using merlin = router::merlin<float>;

TEST(ParameterPlan, ByHand) {
  const bank_shape shape{.B = 1, .H = 3, .dv = 5, .dk = 7, .HR = 2, .dr = 4};
  const auto p = plan_parameters(shape, merlin{}, 10);
  EXPECT_EQ(p.queries, 10 * 2 * 4);
  EXPECT_EQ(p.keys, 10 * 2 * 4);
  EXPECT_EQ(p.mixing, 10 * 3);
  EXPECT_EQ(p.scales, 2 * 3);
  EXPECT_EQ(p.total(), 80 + 80 + 30 + 6);
  EXPECT_EQ(plan_parameters(shape, router::top_k<merlin>{.of = {}, .k = 2}, 10).total(), p.total());
  EXPECT_EQ(plan_parameters(shape, router::cumulant<float>{}, 10).total(), 80 + 80 + 3);
  EXPECT_EQ(plan_parameters(shape, router::meanpool<float>{}, 10).total(), 80 + 80);
  EXPECT_EQ(plan_parameters(shape, router::uniform{}, 10).total(), 0);
  EXPECT_EQ(plan_parameters(shape, router::none{}, 10).total(), 0);

  // shared_kq: no projections of the router's own
  EXPECT_EQ(plan_parameters({.H = 3}, merlin{}, 10).total(), 30 + 6);
}

TEST(ParameterPlan, Refusals) {
  EXPECT_THROW((void)plan_parameters({.H = 3}, router::position<float>{}, 10), argument_error);
  EXPECT_THROW((void)plan_parameters({.H = 3}, merlin{}, -1), argument_error);
  EXPECT_THROW((void)plan_parameters({.H = -1}, merlin{}, 1), argument_error);
  EXPECT_THROW((void)plan_parameters({.H = 1, .HR = -1}, merlin{}, 1), argument_error);
  EXPECT_THROW((void)plan_parameters({.H = 1, .HR = 1, .dr = -1}, merlin{}, 1), argument_error);
}

}  // namespace
}  // namespace polystate::testing
