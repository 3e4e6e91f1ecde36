// SPDX-License-Identifier: Apache-2.0

// The definition against direct sums, against the delta rules that it restates, and its own properties.

#include "segment_moments/cases.hpp"
#include "support/compare.hpp"

#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/segment_moments.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace polystate::testing {
namespace {

constexpr moment_rule every_rule[] = {moment_rule::plain, moment_rule::decay_write, moment_rule::delta};

/// Both moments, (B, L, HR, dr[, dr]).
template <class Data>
struct moments {
  tensor<acc_t<Data>, 4> mu;
  tensor<acc_t<Data>, 5> Sigma;
};

template <class Data, class Separation>
moments<Data> run(const routing_keys<Data>& keys, const Separation& separation, index_view cu_seqlens = {},
                  std::int64_t packed_segments = 0) {
  const auto& s = keys.options;
  const std::int64_t L = cu_seqlens ? packed_segments : separation.count(s.T);
  moments<Data> out{tensor<acc_t<Data>, 4>({s.B, L, s.HR, s.dr}), tensor<acc_t<Data>, 5>({s.B, L, s.HR, s.dr, s.dr})};
  segment_moments(on_reference{}, segment_moments_args<Data, Separation>{.moments = keys.view(),
                                                                         .separation = separation,
                                                                         .cu_seqlens = cu_seqlens,
                                                                         .mu = out.mu.view(),
                                                                         .Sigma = out.Sigma.view()});
  EXPECT_TRUE(out.mu.untouched_outside() && out.Sigma.untouched_outside());
  return out;
}

/// What run() must give, by direct sums.
template <class Separation>
moments<double> summed(const routing_keys<double>& keys, const Separation& separation) {
  const auto& s = keys.options;
  const auto segments = segments_of(separation, s.T);
  const auto L = static_cast<std::int64_t>(segments.size());
  moments<double> want{tensor<double, 4>({s.B, L, s.HR, s.dr}), tensor<double, 5>({s.B, L, s.HR, s.dr, s.dr})};
  std::vector<double> mu;
  std::vector<double> Sigma;
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (const auto& of : segments) {
      for (std::int64_t r = 0; r < s.HR; ++r) {
        const auto direct = direct_moments(keys, b, r, of, of.end - 1);
        mu.insert(mu.end(), direct.mu.begin(), direct.mu.end());
        for (const auto& row : direct.Sigma) Sigma.insert(Sigma.end(), row.begin(), row.end());
      }
    }
  }
  want.mu.assign(mu);
  want.Sigma.assign(Sigma);
  return want;
}

void expect_close(const moments<double>& got, const moments<double>& want) {
  EXPECT_LE(relative_l2(got.mu, want.mu), 1e-14);
  EXPECT_LE(relative_l2(got.Sigma, want.Sigma), 1e-14);
}

void expect_equal(const moments<double>& a, const moments<double>& b) {
  EXPECT_TRUE(bitwise_equal(a.mu, b.mu));
  EXPECT_TRUE(bitwise_equal(a.Sigma, b.Sigma));
}

TEST(SegmentMomentsReference, ByHand) {
  routing_keys<double> keys;
  keys.options = {.B = 1, .T = 3, .HR = 1, .dr = 2};
  keys.k = tensor<double, 4>({1, 3, 1, 2});
  keys.k.assign({1, 2, 3, -4, 5, 6});
  auto out = run(keys, separation::uniform{2});
  EXPECT_EQ(out.mu.values(), (std::vector<double>{2, -1, 2.5, 3}));  // the partial segment is divided by 2 too
  EXPECT_EQ(out.Sigma.values(), (std::vector<double>{5, -5, -5, 10, 12.5, 15, 15, 18}));
  keys.options.divide_by = divide_by::count;
  out = run(keys, separation::uniform{2});
  EXPECT_EQ(out.mu.values(), (std::vector<double>{2, -1, 5, 6}));
  EXPECT_EQ(out.Sigma.values(), (std::vector<double>{5, -5, -5, 10, 25, 30, 30, 36}));
}

TEST(SegmentMomentsReference, DirectSums) {
  std::mt19937 rng(1);
  const std::vector<std::int32_t> cuts = {0, 1, 6, 9, 11};
  const separation::boundaries boundaries{{cuts.data(), {5}}};
  for (const auto rule : every_rule) {
    for (const bool l2norm : {false, true}) {
      const routing_keys<double> keys({.moment_rule = rule, .qkp_l2norm = l2norm}, rng);
      for (const std::int64_t m : {1, 2, 3, 10, 11, 12, 1000}) {
        SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule)) + " m " + std::to_string(m));
        expect_close(run(keys, separation::uniform{m}), summed(keys, separation::uniform{m}));
      }
      expect_close(run(keys, boundaries), summed(keys, boundaries));
    }
  }
  const routing_keys<double> keys({.divide_by = divide_by::count}, rng);
  expect_close(run(keys, separation::uniform{4}), summed(keys, separation::uniform{4}));
  expect_close(run(keys, boundaries), summed(keys, boundaries));
}

