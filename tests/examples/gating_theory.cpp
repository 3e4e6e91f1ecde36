// SPDX-License-Identifier: Apache-2.0

// The propositions on gating, each against a simulation, with tolerances from the number of samples.

#include "gating_theory/experiment.hpp"
#include "gating_theory/theory.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using namespace gating;

TEST(gating_theory, readout_by_hand_and_its_derivative) {
  Eigen::MatrixXd X(3, 2);
  X << 1, 0, 0.5, 1, -1, 1;  // tokens (1, 0.5 | -1) and (0, 1 | 1)
  const Eigen::VectorXd xq = Eigen::Vector3d(1, 2, 0), w = Eigen::Vector3d(0.1, 0.2, 0.3);
  const double lambda = -0.5, rate = std::exp(lambda);
  const double older = std::exp(-2 * rate) * 2, newer = std::exp(-rate) * 2;
  const auto read = gated_readout<double>(X, xq, w, lambda);
  EXPECT_NEAR(read.h(0), 1 + older, 1e-15);
  EXPECT_NEAR(read.h(1), 2 + 0.5 * older + newer, 1e-15);
  EXPECT_NEAR(read.h(2), -older + newer, 1e-15);
  EXPECT_NEAR(read.f, w.dot(read.h), 1e-15);
  constexpr double step = 1e-6;
  const double difference =
      (gated_readout<double>(X, xq, w, lambda + step).f - gated_readout<double>(X, xq, w, lambda - step).f) /
      (2 * step);
  EXPECT_NEAR(read.df_dlambda, difference, 1e-9);
}

/// Share of wrong answers of the label entry of h, over fresh contexts of Gaussian tokens.
double simulated_error(double lambda, std::int64_t d, std::int64_t ell, std::int64_t Delta, double xnorm, int samples) {
  std::mt19937_64 random(1);
  Eigen::VectorXd w = Eigen::VectorXd::Zero(d + 1);
  w(d) = 1;
  int wrong = 0;
  Eigen::MatrixXd tokens(d, ell);
  for (int i = 0; i < samples; ++i) {
    examples::fill_gaussian(random, tokens);
    tokens /= std::sqrt(static_cast<double>(d));
    const Eigen::Index asked = ell - Delta;
    tokens.col(asked) *= xnorm / tokens.col(asked).norm();
    Eigen::MatrixXd X(d + 1, ell);
    X.topRows(d) = tokens;
    for (Eigen::Index t = 0; t < ell; ++t) X(d, t) = (random() >> 63) != 0 ? 1 : -1;
    Eigen::VectorXd xq = X.col(asked);
    xq(d) = 0;
    if (gated_readout<double>(X, xq, w, lambda).f * X(d, asked) < 0) ++wrong;
  }
  return static_cast<double>(wrong) / samples;
}

// The Bayes error is what a simulation measures, within 4 standard errors of its 3000 samples.
TEST(gating_theory, bayes_error_is_that_of_a_simulation) {
  constexpr int samples = 3000;
  for (const double tau : {3.0, 10.0, 40.0}) {
    for (const std::int64_t Delta : {1, 6, 20}) {
      const setting s{.lambda = -std::log(tau), .d = 16, .ell = 30, .Delta = static_cast<double>(Delta), .xnorm = 0.9};
      const double p = bayes_error(s);
      EXPECT_NEAR(simulated_error(s.lambda, 16, 30, Delta, s.xnorm, samples), p,
                  4 * std::sqrt(p * (1 - p) / samples) + 1.0 / samples)
          << tau << ' ' << Delta;
    }
  }
}

TEST(gating_theory, nothing_forgotten_is_the_limit_of_long_lengths) {
  const setting s{.lambda = -25, .d = 64, .ell = 100, .Delta = 60, .xnorm = 1.1};
  EXPECT_NEAR(bayes_error(s), no_decay_error(s), 1e-7);
  EXPECT_NEAR(simulated_error(-25, 16, 30, 12, 1, 3000), no_decay_error({.d = 16, .ell = 30}),
              4 * 0.5 / std::sqrt(3000));
}

TEST(gating_theory, delta_max_is_the_last_distance_within_the_target) {
  for (const double tau : {2.0, 16.0, 64.0}) {
    setting s{.lambda = -std::log(tau), .d = 128, .ell = 512, .target = 0.25};
    const double reach = delta_max(s);
    ASSERT_GT(reach, 0);
    s.Delta = reach;
    EXPECT_LE(bayes_error(s), s.target);
    s.Delta = reach + 1;
    EXPECT_GT(bayes_error(s), s.target);
    // the reach grows as tau log(d / tau): between half of it and twice
    EXPECT_GT(reach, 0.5 * tau * std::log(128 / tau));
    EXPECT_LT(reach, 2 * tau * std::log(128 / tau));
  }
  EXPECT_EQ(delta_max({.lambda = 3, .d = 4, .ell = 10, .target = 1e-9}), 0);
}

