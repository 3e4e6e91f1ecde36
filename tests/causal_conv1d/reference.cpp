// SPDX-License-Identifier: Apache-2.0

// The definition against numbers worked by hand, a second formulation, and its own properties.

#include "causal_conv1d/cases.hpp"
#include "support/compare.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace polystate::testing {
namespace {

// One channel, one batch entry.
std::vector<double> convolve(const std::vector<double>& x, const std::vector<double>& weight,
                             const std::vector<double>& state = {}, double bias = 0, activation act = activation::none,
                             std::vector<double>* final_state = nullptr) {
  const auto size = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  std::vector<double> y(x.size(), std::nan(""));
  std::vector<double> last(weight.size() - 1, std::nan(""));
  causal_conv1d_args<double> args{.x = {x.data(), {1, size(x), 1}},
                                  .weight = {weight.data(), {1, size(weight)}},
                                  .bias = {&bias, {1}},
                                  .y = {y.data(), {1, size(x), 1}},
                                  .final_state = {last.data(), {1, size(last), 1}},
                                  .act = act};
  if (!state.empty()) args.initial_state = {state.data(), {1, size(state), 1}};
  causal_conv1d(on_reference{}, args);
  if (final_state != nullptr) *final_state = last;
  return y;
}

using values = std::vector<double>;

TEST(CausalConv1dReference, ByHand) {
  values state;
  EXPECT_EQ(convolve({1, 2, 3}, {1, 10, 100}, {}, 0.5, activation::none, &state), (values{100.5, 210.5, 321.5}));
  EXPECT_EQ(state, (values{2, 3}));
  // bugs B031: width 1 has no state, width 2 meets its one old input.
  EXPECT_EQ(convolve({5}, {2}, {}, 1, activation::none, &state), (values{11}));
  EXPECT_TRUE(state.empty());
  EXPECT_EQ(convolve({5}, {1, 10}, {7}, 0, activation::none, &state), (values{57}));
  EXPECT_EQ(state, (values{5}));
  // fewer tokens than the state holds: the old state moves up
  convolve({5}, {1, 1, 1, 1}, {7, 8, 9}, 0, activation::none, &state);
  EXPECT_EQ(state, (values{8, 9, 5}));
  // bugs B100: as many outputs as inputs, the first ones.
  EXPECT_EQ(convolve({1, 2, 3}, {0, 0, 0, 1}), (values{1, 2, 3}));
  EXPECT_EQ(convolve({1, 2, 3}, {1, 0, 0, 0}), (values{0, 0, 0}));
}

// bugs B029: any width.
TEST(CausalConv1dReference, EveryWidthCountsItsTaps) {
  for (const std::size_t W : {1u, 2u, 3u, 4u, 5u, 7u, 9u, 15u, 31u, 50u}) {
    const auto y = convolve(values(40, 1), values(W, 1));
    for (std::size_t t = 0; t < y.size(); ++t) EXPECT_EQ(y[t], static_cast<double>(std::min(t + 1, W))) << W;
  }
}

TEST(CausalConv1dReference, SiluOfLargeSums) {
  const auto y = convolve({0, 1, -1, 1000, -1000}, {1}, {}, 0, activation::silu);
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 0.7310585786300049, 1e-15);
  EXPECT_NEAR(y[2], -0.2689414213699951, 1e-15);
  EXPECT_EQ(y[3], 1000);
  EXPECT_EQ(y[4], 0);
  EXPECT_NEAR(convolve({1}, {1}, {}, 1, activation::silu)[0], 1.7615941559557649,
              1e-15);  // the bias is inside
}

