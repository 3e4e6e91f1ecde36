// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "causal_conv1d/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;

template <class Data = double>
struct problem_and_gradients {
  conv_problem<Data> p;
  conv_gradients<Data> g;

  explicit problem_and_gradients(const conv_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = conv_problem<Data>(shape, rng);
    g = conv_gradients<Data>(shape, rng);
  }
  void run() { causal_conv1d_backward(on_reference{}, p.args(), g.views()); }
};

void expect_gradients(const conv_shape& shape, const std::string& what) {
  const problem_and_gradients<> both(shape);
  expect_gradients(both.p, both.g, what);
}

// bugs B068: the state takes part whether or not its own gradient is asked for.
TEST(CausalConv1dBackward, ByHand) {
  problem_and_gradients<> c(conv_shape{.B = 1, .T = 2, .D = 1, .W = 2, .bias = false, .act = activation::none});
  c.p.weight.assign({1, 10});
  c.p.initial_state.assign({7});
  c.p.x.assign({1, 2});
  fill(c.g.d_y, 1);
  c.g.d_final_state = {};
  c.run();
  EXPECT_EQ(c.g.d_weight.values(), (values{8, 3}));
  EXPECT_EQ(c.g.d_x.values(), (values{11, 10}));
  EXPECT_EQ(c.g.d_initial_state.values(), (values{1}));

  c.g.d_weight.poison();
  c.g.d_x.poison();
  c.g.d_initial_state = {};
  c.run();
  EXPECT_EQ(c.g.d_weight.values(), (values{8, 3}));
  EXPECT_EQ(c.g.d_x.values(), (values{11, 10}));
}

// bugs B035: upstream gradients that are columns of a wider buffer.
TEST(CausalConv1dBackward, UpstreamInsideAWiderBuffer) {
  problem_and_gradients<> c(
      conv_shape{.B = 1, .T = 4, .D = 2, .W = 2, .bias = false, .initial_state = false, .act = activation::none});
  c.p.weight.assign({1, 10, 1, 10});
  tensor<double, 3> wide({1, 4, 6});
  fill(wide, 1e6);
  const auto d_y = wide.view().slice(2, 2, 4);
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t channel = 0; channel < 2; ++channel) {
      d_y(0, t, channel) = static_cast<double>(t + 1 + 10 * channel);
    }
  }
  auto grads = c.g.views();
  grads.d_y = d_y;
  grads.d_final_state = {};
  causal_conv1d_backward(on_reference{}, c.p.args(), grads);
  EXPECT_EQ(c.g.d_x.values(), (values{12, 122, 23, 133, 34, 144, 40, 140}));
}

// The final state hands its gradient to the last inputs, and to the initial state where there are too few.
TEST(CausalConv1dBackward, FinalStateAlone) {
  problem_and_gradients<> c(conv_shape{.B = 1, .T = 2, .D = 1, .W = 4});
  c.g.d_y = {};
  c.g.d_final_state.assign({5, 6, 7});
  c.run();
  EXPECT_EQ(c.g.d_x.values(), (values{6, 7}));
  EXPECT_EQ(c.g.d_initial_state.values(), (values{0, 0, 5}));
  EXPECT_EQ(c.g.d_weight.values(), (values{0, 0, 0, 0}));
  EXPECT_EQ(c.g.d_bias.values(), (values{0}));
}

// bugs B074: every optional operand, there or not, for widths without a state and shorter sequences than the state.
TEST(CausalConv1dBackward, EveryOption) {
  for (int mask = 0; mask < 16; ++mask) {
    for (const std::int64_t W : {1, 2, 3, 4, 5}) {
      for (const std::int64_t T : {0, 1, 2, 7}) {
        const conv_shape shape{.B = 2,
                               .T = T,
                               .D = 2,
                               .W = W,
                               .bias = (mask & 1) != 0,
                               .initial_state = (mask & 2) != 0,
                               .final_state = (mask & 4) != 0,
                               .act = (mask & 8) != 0 ? activation::silu : activation::none};
        expect_gradients(shape,
                         "options " + std::to_string(mask) + ", W " + std::to_string(W) + ", T " + std::to_string(T));
      }
    }
  }
}

TEST(CausalConv1dBackward, PackedSequences) {
  for (const bool with_state : {false, true}) {
    expect_gradients(
        conv_shape{.B = 1, .T = 11, .D = 2, .initial_state = with_state, .lengths = {0, 5, 0, 1, 2, 0, 3, 0}},
        "packed");
  }
}