// delta is gated_delta_rule with key k' and values 1/m and k'/m; decay_write the same of the rule `gated`,
// whose write carries no beta: its values are b/m and b k'/m.
TEST(SegmentMomentsReference, AreDeltaRulesOfTheKey) {
  constexpr std::int64_t T = 7, HR = 2, dr = 3;
  std::mt19937 rng(2);
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    const routing_keys<double> keys({.B = 1, .T = T, .HR = HR, .dr = dr, .moment_rule = rule}, rng);
    const auto got = run(keys, separation::uniform{T});
    // one state holds both: row 0 is mu, the rows below are Sigma
    tensor<double, 4> v({1, T, HR, 1 + dr}), o({1, T, HR, 1 + dr}), state({1, HR, 1 + dr, dr});
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t r = 0; r < HR; ++r) {
        const double write = (rule == moment_rule::delta ? 1 : keys.beta.view()(0, t, r)) / T;
        v.view()(0, t, r, 0) = write;
        for (std::int64_t i = 0; i < dr; ++i) v.view()(0, t, r, 1 + i) = write * keys.k.view()(0, t, r, i);
      }
    }
    if (rule == moment_rule::delta) {
      gated_delta_rule(on_reference{}, gated_delta_rule_args<double, rule::gated_delta>{.q = keys.k.view(),
                                                                                        .k = keys.k.view(),
                                                                                        .v = v.view(),
                                                                                        .g = keys.g.view(),
                                                                                        .beta = keys.beta.view(),
                                                                                        .o = o.view(),
                                                                                        .final_state = state.view()});
    } else {
      gated_delta_rule(on_reference{}, gated_delta_rule_args<double, rule::gated>{.q = keys.k.view(),
                                                                                  .k = keys.k.view(),
                                                                                  .v = v.view(),
                                                                                  .g = keys.g.view(),
                                                                                  .o = o.view(),
                                                                                  .final_state = state.view()});
    }
    for (std::int64_t r = 0; r < HR; ++r) {
      for (std::int64_t j = 0; j < dr; ++j) {
        EXPECT_NEAR(got.mu.view()(0, 0, r, j), state.view()(0, r, 0, j), 1e-15);
        for (std::int64_t i = 0; i < dr; ++i)
          EXPECT_NEAR(got.Sigma.view()(0, 0, r, i, j), state.view()(0, r, 1 + i, j), 1e-15);
      }
    }
  }
}

// a = b = 1: decay_write is plain; with orthonormal keys the delta term changes nothing either.
TEST(SegmentMomentsReference, WriteForgetWithoutForgettingIsPlain) {
  std::mt19937 rng(3);
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    routing_keys<double> keys({.B = 1, .T = 5, .HR = 1, .dr = 5, .moment_rule = rule}, rng);
    keys.g.for_each([](double& x) { x = 0; });
    keys.beta.for_each([](double& x) { x = 1; });
    if (rule == moment_rule::delta) {
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t i = 0; i < 5; ++i) keys.k.view()(0, t, 0, i) = i == t ? 1 : 0;
      }
    }
    auto plain = keys;
    plain.options.moment_rule = moment_rule::plain;
    plain.g = {};
    plain.beta = {};
    expect_close(run(keys, separation::uniform{3}), run(plain, separation::uniform{3}));
  }
}

// alpha = 0 at g = -inf: the tokens before it are forgotten, and nothing becomes NaN.
TEST(SegmentMomentsReference, InfiniteDecayForgets) {
  std::mt19937 rng(4);
  for (const auto rule : {moment_rule::decay_write, moment_rule::delta}) {
    routing_keys<double> keys({.B = 1, .T = 6, .HR = 1, .moment_rule = rule}, rng);
    keys.g.view()(0, 3, 0) = -std::numeric_limits<double>::infinity();
    auto other = keys;
    for (std::int64_t t = 0; t < 3; ++t) other.k.view()(0, t, 0, 0) = 9;
    const auto out = run(keys, separation::uniform{6});
    for (const double x : out.Sigma.values()) EXPECT_TRUE(std::isfinite(x));
    expect_equal(out, run(other, separation::uniform{6}));
  }
}

TEST(SegmentMomentsReference, BoundariesOfEqualLengthAreUniform) {
  std::mt19937 rng(5);
  const std::vector<std::int32_t> cuts = {0, 4, 8, 12};
  for (const auto rule : every_rule) {
    const routing_keys<double> keys({.T = 12, .moment_rule = rule}, rng);
    expect_equal(run(keys, separation::boundaries{{cuts.data(), {4}}}), run(keys, separation::uniform{4}));
  }
}

