// SPDX-License-Identifier: Apache-2.0

// The gate's parametrisation, what its effective context length means for a state, and how it is moved.

#include "support/refusal.hpp"

#include <polystate/gate.hpp>
#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/ssd.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace polystate::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Gate, LogDecayByHand) {
  EXPECT_DOUBLE_EQ(log_decay(0, 0, 0), -std::log(2.0));
  EXPECT_DOUBLE_EQ(log_decay(0.5, std::log(3.0), -0.25), -3 * std::log1p(std::exp(0.25)));
  EXPECT_DOUBLE_EQ(log_decay(-100, 0, 0), -std::exp(-100.0));  // not 0: log1p keeps it
  EXPECT_DOUBLE_EQ(log_decay(1000, 0, 0), -1000);              // not inf
  EXPECT_EQ(log_decay(-infinity, 0, 0), 0);
}

// The same decay as in ssd(), which has dt = a, A = -exp(A_log): two tokens without a second write.
TEST(Gate, IsTheDecayOfMamba2) {
  const double a[2] = {0.3, -0.7}, A_log = 0.4, dt_bias = 0.2, A = -std::exp(A_log);
  const double x[2] = {1, 0}, B = 1, C = 1;
  double y[2];
  ssd(on_reference{}, ssd_args<double>{.x = {x, {1, 2, 1, 1}},
                                       .dt = {a, {1, 2, 1}},
                                       .A = {&A, {1}},
                                       .B = {&B, {1, 2, 1, 1}, {0, 0, 0, 0}},
                                       .C = {&C, {1, 2, 1, 1}, {0, 0, 0, 0}},
                                       .dt_bias = {&dt_bias, {1}},
                                       .y = {y, {1, 2, 1, 1}},
                                       .dt_softplus = true});
  EXPECT_NEAR(y[1] / y[0], std::exp(log_decay(a[1], A_log, dt_bias)), 1e-15);
}

// tau is the distance at which a state has kept 1/e of a token, to the token.
TEST(Gate, EffectiveLengthIsWhatAStateForgets) {
  constexpr std::int64_t T = 100, tau = 20;
  const double g = -1.0 / tau;
  EXPECT_DOUBLE_EQ(effective_length(g), tau);
  std::vector<double> v(T, 0), o(T);
  v[0] = 1;
  const double one = 1;
  const tensor_view<const double, 4> ones{&one, {1, T, 1, 1}, {0, 0, 0, 0}};
  gated_delta_rule(on_reference{}, gated_delta_rule_args<double, rule::gated>{.q = ones,
                                                                              .k = ones,
                                                                              .v = {v.data(), {1, T, 1, 1}},
                                                                              .g = {&g, {1, T, 1}, {0, 0, 0}},
                                                                              .o = {o.data(), {1, T, 1, 1}}});
  for (const std::int64_t Delta : {1, 20, 60}) {
    EXPECT_NEAR(o[static_cast<std::size_t>(Delta)], std::exp(-static_cast<double>(Delta) / tau), 1e-14);
  }
  EXPECT_EQ(effective_length(0), infinity);
  EXPECT_EQ(effective_length(-0.0), infinity);
  EXPECT_EQ(effective_length(-infinity), 0);
}

TEST(Gate, InitialisationReachesItsAim) {
  for (const double tau : {0.5, 1.0, 64.0, 1e6}) {
    for (const double dt_bias : {-8.0, 0.0, 3.0}) {
      EXPECT_NEAR(effective_length(A_log_of(tau, dt_bias), dt_bias, 0) / tau, 1, 1e-14);
      EXPECT_NEAR(effective_length(A_log_of(tau, dt_bias, 1.5), dt_bias, 1.5) / tau, 1, 1e-14);
    }
  }
  for (const double tau : {0.0, -1.0, infinity, std::nan("")}) EXPECT_THROW((void)A_log_of(tau, 0), argument_error);
}