TEST(CausalConv1dBackward, Independent) {
  const problem_and_gradients<> c(conv_shape{.T = 6, .D = 3});
  expect_gradients_independent(c.p, c.g);
}

TEST(CausalConv1dBackward, AbsentMeansZero) {
  const problem_and_gradients<float> c(conv_shape{.T = 6, .D = 3});
  expect_absent_upstream_is_zero(c.p, c.g);
  expect_absent_initial_state_is_zero(c.p, c.g);
}

TEST(CausalConv1dBackward, StridesChangeNothing) {
  problem_and_gradients<float> plain(conv_shape{.T = 6});
  plain.run();
  for (const auto& order : {std::array{0, 2, 1}, std::array{2, 1, 0}, std::array{1, 0, 2}, std::array{0, 1, 2}}) {
    problem_and_gradients<float> strided(conv_shape{.T = 6, .memory = {order, 3}});
    strided.run();
    expect_same_gradients(gradients_of(strided.p, strided.g), gradients_of(plain.p, plain.g), "strides");
    EXPECT_TRUE(strided.g.d_x.untouched_outside());
  }
}

TEST(CausalConv1dBackward, Adjoint) {
  const problem_and_gradients<> c(conv_shape{.bias = false, .act = activation::none});
  expect_adjoint(c.p, c.g, {"x", "initial_state"});
}

template <class Data>
class CausalConv1dBackwardTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(CausalConv1dBackwardTyped, data_types);

TYPED_TEST(CausalConv1dBackwardTyped, RoundsOnce) {
  const problem_and_gradients<TypeParam> c(conv_shape{.T = 33, .D = 9});
  expect_gradients_rounded_once(c.p, c.g);
}

// silu far out: its derivative is 1 or 0, never NaN.
TEST(CausalConv1dBackward, SiluOfLargeSums) {
  problem_and_gradients<> c(conv_shape{.B = 1, .T = 5, .D = 1, .W = 1, .bias = false});
  c.p.weight.assign({1});
  c.p.x.assign({0, 1, -1, 1000, -1000});
  fill(c.g.d_y, 1);
  c.run();
  const auto d_x = c.g.d_x.values();
  const values want = {0.5, 0.9276705118714867, 0.0723294881285133, 1, 0};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(d_x[i], want[i], 1e-15) << i;
  EXPECT_EQ(d_x[4], 0);
}

TEST(CausalConv1dBackward, Refusals) {
  problem_and_gradients<float> c(conv_shape{.T = 6, .D = 3});
  expect_gradients_checked(c.p, c.g);
  c.p.bias = {};
  EXPECT_TRUE(refuses(check(c.p.args(), c.g.views()), error_code::unexpected, "d_bias", "bias is not"));
  c.g.d_bias = {};
  const auto grads = c.g.views();
  auto args = c.p.args();
  args.x = {};
  EXPECT_TRUE(refuses(check(args, grads), error_code::missing, "x", "causal_conv1d_backward"));
  args = c.p.args();
  args.weight = {};
  EXPECT_TRUE(refuses(check(args, grads), error_code::missing, "weight", "(D, W)"));
  args = c.p.args();
  args.initial_state = args.initial_state.slice(1, 0, 2);
  EXPECT_TRUE(refuses(check(args, grads), error_code::shape, "initial_state", "(S, W-1, D) = (2, 3, 3)"));

  auto shared = grads;
  shared.d_x = {c.g.d_x.view().data(), {2, 6, 3}, {18, 0, 1}};
  EXPECT_TRUE(refuses(check(c.p.args(), shared), error_code::stride, "d_x", "stride 0 along index 1"));
  shared = grads;
  shared.d_y = {c.g.d_y.view().data(), {2, 6, 3}, {0, 0, 0}};  // an upstream gradient may repeat
  EXPECT_TRUE(check(c.p.args(), shared).ok());
  shared.d_weight = {nullptr, {3, 4}};
  EXPECT_TRUE(refuses(check(c.p.args(), shared), error_code::missing, "d_weight", "null pointer with shape (3, 4)"));

  problem_and_gradients<float> packed(conv_shape{.B = 1, .T = 6, .D = 3, .lengths = {2, 4}});
  packed.p.cu_seqlens.assign({0, 7, 6});
  EXPECT_TRUE(check(packed.p.args(), packed.g.views()).ok());
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::value, "cu_seqlens",
                      "entry 2 is 6, supported: at least the entry before"));
  EXPECT_THROW(packed.run(), argument_error);
  EXPECT_TRUE(all_are(packed.g.d_x.view(), std::nan("")) && all_are(packed.g.d_weight.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
