// SPDX-License-Identifier: Apache-2.0

// Gradients of multi_state worked by hand, those of a read, and every refusal.

#include "multi_state/cells.hpp"
#include "multi_state/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;
using separation::uniform;

/// Scalars: one head, one channel, one key dim, three tokens in segments of two.
const layer_shape scalars{.B = 1, .T = 3, .H = 1, .HK = 1, .HR = 1, .dk = 1, .dv = 1, .dr = 1, .m = 2};

template <class Cell>
struct run_and_gradients {
  layer_run<double, Cell> p;
  layer_gradients<double, Cell> g;

  explicit run_and_gradients(const layer_shape& shape) {
    std::mt19937 rng(11);
    p = layer_run<double, Cell>(layer_problem<double, Cell>(shape, rng));
    g = layer_gradients<double, Cell>(p, rng);
  }
  void run() { multi_state_backward(on_reference{}, p.args(), g.views()); }
};

// S_0 = k_0 v_0 + k_1 v_1, S_1 = k_2 v_2; o_2 = scale (S_0 + S_1) q_2 / 2.
TEST(MultiStateBackward, UniformWeightsByHand) {
  run_and_gradients<cell<rule::linear, uniform, router::uniform>> c(scalars);
  auto& in = c.p.problem.in;
  in.q.assign({1, 1, 2});
  in.k.assign({3, 5, 7});
  in.v.assign({1, 2, 4});
  c.g.upstream = {};
  c.g.upstream.o = tensor<double, 4>({1, 3, 1, 1});
  c.g.upstream.o.assign({0, 0, 1});
  auto args = c.p.args();
  args.in.scale = 0.5;
  multi_state_backward(on_reference{}, args, c.g.views());
  EXPECT_EQ(c.g.in.d.q.values(), (values{0, 0, 0.25 * (3 + 10 + 28)}));
  EXPECT_EQ(c.g.in.d.k.values(), (values{0.5, 1, 2}));
  EXPECT_EQ(c.g.in.d.v.values(), (values{1.5, 2.5, 3.5}));
}

// The same states, read by raw weights: d lam_l = d_o scale S_l q.
TEST(MultiStateBackward, RawWeightsByHand) {
  using position = router::position<double>;
  run_and_gradients<cell<rule::linear, uniform, position>> c(scalars);
  auto& p = c.p.problem;
  p.in.q.assign({1, 1, 2});
  p.in.k.assign({3, 5, 7});
  p.in.v.assign({1, 2, 4});
  p.router.options.position_norm = position_norm::none;
  p.router.options.position_index = position_index::absolute;
  c.g.upstream = {};
  c.g.upstream.o = tensor<double, 4>({1, 3, 1, 1});
  c.g.upstream.o.assign({0, 0, 1});
  c.g.upstream.lam = tensor<double, 4>({1, 3, 1, 2});
  c.g.upstream.lam.assign({0, 99, 0, 99, 10, 20});  // token 0 and 1 do not see segment 1
  auto args = c.p.args();
  args.in.scale = 1;
  multi_state_backward(on_reference{}, args, c.g.views());
  EXPECT_EQ(c.g.router.d_weights.values(), (values{0, 0, 0, 0, 0, 0, 0, 0, 26 + 10, 56 + 20, 0, 0}));
}

// The gradient of a returned state reaches the tokens of its segment alone.
TEST(MultiStateBackward, ReturnedBankByHand) {
  run_and_gradients<cell<rule::linear, uniform, router::uniform>> c(scalars);
  c.p.problem.in.k.assign({3, 5, 7});
  c.p.problem.in.v.assign({1, 2, 4});
  c.g.upstream = {};
  c.g.upstream.S = tensor<double, 5>({1, 2, 1, 1, 1});
  c.g.upstream.S.assign({10, 100});
  c.run();
  EXPECT_EQ(c.g.in.d.k.values(), (values{10, 20, 400}));
  EXPECT_EQ(c.g.in.d.v.values(), (values{30, 50, 700}));
  EXPECT_EQ(c.g.in.d.q.values(), (values{0, 0, 0}));
}

// Level states after three tokens: level 0 holds token 2, level 2 the tokens 0 and 1.
TEST(MultiStateBackward, ReturnedLevelsByHand) {
  run_and_gradients<cell<rule::linear, separation::fenwick, router::position<double>>> c(scalars);
  c.p.problem.in.k.assign({3, 5, 7});
  c.p.problem.in.v.assign({1, 2, 4});
  c.g.upstream = {};
  c.g.upstream.S = tensor<double, 5>({1, 4, 1, 1, 1});
  c.g.upstream.S.assign({1, 10, 100, 1000});
  c.run();
  EXPECT_EQ(c.g.in.d.v.values(), (values{300, 500, 7}));
  EXPECT_EQ(c.g.in.d.k.values(), (values{100, 200, 4}));
}

