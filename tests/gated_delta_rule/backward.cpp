// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "gated_delta_rule/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/gated_delta_rule.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Small enough for one difference an element.
const delta_shape small{.B = 1, .T = 5, .HK = 1, .HV = 2, .dk = 3, .dv = 2};

template <class Rule = rule::gated_delta, class Data = double, class State = acc_t<Data>>
struct problem_and_gradients {
  delta_problem<Data, Rule, State> p;
  delta_gradients<Data, Rule, State> g;

  explicit problem_and_gradients(const delta_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = delta_problem<Data, Rule, State>(shape, rng);
    g = delta_gradients<Data, Rule, State>(shape, rng);
  }
  void run() { gated_delta_rule_backward(on_reference{}, p.args(), g.views()); }
};

template <class Rule>
void expect_gradients(const delta_shape& shape, const std::string& what) {
  const problem_and_gradients<Rule> c(shape);
  expect_gradients(c.p, c.g, std::string(Rule::name) + ", " + what);
}

// dk = dv = 1, q = k = 1, scale 1, upstream 1 on o alone.
template <class Rule = rule::gated_delta>
problem_and_gradients<Rule> constant(std::int64_t T, std::int64_t HV = 1) {
  problem_and_gradients<Rule> c(delta_shape{
      .B = 1, .T = T, .HK = 1, .HV = HV, .dk = 1, .dv = 1, .initial_state = false, .final_state = false, .scale = 1});
  fill(c.p.q, 1);
  fill(c.p.k, 1);
  fill(c.g.d_o, 1);
  return c;
}

void expect_all_finite(const std::vector<named_values>& gradients, const std::string& what) {
  for (const auto& d : gradients) {
    for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << what << ": d_" << d.name;
  }
}

// One token: o = q S1 with S1 = a S + beta (v - a S k) k, a = exp(g).
TEST(GatedDeltaRuleBackward, ByHand) {
  auto c = constant(1);
  c.p.q.assign({2});
  c.p.k.assign({0.5});
  c.p.v.assign({3});
  c.p.g.assign({std::log(0.5)});
  c.p.beta.assign({0.8});
  c.p.initial_state = tensor<double, 4>({1, 1, 1, 1});
  c.p.initial_state.assign({4});
  c.run();
  // a S = 2, S1 = 2 + 0.8 (3 - 2 * 0.5) 0.5 = 2.8
  const auto near = [](const values& got, double want) { EXPECT_NEAR(got.at(0), want, 1e-15); };
  near(c.g.d_q.values(), 2.8);
  near(c.g.d_v.values(), 2 * 0.8 * 0.5);
  near(c.g.d_beta.values(), 2 * (3 - 1) * 0.5);
  near(c.g.d_k.values(), 2 * 0.8 * (3 - 2 * 2 * 0.5));
  near(c.g.d_initial_state.values(), 2 * 0.5 * (1 - 0.8 * 0.25));
  near(c.g.d_g.values(), 2 * 2 * (1 - 0.8 * 0.25));
}

// bugs B082: dq and dk of a shared key head are the sums over its value heads.
TEST(GatedDeltaRuleBackward, SharedKeyHead) {
  const auto run_heads = [](const values& v) {
    const auto HV = static_cast<std::int64_t>(v.size());
    auto c = constant(2, HV);
    for (std::int64_t h = 0; h < HV; ++h) {
      for (std::int64_t t = 0; t < 2; ++t) c.p.v.view()(0, t, h, 0) = v[static_cast<std::size_t>(h)];
    }
    fill(c.p.beta, 0.5);
    fill(c.p.g, -0.1);
    c.run();
    return c.g;
  };
  const auto together = run_heads({1, 2, 3});
  values d_q(2), d_k(2);
  for (const double v : {1, 2, 3}) {
    const auto alone = run_heads({v});
    for (std::size_t t = 0; t < 2; ++t) {
      d_q[t] += alone.d_q.values()[t];
      d_k[t] += alone.d_k.values()[t];
    }
  }
  EXPECT_LE(relative_deviation(together.d_q.values(), d_q), 1e-15);
  EXPECT_LE(relative_deviation(together.d_k.values(), d_k), 1e-15);
  EXPECT_EQ(run_heads({1, 2, 3}).d_k.values(), together.d_k.values());
}

