// SPDX-License-Identifier: Apache-2.0

// The definition against numbers worked by hand, a second formulation, and its own properties.

#include "selective_scan/cases.hpp"

#include <polystate/reference/selective_scan.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

namespace polystate::testing {
namespace {

using values = std::vector<double>;

void expect_near(const values& got, const values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

// One batch entry in which every operand is one number: u = B = C = 1, A = -1, no skip, gate or bias.
template <class Data = double>
scan_problem<Data> constant(std::int64_t T, double delta, std::int64_t D = 1, std::int64_t G = 1, std::int64_t N = 1) {
  std::mt19937 rng(1);
  scan_problem<Data> p(scan_shape{.B = 1,
                                  .T = T,
                                  .D = D,
                                  .G = G,
                                  .N = N,
                                  .initial_state = false,
                                  .skip = false,
                                  .z = false,
                                  .delta_bias = false,
                                  .delta_softplus = false},
                       rng);
  fill(p.u, 1);
  fill(p.B, 1);
  fill(p.C, 1);
  fill(p.A, -1);
  fill(p.delta, delta);
  return p;
}

void set_state(scan_problem<double>& p, const values& v) {
  p.initial_state = tensor<double, 3>(p.final_state.extents());
  p.initial_state.assign(v);
}

// bugs B070: B constant over time, as an operand that repeats; the state has the factor too.
TEST(SelectiveScanReference, ConstantB) {
  auto p = constant(3, 0.5);
  p.u.assign({1, 2, 3});
  const double two = 2, one = 1;
  auto args = p.args();
  args.B = {&two, {1, 3, 1, 1}, {0, 0, 0, 0}};
  for (const bool constant_C : {false, true}) {
    if (constant_C) args.C = {&one, {1, 3, 1, 1}, {0, 0, 0, 0}};
    selective_scan(on_reference{}, args);
    expect_near(p.y.values(), {1, 2.606531, 4.580941}, 1e-6);
    expect_near(p.final_state.values(), {4.580941}, 1e-6);
  }
}

// bugs B073: the scan h = a h + b with resets, as packed sequences. exp(dt A) = a and dt B u = b with dt = 1.
TEST(SelectiveScanReference, FirstOrderScanWithResets) {
  const values a = {2, 4, 1, 3, 6, 5, 8, 9};
  const values b = {3, 1, 5, 2, 7, 9, 0, 6};
  auto p = constant(8, 1);
  p.cu_seqlens = cu_seqlens_of({2, 5, 1});
  p.final_state = tensor<double, 3>({3, 1, 1});
  p.A.assign({1});
  values dt, u;
  for (std::size_t t = 0; t < 8; ++t) {
    dt.push_back(std::log(a[t]));
    u.push_back(a[t] == 1 ? 0 : b[t] / dt.back());
  }
  u[2] = 0;  // a = 1 needs dt = 0, which writes nothing: b comes in as the initial state
  p.delta.assign(dt);
  p.u.assign(u);
  set_state(p, {0, 5, 0});
  selective_scan(on_reference{}, p.args());
  expect_near(p.y.values(), {3, 13, 5, 17, 109, 554, 4432, 6}, 1e-11);
  expect_near(p.final_state.values(), {13, 4432, 6}, 1e-11);
}

// bugs B025: any length. a = 0.5, b = 1.
TEST(SelectiveScanReference, EveryLength) {
  for (const std::int64_t T : {1, 2, 31, 33, 100, 1000, 65537}) {
    auto p = constant(T, 1);
    p.A.assign({std::log(0.5)});
    selective_scan(on_reference{}, p.args());
    const auto y = p.y.values();
    for (std::size_t t = 0; t < y.size(); ++t) {
      ASSERT_NEAR(y[t], 2 - 2 * std::pow(0.5, static_cast<double>(t + 1)), 1e-14) << t << " of " << T;
    }
    EXPECT_EQ(p.final_state.values().back(), y.back());
  }
}

// bugs B064: bias before softplus, on every token.
TEST(SelectiveScanReference, BiasAndSoftplus) {
  auto p = constant(5, 0);
  p.delta.assign({0, 0.1, 0.2, 0.3, 0.4});
  p.delta_bias = tensor<double, 1>({1});
  p.delta_bias.assign({0.5});
  p.delta_softplus = true;
  selective_scan(on_reference{}, p.args());
  double sum = 0;
  for (const double y : p.y.values()) sum += y;
  EXPECT_NEAR(sum, 7.293671, 1e-6);
}

// Softplus without a cut-off, and far out without overflow.
TEST(SelectiveScanReference, StepLength) {
  const values raw = {-100, -20, 0, 19.999, 20, 20.001, 100, 1e4};
  const values soft = {3.720076e-44,
                       2.061153620314381e-9,
                       0.6931471805599453,
                       19.999000002063214,
                       20.000000002061153,
                       20.001000002059095,
                       100,
                       1e4};
  for (const double bias : {0.0, 0.5}) {
    auto p = constant(static_cast<std::int64_t>(raw.size()), 0);
    p.A.assign({-1e300});  // each token forgets the ones before: y = dt
    values delta = raw;
    for (double& d : delta) d -= bias;
    p.delta.assign(delta);
    p.delta_bias = tensor<double, 1>({1});
    p.delta_bias.assign({bias});
    p.delta_softplus = true;
    selective_scan(on_reference{}, p.args());
    const auto y = p.y.values();
    for (std::size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(y[i], soft[i], 2e-7 * soft[i]) << i;
  }
}

// bugs B067: the gate multiplies state and skip together.
TEST(SelectiveScanReference, SkipAndGate) {
  auto p = constant(5, 0);
  p.D = tensor<double, 1>({1});
  p.D.assign({3});
  selective_scan(on_reference{}, p.args());
  EXPECT_EQ(p.y.values(), values(5, 3));
  p.z = tensor<double, 3>({1, 5, 1});
  p.z.assign({0, 2, -2, 1000, -1000});
  selective_scan(on_reference{}, p.args());
  expect_near(p.y.values(), {0, 5.284783, -0.715217, 3000, 0}, 1e-6);
}

// bugs B061: parameters in float beside data of two bytes.
TEST(SelectiveScanReference, StateAndSkip) {
  const auto run_with = [](auto data) {
    using Data = decltype(data);
    auto p = constant<Data>(1, 0.5, 4, 1, 4);
    p.initial_state = tensor<float, 3>({1, 4, 4});
    fill(p.initial_state, 1);
    p.D = tensor<float, 1>({4});
    fill(p.D, 2);
    selective_scan(on_reference{}, p.args());
    EXPECT_TRUE(all_are(p.final_state.view(), static_cast<float>(std::exp(-0.5) + 0.5)));
    EXPECT_TRUE(all_are(p.y.view(), static_cast<double>(static_cast<Data>(4 * (std::exp(-0.5) + 0.5) + 2))));
  };
  run_with(half{});
  run_with(bfloat16{});
}

// Consecutive channels share B and C.
TEST(SelectiveScanReference, GroupedChannelsAreConsecutive) {
  auto p = constant(1, 1, 4, 2);
  p.B.assign({1, 10});
  selective_scan(on_reference{}, p.args());
  EXPECT_EQ(p.y.values(), (values{1, 1, 10, 10}));
}

// bugs B058: within a call a state of bfloat16 is kept in double; a decoding loop rounds at each call.
TEST(SelectiveScanReference, StateTypes) {
  const auto run_with = [](auto state_type) {
    using State = decltype(state_type);
    auto p = constant(4096, 1);
    scan_problem<double, State> typed;
    fill(p.u, 0.001);
    typed.u = p.u;
    typed.delta = p.delta;
    p.A.assign({std::log(0.999)});
    typed.A = p.A;
    typed.B = p.B;
    typed.C = p.C;
    typed.y = p.y;
    typed.final_state = tensor<State, 3>({1, 1, 1});
    selective_scan(on_reference{}, typed.args());
    EXPECT_EQ(static_cast<double>(typed.final_state.view()(0, 0, 0)),
              static_cast<double>(static_cast<State>(typed.y.values().back())));
    EXPECT_NEAR(typed.y.values().back(), 0.983395, 1e-6);
    tensor<State, 3> state({1, 1, 1});
    fill(state, 0);
    for (std::int64_t t = 0; t < 4096; ++t) {
      auto step = typed.step_of(typed.part(typed.args(), 1, t, t + 1));
      step.state = state.view();
      selective_scan_step(on_reference{}, step);
    }
    return static_cast<double>(state.view()(0, 0, 0));
  };
  EXPECT_NEAR(run_with(float{}), 0.983395, 1e-5);
  EXPECT_EQ(run_with(bfloat16{}), 0.25);
}

// y as a sum over pairs of tokens, in plain loops: shares no line with the reference. With s(t) = dt_0 + ... + dt_t,
//     h_t[n] = exp(A (s(t) - s(-1))) h_{-1}[n] + sum_{r<=t} exp(A (s(t) - s(r))) dt_r B_r[n] u_r
template <class Scalar>
class pair_sum {
 public:
  tensor<Scalar, 3> y, final_state;

  explicit pair_sum(const scan_problem<Scalar>& p) : y(p.y.extents()), final_state(p.final_state.extents()), p_(p) {
    const auto [batches, T, D] = y.extents();
    const std::int64_t N = p.A.extents()[1];
    const auto u = p.u.view();
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t d = 0; d < D; ++d) {
        const std::int64_t group = d * p.B.extents()[2] / D;
        for (std::int64_t t = 0; t < T; ++t) {
          Scalar sum = p.D ? p.D.view()(d) * u(b, t, d) : Scalar(0);
          for (std::int64_t n = 0; n < N; ++n) sum += p.C.view()(b, t, group, n) * state(b, t, d, group, n);
          if (p.z) {
            const Scalar z = p.z.view()(b, t, d);
            sum *= z * (1 + std::tanh(z / 2)) / 2;
          }
          y.view()(b, t, d) = sum;
        }
        for (std::int64_t n = 0; n < N; ++n) final_state.view()(b, d, n) = state(b, T - 1, d, group, n);
      }
    }
  }

 private:
  [[nodiscard]] Scalar length(std::int64_t b, std::int64_t t, std::int64_t d) const {
    const Scalar raw = p_.delta.view()(b, t, d) + (p_.delta_bias ? p_.delta_bias.view()(d) : Scalar(0));
    return p_.delta_softplus ? std::log(1 + std::exp(raw)) : raw;
  }
  [[nodiscard]] Scalar state(std::int64_t b, std::int64_t t, std::int64_t d, std::int64_t group, std::int64_t n) const {
    Scalar h = 0;
    Scalar since = 0;  // s(t) - s(r)
    for (std::int64_t r = t; r >= 0; --r) {
      const Scalar dt = length(b, r, d);
      h += std::exp(p_.A.view()(d, n) * since) * dt * p_.B.view()(b, r, group, n) * p_.u.view()(b, r, d);
      since += dt;
    }
    return p_.initial_state ? h + std::exp(p_.A.view()(d, n) * since) * p_.initial_state.view()(b, d, n) : h;
  }

  const scan_problem<Scalar>& p_;
};

template <class Scalar>
void expect_pair_sum(scan_problem<Scalar> p, Scalar tolerance, const std::string& what) {
  const pair_sum<Scalar> want(p);
  selective_scan(on_reference{}, p.args());
  EXPECT_LE(largest_difference(p.y, want.y), tolerance) << what;
  EXPECT_LE(largest_difference(p.final_state, want.final_state), tolerance) << what;
  EXPECT_TRUE(p.y.untouched_outside() && p.final_state.untouched_outside());
}

TEST(SelectiveScanReference, EqualsThePairSum) {
  std::mt19937 rng(2);
  for (const std::int64_t T : {0, 1, 2, 15, 64, 65}) {
    for (const auto& [D, G] : {std::pair{1, 1}, std::pair{6, 2}}) {
      for (const std::int64_t N : {1, 5}) {
        expect_pair_sum(scan_problem<double>(scan_shape{.B = 1, .T = T, .D = D, .G = G, .N = N}, rng), 1e-12,
                        "T " + std::to_string(T));
      }
    }
  }
}

// Every optional operand and option, there or not.
TEST(SelectiveScanReference, OptionalOperands) {
  std::mt19937 rng(3);
  for (int mask = 0; mask < 32; ++mask) {
    const scan_shape shape{.B = 1,
                           .T = 9,
                           .initial_state = (mask & 1) != 0,
                           .skip = (mask & 2) != 0,
                           .z = (mask & 4) != 0,
                           .delta_bias = (mask & 8) != 0,
                           .delta_softplus = (mask & 16) != 0};
    expect_pair_sum(scan_problem<double>(shape, rng), 1e-13, "options " + std::to_string(mask));
  }
  scan_problem<float> p(scan_shape{}, rng);  // and no final state
  auto without = p;
  without.final_state = {};
  selective_scan(on_reference{}, p.args());
  selective_scan(on_reference{}, without.args());
  EXPECT_TRUE(bitwise_equal(p.y, without.y));
}

// A decay of any strength.
TEST(SelectiveScanReference, EveryDecay) {
  std::mt19937 rng(4);
  for (const double A : {0.0, -1e-4, -20.0, -1000.0, -1e300}) {
    scan_problem<double> p(scan_shape{.B = 1, .T = 33}, rng);
    fill(p.A, A);
    expect_pair_sum(p, 1e-12, "A " + std::to_string(A));
    for (std::int64_t d = 0; d < 6; ++d) p.A.view()(d, d % 5) = -1e-4;
    expect_pair_sum(p, 1e-12, "mixed");
  }
}

// A custom scalar is what the sums are kept in.
TEST(SelectiveScanReference, CustomScalar) {
  std::mt19937 rng(5);
  const scan_problem<float> p(scan_shape{.T = 33}, rng);
  auto wide = p.in<long double>();
  expect_pair_sum(wide, 2e-17L * (sizeof(long double) > 8 ? 1 : 1000), "long double");
  auto narrow = p.in_double();
  selective_scan(on_reference{}, wide.args());
  selective_scan(on_reference{}, narrow.args());
  EXPECT_LE(largest_difference(convert<double>(wide.y), narrow.y), 1e-13);
}

TEST(SelectiveScanReference, CausalAndLocal) {
  std::mt19937 rng(6);
  const scan_problem<float> batch(scan_shape{.T = 9}, rng);
  const scan_problem<float> packed(scan_shape{.B = 1, .T = 16, .lengths = {4, 0, 7, 5}}, rng);
  for (const double change : {0.75, std::nan("")}) {
    expect_causal_and_local(batch, 1, 4, change);
    expect_causal_and_local(packed, 2, 3, change);
  }
}

TEST(SelectiveScanReference, PackedEqualsSeparate) {
  std::mt19937 rng(7);
  for (const bool with_state : {false, true}) {
    expect_packed_equals_separate(scan_problem<float>(
        scan_shape{.B = 1, .T = 16, .initial_state = with_state, .lengths = {0, 5, 0, 1, 0, 2, 8, 0}}, rng));
  }
}

TEST(SelectiveScanReference, SplitAndResume) {
  std::mt19937 rng(8);
  expect_split_resumes(scan_problem<float, double>(scan_shape{.T = 65}, rng), {0, 1, 2, 40, 63, 64, 65});
}

TEST(SelectiveScanReference, EmptyKeepsTheState) { expect_empty_keeps_the_state<scan_problem<float>>(scan_shape{}); }

// Every memory order and padding of the operands and states gives the bits of the contiguous run; channels before time
// and states before time, as other libraries store them, among them.
TEST(SelectiveScanReference, StridesChangeNothing) {
  std::mt19937 rng(4);
  scan_problem<float> plain(scan_shape{.T = 6}, rng);
  selective_scan(on_reference{}, plain.args());
  for (const std::int64_t pad : {0, 3}) {
    for (const auto& order : {std::array{0, 2, 1}, std::array{2, 1, 0}, std::array{1, 0, 2}, std::array{0, 1, 2}}) {
      for (const auto& group_order : {std::array{0, 2, 3, 1}, std::array{3, 2, 1, 0}, std::array{0, 1, 2, 3}}) {
        scan_shape shape{.T = 6};
        shape.memory = {order, pad};
        shape.state_memory = {order, pad};
        shape.group_memory = {group_order, pad};
        rng.seed(4);
        scan_problem<float> p(shape, rng);
        selective_scan(on_reference{}, p.args());
        EXPECT_TRUE(bitwise_equal(p.y, plain.y));
        EXPECT_TRUE(bitwise_equal(p.final_state, plain.final_state));
        EXPECT_TRUE(p.y.untouched_outside() && p.final_state.untouched_outside());
      }
    }
  }
}

template <class Types>
class SelectiveScanTyped : public ::testing::Test {};
using data_and_state = ::testing::Types<std::tuple<double, double>, std::tuple<float, float>, std::tuple<float, double>,
                                        std::tuple<float, bfloat16>, std::tuple<half, float>, std::tuple<half, half>,
                                        std::tuple<bfloat16, float>, std::tuple<bfloat16, bfloat16>>;
struct data_and_state_names {
  template <class Types>
  static std::string GetName(int) {
    return std::string(element_name<std::tuple_element_t<0, Types>>) + "_state_" +
           element_name<std::tuple_element_t<1, Types>>;
  }
};
TYPED_TEST_SUITE(SelectiveScanTyped, data_and_state, data_and_state_names);
template <class Types>
using problem_of = scan_problem<std::tuple_element_t<0, Types>, std::tuple_element_t<1, Types>>;

TYPED_TEST(SelectiveScanTyped, RoundsOnce) {
  std::mt19937 rng(9);
  expect_rounded_once(problem_of<TypeParam>(scan_shape{.T = 65}, rng));
}

TYPED_TEST(SelectiveScanTyped, StepEqualsForward) {  // bugs B104, B106
  std::mt19937 rng(10);
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const scan_shape shape{.B = 4,
                           .T = tokens == 1 ? 4 : 2 * tokens,
                           .skip = tokens != 5,
                           .z = tokens != 3,
                           .delta_softplus = tokens != 4};
    expect_step_equals_forward(problem_of<TypeParam>(shape, rng), tokens);
  }
}

// bugs B103: read from one slot, write to another; a row with -1 in either index is padding.
TEST(SelectiveScanReference, StepWritesElsewhere) {
  auto p = constant(4, 1);
  p.A.assign({std::log(0.5)});
  auto args = p.args();
  args.u = args.u.permuted({1, 0, 2});  // four rows of one token
  args.delta = args.delta.permuted({1, 0, 2});
  args.B = args.B.permuted({1, 0, 2, 3});
  args.C = args.C.permuted({1, 0, 2, 3});
  args.y = args.y.permuted({1, 0, 2});
  auto step = p.step_of(args);
  tensor<double, 3> pool({6, 1, 1});
  pool.assign({1, 2, 4, 8, 16, std::nan("")});
  tensor<std::int32_t, 1> read({4}), write({4});
  read.assign({0, 2, -1, 4});
  write.assign({5, -1, 3, 4});
  step.state = pool.view();
  step.read_indices = read.view();
  step.write_indices = write.view();
  selective_scan_step(on_reference{}, step);
  EXPECT_EQ(p.y.values(), (values{1.5, 0, 0, 9}));
  EXPECT_EQ(pool.values(), (values{1, 2, 4, 8, 9, 1.5}));
}

// Without indices row b has slot b; no token changes nothing.
TEST(SelectiveScanReference, StepWithoutIndices) {
  std::mt19937 rng(11);
  scan_problem<float> p(scan_shape{.T = 5}, rng);
  auto pool = p.initial_state;
  auto step = p.step_of(p.part(p.args(), 1, 0, 0));
  step.state = pool.view();
  selective_scan_step(on_reference{}, step);
  EXPECT_TRUE(bitwise_equal(pool, p.initial_state));
  tensor<float, 3> out(p.y.extents());
  step = p.step_of(p.args());
  step.state = pool.view();
  step.y = out.view();
  selective_scan_step(on_reference{}, step);
  selective_scan(on_reference{}, p.args());
  EXPECT_TRUE(bitwise_equal(out, p.y));
  EXPECT_TRUE(bitwise_equal(pool, p.final_state));
}

// Empty problems write nothing and are no error.
TEST(SelectiveScanReference, NoBatchNoChannels) {
  std::mt19937 rng(12);
  scan_problem<float> no_batch(scan_shape{.B = 0}, rng);
  selective_scan(on_reference{}, no_batch.args());
  scan_problem<float> no_channels(scan_shape{.D = 0, .G = 0}, rng);
  selective_scan(on_reference{}, no_channels.args());
  EXPECT_TRUE(no_batch.y.untouched_outside() && no_channels.y.untouched_outside());
}

}  // namespace
}  // namespace polystate::testing