TEST(Gate, MeasuredLengthsAreThoseOfTheMeanDecay) {
  // (B 2, T 2, H 2); head 0: mean -0.25, head 1 holds a token that forgets all
  const float g[8] = {-0.1F, -1, -0.4F, -1, -0.3F, -std::numeric_limits<float>::infinity(), -0.2F, -1};
  float tau[2];
  effective_lengths(effective_lengths_args<float>{.g = {g, {2, 2, 2}}, .tau = {tau, {2}}});
  EXPECT_NEAR(tau[0], 4, 1e-6);
  EXPECT_EQ(tau[1], 0);
  effective_lengths(effective_lengths_args<float>{.g = {g, {2, 0, 2}}, .tau = {tau, {2}}});
  EXPECT_TRUE(std::isnan(tau[0]));
  // strides: the heads exchanged
  effective_lengths(effective_lengths_args<float>{.g = {g + 1, {2, 2, 2}, {4, 2, -1}}, .tau = {tau, {2}}});
  EXPECT_EQ(tau[0], 0);
  EXPECT_NEAR(tau[1], 4, 1e-6);
}

TEST(Gate, RefusesLengthsThatDoNotFit) {
  float g[8] = {}, tau[2] = {7, 7};
  const auto refusal = [](const effective_lengths_args<float>& args) -> std::string {
    try {
      effective_lengths(args);
    } catch (const argument_error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal({.g = {}, .tau = {tau, {2}}}).find("effective_lengths: g: not given"), std::string::npos);
  EXPECT_NE(refusal({.g = {g, {2, 2, 2}}, .tau = {}}).find("tau: not given"), std::string::npos);
  EXPECT_NE(refusal({.g = {g, {2, 2, 2}}, .tau = {tau, {1}}}).find("effective_lengths: tau"), std::string::npos);
  EXPECT_NE(refusal({.g = {g, {2, 2, 2}}, .tau = {g, {2}}}).find("overlap"), std::string::npos);
  EXPECT_EQ(tau[0], 7);
}

// Offset of A_log and scale of g are two ways to stretch every length by one factor.
TEST(Gate, StretchesEveryLength) {
  const gate_adjustment by = stretched_by(4);
  const gate_adjustment by_g{.g_scale = 0.25};
  for (const double A_log : {-3.0, 0.0, 2.0}) {
    for (const double a : {-2.0, 0.0, 5.0}) {
      const double g = log_decay(a, A_log, 0.1);
      const double moved = log_decay(a, adjusted_A_log(by, A_log), 0.1);
      EXPECT_NEAR(effective_length(moved) / effective_length(g), 4, 1e-12);
      EXPECT_NEAR(moved / adjusted_g(by_g, g), 1, 1e-12);
    }
  }
  EXPECT_THROW((void)stretched_by(0), argument_error);
  EXPECT_THROW((void)stretched_by(infinity), argument_error);
}

TEST(Gate, AdjustsInPlace) {
  double A_log[3] = {0, 9, 2};
  adjust_A_log({.A_log_scale = 2, .A_log_offset = 1}, tensor_view<double, 1>(A_log, {2}, {2}));
  EXPECT_EQ(A_log[0], 1);
  EXPECT_EQ(A_log[1], 9);  // between the strides
  EXPECT_EQ(A_log[2], 5);

  float g[4] = {-1, -0.125F, -std::numeric_limits<float>::infinity(), std::nanf("")};
  const tensor_view<float, 3> view(g, {1, 2, 2});
  adjust_g({.g_scale = 0.5, .g_offset = 0.25}, view);
  EXPECT_EQ(g[0], -0.25F);
  EXPECT_EQ(g[1], 0);  // never above 0
  EXPECT_EQ(g[2], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(g[3]));
  adjust_g({.g_scale = 0}, view);
  EXPECT_EQ(g[2], 0);
  EXPECT_TRUE(std::isnan(g[3]));
}

TEST(Gate, RefusesAdjustmentsOutOfRange) {
  EXPECT_TRUE(check(gate_adjustment{}).ok());
  EXPECT_TRUE(refuses(check(gate_adjustment{.g_scale = -1}), error_code::value, "g_scale", "at least 0"));
  EXPECT_TRUE(refuses(check(gate_adjustment{.g_offset = infinity}), error_code::value, "g_offset", "finite"));
  EXPECT_TRUE(refuses(check(gate_adjustment{.A_log_scale = infinity}), error_code::value, "A_log_scale", "finite"));
  EXPECT_TRUE(
      refuses(check(gate_adjustment{.A_log_offset = std::nan("")}), error_code::value, "A_log_offset", "finite"));
  float g[1] = {-1};
  EXPECT_THROW(adjust_g({.g_scale = -1}, tensor_view<float, 3>(g, {1, 1, 1})), argument_error);
  EXPECT_EQ(g[0], -1);
}

}  // namespace
}  // namespace polystate::testing
