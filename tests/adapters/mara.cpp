// SPDX-License-Identifier: Apache-2.0

// mara: numbers worked by hand, the definition written once more without pooling or blocks, gradients, refusals.

#include "adapters/mara_cases.hpp"
#include "support/compare.hpp"
#include "support/gradient_properties.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/adapters/segment_retrieval.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;

template <class Data = double>
struct problem_and_gradients {
  mara_problem<Data> p;
  mara_gradients<Data> g;

  explicit problem_and_gradients(const mara_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = mara_problem<Data>(shape, rng);
    g = mara_gradients<Data>(shape, rng);
  }
};

// One attention dim, hidden states of two numbers: the weights are the softmax of tanh(h_0) log 3 / tanh(1).
TEST(Mara, PoolsByHand) {
  std::mt19937 rng(1);
  mara_problem<double> p({.lengths = {2, 0, 1}, .d = 2, .da = 1, .D = 2, .NG = 1, .layers = 0}, rng);
  p.H.assign({1, 10, 0, 20, 5, 7});
  p.W_k.assign({1, 0});
  p.q_a.assign({std::log(3.0) / std::tanh(1.0)});
  p.W_in.assign({1, 0, 0, -1});
  p.w_l.assign({1, 1});
  p.W_g.assign({2, 1});
  mara(on_reference{}, p.args());
  const auto near = [](const values& got, const values& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
  };
  // weights 3/4 and 1/4; the empty segment is 0; a single state is itself
  near(p.p.values(), {0.75, 12.5, 0, 0, 5, 7});
  near(p.s.values(), {0.75, -12.5, 0, 0, 5, -7});
  near(p.r.values(), {-11.75, 0, -2});
  near(p.g.values(), {5, -7});
  near(p.r_global.values(), {3});
}

// Without attention (q_a = 0) a segment is the mean of its states.
TEST(Mara, NoAttentionIsTheMean) {
  std::mt19937 rng(2);
  mara_problem<double> p({.lengths = {4}, .layers = 0}, rng);
  fill(p.q_a, 0);
  mara(on_reference{}, p.args());
  const auto H = p.H.view();
  for (std::int64_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(p.p.view()(0, k), (H(0, k) + H(1, k) + H(2, k) + H(3, k)) / 4, 1e-15);
  }
}

// The layers are mamba_block on the sequence of segments; with residual each adds to its input.
TEST(Mara, LayersAreBlocksOverSegments) {
  for (const bool residual : {false, true}) {
    std::mt19937 rng(3);
    mara_problem<double> p({.lengths = {1, 2, 0, 1}, .residual = residual}, rng);
    auto without = p;
    without.blocks.clear();
    mara(on_reference{}, without.args());
    mara(on_reference{}, p.args());
    tensor<double, 3> x({1, 4, 3});
    x.assign(without.s.values());
    for (const auto& block : p.blocks) {
      tensor<double, 3> y(x.extents());
      mamba_block(on_reference{}, mamba_block_args<double>{.x = x.view(), .weights = block.views(), .y = y.view()});
      auto sum = y.values();
      for (std::size_t i = 0; residual && i < sum.size(); ++i) sum[i] += x.values()[i];
      x.assign(sum);
    }
    EXPECT_LE(relative_deviation(x.values(), p.s.values()), 1e-14) << residual;
    EXPECT_EQ(p.p.values(), without.p.values());
    for (std::int64_t k = 0; k < 3; ++k) EXPECT_EQ(p.g.view()(k), p.s.view()(3, k));
  }
}

// A segment's scores depend on it and on those before it, and on nothing behind.
TEST(Mara, CausalOverSegments) {
  std::mt19937 rng(4);
  mara_problem<double> p({.lengths = {2, 2, 2, 2}}, rng);
  mara(on_reference{}, p.args());
  auto changed = p;
  for (std::int64_t k = 0; k < 3; ++k) changed.H.view()(4, k) += 1;  // of segment 2
  mara(on_reference{}, changed.args());
  const auto before = p.r.values(), after = changed.r.values();
  EXPECT_EQ(before[0], after[0]);
  EXPECT_EQ(before[1], after[1]);
  EXPECT_NE(before[2], after[2]);
  EXPECT_NE(before[3], after[3]);
}

