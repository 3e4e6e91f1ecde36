// SPDX-License-Identifier: Apache-2.0

// The definition against numbers worked by hand, a second formulation, and its own properties.

#include "ssd/cases.hpp"

#include <polystate/reference/ssd.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace polystate::testing {
namespace {

using values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

void expect_near(const values& got, const values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

// One batch entry in which every operand is one number: x = B = C = 1, A = -1, no skip, gate or bias.
template <class Data = double>
ssd_problem<Data> constant(std::int64_t T, double dt, std::int64_t H = 1, std::int64_t G = 1, std::int64_t P = 1,
                           std::int64_t N = 1) {
  std::mt19937 rng(1);
  ssd_problem<Data> p(ssd_shape{.B = 1,
                                .T = T,
                                .H = H,
                                .G = G,
                                .P = P,
                                .N = N,
                                .initial_state = false,
                                .z = false,
                                .dt_bias = false,
                                .dt_softplus = false,
                                .D = skip::none},
                      rng);
  const auto fill = [](auto& t, double value) {
    t.for_each([&](auto& e) { e = static_cast<std::remove_reference_t<decltype(e)>>(value); });
  };
  fill(p.x, 1);
  fill(p.B, 1);
  fill(p.C, 1);
  fill(p.A, -1);
  fill(p.dt, dt);
  return p;
}

void fill_state(ssd_problem<double>& p, const values& v) {
  p.initial_state = tensor<double, 4>(p.final_state.extents());
  p.initial_state.assign(v);
}

// bugs S10, S0.
TEST(SsdReference, ConstantInputs) {
  auto p = constant(5, 0.1);
  fill_state(p, {10});
  ssd(on_reference{}, p.args());
  expect_near(p.y.values(), {9.148374, 8.377791, 7.680539, 7.049639, 6.478777}, 1e-6);
  auto zero = constant(40, 0.1);
  ssd(on_reference{}, zero.args());
  for (std::int64_t t = 0; t < 40; ++t) {
    EXPECT_NEAR(zero.y.view()(0, t, 0, 0),
                0.1 * (1 - std::exp(-0.1 * static_cast<double>(t + 1))) / (1 - std::exp(-0.1)), 1e-14);
  }
  EXPECT_EQ(zero.final_state.values().back(), zero.y.values().back());
}

// bugs B089: each packed sequence decays its own initial state from its own start.
TEST(SsdReference, PackedInitialStates) {
  auto p = constant(13, 0.1);
  p.cu_seqlens = cu_seqlens_of({5, 8});
  p.final_state = tensor<double, 4>({2, 1, 1, 1});
  fill_state(p, {10, 20});
  ssd(on_reference{}, p.args());
  expect_near(p.y.values(),
              {9.148374, 8.377791, 7.680539, 7.049639, 6.478777, 18.196748, 16.565099, 15.088721, 13.752840, 12.544084,
               11.450356, 10.460711, 9.565243},
              1e-6);
  expect_near(p.final_state.values(), {6.478777, 9.565243}, 1e-6);
}

// bugs B070: B constant over time, as an operand that repeats.
TEST(SsdReference, ConstantKey) {
  auto p = constant(3, 0.5);
  p.x.assign({1, 2, 3});
  const double two = 2;
  auto args = p.args();
  args.B = {&two, {1, 3, 1, 1}, {0, 0, 0, 0}};
  ssd(on_reference{}, args);
  expect_near(p.y.values(), {1, 2.606531, 4.580941}, 1e-6);
  expect_near(p.final_state.values(), {4.580941}, 1e-6);
}

// bugs B055: bias, then softplus without a cut-off, then the clamp.
TEST(SsdReference, StepLength) {
  const values raw = {-100, -20, 0, 19.999, 20, 20.001, 100, 1e4};
  const std::int64_t T = static_cast<std::int64_t>(raw.size());
  const auto step_lengths = [&](double bias, bool softplus, double dt_min, double dt_max) {
    auto p = constant(T, 0);
    p.A.assign({-1e300});  // each token forgets the ones before: y = d
    values dt = raw;
    for (double& d : dt) d -= bias;
    p.dt.assign(dt);
    p.dt_bias = tensor<double, 1>({1});
    p.dt_bias.assign({bias});
    p.dt_softplus = softplus;
    p.dt_min = dt_min;
    p.dt_max = dt_max;
    ssd(on_reference{}, p.args());
    return p.y.values();
  };
  const values soft = {3.720076e-44,
                       2.061153620314381e-9,
                       0.6931471805599453,
                       19.999000002063214,
                       20.000000002061153,
                       20.001000002059095,
                       100,
                       1e4};
  for (const double bias : {0.0, 0.5}) {
    const auto d = step_lengths(bias, true, 0, infinity);
    for (std::size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(d[i], soft[i], 2e-7 * soft[i]) << i;
    expect_near(step_lengths(bias, true, 0.001, 0.1), {0.001, 0.001, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}, 1e-15);
    expect_near(step_lengths(bias, false, 0.001, 50), {0.001, 0.001, 0.001, 19.999, 20, 20.001, 50, 50}, 1e-12);
  }
}

// bugs B076, B077: a skip weight a head (never along the channels) and a channel, forward and step.
TEST(SsdReference, SkipWeights) {
  for (const bool per_head : {true, false}) {
    auto p = constant(1, 1, 2, 1, 2, 1);
    p.B.assign({0});
    p.x.assign({1, 2, 3, 4});
    p.D = tensor<double, 2>({2, per_head ? 1 : 2});
    p.D.assign(per_head ? values{1, 10} : values{1, 2, 3, 4});
    const values want = per_head ? values{1, 2, 30, 40} : values{1, 4, 9, 16};
    ssd(on_reference{}, p.args());
    EXPECT_EQ(p.y.values(), want);
    p.y.poison();
    auto step = p.step_of(p.args());
    tensor<double, 4> state(p.final_state.extents());
    state.for_each([](double& s) { s = 0; });
    step.state = state.view();
    ssd_step(on_reference{}, step);
    EXPECT_EQ(p.y.values(), want);
  }
}

// bugs B067: the gate multiplies state and skip together.
TEST(SsdReference, Gate) {
  auto p = constant(5, 0);
  p.D = tensor<double, 2>({1, 1});
  p.D.assign({3});
  p.z = tensor<double, 4>({1, 5, 1, 1});
  p.z.assign({0, 2, -2, 1000, -1000});
  ssd(on_reference{}, p.args());
  expect_near(p.y.values(), {0, 5.284783, -0.715217, 3000, 0}, 1e-6);
}

// bugs B061: parameters in float beside data of two bytes.
TEST(SsdReference, StateAndSkip) {
  const auto run_with = [](auto data) {
    using Data = decltype(data);
    auto p = constant<Data>(1, 0.5, 1, 1, 4, 4);
    p.initial_state = tensor<float, 4>({1, 1, 4, 4});
    p.initial_state.for_each([](float& s) { s = 1; });
    p.D = tensor<float, 2>({1, 1});
    p.D.assign({2});
    ssd(on_reference{}, p.args());
    EXPECT_TRUE(all_are(p.final_state.view(), static_cast<float>(std::exp(-0.5) + 0.5)));
    EXPECT_TRUE(all_are(p.y.view(), static_cast<double>(static_cast<Data>(4 * (std::exp(-0.5) + 0.5) + 2))));
  };
  run_with(half{});
  run_with(bfloat16{});
}

// bugs B079: consecutive heads share B and C.
TEST(SsdReference, GroupedHeadsAreConsecutive) {
  auto p = constant(1, 1, 4, 2);
  p.B.assign({1, 10});
  ssd(on_reference{}, p.args());
  EXPECT_EQ(p.y.values(), (values{1, 1, 10, 10}));
}

// bugs B058: within a call a state of bfloat16 is kept in double; a decoding loop rounds at each call.
TEST(SsdReference, StateTypes) {
  const auto run_with = [](auto state_type) {
    using State = decltype(state_type);
    auto p = constant(4096, 1);
    p.A.assign({std::log(0.999)});
    p.x.for_each([](double& x) { x = 0.001; });
    ssd_problem<double, State> typed;
    typed.x = p.x;
    typed.dt = p.dt;
    typed.A = p.A;
    typed.B = p.B;
    typed.C = p.C;
    typed.y = p.y;
    typed.final_state = tensor<State, 4>({1, 1, 1, 1});
    ssd(on_reference{}, typed.args());
    EXPECT_EQ(static_cast<double>(typed.final_state.view()(0, 0, 0, 0)),
              static_cast<double>(static_cast<State>(typed.y.values().back())));
    EXPECT_NEAR(typed.y.values().back(), 0.983395, 1e-6);
    tensor<State, 4> state({1, 1, 1, 1});
    state.assign({State(0.0f)});
    for (std::int64_t t = 0; t < 4096; ++t) {
      auto step = typed.step_of(typed.part(typed.args(), 1, t, t + 1));
      step.state = state.view();
      ssd_step(on_reference{}, step);
    }
    return static_cast<double>(state.view()(0, 0, 0, 0));
  };
  EXPECT_NEAR(run_with(float{}), 0.983395, 1e-5);
  EXPECT_EQ(run_with(bfloat16{}), 0.25);
}

// y as a double sum over pairs of tokens, in plain loops: shares no line with the reference. With D(t, s) the
// decay from after token s to token t,
//     y_t = (D(t, -1) S0 C_t + sum_{s<=t} D(t, s) d_s (B_s . C_t) x_s + D x_t) silu(z_t)
template <class Scalar>
class pair_sum {
 public:
  tensor<Scalar, 4> y, final_state;

  explicit pair_sum(const ssd_problem<Scalar>& p) : y(p.y.extents()), final_state(p.final_state.extents()), p_(p) {
    const auto [batches, T, H, P] = y.extents();
    const std::int64_t N = p.B.extents()[3];
    const auto x = p.x.view(), B = p.B.view(), C = p.C.view(), S0 = p.initial_state.view();
    const auto skip = p.skip_view();
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t group = h * p.B.extents()[2] / H;
        for (std::int64_t t = 0; t < T; ++t) {
          for (std::int64_t i = 0; i < P; ++i) {
            Scalar sum = skip ? skip(h, i) * x(b, t, h, i) : Scalar(0);
            for (std::int64_t n = 0; S0 && n < N; ++n) sum += decay(b, h, t, -1) * S0(b, h, i, n) * C(b, t, group, n);
            for (std::int64_t s = 0; s <= t; ++s) {
              Scalar match = 0;
              for (std::int64_t n = 0; n < N; ++n) match += B(b, s, group, n) * C(b, t, group, n);
              sum += decay(b, h, t, s) * length(b, s, h) * match * x(b, s, h, i);
            }
            if (p.z) {
              const Scalar z = p.z.view()(b, t, h, i);
              sum *= z * (1 + std::tanh(z / 2)) / 2;
            }
            y.view()(b, t, h, i) = sum;
          }
        }
        for (std::int64_t i = 0; i < P; ++i) {
          for (std::int64_t n = 0; n < N; ++n) {
            Scalar S = S0 ? decay(b, h, T - 1, -1) * S0(b, h, i, n) : Scalar(0);
            for (std::int64_t s = 0; s < T; ++s) {
              S += decay(b, h, T - 1, s) * length(b, s, h) * x(b, s, h, i) * B(b, s, group, n);
            }
            final_state.view()(b, h, i, n) = S;
          }
        }
      }
    }
  }

 private:
  [[nodiscard]] Scalar length(std::int64_t b, std::int64_t t, std::int64_t h) const {
    const Scalar raw = p_.dt.view()(b, t, h) + (p_.dt_bias ? p_.dt_bias.view()(h) : Scalar(0));
    const Scalar d = p_.dt_softplus ? std::log(1 + std::exp(raw)) : raw;
    return std::clamp(d, Scalar(p_.dt_min), Scalar(p_.dt_max));
  }
  [[nodiscard]] Scalar decay(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    Scalar sum = 0;
    for (std::int64_t i = s + 1; i <= t; ++i) sum += length(b, i, h);
    return std::exp(p_.A.view()(h) * sum);
  }

  const ssd_problem<Scalar>& p_;
};

template <class Scalar>
void expect_pair_sum(ssd_problem<Scalar> p, Scalar tolerance, const std::string& what) {
  const pair_sum<Scalar> want(p);
  ssd(on_reference{}, p.args());
  EXPECT_LE(largest_difference(p.y, want.y), tolerance) << what;
  EXPECT_LE(largest_difference(p.final_state, want.final_state), tolerance) << what;
  EXPECT_TRUE(p.y.untouched_outside() && p.final_state.untouched_outside());
}

TEST(SsdReference, EqualsThePairSum) {
  std::mt19937 rng(2);
  for (const std::int64_t T : {0, 1, 2, 15, 64, 65}) {
    for (const auto& [H, G] : {std::pair{1, 1}, std::pair{6, 2}}) {
      for (const bool with_state : {false, true}) {
        expect_pair_sum(
            ssd_problem<double>(ssd_shape{.B = 1, .T = T, .H = H, .G = G, .P = 3, .N = 5, .initial_state = with_state},
                                rng),
            1e-12, "T " + std::to_string(T));
      }
    }
  }
}

// bugs B074, B076: every optional operand and option, there or not.
TEST(SsdReference, OptionalOperands) {
  std::mt19937 rng(3);
  for (int mask = 0; mask < 16; ++mask) {
    for (const auto D : {skip::none, skip::per_head, skip::per_channel}) {
      ssd_shape shape{.B = 1, .T = 9};
      shape.z = (mask & 1) != 0;
      shape.dt_bias = (mask & 2) != 0;
      shape.dt_softplus = (mask & 4) != 0;
      shape.D = D;
      if ((mask & 8) != 0) {
        shape.dt_min = 0.05;
        shape.dt_max = 0.25;
      }
      expect_pair_sum(ssd_problem<double>(shape, rng), 1e-13, "options " + std::to_string(mask));
    }
  }
  ssd_problem<float> p(ssd_shape{}, rng);  // and no final state
  auto without = p;
  without.final_state = {};
  ssd(on_reference{}, p.args());
  ssd(on_reference{}, without.args());
  EXPECT_TRUE(bitwise_equal(p.y, without.y));
}

// A decay of any strength.
TEST(SsdReference, EveryDecay) {
  std::mt19937 rng(4);
  for (const double A : {0.0, -1e-4, -20.0, -1000.0, -1e300}) {
    ssd_problem<double> p(ssd_shape{.B = 1, .T = 33}, rng);
    p.A.for_each([&](double& a) { a = A; });
    expect_pair_sum(p, 1e-12, "A " + std::to_string(A));
    p.A.assign({0, -1e-4, -20, -1000});
    expect_pair_sum(p, 1e-12, "mixed");
  }
}

// A custom scalar is what the sums are kept in.
TEST(SsdReference, CustomScalar) {
  std::mt19937 rng(5);
  const ssd_problem<float> p(ssd_shape{.T = 33}, rng);
  auto wide = p.in<long double>();
  expect_pair_sum(wide, 2e-17L * (sizeof(long double) > 8 ? 1 : 1000), "long double");
  auto narrow = p.in_double();
  ssd(on_reference{}, wide.args());
  ssd(on_reference{}, narrow.args());
  EXPECT_LE(largest_difference(convert<double>(wide.y), narrow.y), 1e-13);
}

TEST(SsdReference, CausalAndLocal) {
  std::mt19937 rng(6);
  const ssd_problem<float> batch(ssd_shape{.T = 9}, rng);
  const ssd_problem<float> packed(ssd_shape{.B = 1, .T = 16, .lengths = {4, 0, 7, 5}}, rng);
  for (const double change : {0.75, std::nan("")}) {
    expect_causal_and_local(batch, 1, 4, change);
    expect_causal_and_local(packed, 2, 3, change);
  }
}

TEST(SsdReference, PackedEqualsSeparate) {
  std::mt19937 rng(7);
  for (const bool with_state : {false, true}) {
    expect_packed_equals_separate(ssd_problem<float>(
        ssd_shape{.B = 1, .T = 16, .initial_state = with_state, .lengths = {0, 5, 0, 1, 0, 2, 8, 0}}, rng));
  }
}

TEST(SsdReference, SplitAndResume) {
  std::mt19937 rng(8);
  expect_split_resumes(ssd_problem<float, double>(ssd_shape{.T = 65}, rng), {0, 1, 2, 40, 63, 64, 65});
}

TEST(SsdReference, EmptyKeepsTheState) { expect_empty_keeps_the_state<ssd_problem<float>>(ssd_shape{}); }

TEST(SsdReference, StridesChangeNothing) {
  expect_strides_change_nothing<ssd_problem<float>>(ssd_shape{.T = 6});
  expect_strides_change_nothing<ssd_problem<float>>(ssd_shape{.T = 6, .D = skip::per_head});
}

template <class Types>
class SsdTyped : public ::testing::Test {};
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
TYPED_TEST_SUITE(SsdTyped, data_and_state, data_and_state_names);
template <class Types>
using problem_of = ssd_problem<std::tuple_element_t<0, Types>, std::tuple_element_t<1, Types>>;

TYPED_TEST(SsdTyped, RoundsOnce) {
  std::mt19937 rng(9);
  for (const auto D : {skip::per_head, skip::per_channel}) {
    expect_rounded_once(problem_of<TypeParam>(ssd_shape{.T = 65, .D = D}, rng));
  }
}

TYPED_TEST(SsdTyped, StepEqualsForward) {  // bugs B104, B106
  std::mt19937 rng(10);
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const ssd_shape shape{.B = 4,
                          .T = tokens == 1 ? 4 : 2 * tokens,
                          .z = tokens != 3,
                          .D = tokens % 2 == 0 ? skip::per_head : skip::per_channel};
    expect_step_equals_forward(problem_of<TypeParam>(shape, rng), tokens);
  }
}