// bugs B053: the scale enters every gradient but that of the final state's path, once.
TEST(GatedDeltaRuleBackward, Scale) {
  problem_and_gradients<rule::linear> one(delta_shape{
      .B = 1, .T = 5, .HK = 1, .HV = 1, .dk = 4, .dv = 4, .initial_state = false, .final_state = false, .scale = 1});
  fill(one.p.q, 1);
  fill(one.p.k, 1);
  fill(one.p.v, 1);
  fill(one.g.d_o, 1);
  one.run();
  EXPECT_TRUE(all_are(one.g.d_q.view().select(1, 4), 4 * 5));
  EXPECT_TRUE(all_are(one.g.d_v.view().select(1, 1), 4 * 4));
  for (const double scale : {0.5, 2.0}) {
    auto c = one;
    c.p.scale = scale;
    c.run();
    const auto want = gradients_of(one.p, one.g);
    const auto got = gradients_of(c.p, c.g);
    for (std::size_t i = 0; i < got.size(); ++i) {
      for (std::size_t k = 0; k < got[i].values.size(); ++k) EXPECT_EQ(got[i].values[k], scale * want[i].values[k]);
    }
  }
}

// bugs B043: a decay of exp(-80) beside weak ones.
TEST(GatedDeltaRuleBackward, StrongBesideWeakDecay) {
  for (const bool alternating : {false, true}) {
    auto c = constant<rule::gated>(32);
    fill(c.p.v, 1);
    values g(32, -1e-4);
    for (std::size_t t = 0; t < 32; t += alternating ? 2 : 32) g[t] = -80;
    c.p.g.assign(g);
    c.g.d_final_state = {};
    expect_dual_derivatives(c.p, c.g, "decay");
    expect_central_differences(c.p, c.g, "decay");
    c.run();
    expect_all_finite(gradients_of(c.p, c.g), "decay");
  }
}

template <class Rule>
class GatedDeltaRuleBackwardRules : public ::testing::Test {};
using rules = ::testing::Types<rule::linear, rule::gated, rule::delta, rule::gated_delta>;
struct rule_names {
  template <class Rule>
  static std::string GetName(int) {
    return Rule::name;
  }
};
TYPED_TEST_SUITE(GatedDeltaRuleBackwardRules, rules, rule_names);

TYPED_TEST(GatedDeltaRuleBackwardRules, EveryOption) {
  for (int mask = 0; mask < 8; ++mask) {
    auto shape = small;
    shape.initial_state = (mask & 1) != 0;
    shape.final_state = (mask & 2) != 0;
    shape.qk_l2norm = (mask & 4) != 0;
    expect_gradients<TypeParam>(shape, "options " + std::to_string(mask));
  }
}

TYPED_TEST(GatedDeltaRuleBackwardRules, SizesAndGroups) {
  for (const std::int64_t T : {0, 1, 2, 4, 9, 17}) {
    auto shape = small;
    shape.T = T;
    expect_gradients<TypeParam>(shape, "T " + std::to_string(T));
  }
  expect_gradients<TypeParam>(delta_shape{.B = 2, .T = 3, .HK = 3, .HV = 6, .dk = 1, .dv = 2}, "groups");
  expect_gradients<TypeParam>(delta_shape{.B = 2, .T = 3, .HK = 2, .HV = 2, .dk = 4, .dv = 1}, "no groups");
}

// bugs B022: pieces far shorter than any chunk, and empty ones.
TYPED_TEST(GatedDeltaRuleBackwardRules, PackedSequences) {
  for (const bool with_state : {false, true}) {
    auto shape = small;
    shape.T = 8;
    shape.initial_state = with_state;
    shape.lengths = {0, 3, 0, 1, 4, 0};
    expect_gradients<TypeParam>(shape, "packed");
  }
}

TYPED_TEST(GatedDeltaRuleBackwardRules, Independent) {
  const problem_and_gradients<TypeParam> c(small);
  expect_gradients_independent(c.p, c.g);
}

TYPED_TEST(GatedDeltaRuleBackwardRules, AbsentMeansZero) {
  const problem_and_gradients<TypeParam, float> c(small);
  expect_absent_upstream_is_zero(c.p, c.g);
  expect_absent_initial_state_is_zero(c.p, c.g);
}