// y as a product with the banded Toeplitz matrix of the taps: shares no line with the reference.
TEST(CausalConv1dReference, EqualsTheToeplitzProduct) {
  std::mt19937 rng(3);
  for (const std::int64_t T : {0, 1, 2, 3, 4, 5, 33}) {
    for (const std::int64_t W : {1, 2, 4, 7}) {
      conv_problem<double> p(conv_shape{.B = 2, .T = T, .D = 3, .W = W, .act = activation::none}, rng);
      causal_conv1d(on_reference{}, p.args());
      tensor<double, 3> want({2, T, 3});
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t t = 0; t < T; ++t) {
          for (std::int64_t d = 0; d < 3; ++d) {
            double sum = p.bias.view()(d);
            for (std::int64_t lag = 0; lag < W; ++lag) {
              const double tap = p.weight.view()(d, W - 1 - lag);
              sum += tap * (t >= lag ? p.x.view()(b, t - lag, d) : p.initial_state.view()(b, W - 1 + t - lag, d));
            }
            want.view()(b, t, d) = sum;
          }
        }
      }
      EXPECT_LE(relative_l2(p.y, want), 1e-14) << "T " << T << " W " << W;
      EXPECT_TRUE(p.y.untouched_outside() && p.final_state.untouched_outside());
    }
  }
}

// Every memory order and padding of x, y and the states gives the bits of the contiguous run.
TEST(CausalConv1dReference, StridesChangeNothing) {
  const conv_shape shape{.B = 2, .T = 9, .D = 5};
  std::mt19937 rng(4);
  conv_problem<float> plain(shape, rng);
  causal_conv1d(on_reference{}, plain.args());
  for (const auto& order : {std::array{0, 2, 1}, std::array{2, 1, 0}, std::array{1, 0, 2}, std::array{0, 1, 2}}) {
    for (const std::int64_t pad : {0, 3}) {
      rng.seed(4);
      auto strided = shape;
      strided.memory = {order, pad};
      conv_problem<float> p(strided, rng);
      causal_conv1d(on_reference{}, p.args());
      EXPECT_TRUE(bitwise_equal(p.y, plain.y));
      EXPECT_TRUE(bitwise_equal(p.final_state, plain.final_state));
      EXPECT_TRUE(p.y.untouched_outside());
    }
  }
}

// bugs B074: every optional operand, there or not.
TEST(CausalConv1dReference, AbsentMeansZero) {
  for (int mask = 0; mask < 8; ++mask) {
    std::mt19937 rng(5);
    conv_problem<double> full(conv_shape{}, rng);
    if ((mask & 1) != 0) full.bias.for_each([](double& v) { v = 0; });
    if ((mask & 2) != 0) full.initial_state.for_each([](double& v) { v = 0; });
    auto part = full;
    if ((mask & 1) != 0) part.bias = {};
    if ((mask & 2) != 0) part.initial_state = {};
    if ((mask & 4) != 0) part.final_state = {};
    causal_conv1d(on_reference{}, full.args());
    causal_conv1d(on_reference{}, part.args());
    EXPECT_TRUE(bitwise_equal(full.y, part.y)) << mask;
  }
}

TEST(CausalConv1dReference, PackedEqualsSeparate) {
  std::mt19937 rng(6);
  for (const bool with_state : {false, true}) {
    conv_problem<float> packed(
        conv_shape{.B = 1, .T = 16, .D = 4, .initial_state = with_state, .lengths = {5, 0, 1, 0, 2, 8, 0}}, rng);
    causal_conv1d(on_reference{}, packed.args());
    const sequences all(1, 16, packed.cu_seqlens.view());
    for (std::int64_t s = 0; s < all.size(); ++s) {
      const auto range = all[s];
      auto args = packed.args();
      tensor<float, 3> y({1, range.size(), 4});
      tensor<float, 3> last({1, 3, 4});
      args.x = args.x.slice(1, range.begin, range.end);
      args.y = y.view();
      args.cu_seqlens = {};
      if (with_state) args.initial_state = args.initial_state.slice(0, s, s + 1);
      args.final_state = last.view();
      causal_conv1d(on_reference{}, args);
      const auto got = packed.y.view().slice(1, range.begin, range.end);
      for (std::int64_t t = 0; t < range.size(); ++t) {
        for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(got(0, t, d), y.view()(0, t, d)) << s;
      }
      for (std::int64_t j = 0; j < 3; ++j) {
        for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(packed.final_state.view()(s, j, d), last.view()(0, j, d)) << s;
      }
    }
  }
}