TEST(gating_theory, proposition_1_passes_1_where_it_says) {
  const double alpha = alpha_crossing(32, 0.1);
  EXPECT_NEAR(prop1_ratio({.lambda = lambda_of(alpha, 4), .Delta = 4, .P = 32, .eps = 0.1}), 1, 1e-12);
  EXPECT_LT(alpha_star(32, 0.1), alpha);
}

// Trained for 4 steps from nothing, the margins have the ratio of Proposition 1: within 5 standard errors over the
// trainings, and the 2 per cent that 4 steps of rate 0.1 move it.
TEST(gating_theory, proposition_1_holds_as_training_begins) {
  constexpr int trainings = 24;
  for (const double alpha : {0.1, 0.2, 0.5}) {
    std::vector<double> ratios;
    for (std::uint64_t seed = 0; seed < trainings; ++seed) {
      pattern_trainer trained(task_a, alpha, seed);
      for (int i = 0; i < 4; ++i) trained.step(128, 0.1);
      ratios.push_back(trained.alpha() * trained.v() / ((1 + trained.alpha()) * trained.u()));
    }
    const estimate measured(ratios);
    const double expected = prop1_ratio({.lambda = lambda_of(alpha, 4), .Delta = 4, .P = 32, .eps = 0.1});
    EXPECT_NEAR(measured.mean, expected, 5 * measured.error + 0.02 * expected) << alpha;
    EXPECT_LT(measured.error, 0.05 * expected) << "too few trainings to say";
  }
}

// SGD follows the gradient flow: u, v and alpha after a time of 8, within 5 standard errors and the 3 per cent by which
// random patterns, with distractors beside them, differ from orthonormal ones.
TEST(gating_theory, training_follows_the_gradient_flow) {
  constexpr double alpha = 0.15, rate = 0.1, time = 8;
  constexpr int trainings = 8;
  double u = 0, v = 0, a = alpha;
  constexpr double step = 0.01;
  for (int i = 0; i < time / step; ++i) {
    const flow d = gating_flow(u, v, a, 32, 0.1);
    u += step * d.du;
    v += step * d.dv;
    a += step * d.dalpha;
  }
  std::vector<double> us, vs, alphas;
  for (std::uint64_t seed = 0; seed < trainings; ++seed) {
    pattern_trainer trained(task_b, alpha, seed);
    for (int i = 0; i < time / rate; ++i) trained.step(128, rate);
    us.push_back(trained.u());
    vs.push_back(trained.v());
    alphas.push_back(trained.alpha());
  }
  EXPECT_GT(a, 1.2 * alpha);  // the gate has moved
  EXPECT_NEAR(estimate(us).mean, u, 5 * estimate(us).error + 0.03 * u);
  EXPECT_NEAR(estimate(vs).mean, v, 5 * estimate(vs).error + 0.03 * v);
  EXPECT_NEAR(estimate(alphas).mean, a, 5 * estimate(alphas).error + 0.03 * a);
}

// The gate escapes when the flow says, and the times lie on a line over 1 / (alpha log 1/alpha).
TEST(gating_theory, escape_takes_the_time_of_the_flow) {
  options small;
  small.seeds = 2;
  small.batch = 64;
  const auto rows = panel_b(small);
  for (const escape_row& r : rows) {
    EXPECT_EQ(r.stuck, 0) << r.alpha;
    EXPECT_NEAR(r.time.mean / r.flow_time, 1, 0.1) << r.alpha;
  }
  const line fit = fitted(rows);
  EXPECT_GT(fit.correlation, 0.98);
  EXPECT_GT(fit.slope, 0);
}

// Nothing beats the Bayes accuracy, and training comes near it: 4 standard errors, and below it what few steps leave.
TEST(gating_theory, trained_accuracy_is_that_of_bayes) {
  options small;
  small.steps = 40;
  small.samples = 2000;
  const auto grid = accuracies(small, {.d = 32, .ell = 48, .taus = {2, 8, 32}, .distances = {1, 4, 16}}, "training");
  ASSERT_EQ(grid.cells.size(), 9U);
  for (const accuracy_cell& c : grid.cells) {
    const double se = std::sqrt(c.bayes * (1 - c.bayes) / 2000) + 1.0 / 2000;
    EXPECT_LT(c.accuracy, c.bayes + 4 * se) << c.tau << ' ' << c.distance;
    EXPECT_GT(c.accuracy, c.bayes - 4 * se - 0.03) << c.tau << ' ' << c.distance;
  }
  EXPECT_GT(grid.at(0, 0).accuracy, 0.95);
  EXPECT_LT(grid.at(0, 2).accuracy, 0.55);
}

}  // namespace
