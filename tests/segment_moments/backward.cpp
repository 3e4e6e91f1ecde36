// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "segment_moments/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/segment_moments.hpp>

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

template <class Data, class Separation = uniform>
struct problem_and_gradients {
  moments_problem<Data, Separation> p;
  moments_gradients<Data> g;

  explicit problem_and_gradients(const keys_shape& shape, std::int64_t m = 3,
                                 const std::vector<std::int32_t>& cuts = {0, 1, 4, 6, 7},
                                 const std::vector<std::int32_t>& lengths = {}) {
    std::mt19937 rng(1);
    p = moments_problem<Data, Separation>(shape, rng, m, cuts, lengths);
    g = moments_gradients<Data>(p, rng);
  }
  void run() { segment_moments_backward(on_reference{}, p.args(), g.views()); }
};

/// Every rule and divisor that exists, normalised and not.
std::vector<keys_shape> every_option(keys_shape shape) {
  std::vector<keys_shape> all;
  for (const bool normalised : {false, true}) {
    shape.qkp_l2norm = normalised;
    for (const auto rule : {moment_rule::plain, moment_rule::decay_write, moment_rule::delta}) {
      shape.moment_rule = rule;
      shape.divide_by = divide_by::m;
      all.push_back(shape);
    }
    shape.moment_rule = moment_rule::plain;
    shape.divide_by = divide_by::count;
    all.push_back(shape);
  }
  return all;
}

const keys_shape small{.B = 2, .T = 7, .HR = 2, .dr = 2};

template <class Separation>
void expect_gradients(const problem_and_gradients<double, Separation>& c, const std::string& what) {
  expect_gradients(c.p, c.g, what);
}

// mu = (k_0 + k_1)/m, Sigma = (k_0^2 + k_1^2)/m over two tokens, one open segment of m = 4.
TEST(SegmentMomentsBackward, PlainByHand) {
  problem_and_gradients<double> c({.B = 1, .T = 2, .HR = 1, .dr = 1}, 4);
  c.p.keys.k.assign({3, -5});
  c.g.d_mu.assign({8});
  c.g.d_Sigma.assign({2});
  c.run();
  EXPECT_EQ(c.g.keys.d_k.values(), (values{2 + 3, 2 - 5}));
}

// mu_1 = a_1 b_0 k_0 / m + b_1 k_1 / m, with a = exp(g): m = 2, g = log 1/2.
TEST(SegmentMomentsBackward, DecayWriteByHand) {
  problem_and_gradients<double> c({.B = 1, .T = 2, .HR = 1, .dr = 1, .moment_rule = moment_rule::decay_write}, 2);
  c.p.keys.k.assign({3, 5});
  c.p.keys.g.assign({-1, std::log(0.5)});
  c.p.keys.beta.assign({0.5, 1});
  c.g.d_mu.assign({8});
  c.g.d_Sigma = {};
  c.run();
  EXPECT_EQ(c.g.keys.d_k.values(), (values{1, 4}));
  EXPECT_EQ(c.g.keys.d_beta.values(), (values{6, 20}));
  EXPECT_EQ(c.g.keys.d_g.values(), (values{0, 3}));
}

// mu_1 = b_0 k_0 (1 - b_1 k_1^2)/m + b_1 k_1/m: m = 2, no decay.
TEST(SegmentMomentsBackward, DeltaByHand) {
  problem_and_gradients<double> c({.B = 1, .T = 2, .HR = 1, .dr = 1, .moment_rule = moment_rule::delta}, 2);
  c.p.keys.k.assign({3, 2});
  c.p.keys.g.assign({0, 0});
  c.p.keys.beta.assign({1, 0.5});
  c.g.d_mu.assign({2});
  c.g.d_Sigma = {};
  c.run();
  EXPECT_EQ(c.g.keys.d_k.values(), (values{-1, -6 + 0.5}));
  EXPECT_EQ(c.g.keys.d_beta.values(), (values{-3, -12 + 2}));
  EXPECT_EQ(c.g.keys.d_g.values(), (values{0, -3}));
}

TEST(SegmentMomentsBackward, EveryOption) {
  int row = 0;
  for (const auto& shape : every_option(small)) {
    const std::string what = "row " + std::to_string(row++);
    for (const std::int64_t m : {1, 3, 7, 64}) {
      expect_gradients(problem_and_gradients<double>(shape, m), what + ", m " + std::to_string(m));
    }
    expect_gradients(problem_and_gradients<double, boundaries>(shape), what + ", boundaries");
  }
}

TEST(SegmentMomentsBackward, Sizes) {
  for (const std::int64_t T : {0, 1, 2, 4, 9, 17}) {
    for (const auto& shape : every_option({.B = 1, .T = T, .HR = 1, .dr = 3})) {
      expect_gradients(problem_and_gradients<double>(shape, 5), "T " + std::to_string(T));
    }
  }
}

TEST(SegmentMomentsBackward, PackedSequences) {
  for (const auto& shape : every_option({.B = 1, .T = 8, .HR = 2, .dr = 2})) {
    expect_gradients(problem_and_gradients<double>(shape, 2, {}, {0, 3, 0, 1, 4, 0}), "packed");
  }
}

// Each moment alone carries its gradient, and an absent one is a gradient of zeros.
TEST(SegmentMomentsBackward, UpstreamAlone) {
  for (const auto& shape : every_option(small)) {
    problem_and_gradients<double> c(shape);
    expect_absent_upstream_is_zero(c.p, c.g);
    expect_gradients_independent(c.p, c.g);
    auto only_mu = c;
    only_mu.g.d_Sigma = {};
    expect_gradients(only_mu, "mu alone");
    c.g.d_mu = {};
    expect_gradients(c, "Sigma alone");
  }
}