TEST(CausalConv1dReference, SplitAndResumeInPlace) {
  std::mt19937 rng(7);
  conv_problem<float> whole(conv_shape{.T = 11}, rng);
  causal_conv1d(on_reference{}, whole.args());
  for (std::int64_t cut = 0; cut <= 11; ++cut) {
    auto parts = whole;
    parts.y.poison();
    auto args = parts.args();
    args.final_state = parts.initial_state.view();  // in place
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      auto a = args;
      a.x = args.x.slice(1, begin, end);
      a.y = args.y.slice(1, begin, end);
      causal_conv1d(on_reference{}, a);
    };
    part(0, cut);
    part(cut, 11);
    EXPECT_TRUE(bitwise_equal(parts.y, whole.y)) << cut;
    EXPECT_TRUE(bitwise_equal(parts.initial_state, whole.final_state)) << cut;
  }
}

// A change of one input reaches its own W outputs of its own channel and no other; NaN likewise.
TEST(CausalConv1dReference, CausalAndLocal) {
  for (const float change : {3.0f, std::numeric_limits<float>::quiet_NaN()}) {
    std::mt19937 rng(8);
    conv_problem<float> a(conv_shape{.T = 12}, rng);
    auto b = a;
    b.x.view()(1, 5, 2) = change;
    causal_conv1d(on_reference{}, a.args());
    causal_conv1d(on_reference{}, b.args());
    for (std::int64_t n = 0; n < 2; ++n) {
      for (std::int64_t t = 0; t < 12; ++t) {
        for (std::int64_t d = 0; d < 5; ++d) {
          const bool touched = n == 1 && d == 2 && t >= 5 && t < 5 + 4;
          EXPECT_EQ(a.y.view()(n, t, d) != b.y.view()(n, t, d), touched) << n << ' ' << t << ' ' << d;
        }
      }
    }
  }
}

template <class Data>
class CausalConv1dReferenceTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(CausalConv1dReferenceTyped, data_types);

// Computed in double and rounded once: the double run, rounded.
TYPED_TEST(CausalConv1dReferenceTyped, RoundsOnce) {
  std::mt19937 rng(9);
  conv_problem<TypeParam> p(conv_shape{.T = 65, .D = 9}, rng);
  auto d = p.in_double();
  causal_conv1d(on_reference{}, p.args());
  causal_conv1d(on_reference{}, d.args());
  EXPECT_TRUE(bitwise_equal(convert<float>(p.y), convert<float>(convert<TypeParam>(d.y))));
  EXPECT_TRUE(bitwise_equal(convert<float>(p.final_state), convert<float>(convert<TypeParam>(d.final_state))));
}