// bugs B103: read from one slot, write to another; a row with -1 in either index is padding.
TEST(SsdReference, StepWritesElsewhere) {
  auto p = constant(4, 1);
  p.A.assign({std::log(0.5)});
  auto args = p.args();
  args.x = args.x.permuted({1, 0, 2, 3});  // four rows of one token
  args.B = args.B.permuted({1, 0, 2, 3});
  args.C = args.C.permuted({1, 0, 2, 3});
  args.dt = args.dt.permuted({1, 0, 2});
  args.y = args.y.permuted({1, 0, 2, 3});
  auto step = p.step_of(args);
  tensor<double, 4> pool({6, 1, 1, 1});
  pool.assign({1, 2, 4, 8, 16, std::nan("")});
  tensor<std::int32_t, 1> read({4}), write({4});
  read.assign({0, 2, -1, 4});
  write.assign({5, -1, 3, 4});
  step.state = pool.view();
  step.read_indices = read.view();
  step.write_indices = write.view();
  ssd_step(on_reference{}, step);
  EXPECT_EQ(p.y.values(), (values{1.5, 0, 0, 9}));
  EXPECT_EQ(pool.values(), (values{1, 2, 4, 8, 9, 1.5}));
}

// Without indices row b has slot b; no token changes nothing.
TEST(SsdReference, StepWithoutIndices) {
  std::mt19937 rng(11);
  ssd_problem<float> p(ssd_shape{.T = 5}, rng);
  auto pool = p.initial_state;
  auto step = p.step_of(p.part(p.args(), 1, 0, 0));
  step.state = pool.view();
  ssd_step(on_reference{}, step);
  EXPECT_TRUE(bitwise_equal(pool, p.initial_state));
  tensor<float, 4> out(p.y.extents());
  step = p.step_of(p.args());
  step.state = pool.view();
  step.y = out.view();
  ssd_step(on_reference{}, step);
  ssd(on_reference{}, p.args());
  EXPECT_TRUE(bitwise_equal(out, p.y));
  EXPECT_TRUE(bitwise_equal(pool, p.final_state));
}

// Empty problems write nothing and are no error.
TEST(SsdReference, NoBatchNoHeads) {
  std::mt19937 rng(12);
  ssd_problem<float> no_batch(ssd_shape{.B = 0}, rng);
  ssd(on_reference{}, no_batch.args());
  ssd_problem<float> no_heads(ssd_shape{.H = 0, .G = 0}, rng);
  ssd(on_reference{}, no_heads.args());
  EXPECT_TRUE(no_batch.y.untouched_outside() && no_heads.y.untouched_outside());
}

}  // namespace
}  // namespace polystate::testing
