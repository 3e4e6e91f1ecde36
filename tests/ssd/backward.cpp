// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "ssd/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/ssd.hpp>

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
const ssd_shape small{.B = 1, .T = 5, .H = 2, .G = 1, .P = 2, .N = 3};

template <class Data = double, class State = acc_t<Data>>
struct problem_and_gradients {
  ssd_problem<Data, State> p;
  ssd_gradients<Data, State> g;

  explicit problem_and_gradients(const ssd_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = ssd_problem<Data, State>(shape, rng);
    g = ssd_gradients<Data, State>(shape, rng);
  }
  void run() { ssd_backward(on_reference{}, p.args(), g.views()); }
};

void expect_gradients(const ssd_shape& shape, const std::string& what) {
  const problem_and_gradients<> c(shape);
  expect_gradients(c.p, c.g, what);
}

// One head of one channel and one state column; A = -1, x = B = C = 1, upstream 1, no final state.
problem_and_gradients<> constant(std::int64_t T, ssd_shape shape = {}) {
  shape.B = 1;
  shape.T = T;
  shape.G = 1;
  shape.P = shape.N = 1;
  shape.initial_state = shape.z = shape.dt_bias = shape.dt_softplus = shape.final_state = false;
  shape.D = skip::none;
  problem_and_gradients<> c(shape);
  fill(c.p.x, 1);
  fill(c.p.B, 1);
  fill(c.p.C, 1);
  fill(c.p.A, -1);
  fill(c.g.d_y, 1);
  return c;
}

// Two tokens with d = 1: y = (1, e + 1), e = exp(-1).
TEST(SsdBackward, ByHand) {
  auto c = constant(2, {.H = 1});
  fill(c.p.dt, 1);
  c.run();
  const double e = std::exp(-1.0);
  const auto near = [](const values& got, const values& want) { EXPECT_LE(relative_deviation(got, want), 1e-15); };
  near(c.g.d_x.values(), {1 + e, 1});
  near(c.g.d_B.values(), {1 + e, 1});
  near(c.g.d_C.values(), {1, 1 + e});
  near(c.g.d_A.values(), {e});
  near(c.g.d_dt.values(), {1 + e, 1 - e});
  near(c.g.d_initial_state.values(), {e + e * e});
}

// bugs B055: the clamp passes the gradient at its ends and between them, and blocks it outside.
TEST(SsdBackward, Clamp) {
  auto c = constant(6, {.H = 1});
  fill(c.p.A, -1e300);  // every token forgets the ones before: y = d
  c.p.dt.assign({0.1, 0.25, 0.3, 0.5, std::nextafter(0.5, 1), std::nextafter(0.25, 0)});
  c.p.dt_min = 0.25;
  c.p.dt_max = 0.5;
  c.run();
  EXPECT_EQ(c.g.d_dt.values(), (values{0, 1, 1, 1, 0, 0}));
  c.p.dt_min = c.p.dt_max = 0.3;
  c.run();
  EXPECT_EQ(c.g.d_dt.values(), (values{0, 0, 1, 0, 0, 0}));
  c.p.dt_min = -infinity;
  c.p.dt_max = infinity;
  c.run();
  EXPECT_EQ(c.g.d_dt.values(), values(6, 1));
  c.p.dt.assign({-1000, -20, 0, 20, 1000, 1e4});  // softplus far out: its derivative is 0, 1/2 or 1
  c.p.dt_softplus = true;
  c.run();
  const auto d_dt = c.g.d_dt.values();
  EXPECT_EQ(d_dt[0], 0);
  EXPECT_NEAR(d_dt[1], 2.061153618190204e-9, 1e-23);
  EXPECT_EQ(d_dt[2], 0.5);
  EXPECT_EQ(d_dt[4], 1);
  EXPECT_EQ(d_dt[5], 1);
}

// bugs B067: the gate's gradient reads state and skip together.
TEST(SsdBackward, Gate) {
  auto c = constant(5, {.H = 1});
  fill(c.p.dt, 0);
  c.p.D = tensor<double, 2>({1, 1});
  c.p.D.assign({3});
  c.p.z = tensor<double, 4>({1, 5, 1, 1}, {{3, 1, 0, 2}, 2});
  c.p.z.assign({0, 2, -2, 1000, -1000});
  c.g.d_z = c.p.z;
  c.g.d_z.poison();
  c.run();
  const auto d_z = c.g.d_z.values();
  const values want = {1.5, 3.272353, -0.272353, 3, 0};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(d_z[i], want[i], 1e-6) << i;
  EXPECT_TRUE(c.g.d_z.untouched_outside());
}