template <class Cell>
class MultiStateReadBackward : public ::testing::Test {
 protected:
  struct read_and_gradients {
    read_run<double, Cell> p;
    read_gradients<double, Cell> g;

    explicit read_and_gradients(const layer_shape& shape, std::int64_t entries = 4) {
      std::mt19937 rng(12);
      p = read_run<double, Cell>(layer_problem<double, Cell>(shape, rng), entries, rng);
      g = read_gradients<double, Cell>(p, rng);
    }
    void expect(const std::string& what) const { expect_gradients(p, g, what); }
  };
};
template <class Rule>
using readable_of = typename cells_of<Rule>::readable;
struct read_names {
  template <class Cell>
  static std::string GetName(int) {
    return std::string(Cell::Rule::name) + "_" + Cell::name();
  }
};
TYPED_TEST_SUITE_P(MultiStateReadBackward);

TYPED_TEST_P(MultiStateReadBackward, EveryOption) {
  const layer_shape small{.B = 2, .T = 3, .H = 2, .HK = 1, .HR = 1, .dk = 2, .dv = 2, .dr = 2};
  int row = 0;
  const auto expect = [&](const auto& edit) {
    auto s = small;
    edit(s);
    typename TestFixture::read_and_gradients(s).expect("row " + std::to_string(row++));
  };
  expect([](auto&) {});
  expect([](auto& s) { s.H = 4, s.HK = 2; });
  expect([](auto& s) { s.H = 4, s.HR = 4; });
  expect([](auto& s) { s.max_visible = 1; });
  expect([](auto& s) { s.max_visible = 3; });
  expect([](auto& s) { s.qk_l2norm = true; });
  expect([](auto& s) { s.qkp_l2norm = true; });
  expect([](auto& s) { s.shared_kq = true; });
  expect([](auto& s) { s.qk_l2norm = s.qkp_l2norm = s.shared_kq = true; });
  expect([](auto& s) { s.keep_current = true; });
  for (const std::int64_t T : {0, 1}) {
    auto few = small;
    few.B = 1;
    few.T = T;
    typename TestFixture::read_and_gradients(few, T + 1).expect("queries " + std::to_string(T));
  }
  typename TestFixture::read_and_gradients(small, 2).expect("fewer entries than top_k keeps");
}

TYPED_TEST_P(MultiStateReadBackward, UpstreamAlone) {
  const layer_shape small{.B = 1, .T = 3, .H = 2, .HK = 1, .HR = 1, .dk = 2, .dv = 2, .dr = 2};
  const typename TestFixture::read_and_gradients all(small);
  expect_absent_upstream_is_zero(all.p, all.g);
  expect_gradients_independent(all.p, all.g);
  auto one = all;
  one.g.d_lam = {};
  one.expect("o alone");
  one = all;
  one.g.d_o = {};
  one.expect("lam alone");
}

REGISTER_TYPED_TEST_SUITE_P(MultiStateReadBackward, EveryOption, UpstreamAlone);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, MultiStateReadBackward, readable_of<rule::gated_delta>, read_names);
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, MultiStateReadBackward, readable_of<rule::ssd>, read_names);

/// Every gradient, upstream or written, is refused with one too few of its last index, and nothing is written then.
template <class P, class G>
void expect_every_shape_checked(P& p, const G& gradients, const std::string& op) {
  G whole = gradients;
  EXPECT_TRUE(check(p.args(), whole.views()).ok()) << check(p.args(), whole.views()).message();
  int tried = 0;
  const auto shorten = [&](G& g, int chosen) {
    int i = 0;
    const auto one = [&](const char*, const auto&, auto& gradient) {
      if (i++ != chosen || !gradient) return;
      auto extents = gradient.extents();
      --extents.back();
      gradient = std::remove_reference_t<decltype(gradient)>(extents);
      ++tried;
    };
    g.for_each_upstream(p, one);
    g.for_each_input(p, one);
    return i;
  };
  const int operands = shorten(whole, -1);
  for (int chosen = 0; chosen < operands; ++chosen) {
    G g = gradients;
    const int before = tried;
    shorten(g, chosen);
    if (tried == before) continue;
    const status s = check(p.args(), g.views());
    EXPECT_EQ(s.code, error_code::shape) << chosen << ": " << s.message();
    EXPECT_NE(s.argument.find("d_"), std::string::npos) << s.argument;
    EXPECT_EQ(s.op, op);
    EXPECT_THROW(G::run(on_reference{}, p.args(), g.views()), argument_error) << s.argument;
    g.for_each_input(p, [&](const char* name, const auto&, const auto& gradient) {
      EXPECT_TRUE(all_are(gradient.view(), std::nan(""))) << name;
    });
  }
  EXPECT_GT(tried, 4);
}