TYPED_TEST(GatedDeltaRuleBackwardRules, StridesChangeNothing) {
  problem_and_gradients<TypeParam, float> plain(small);
  plain.run();
  for (const auto& order : {std::array{0, 2, 1, 3}, std::array{3, 2, 1, 0}, std::array{1, 3, 0, 2}}) {
    auto shape = small;
    shape.memory = {order, 3};
    shape.state_memory = {order, 1};
    shape.gate_memory = {{2, 0, 1}, 2};
    problem_and_gradients<TypeParam, float> strided(shape);
    strided.run();
    expect_same_gradients(gradients_of(strided.p, strided.g), gradients_of(plain.p, plain.g), "strides");
    EXPECT_TRUE(strided.g.d_k.untouched_outside() && strided.g.d_initial_state.untouched_outside());
  }
}

// Values and initial state together; the query, which the final state does not see.
TYPED_TEST(GatedDeltaRuleBackwardRules, Adjoint) {
  const problem_and_gradients<TypeParam> c(delta_shape{});
  expect_adjoint(c.p, c.g, {"v", "initial_state"});
  const problem_and_gradients<TypeParam> query(delta_shape{.final_state = false});
  expect_adjoint(query.p, query.g, {"q"});
}

// g = -inf forgets: its own gradient is 0, and nothing reaches the tokens before.
TYPED_TEST(GatedDeltaRuleBackwardRules, Forgetting) {
  if constexpr (TypeParam::has_decay) {
    problem_and_gradients<TypeParam> c(small);
    for (const std::int64_t h : {0, 1}) c.p.g.view()(0, 2, h) = -infinity;
    expect_gradients(c.p, c.g, "g = -inf");
    c.run();
    EXPECT_EQ(c.g.d_g.view()(0, 2, 0), 0);
    EXPECT_FALSE(all_are(c.g.d_initial_state.view(), 0));  // tokens 0 and 1 still read it
    for (std::int64_t t = 0; t < 2; ++t) {
      for_each(c.g.d_o.view().select(1, t), [](double& x) { x = 0; });
    }
    c.run();
    EXPECT_TRUE(all_are(c.g.d_initial_state.view(), 0));
    EXPECT_TRUE(all_are(c.g.d_v.view().slice(1, 0, 2), 0));
    fill(c.p.g, -infinity);
    expect_gradients(c.p, c.g, "g = -inf throughout");
    fill(c.p.g, -1000);
    c.run();
    expect_all_finite(gradients_of(c.p, c.g), "g = -1000");
    EXPECT_TRUE(all_are(c.g.d_g.view(), 0));
  }
}

// beta at the ends of its range, with unit keys.
TYPED_TEST(GatedDeltaRuleBackwardRules, BetaAtItsEnds) {
  if constexpr (TypeParam::has_beta) {
    for (const double beta : {0.0, 1.0, 2.0}) {
      problem_and_gradients<TypeParam> c(small);
      fill(c.p.beta, beta);
      expect_gradients(c.p, c.g, "beta " + std::to_string(beta));
      c.run();
      EXPECT_EQ(all_are(c.g.d_v.view(), 0), beta == 0);
    }
  }
}

// Rows of zeros, which the normalisation leaves as they are: 1/sqrt(eps) is their derivative, without eps zero.
TYPED_TEST(GatedDeltaRuleBackwardRules, ZeroRows) {
  auto shape = small;
  shape.qk_l2norm = true;
  problem_and_gradients<TypeParam> c(shape);
  for (auto* rows : {&c.p.q, &c.p.k}) {
    for_each(rows->view().select(1, 1), [](double& x) { x = 0; });
  }
  auto args = c.p.args();
  args.l2norm_eps = 0;
  gated_delta_rule_backward(on_reference{}, args, c.g.views());
  expect_all_finite(gradients_of(c.p, c.g), "eps 0");
  EXPECT_TRUE(all_are(c.g.d_q.view().select(1, 1), 0) && all_are(c.g.d_k.view().select(1, 1), 0));
  EXPECT_FALSE(all_are(c.g.d_q.view().select(1, 2), 0));
  for (auto* rows : {&c.p.q, &c.p.k}) {  // the third power of this length is 0
    for_each(rows->view().select(1, 1), [](double& x) { x = 1e-120; });
  }
  gated_delta_rule_backward(on_reference{}, args, c.g.views());
  expect_all_finite(gradients_of(c.p, c.g), "eps 0, short rows");
  for (auto* rows : {&c.p.q, &c.p.k}) {
    for_each(rows->view().select(1, 1), [](double& x) { x = 0; });
  }
  c.run();
  expect_all_finite(gradients_of(c.p, c.g), "eps 1e-6");
  EXPECT_FALSE(all_are(c.g.d_q.view().select(1, 1), 0));
  expect_dual_derivatives(c.p, c.g, "zero rows");
}

