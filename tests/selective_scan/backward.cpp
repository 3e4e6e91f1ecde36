// SPDX-License-Identifier: Apache-2.0

// The reference's gradients against numbers worked by hand, central differences, dual numbers, and their properties.

#include "selective_scan/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/selective_scan.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace polystate::testing {
namespace {

using values = std::vector<double>;

/// Small enough for one difference an element.
const scan_shape small{.B = 1, .T = 5, .D = 2, .G = 1, .N = 3};

template <class Data = double, class State = acc_t<Data>>
struct problem_and_gradients {
  scan_problem<Data, State> p;
  scan_gradients<Data, State> g;

  explicit problem_and_gradients(const scan_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = scan_problem<Data, State>(shape, rng);
    g = scan_gradients<Data, State>(shape, rng);
  }
  void run() { selective_scan_backward(on_reference{}, p.args(), g.views()); }
};

void expect_gradients(const scan_shape& shape, const std::string& what) {
  const problem_and_gradients<> c(shape);
  expect_gradients(c.p, c.g, what);
}

void expect_near(const values& got, const values& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << "element " << i;
}

// One channel of one state: u = B = C = 1, A = -1, upstream 1 on y alone.
problem_and_gradients<> constant(std::int64_t T, scan_shape shape = {}) {
  shape.B = 1;
  shape.T = T;
  shape.D = shape.G = shape.N = 1;
  shape.initial_state = shape.final_state = shape.skip = false;
  problem_and_gradients<> c(shape);
  fill(c.p.u, 1);
  fill(c.p.B, 1);
  fill(c.p.C, 1);
  fill(c.p.A, -1);
  fill(c.g.d_y, 1);
  return c;
}

// bugs B064: bias and softplus up to the last token, for lengths about every tile.
TEST(SelectiveScanBackward, BiasAndSoftplusToTheEnd) {
  const auto with_length = [](std::int64_t T) {
    auto c = constant(T, {.z = false});
    for (std::int64_t t = 0; t < T; ++t) c.p.delta.view()(0, t, 0) = 0.1 * static_cast<double>(t);
    fill(c.p.delta_bias, 0.5);
    return c;
  };
  auto c = with_length(5);
  c.run();
  expect_near(c.g.d_u.values(), {1.479532, 1.519315, 1.544062, 1.509608, 1.241154});
  expect_near(c.g.d_delta.values(), {0.945458, 0.619160, 0.506162, 0.458715, 0.370775});
  expect_near(c.g.d_A.values(), {2.557680});
  expect_near(c.g.d_delta_bias.values(), {2.900269});
  EXPECT_NEAR(objective(c.p, c.g), 7.293671, 1e-6);
  for (const std::int64_t T : {1, 17, 127, 129}) {
    const auto longer = with_length(T);
    expect_gradients(longer.p, longer.g, "T " + std::to_string(T));
  }
}

// bugs B067: the gate's gradient reads state and skip together, into a strided view.
TEST(SelectiveScanBackward, Gate) {
  auto c = constant(5, {.delta_bias = false, .delta_softplus = false, .memory = {{2, 0, 1}, 3}});
  fill(c.p.B, 0);
  c.p.D = tensor<double, 1>({1});
  c.p.D.assign({3});
  c.p.z.assign({0, 2, -2, 1000, -1000});
  c.run();
  expect_near(c.g.d_z.values(), {1.5, 3.272353, -0.272353, 3, 0});
  expect_near(c.g.d_u.values(), {0, 3 * 2 * 0.880797, -3 * 2 * 0.119203, 3000, 0});
  EXPECT_TRUE(c.g.d_z.untouched_outside());
}

// A group's gradients are the sums over its consecutive channels.
TEST(SelectiveScanBackward, GroupedChannels) {
  problem_and_gradients<> c(scan_shape{.B = 1,
                                       .T = 1,
                                       .D = 4,
                                       .G = 2,
                                       .N = 1,
                                       .initial_state = false,
                                       .final_state = false,
                                       .skip = false,
                                       .z = false,
                                       .delta_bias = false,
                                       .delta_softplus = false});
  fill(c.p.u, 1);
  fill(c.p.delta, 1);
  fill(c.p.C, 1);
  c.g.d_y.assign({1, 2, 4, 8});
  c.run();
  EXPECT_EQ(c.g.d_B.values(), (values{3, 12}));
}

// bugs B074: every optional operand and option, there or not.
TEST(SelectiveScanBackward, EveryOption) {
  for (int mask = 0; mask < 64; ++mask) {
    auto shape = small;
    shape.T = 3;
    shape.z = (mask & 1) != 0;
    shape.delta_bias = (mask & 2) != 0;
    shape.delta_softplus = (mask & 4) != 0;
    shape.initial_state = (mask & 8) != 0;
    shape.final_state = (mask & 16) != 0;
    shape.skip = (mask & 32) != 0;
    expect_gradients(shape, "options " + std::to_string(mask));
  }
}

TEST(SelectiveScanBackward, SizesAndGroups) {
  for (const std::int64_t T : {0, 1, 2, 4, 9, 17}) {
    auto shape = small;
    shape.T = T;
    expect_gradients(shape, "T " + std::to_string(T));
  }
  expect_gradients(scan_shape{.B = 2, .T = 3, .D = 6, .G = 3, .N = 2}, "groups");
  expect_gradients(scan_shape{.B = 2, .T = 3, .D = 2, .G = 2, .N = 1}, "no groups");
}

TEST(SelectiveScanBackward, PackedSequences) {
  for (const bool with_state : {false, true}) {
    auto shape = small;
    shape.T = 8;
    shape.initial_state = with_state;
    shape.lengths = {0, 3, 0, 1, 4, 0};
    expect_gradients(shape, "packed");
  }
}

// Decays of any strength, and a mixture. What is left of the state at -1000 is below the rounding of differences.
TEST(SelectiveScanBackward, EveryDecay) {
  for (const double A : {0.0, -1e-4, -20.0, -1000.0}) {
    problem_and_gradients<> c(small);
    fill(c.p.A, A);
    expect_dual_derivatives(c.p, c.g, "A " + std::to_string(A));
    for (std::int64_t d = 0; d < 2; ++d) c.p.A.view()(d, d) = -1e-4;
    expect_gradients(c.p, c.g, "A -1e-4 and " + std::to_string(A));
  }
}

// Where differences cannot follow: every gradient is a number.
TEST(SelectiveScanBackward, NoNaN) {
  for (const double A : {0.0, -1.0, -1e300}) {
    for (const double far : {-1e4, 1e4}) {
      problem_and_gradients<> c(small);
      fill(c.p.A, A);
      fill(c.p.z, far);
      fill(c.p.delta, far);
      c.run();
      for (const auto& d : gradients_of(c.p, c.g)) {
        for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << d.name << ", A " << A << ", delta " << far;
      }
    }
  }
}

TEST(SelectiveScanBackward, Independent) {
  const problem_and_gradients<> c(small);
  expect_gradients_independent(c.p, c.g);
}

TEST(SelectiveScanBackward, AbsentMeansZero) {
  const problem_and_gradients<float> c(small);
  expect_absent_upstream_is_zero(c.p, c.g);
  expect_absent_initial_state_is_zero(c.p, c.g);
}

TEST(SelectiveScanBackward, StridesChangeNothing) {
  problem_and_gradients<float> plain(small);
  plain.run();
  for (const auto& order : {std::array{0, 2, 1}, std::array{2, 1, 0}, std::array{1, 0, 2}}) {
    auto shape = small;
    shape.memory = {order, 3};
    shape.group_memory = {{0, 2, 3, 1}, 2};  // as (B, G, N, T)
    shape.state_memory = {order, 1};
    problem_and_gradients<float> strided(shape);
    strided.run();
    expect_same_gradients(gradients_of(strided.p, strided.g), gradients_of(plain.p, plain.g), "strides");
    EXPECT_TRUE(strided.g.d_u.untouched_outside() && strided.g.d_B.untouched_outside());
  }
}

// The gradient of a run is that of its halves, the state's handed on (wanted feature F01).
TEST(SelectiveScanBackward, ThroughTime) {
  problem_and_gradients<> whole(scan_shape{.B = 1, .T = 12});
  whole.run();
  auto parts = whole;
  tensor<double, 3> state_at_cut(whole.p.initial_state.extents());
  auto first = parts.p.part(parts.p.args(), 1, 0, 7);
  first.final_state = state_at_cut.view();
  selective_scan(on_reference{}, first);
  auto second = parts.p.part(parts.p.args(), 1, 7, 12);
  second.initial_state = state_at_cut.view();

  scan_gradients<double> late = whole.g, early = whole.g;
  tensor<double, 3> d_state_at_cut(whole.p.initial_state.extents());
  const auto of_tokens = [](scan_gradients<double>& g, std::int64_t begin, std::int64_t end) {
    auto v = g.views();
    v.d_y = v.d_y.slice(1, begin, end);
    v.d_u = v.d_u.slice(1, begin, end);
    v.d_delta = v.d_delta.slice(1, begin, end);
    v.d_B = v.d_B.slice(1, begin, end);
    v.d_C = v.d_C.slice(1, begin, end);
    v.d_z = v.d_z.slice(1, begin, end);
    return v;
  };
  auto d_second = of_tokens(late, 7, 12);
  d_second.d_initial_state = d_state_at_cut.view();
  selective_scan_backward(on_reference{}, second, d_second);
  auto d_first = of_tokens(early, 0, 7);
  d_first.d_final_state = d_state_at_cut.view();
  selective_scan_backward(on_reference{}, first, d_first);

  const auto same = [](auto a, auto b) { EXPECT_TRUE(same_bits(a, b)); };
  same(d_first.d_initial_state, whole.g.d_initial_state.view());
  same(d_first.d_delta, whole.g.d_delta.view().slice(1, 0, 7));
  same(d_second.d_delta, whole.g.d_delta.view().slice(1, 7, 12));
  const auto a = early.d_A.values(), b = late.d_A.values();
  values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  EXPECT_LE(relative_deviation(sum, whole.g.d_A.values()), 1e-14);
}

TEST(SelectiveScanBackward, Adjoint) {
  const problem_and_gradients<> c(scan_shape{});
  expect_adjoint(c.p, c.g, {"u", "initial_state"});
  const problem_and_gradients<> read(scan_shape{.final_state = false, .skip = false});
  expect_adjoint(read.p, read.g, {"C"});
}

template <class Types>
class SelectiveScanBackwardTyped : public ::testing::Test {};
using data_and_state =
    ::testing::Types<std::tuple<double, double>, std::tuple<float, float>, std::tuple<float, bfloat16>,
                     std::tuple<half, float>, std::tuple<bfloat16, float>, std::tuple<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(SelectiveScanBackwardTyped, data_and_state);

TYPED_TEST(SelectiveScanBackwardTyped, RoundsOnce) {
  const problem_and_gradients<std::tuple_element_t<0, TypeParam>, std::tuple_element_t<1, TypeParam>> c(
      scan_shape{.T = 19});
  expect_gradients_rounded_once(c.p, c.g);
}

TEST(SelectiveScanBackward, Refusals) {
  problem_and_gradients<float> c(scan_shape{.T = 5});
  expect_gradients_checked(c.p, c.g);
  const auto grads = c.g.views();
  const auto refused = [&](auto member, error_code code, const std::string& argument, const std::string& text) {
    auto args = c.p.args();
    args.*member = {};
    EXPECT_TRUE(refuses(check(args, grads), code, argument, text));
  };
  using args_type = selective_scan_args<float>;
  refused(&args_type::u, error_code::missing, "u", "selective_scan_backward");
  refused(&args_type::delta, error_code::missing, "delta", "(B, T, D)");
  refused(&args_type::A, error_code::missing, "A", "(D, N)");
  refused(&args_type::B, error_code::missing, "B", "(B, T, G, N)");
  refused(&args_type::C, error_code::missing, "C", "(B, T, G, N)");
  refused(&args_type::D, error_code::unexpected, "d_D", "D is not");
  refused(&args_type::z, error_code::unexpected, "d_z", "z is not");
  refused(&args_type::delta_bias, error_code::unexpected, "d_delta_bias", "delta_bias is not");

  auto shared = grads;
  shared.d_u = {c.g.d_u.view().data(), {2, 5, 6}, {30, 0, 1}};
  EXPECT_TRUE(refuses(check(c.p.args(), shared), error_code::stride, "d_u", "stride 0 along index 1"));
  shared = grads;
  shared.d_y = {c.g.d_y.view().data(), {2, 5, 6}, {0, 0, 0}};  // an upstream gradient may repeat
  EXPECT_TRUE(check(c.p.args(), shared).ok());

  problem_and_gradients<float> packed(scan_shape{.B = 1, .T = 6, .lengths = {2, 4}});
  packed.p.cu_seqlens.assign({0, 7, 6});
  EXPECT_TRUE(check(packed.p.args(), packed.g.views()).ok());
  EXPECT_TRUE(refuses(check(on_reference{}, packed.p.args(), packed.g.views()), error_code::value, "cu_seqlens",
                      "entry 2 is 6, supported: at least the entry before"));
  EXPECT_THROW(packed.run(), argument_error);
  EXPECT_TRUE(all_are(packed.g.d_u.view(), std::nan("")) && all_are(packed.g.d_initial_state.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