// The step is the forward, token for token, for 1 to 8 tokens a call; pool slots, padding rows, intermediate
// states.
TYPED_TEST(CausalConv1dReferenceTyped, StepEqualsForward) {
  std::mt19937 rng(10);
  for (const std::int64_t W : {1, 2, 4, 6}) {
    for (const std::int64_t T : {1, 3, 8}) {
      conv_problem<TypeParam> whole(conv_shape{.B = 3, .T = 16, .W = W}, rng);
      causal_conv1d(on_reference{}, whole.args());

      constexpr std::int64_t slots = 6;
      const std::vector<std::int32_t> slot = {4, 0, 3};
      tensor<TypeParam, 3> pool({slots, W - 1, 5});
      for (std::int64_t b = 0; b < 3; ++b) {
        for (std::int64_t j = 0; j < W - 1; ++j) {
          for (std::int64_t d = 0; d < 5; ++d)
            pool.view()(slot[static_cast<std::size_t>(b)], j, d) = whole.initial_state.view()(b, j, d);
        }
      }
      tensor<TypeParam, 3> x({4, T, 5}), y({4, T, 5});
      tensor<TypeParam, 4> between({4, T, W - 1, 5});
      tensor<std::int32_t, 1> read({4});
      read.assign({4, 0, -1, 3});  // row 2 is padding
      const auto row_of = [](std::int64_t b) { return b < 2 ? b : b + 1; };
      for (std::int64_t begin = 0; begin + T <= 16; begin += T) {
        x.poison();
        y.poison();
        between.poison();
        for (std::int64_t b = 0; b < 3; ++b) {
          for (std::int64_t t = 0; t < T; ++t) {
            for (std::int64_t d = 0; d < 5; ++d) x.view()(row_of(b), t, d) = whole.x.view()(b, begin + t, d);
          }
        }
        causal_conv1d_step(on_reference{}, causal_conv1d_step_args<TypeParam>{.x = x.view(),
                                                                              .weight = whole.weight.view(),
                                                                              .bias = whole.bias.view(),
                                                                              .read_indices = read.view(),
                                                                              .state = pool.view(),
                                                                              .y = y.view(),
                                                                              .intermediate_states = between.view(),
                                                                              .act = whole.act});
        for (std::int64_t t = 0; t < T; ++t) {
          for (std::int64_t d = 0; d < 5; ++d) {
            EXPECT_EQ(static_cast<double>(y.view()(2, t, d)), 0);
            for (std::int64_t b = 0; b < 3; ++b) {
              EXPECT_EQ(static_cast<double>(y.view()(row_of(b), t, d)),
                        static_cast<double>(whole.y.view()(b, begin + t, d)));
              for (std::int64_t j = 0; j < W - 1; ++j) {  // the last W-1 inputs after each token
                const std::int64_t source = begin + t + 1 + j - (W - 1);
                const auto want =
                    source < 0 ? whole.initial_state.view()(b, W - 1 + source, d) : whole.x.view()(b, source, d);
                EXPECT_EQ(static_cast<double>(between.view()(row_of(b), t, j, d)), static_cast<double>(want));
                if (t + 1 == T) {
                  EXPECT_EQ(static_cast<double>(pool.view()(slot[static_cast<std::size_t>(b)], j, d)),
                            static_cast<double>(want));
                }
              }
            }
          }
        }
        // the padding row's intermediate states and the unused slots were never written
        for (std::int64_t t = 0; t < T; ++t) {
          for (std::int64_t j = 0; j < W - 1; ++j) {
            for (std::int64_t d = 0; d < 5; ++d) {
              EXPECT_TRUE(std::isnan(static_cast<double>(between.view()(2, t, j, d))));
              EXPECT_TRUE(std::isnan(static_cast<double>(pool.view()(1, j, d))));
            }
          }
        }
      }
      EXPECT_TRUE(pool.untouched_outside() && y.untouched_outside());
    }
  }
}

// Read from one slot, write to another; a row with -1 in either index is padding.
TEST(CausalConv1dReference, StepWritesElsewhere) {
  tensor<double, 3> x({3, 1, 1}), y({3, 1, 1}), pool({5, 1, 1});
  tensor<double, 2> weight({1, 2});
  tensor<std::int32_t, 1> read({3}), write({3});
  x.assign({5, 6, 7});
  weight.assign({1, 10});
  pool.assign({1, 2, 3, 4, 9});
  read.assign({0, 2, -1});
  write.assign({1, -1, 3});
  causal_conv1d_step(on_reference{}, causal_conv1d_step_args<double>{.x = x.view(),
                                                                     .weight = weight.view(),
                                                                     .read_indices = read.view(),
                                                                     .write_indices = write.view(),
                                                                     .state = pool.view(),
                                                                     .y = y.view()});
  EXPECT_EQ(y.values(), (values{51, 0, 0}));
  EXPECT_EQ(pool.values(), (values{1, 5, 3, 4, 9}));
}

}  // namespace
}  // namespace polystate::testing