// bugs B079: a group's gradients are the sums over its consecutive heads.
TEST(SsdBackward, GroupedHeads) {
  ssd_shape shape{.B = 1, .T = 1, .H = 4, .G = 2, .P = 1, .N = 1, .initial_state = false, .final_state = false};
  shape.z = shape.dt_bias = shape.dt_softplus = false;
  shape.D = skip::none;
  problem_and_gradients<> c(shape);
  fill(c.p.x, 1);
  fill(c.p.dt, 1);
  fill(c.p.C, 1);
  c.g.d_y.assign({1, 2, 4, 8});
  c.run();
  EXPECT_EQ(c.g.d_B.values(), (values{3, 12}));
}

// bugs B074: every optional operand and option, there or not. The clamp lies among the step lengths.
TEST(SsdBackward, EveryOption) {
  for (int mask = 0; mask < 64; ++mask) {
    for (const auto D : {skip::none, skip::per_head, skip::per_channel}) {
      auto shape = small;
      shape.T = 3;
      shape.z = (mask & 1) != 0;
      shape.dt_bias = (mask & 2) != 0;
      shape.dt_softplus = (mask & 4) != 0;
      shape.initial_state = (mask & 8) != 0;
      shape.final_state = (mask & 16) != 0;
      shape.D = D;
      if ((mask & 32) != 0) {
        shape.dt_min = 0.1;
        shape.dt_max = 0.4;
      }
      expect_gradients(shape, "options " + std::to_string(mask) + ", D " + std::to_string(static_cast<int>(D)));
    }
  }
}

TEST(SsdBackward, SizesAndGroups) {
  for (const std::int64_t T : {0, 1, 2, 4, 9, 17}) {
    auto shape = small;
    shape.T = T;
    expect_gradients(shape, "T " + std::to_string(T));
  }
  expect_gradients(ssd_shape{.B = 2, .T = 3, .H = 6, .G = 3, .P = 1, .N = 2}, "groups");
  expect_gradients(ssd_shape{.B = 2, .T = 2, .H = 2, .G = 2, .P = 3, .N = 1}, "no groups");
}

TEST(SsdBackward, PackedSequences) {
  for (const bool with_state : {false, true}) {
    auto shape = small;
    shape.T = 8;
    shape.initial_state = with_state;
    shape.lengths = {0, 3, 0, 1, 4, 0};
    expect_gradients(shape, "packed");
  }
}

// Decays of any strength, and a mixture. What is left of the state at -1000 is below the rounding of differences.
TEST(SsdBackward, EveryDecay) {
  for (const double A : {0.0, -1e-4, -20.0, -1000.0}) {
    problem_and_gradients<> c(small);
    fill(c.p.A, A);
    expect_dual_derivatives(c.p, c.g, "A " + std::to_string(A));
    c.p.A.assign({-1e-4, A});
    expect_gradients(c.p, c.g, "A -1e-4 and " + std::to_string(A));
  }
}

// Where differences cannot follow: every gradient is a number.
TEST(SsdBackward, NoNaN) {
  for (const double A : {0.0, -1.0, -1e300}) {
    for (const double far : {-1e4, 1e4}) {
      problem_and_gradients<> c(small);
      fill(c.p.A, A);
      fill(c.p.z, far);
      fill(c.p.dt, far);
      c.p.dt_softplus = true;
      c.run();
      for (const auto& d : gradients_of(c.p, c.g)) {
        for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << d.name << ", A " << A << ", dt " << far;
      }
    }
  }
}

TEST(SsdBackward, Independent) {
  for (const auto D : {skip::per_head, skip::per_channel}) {
    auto shape = small;
    shape.D = D;
    const problem_and_gradients<> c(shape);
    expect_gradients_independent(c.p, c.g);
  }
}

// One number a head: the sum of its channels' gradients.
TEST(SsdBackward, SkipOfAHeadSumsItsChannels) {
  auto shape = small;
  shape.D = skip::per_head;
  problem_and_gradients<> head(shape);
  head.run();
  auto channels = head;
  channels.g.d_D = tensor<double, 2>({2, 2});
  channels.run();
  const auto d = channels.g.d_D.view();
  EXPECT_EQ(head.g.d_D.values(), (values{d(0, 0) + d(0, 1), d(1, 0) + d(1, 1)}));
}

TEST(SsdBackward, AbsentMeansZero) {
  const problem_and_gradients<float> c(small);
  expect_absent_upstream_is_zero(c.p, c.g);
  expect_absent_initial_state_is_zero(c.p, c.g);
}