TEST(MultiStateBackwardRefusals, Shapes) {
  layer_shape shape{.T = 7, .dk = 2, .dv = 3, .dr = 2};
  shape.moment_rule = moment_rule::delta;
  run_and_gradients<cell<rule::gated_delta, uniform, router::merlin<double>>> c(shape);
  expect_every_shape_checked(c.p, c.g, "multi_state_backward");
  run_and_gradients<cell<rule::ssd, uniform, router::cumulant<double>>> ssd(shape);
  expect_every_shape_checked(ssd.p, ssd.g, "multi_state_backward");
  run_and_gradients<cell<rule::ssd, separation::fenwick, router::position<double>>> levels(shape);
  expect_every_shape_checked(levels.p, levels.g, "multi_state_backward");
  using merlin_cell = cell<rule::gated_delta, uniform, router::merlin<double>>;
  std::mt19937 rng(1);
  read_run<double, merlin_cell> read(layer_problem<double, merlin_cell>(shape, rng), 4, rng);
  const read_gradients<double, merlin_cell> gradients(read, rng);
  expect_every_shape_checked(read, gradients, "multi_state_read_backward");
}

TEST(MultiStateBackwardRefusals, WhatIsNotThere) {
  using merlin_cell = cell<rule::gated, uniform, router::merlin<double>>;
  run_and_gradients<merlin_cell> c(layer_shape{.T = 7});
  tensor<double, 3> gate({2, 7, 2}), beta({2, 7, 4});
  auto grads = c.g.views();
  grads.in.d_beta = beta.view();
  EXPECT_TRUE(refuses(check(c.p.args(), grads), error_code::unexpected, "d_beta", "rule gated has no beta"));
  grads = c.g.views();
  grads.moments.d_g = gate.view();
  EXPECT_TRUE(refuses(check(c.p.args(), grads), error_code::unexpected, "moments.d_g", "moments.g is not"));

  run_and_gradients<merlin_cell> shared(layer_shape{.T = 7, .shared_kq = true});
  tensor<double, 4> d_q({2, 7, 2, 5});
  grads = shared.g.views();
  grads.router.d_q = d_q.view();
  EXPECT_TRUE(refuses(check(shared.p.args(), grads), error_code::unexpected, "router.d_q", "shared_kq adds it"));
  grads = shared.g.views();
  grads.moments.d_k = d_q.view();
  EXPECT_TRUE(refuses(check(shared.p.args(), grads), error_code::unexpected, "moments.d_k", "moments.k is not"));

  layer_shape lengths{.B = 1, .T = 7};
  lengths.lengths = {3, 4};
  run_and_gradients<merlin_cell> packed(lengths);
  tensor<double, 4> d_lam({1, 7, 4, 3});
  grads = packed.g.views();
  grads.d_lam = d_lam.view();
  EXPECT_TRUE(refuses(check(packed.p.args(), grads), error_code::unexpected, "d_lam", "packed sequences have no lam"));

  run_and_gradients<cell<rule::ssd, separation::single, router::none>> single(layer_shape{.T = 7});
  tensor<double, 4> d_mu({2, 1, 2, 4});
  auto of_single = single.g.views();
  of_single.d_mu = d_mu.view();
  EXPECT_TRUE(refuses(check(single.p.args(), of_single), error_code::unexpected, "mu", "no segments"));
  auto args = single.p.args();
  args.in.z = {};
  EXPECT_TRUE(refuses(check(args, single.g.views()), error_code::unexpected, "d_z", "z is not"));
  args = single.p.args();
  args.in.x = {};
  EXPECT_TRUE(refuses(check(args, single.g.views()), error_code::missing, "x", "multi_state_backward"));
}

TEST(MultiStateBackwardRefusals, Contents) {
  layer_shape shape{.B = 1, .T = 7};
  shape.lengths = {3, 4};
  run_and_gradients<cell<rule::linear, uniform, router::uniform>> c(shape);
  c.p.problem.cu_seqlens.assign({0, 8, 7});
  EXPECT_TRUE(refuses(check(on_reference{}, c.p.args(), c.g.views()), error_code::value, "cu_seqlens", "7"));
  run_and_gradients<cell<rule::linear, uniform, router::top_k<router::position<double>>>> zero(layer_shape{});
  zero.p.problem.router.options.position_norm = position_norm::none;
  fill(zero.p.problem.router.weights, 0);
  EXPECT_TRUE(
      refuses(check(on_reference{}, zero.p.args(), zero.g.views()), error_code::value, "router.weights", "sum to 0"));
  EXPECT_THROW(zero.run(), argument_error);
}

}  // namespace
}  // namespace polystate::testing