template <class Types>
class GatedDeltaRuleBackwardTyped : public ::testing::Test {};
using data_and_state =
    ::testing::Types<std::tuple<double, double>, std::tuple<float, float>, std::tuple<float, bfloat16>,
                     std::tuple<half, float>, std::tuple<bfloat16, float>, std::tuple<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(GatedDeltaRuleBackwardTyped, data_and_state);

TYPED_TEST(GatedDeltaRuleBackwardTyped, RoundsOnce) {
  using Data = std::tuple_element_t<0, TypeParam>;
  using State = std::tuple_element_t<1, TypeParam>;
  const delta_shape shape{.T = 19, .qk_l2norm = true};
  const problem_and_gradients<rule::gated_delta, Data, State> c(shape);
  expect_gradients_rounded_once(c.p, c.g);
  const problem_and_gradients<rule::gated, Data, State> gated(shape);
  expect_gradients_rounded_once(gated.p, gated.g);
}

TEST(GatedDeltaRuleBackward, Refusals) {
  problem_and_gradients<rule::gated_delta, float> c(delta_shape{.T = 6});
  expect_gradients_checked(c.p, c.g);
  const auto grads = c.g.views();
  const auto missing = [&](auto member, const std::string& argument, const std::string& text) {
    auto args = c.p.args();
    args.*member = {};
    EXPECT_TRUE(refuses(check(args, grads), error_code::missing, argument, text));
  };
  using args_type = gated_delta_rule_args<float>;
  missing(&args_type::q, "q", "gated_delta_rule_backward");
  missing(&args_type::k, "k", "(B, T, HK, dk)");
  missing(&args_type::v, "v", "(B, T, HV, dv)");
  missing(&args_type::g, "g", "(B, T, HV)");
  missing(&args_type::beta, "beta", "(B, T, HV)");
  auto args = c.p.args();
  args.l2norm_eps = -1;
  EXPECT_TRUE(refuses(check(args, grads), error_code::value, "l2norm_eps", "supported: at least 0"));
  args = c.p.args();
  EXPECT_TRUE(refuses(check<dims<64, 64>>(args, grads), error_code::unsupported, "q", "supported: dims<64, 64> only"));
  EXPECT_TRUE((check<dims<5, 3>>(args, grads).ok()));
  EXPECT_THROW((gated_delta_rule_backward<dims<64, 64>>(on_reference{}, args, grads)), argument_error);

  auto shared = grads;
  shared.d_k = {c.g.d_k.view().data(), {2, 6, 2, 5}, {60, 10, 0, 1}};
  EXPECT_TRUE(refuses(check(args, shared), error_code::stride, "d_k", "stride 0 along index 2"));
  shared = grads;
  shared.d_o = {c.g.d_o.view().data(), {2, 6, 4, 3}, {0, 0, 0, 0}};  // an upstream gradient may repeat
  EXPECT_TRUE(check(args, shared).ok());

  problem_and_gradients<rule::linear, float> linear(delta_shape{.T = 6});
  auto unread = linear.g.views();
  unread.d_g = grads.d_g;
  EXPECT_TRUE(refuses(check(linear.p.args(), unread), error_code::unexpected, "d_g", "rule linear has no decay"));
  unread.d_g = {};
  unread.d_beta = grads.d_beta;
  EXPECT_TRUE(refuses(check(linear.p.args(), unread), error_code::unexpected, "d_beta", "rule linear has no beta"));

  problem_and_gradients<rule::gated_delta, float> packed(delta_shape{.B = 1, .T = 6, .lengths = {2, 4}});
  packed.p.cu_seqlens.assign({0, 7, 6});
  EXPECT_TRUE(check(packed.p.args(), packed.g.views()).ok());
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::value, "cu_seqlens",
                      "entry 2 is 6, supported: at least the entry before"));
  EXPECT_THROW(packed.run(), argument_error);
  EXPECT_TRUE(all_are(packed.g.d_q.view(), std::nan("")) && all_are(packed.g.d_initial_state.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