// Nothing is forgotten, all is, and betas at the ends of their range.
TEST(SegmentMomentsBackward, ExtremeGates) {
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    auto shape = small;
    shape.moment_rule = rule;
    for (const double g : {0.0, -1e-4, -1000.0, -infinity}) {
      for (const double beta : {0.0, 1.0, 2.0}) {
        problem_and_gradients<double> c(shape);
        c.p.keys.g.assign(values(28, g));
        c.p.keys.beta.assign(values(28, beta));
        expect_gradients(c, "g " + std::to_string(g) + ", beta " + std::to_string(beta));
        c.run();
        if (std::isinf(g)) {
          EXPECT_EQ(c.g.keys.d_g.values(), values(28, 0));
        }
      }
    }
  }
}

// A zero row stays zero: with eps = 0, where its normalisation has no derivative, its gradient is 0.
TEST(SegmentMomentsBackward, ZeroRows) {
  for (auto shape : every_option(small)) {
    if (!shape.qkp_l2norm) continue;
    problem_and_gradients<double> c(shape);
    auto k = c.p.keys.k.values();
    k[4] = k[5] = 0;
    c.p.keys.k.assign(k);
    expect_dual_derivatives(c.p, c.g, "zero row");
    auto args = c.p.args();
    args.moments.l2norm_eps = 0;
    segment_moments_backward(on_reference{}, args, c.g.views());
    const auto d_k = c.g.keys.d_k.values();
    for (const double x : d_k) EXPECT_TRUE(std::isfinite(x));
    EXPECT_EQ(d_k[4], 0);
    EXPECT_EQ(d_k[5], 0);
  }
}

template <class Data>
class SegmentMomentsBackwardTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(SegmentMomentsBackwardTyped, data_types);

TYPED_TEST(SegmentMomentsBackwardTyped, RoundsOnce) {
  for (const auto& shape : every_option({.T = 19})) {
    const problem_and_gradients<TypeParam> c(shape, 4);
    expect_gradients_rounded_once(c.p, c.g);
  }
}

TEST(SegmentMomentsBackward, Refusals) {
  auto shape = small;
  shape.moment_rule = moment_rule::delta;
  problem_and_gradients<float> c(shape);
  const auto good = c.g.views();
  const auto expect_refused = [&](const auto& edit, error_code code, const std::string& argument,
                                  const std::string& text) {
    auto args = c.p.args();
    auto grads = good;
    edit(args, grads);
    const status s = check(args, grads);
    EXPECT_TRUE(refuses(s, code, argument, text));
    EXPECT_EQ(s.op, std::string("segment_moments_backward"));
    EXPECT_THROW(segment_moments_backward(on_reference{}, args, grads), argument_error);
    c.g.keys.for_each(c.p.keys, [](const char* name, const auto&, const auto& gradient) {
      EXPECT_TRUE(all_are(gradient.view(), std::nan(""))) << name;
    });
  };
  EXPECT_TRUE(check(c.p.args(), good).ok());
  expect_refused([](auto&, auto& g) { g.d_mu = g.d_mu.slice(1, 0, 2); }, error_code::shape, "d_mu", "(2, 2, 2, 2)");
  expect_refused([](auto&, auto& g) { g.d_Sigma = g.d_Sigma.slice(4, 0, 1); }, error_code::shape, "d_Sigma", "dr, dr");
  expect_refused([](auto&, auto& g) { g.moments.d_k = g.moments.d_k.slice(3, 0, 1); }, error_code::shape, "moments.d_k",
                 "(B, T, HR, dr)");
  expect_refused([](auto&, auto& g) { g.moments.d_g = g.moments.d_g.slice(1, 0, 6); }, error_code::shape, "moments.d_g",
                 "(B, T, HR)");
  expect_refused([](auto&, auto& g) { g.moments.d_beta = g.moments.d_beta.slice(0, 0, 1); }, error_code::shape,
                 "moments.d_beta", "(B, T, HR)");
  expect_refused([](auto& a, auto&) { a.moments.k = {}; }, error_code::missing, "moments.k", "");
  expect_refused([](auto& a, auto&) { a.separation.m = 0; }, error_code::value, "separation.m", "at least 1");
  expect_refused(
      [](auto& a, auto& g) {
        a.moments.moment_rule = moment_rule::plain;
        a.moments.g = a.moments.beta = {};
        g.moments.d_beta = {};
      },
      error_code::unexpected, "moments.d_g", "moments.g is not");
  expect_refused(
      [](auto& a, auto& g) {
        a.moments.moment_rule = moment_rule::plain;
        a.moments.g = a.moments.beta = {};
        g.moments.d_g = {};
      },
      error_code::unexpected, "moments.d_beta", "moments.beta is not");
  const tensor_view<float, 4> shared{c.g.keys.d_k.view().data(), {2, 7, 2, 2}, {0, 4, 2, 1}};
  expect_refused([&](auto&, auto& g) { g.moments.d_k = shared; }, error_code::stride, "moments.d_k", "stride 0");

  problem_and_gradients<float> packed({.B = 1, .T = 7}, 2, {}, {3, 4});
  packed.p.cu_seqlens.assign({0, 8, 7});
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::value, "cu_seqlens", "7"));
  packed.p.cu_seqlens.assign({0, 2, 7});
  packed.g.d_mu = tensor<float, 4>({1, 5, 2, 5});
  packed.g.d_Sigma = {};
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::shape, "d_mu", "L"));
}

}  // namespace
}  // namespace polystate::testing