TEST(SsdBackward, StridesChangeNothing) {
  problem_and_gradients<float> plain(small);
  plain.run();
  for (const auto& order : {std::array{0, 2, 1, 3}, std::array{3, 2, 1, 0}, std::array{1, 3, 0, 2}}) {
    auto shape = small;
    shape.memory = {order, 3};
    shape.state_memory = {order, 1};
    shape.gate_memory = {{2, 0, 1}, 2};
    problem_and_gradients<float> strided(shape);
    strided.run();
    expect_same_gradients(gradients_of(strided.p, strided.g), gradients_of(plain.p, plain.g), "strides");
    EXPECT_TRUE(strided.g.d_x.untouched_outside() && strided.g.d_dt.untouched_outside());
  }
}

TEST(SsdBackward, Adjoint) {
  const problem_and_gradients<> c(ssd_shape{});
  expect_adjoint(c.p, c.g, {"x", "initial_state"});
  auto shape = small;
  shape.D = skip::none;
  shape.final_state = false;
  const problem_and_gradients<> query(shape);
  expect_adjoint(query.p, query.g, {"C"});
}

template <class Types>
class SsdBackwardTyped : public ::testing::Test {};
using data_and_state =
    ::testing::Types<std::tuple<double, double>, std::tuple<float, float>, std::tuple<float, bfloat16>,
                     std::tuple<half, float>, std::tuple<bfloat16, float>, std::tuple<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(SsdBackwardTyped, data_and_state);

TYPED_TEST(SsdBackwardTyped, RoundsOnce) {
  for (const auto D : {skip::per_head, skip::per_channel}) {
    const problem_and_gradients<std::tuple_element_t<0, TypeParam>, std::tuple_element_t<1, TypeParam>> c(
        ssd_shape{.T = 19, .D = D});
    expect_gradients_rounded_once(c.p, c.g);
  }
}

TEST(SsdBackward, Refusals) {
  problem_and_gradients<float> c(ssd_shape{.T = 6});
  expect_gradients_checked(c.p, c.g);
  const auto grads = c.g.views();
  const auto refused = [&](auto member, error_code code, const std::string& argument, const std::string& text) {
    auto args = c.p.args();
    args.*member = {};
    EXPECT_TRUE(refuses(check(args, grads), code, argument, text));
  };
  using args_type = ssd_args<float>;
  refused(&args_type::x, error_code::missing, "x", "ssd_backward");
  refused(&args_type::dt, error_code::missing, "dt", "(B, T, H)");
  refused(&args_type::A, error_code::missing, "A", "(H)");
  refused(&args_type::B, error_code::missing, "B", "(B, T, G, N)");
  refused(&args_type::C, error_code::missing, "C", "(B, T, G, N)");
  refused(&args_type::D, error_code::unexpected, "d_D", "D is not");
  refused(&args_type::z, error_code::unexpected, "d_z", "z is not");
  refused(&args_type::dt_bias, error_code::unexpected, "d_dt_bias", "dt_bias is not");
  auto args = c.p.args();
  args.dt_min = 1;
  args.dt_max = 0;
  EXPECT_TRUE(refuses(check(args, grads), error_code::value, "dt_min", "at most dt_max"));

  auto shared = grads;
  shared.d_x = {c.g.d_x.view().data(), {2, 6, 4, 3}, {72, 12, 0, 1}};
  EXPECT_TRUE(refuses(check(c.p.args(), shared), error_code::stride, "d_x", "stride 0 along index 2"));
  shared = grads;
  shared.d_D = {c.g.d_D.view().data(), {4, 2}};
  EXPECT_TRUE(refuses(check(c.p.args(), shared), error_code::shape, "d_D", "shape (4, 2), supported: (H, P) = (4, 3)"));
  shared = grads;
  shared.d_y = {c.g.d_y.view().data(), {2, 6, 4, 3}, {0, 0, 0, 0}};  // an upstream gradient may repeat
  EXPECT_TRUE(check(c.p.args(), shared).ok());

  problem_and_gradients<float> packed(ssd_shape{.B = 1, .T = 6, .lengths = {2, 4}});
  packed.p.cu_seqlens.assign({0, 7, 6});
  EXPECT_TRUE(check(packed.p.args(), packed.g.views()).ok());
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::value, "cu_seqlens",
                      "entry 2 is 6, supported: at least the entry before"));
  EXPECT_THROW(packed.run(), argument_error);
  EXPECT_TRUE(all_are(packed.g.d_x.view(), std::nan("")) && all_are(packed.g.d_initial_state.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