// bugs B091: segments of packed sequences are numbered one sequence after the other, each from its own first token.
TEST(SegmentMomentsReference, PackedEqualsSeparate) {
  std::mt19937 rng(6);
  const std::vector<std::int32_t> cu = {0, 0, 5, 6, 6, 12, 16, 16};
  for (const auto rule : every_rule) {
    routing_keys<double> keys({.B = 1, .T = 16, .moment_rule = rule}, rng);
    const separation::uniform m3{3};
    const sequences all(1, 16, {cu.data(), {8}});
    const std::int64_t L = 0 + 2 + 1 + 0 + 2 + 2 + 0;
    const auto packed = run(keys, m3, {cu.data(), {8}}, L);
    std::int64_t first = 0;
    for (std::int64_t s = 0; s < all.size(); ++s) {
      const auto range = all[s];
      const std::int64_t count = m3.count(range.size());
      tensor<double, 4> mu({1, count, 2, 5});
      auto moments = keys.view();
      moments.k = moments.k.slice(1, range.begin, range.end);
      if (moments.g) moments.g = moments.g.slice(1, range.begin, range.end);
      if (moments.beta) moments.beta = moments.beta.slice(1, range.begin, range.end);
      segment_moments(on_reference{},
                      segment_moments_args<double>{.moments = moments, .separation = m3, .mu = mu.view()});
      for (std::int64_t l = 0; l < count; ++l) {
        for (std::int64_t r = 0; r < 2; ++r) {
          for (std::int64_t i = 0; i < 5; ++i)
            EXPECT_EQ(packed.mu.view()(0, first + l, r, i), mu.view()(0, l, r, i)) << s;
        }
      }
      first += count;
    }
    EXPECT_EQ(first, L);
    for (const double x : packed.Sigma.values()) EXPECT_TRUE(std::isfinite(x));  // every entry was written
  }
}

// Either moment alone has the bits of the run with both.
TEST(SegmentMomentsReference, OneOfBoth) {
  std::mt19937 rng(7);
  for (const auto rule : every_rule) {
    const routing_keys<double> keys({.moment_rule = rule}, rng);
    const auto both = run(keys, separation::uniform{4});
    moments<double> alone{tensor<double, 4>(both.mu.extents()), tensor<double, 5>(both.Sigma.extents())};
    const segment_moments_args<double> args{.moments = keys.view(), .separation = {4}};
    auto only = args;
    only.mu = alone.mu.view();
    segment_moments(on_reference{}, only);
    only = args;
    only.Sigma = alone.Sigma.view();
    segment_moments(on_reference{}, only);
    expect_equal(alone, both);
  }
}

TEST(SegmentMomentsReference, ZeroTokens) {
  std::mt19937 rng(8);
  const routing_keys<double> keys({.T = 0}, rng);
  EXPECT_EQ(run(keys, separation::uniform{4}).mu.values().size(), 0u);
  const std::int32_t zero = 0;
  EXPECT_EQ(run(keys, separation::boundaries{{&zero, {1}}}).Sigma.values().size(), 0u);
}

// One segment over everything may be written as the largest m there is.
TEST(SegmentMomentsReference, LargestM) {
  std::mt19937 rng(9);
  const routing_keys<double> keys({.divide_by = divide_by::count}, rng);
  expect_equal(run(keys, separation::uniform{std::numeric_limits<std::int64_t>::max()}),
               run(keys, separation::uniform{11}));
}

TEST(SegmentMomentsReference, StridesChangeNothing) {
  std::mt19937 rng(10);
  routing_keys<double> keys({}, rng);
  const auto plain = run(keys, separation::uniform{4});
  const auto values = keys.k.values();
  keys.k = tensor<double, 4>(keys.k.extents(), {{3, 0, 2, 1}, 3});
  keys.k.assign(values);
  expect_equal(run(keys, separation::uniform{4}), plain);
}

// A NaN stays in its batch entry, moment head and segment.
TEST(SegmentMomentsReference, NanStaysInItsSegment) {
  std::mt19937 rng(11);
  for (const auto rule : every_rule) {
    routing_keys<double> keys({.moment_rule = rule}, rng);
    keys.k.view()(1, 5, 0, 2) = std::nan("");
    const auto out = run(keys, separation::uniform{4});
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t l = 0; l < 3; ++l) {
        for (std::int64_t r = 0; r < 2; ++r)
          EXPECT_EQ(std::isnan(out.mu.view()(b, l, r, 2)), b == 1 && l == 1 && r == 0);
      }
    }
  }
}

template <class Data>
class SegmentMomentsReferenceTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(SegmentMomentsReferenceTyped, data_types);

// Computed in double and rounded once: the double run, rounded.
TYPED_TEST(SegmentMomentsReferenceTyped, RoundsOnce) {
  std::mt19937 rng(12);
  for (const auto rule : every_rule) {
    const routing_keys<TypeParam> keys({.T = 33, .moment_rule = rule, .qkp_l2norm = true}, rng);
    const auto got = run(keys, separation::uniform{8});
    const auto in_double = run(keys.in_double(), separation::uniform{8});
    EXPECT_TRUE(bitwise_equal(got.mu, convert<acc_t<TypeParam>>(in_double.mu)));
    EXPECT_TRUE(bitwise_equal(got.Sigma, convert<acc_t<TypeParam>>(in_double.Sigma)));
  }
}

}  // namespace
}  // namespace polystate::testing