TEST(Mara, OutputsIndependent) {
  std::mt19937 rng(5);
  mara_problem<double> p(mara_shape{}, rng);
  mara(on_reference{}, p.args());
  auto alone = p;
  alone.r.poison();
  auto args = alone.args();
  args.p = args.s = {};
  args.g = args.r_global = {};
  mara(on_reference{}, args);
  EXPECT_EQ(alone.r.values(), p.r.values());
}

template <class Data>
class MaraTyped : public ::testing::Test {};
using element_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(MaraTyped, element_types);

// Computed in double and rounded once, strides or not.
TYPED_TEST(MaraTyped, RoundsOnce) {
  problem_and_gradients<TypeParam> c({.lengths = {3, 0, 2}, .residual = true, .memory = {{1, 0}, 2}});
  auto want = c.p.in_double();
  mara(on_reference{}, c.p.args());
  mara(on_reference{}, want.args());
  EXPECT_TRUE(bitwise_equal(c.p.s, convert<TypeParam>(want.s)));
  EXPECT_TRUE(bitwise_equal(c.p.r, convert<TypeParam>(want.r)));
  EXPECT_TRUE(bitwise_equal(c.p.r_global, convert<TypeParam>(want.r_global)));
  EXPECT_TRUE(c.p.p.untouched_outside() && c.p.s.untouched_outside());
  expect_gradients_rounded_once(c.p, c.g);
}

TEST(MaraBackward, EveryGradient) {
  for (int mask = 0; mask < 8; ++mask) {
    mara_shape shape;
    shape.residual = (mask & 1) != 0;
    shape.local = (mask & 2) == 0;
    shape.global = (mask & 4) == 0;
    const problem_and_gradients<> c(shape);
    expect_gradients(c.p, c.g, "options " + std::to_string(mask));
  }
}

TEST(MaraBackward, SegmentsAndLayers) {
  for (const std::int64_t layers : {0, 1, 4}) {
    const problem_and_gradients<> c(mara_shape{.layers = layers, .residual = true});
    expect_gradients(c.p, c.g, "layers " + std::to_string(layers));
  }
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{1}, {0, 2, 0}, {0}, {5}, {0, 0, 3}, {1, 1, 1, 1, 1}}) {
    const problem_and_gradients<> c(mara_shape{.lengths = lengths});
    expect_gradients(c.p, c.g, "segments " + std::to_string(lengths.size()));
  }
}

TEST(MaraBackward, Properties) {
  const problem_and_gradients<> c(mara_shape{});
  expect_gradients_independent(c.p, c.g);
  expect_absent_upstream_is_zero(c.p, c.g);
}

TEST(MaraBackward, Refusals) {
  problem_and_gradients<float> c(mara_shape{});
  expect_gradients_checked(c.p, c.g);
  auto args = c.p.args();
  args.w_l = {};
  EXPECT_TRUE(refuses(check(args, c.g.views()), error_code::unexpected, "d_r", "mara_backward: d_r: given, but w_l"));
  args = c.p.args();
  args.W_g = {};
  EXPECT_TRUE(refuses(check(args, c.g.views()), error_code::unexpected, "d_r_global", "W_g is not"));
  auto grads = c.g.views();
  grads.d_blocks[1].d_D = grads.d_blocks[1].d_D.slice(0, 0, 1);
  EXPECT_TRUE(
      refuses(check(c.p.args(), grads), error_code::shape, "d_blocks[1].d_D", "shape (1), supported: (di) = (4)"));
  c.p.cu_segments.assign({0, 2, 5, 7});
  EXPECT_TRUE(refuses(check(on_reference{}, c.p.args(), c.g.views()), error_code::value, "cu_segments",
                      "entry 3 is 7, supported: T = 6"));
  EXPECT_THROW(mara_backward(on_reference{}, c.p.args(), c.g.views()), argument_error);
}

class MaraCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  mara_problem<float> p{mara_shape{}, rng};
  mara_args<float> args = p.args();

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_THROW(mara(on_reference{}, args), argument_error) << argument;
    for (const auto* out : {&p.p, &p.s}) EXPECT_TRUE(all_are(out->view(), std::nan(""))) << argument;
    for (const auto* out : {&p.r, &p.g, &p.r_global}) EXPECT_TRUE(all_are(out->view(), std::nan(""))) << argument;
    args = p.args();
  }
};

TEST_F(MaraCheck, Operands) {
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.H = {};
  expect_refused(error_code::missing, "H", "mara: H: not given; its shape is (T, d)");
  args.cu_segments = {};
  expect_refused(error_code::missing, "cu_segments", "(N+1)");
  args.W_k = {};
  expect_refused(error_code::missing, "W_k", "(da, d)");
  args.q_a = {};
  expect_refused(error_code::missing, "q_a", "(da)");
  args.W_in = {};
  expect_refused(error_code::missing, "W_in", "(D, d)");
  args.H = args.H.slice(1, 0, 2);
  expect_refused(error_code::shape, "W_k", "shape (2, 3), supported: (da, d) = (2, 2)");
  args.q_a = args.q_a.slice(0, 0, 1);
  expect_refused(error_code::shape, "q_a", "shape (1), supported: (da) = (2)");
  args.w_l = args.w_l.slice(0, 0, 1);
  expect_refused(error_code::shape, "w_l", "shape (1), supported: (D) = (3)");
  args.W_g = args.W_g.slice(1, 0, 1);
  expect_refused(error_code::shape, "W_g", "shape (2, 1), supported: (NG, D) = (2, 3)");
  args.r = args.r.slice(0, 0, 2);
  expect_refused(error_code::shape, "r", "shape (2), supported: (N) = (3)");
  args.w_l = {};
  expect_refused(error_code::unexpected, "r", "w_l is not");
  args.W_g = {};
  expect_refused(error_code::unexpected, "r_global", "W_g is not");
  args.H = args.H.slice(1, 0, 0);
  expect_refused(error_code::unsupported, "H", "d = 0, supported: at least 1");
}

TEST_F(MaraCheck, Layers) {
  args.layers = 5;
  expect_refused(error_code::unsupported, "layers", "5, supported: 0 to 4");
  args.layers = -1;
  expect_refused(error_code::unsupported, "layers", "-1, supported: 0 to 4");
  args.layers = 3;  // only two are given
  expect_refused(error_code::missing, "blocks[2].conv_w", "not given");
  args.blocks[1].x_proj = args.blocks[1].x_proj.slice(0, 0, 4);
  expect_refused(error_code::shape, "blocks[1].x_proj", "shape (4, 4), supported: (R+2N, di) = (5, 4)");
  args.blocks[0].out_proj = args.blocks[0].out_proj.slice(0, 0, 2);
  expect_refused(error_code::shape, "blocks[0].out_proj", "shape (2, 4), supported: (D, di) = (3, 4)");
  args.layers = 1;  // what is behind is not read
  args.blocks[1] = {};
  EXPECT_TRUE(check(args).ok()) << check(args).message();
}

TEST_F(MaraCheck, Segments) {
  args.cu_segments = args.cu_segments.slice(0, 0, 1);
  expect_refused(error_code::unsupported, "cu_segments", "supported: at least one segment");
  p.cu_segments.assign({1, 2, 5, 6});
  expect_refused(error_code::value, "cu_segments", "entry 0 is 1, supported: 0");
  p.cu_segments.assign({0, 5, 2, 6});
  expect_refused(error_code::value, "cu_segments", "entry 2 is 2, supported: at least the entry before, 5");
  p.cu_segments.assign({0, 2, 5, 5});
  expect_refused(error_code::value, "cu_segments", "entry 3 is 5, supported: T = 6");
}

TEST_F(MaraCheck, Overlap) {
  args.s = {p.p.view().data(), {3, 3}};
  expect_refused(error_code::overlap, "s", "shares memory with p");
  args.g = {const_cast<float*>(args.w_l.data()), {3}};
  expect_refused(error_code::overlap, "g", "shares memory with w_l");
  args.p = {p.p.view().data(), {3, 3}, {0, 1}};
  expect_refused(error_code::stride, "p", "stride 0 along index 0");
}

}  // namespace
}  // namespace polystate::testing
