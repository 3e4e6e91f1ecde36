// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "routing/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/routing.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

template <class Router>
class routing_check {
 public:
  using args_type = routing_args<float, separation::uniform, Router>;

  routing_check() { args = good(); }

  args_type good() {
    args_type a{.separation = {4}, .router = router_of<Router>::view(router, false), .lam = lam.view()};
    if (Router::reads_moments) a.moments = keys.view();
    if (Router::reads_moments) a.r_mu = r_mu.view();
    if (Router::reads_Sigma) a.r_sigma = r_sigma.view();
    return a;
  }

  void expect_accepted() {
    EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
    args = good();
  }

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_TRUE(refuses(try_routing(on_reference{}, args), code, argument, text));
    EXPECT_THROW(routing(on_reference{}, args), argument_error);
    for (auto* out : {&lam, &r_mu, &r_sigma})
      EXPECT_TRUE(bitwise_equal(*out, tensor<float, 4>(out->extents()))) << "written to";
    args = good();
  }

  std::mt19937 rng{1};
  routing_keys<float> keys{keys_shape{}, rng};
  router_operands<float> router{router_shape{}, rng};
  tensor<float, 4> lam{{2, 11, 4, 3}}, r_mu{{2, 11, 2, 3}}, r_sigma{{2, 11, 2, 3}};
  args_type args;
};

TEST(RoutingCheck, Common) {
  routing_check<router::merlin<float>> c;
  c.expect_accepted();
  c.args.lam = {};
  c.expect_refused(error_code::missing, "lam", "(B, T, H, L)");
  c.args.lam = c.args.lam.slice(3, 0, 2);
  c.expect_refused(error_code::shape, "lam", "L = 2, supported: the number of segments, 3");
  c.args.lam = {c.lam.view().data(), {2, 11, 3, 3}};
  c.expect_refused(error_code::shape, "lam", "H = 3, supported: a multiple of HR = 2");
  c.args.separation.m = 0;
  c.expect_refused(error_code::value, "separation.m", "0, supported: at least 1");
  c.args.r_mu = c.args.r_mu.slice(2, 0, 1);
  c.expect_refused(error_code::shape, "r_mu", "(B, T, HR, L) = (2, 11, 2, 3)");
  c.args.r_sigma = c.args.r_sigma.slice(1, 0, 5);
  c.expect_refused(error_code::shape, "r_sigma", "(B, T, HR, L)");
  c.args.max_visible = -1;
  c.expect_refused(error_code::value, "max_visible", "-1, supported: at least 0");
}

TEST(RoutingCheck, Moments) {
  routing_check<router::merlin<float>> c;
  c.args.moments.k = {};
  c.expect_refused(error_code::missing, "moments.k", "(B, T, HR, dr)");
  c.args.moments.k = c.args.moments.k.slice(1, 0, 9);
  c.expect_refused(error_code::shape, "moments.k", "shape (2, 9, 2, 5)");
  c.args.moments.moment_rule = moment_rule::delta;
  c.expect_refused(error_code::missing, "moments.g", "(B, T, HR)");
}

TEST(RoutingCheck, Merlin) {
  routing_check<router::merlin<float>> c;
  c.args.router.q = {};
  c.expect_refused(error_code::missing, "router.q", "(B, T, HR, dr)");
  c.args.router.q = c.args.router.q.slice(3, 0, 4);
  c.expect_refused(error_code::shape, "router.q", "(B, T, HR, dr) = (2, 11, 2, 5)");
  c.args.router.gamma = {};
  c.expect_refused(error_code::missing, "router.gamma", "(B, T, H)");
  c.args.router.gamma = c.args.router.gamma.slice(2, 0, 2);
  c.expect_refused(error_code::shape, "router.gamma", "shape (2, 11, 2), supported: (B, T, H) = (2, 11, 4)");
  c.args.router.tau_mu = {};
  c.expect_refused(error_code::missing, "router.tau_mu", "(H)");
  c.args.router.tau_sigma = {};
  c.expect_refused(error_code::missing, "router.tau_sigma", "(H)");
}

TEST(RoutingCheck, CumulantAndMeanpool) {
  routing_check<router::cumulant<float>> c;
  c.expect_accepted();
  c.args.router.q = {};
  c.expect_refused(error_code::missing, "router.q", "(B, T, HR, dr)");
  c.args.router.delta = c.args.router.delta.slice(0, 0, 1);
  c.expect_refused(error_code::shape, "router.delta", "(H) = (4)");
  routing_check<router::meanpool<float>> p;
  p.expect_accepted();
  p.args.router.u = {};
  p.expect_refused(error_code::missing, "router.u", "(B, T, HR, dr)");
  p.args.r_sigma = p.r_sigma.view();
  p.expect_refused(error_code::unexpected, "r_sigma", "router meanpool does not use it");
}

TEST(RoutingCheck, PositionAndUniform) {
  routing_check<router::position<float>> c;
  c.expect_accepted();
  c.args.router.weights = {};
  c.expect_refused(error_code::missing, "router.weights", "(B, T, H, A)");
  c.args.router.weights = c.args.router.weights.slice(3, 0, 2);
  c.expect_refused(error_code::shape, "router.weights", "A = 2, supported: at least L = 3");
  c.args.moments.k = c.keys.k.view();
  c.expect_refused(error_code::unexpected, "moments.k", "router position does not use it");
  c.args.r_mu = c.r_mu.view();
  c.expect_refused(error_code::unexpected, "r_mu", "router position does not use it");
  routing_check<router::uniform> u;
  u.expect_accepted();
  u.args.moments.g = {u.keys.k.view().data(), {2, 11, 2}};
  u.expect_refused(error_code::unexpected, "moments.g", "router uniform does not use it");
}

TEST(RoutingCheck, TopK) {
  routing_check<router::top_k<router::merlin<float>>> c;
  c.expect_accepted();
  c.args.router.k = 0;
  c.expect_refused(error_code::value, "router.k", "0, supported: at least 1");
  c.args.router.of.tau_mu = {};
  c.expect_refused(error_code::missing, "router.tau_mu", "(H)");
}

// Only reading the weights tells, so check() on shapes passes and the reference refuses before it writes.
TEST(RoutingCheck, KeptWeightsThatSumToZero) {
  routing_check<router::top_k<router::position<float>>> c;
  c.router.options.position_norm = position_norm::none;
  c.router.options.k = 2;
  c.args = c.good();
  c.expect_accepted();
  for (std::int64_t a = 0; a < 3; ++a) c.router.weights.view()(1, 9, 2, a) = a == 1 ? -3.0f : 0.0f;
  EXPECT_TRUE(check(c.args).ok());
  c.expect_refused(error_code::value, "router.weights", "the kept weights of batch entry 1, token 9, head 2 sum to 0");
  c.args.router.k = 3;  // all three are seen: nothing is divided
  c.expect_accepted();
  c.args.router.of.position_norm = position_norm::softmax;
  c.expect_accepted();
}

TEST(RoutingCheck, BoundariesContents) {
  std::mt19937 rng(2);
  const router_operands<float> router(router_shape{}, rng);
  tensor<float, 4> lam({2, 11, 4, 2});
  tensor<std::int32_t, 1> cuts({3});
  cuts.assign({0, 2, 11});
  routing_args<float, separation::boundaries, router::position<float>> args{
      .separation = {cuts.view()},
      .router = router_of<router::position<float>>::view(router, false),
      .lam = lam.view()};
  EXPECT_TRUE(check(on_reference{}, args).ok());
  cuts.assign({0, 2, 10});
  EXPECT_TRUE(refuses(try_routing(on_reference{}, args), error_code::value, "separation.boundaries", "T = 11"));
  args.separation.boundaries = args.separation.boundaries.slice(0, 0, 2);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "separation.boundaries", "(L+1) = (3)"));
  EXPECT_TRUE(bitwise_equal(lam, tensor<float, 4>(lam.extents()))) << "written to";
}

// dims<dr> accepts its size and refuses others, in both passes; a router without moments has no size to refuse.
TEST(RoutingCheck, FixedDims) {
  const auto refused = [](const status& s) {
    return refuses(s, error_code::unsupported, "moments.k", "supported: dims<8> only");
  };
  routing_check<router::merlin<float>> c;
  EXPECT_TRUE(refused(try_routing<dims<8>>(on_reference{}, c.args)));
  const routing_grads<float, router::merlin<float>> grads{.d_lam = c.lam.view()};
  EXPECT_TRUE(refused(try_routing_backward<dims<8>>(on_reference{}, c.args, grads)));
  const auto dr = c.keys.view().k.extent(3);
  ASSERT_EQ(dr, 5);
  EXPECT_TRUE(check<dims<5>>(on_reference{}, c.args).ok());
  routing_check<router::uniform> without;
  EXPECT_TRUE(check<dims<8>>(on_reference{}, without.args).ok());
}

}  // namespace
}  // namespace polystate::testing
