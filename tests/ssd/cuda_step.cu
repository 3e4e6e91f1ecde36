// SPDX-License-Identifier: Apache-2.0

// The CUDA step of ssd: it is the forward, token for token.

#include "ssd/cuda_problem.cuh"
#include "support/refusal.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {
namespace {

template <class Types>
class SsdStepCuda : public ::testing::Test {};
template <class D, class S>
struct types {
  using Data = D;
  using State = S;
};
using type_pairs = ::testing::Types<types<float, float>, types<bfloat16, float>, types<bfloat16, bfloat16>,
                                    types<half, half>, types<half, float>>;
TYPED_TEST_SUITE(SsdStepCuda, type_pairs);

/// The problem's tokens in one call: row 0 reads slot 4 and writes it, row 1 is padding, row 2 reads 3 and writes 5.
template <class Data, class State>
void expect_step_is_forward(const ssd_shape& shape, std::int64_t tokens, std::mt19937& rng, bool transposed = false) {
  ssd_shape s = shape;
  s.B = 3;
  s.T = tokens;
  s.initial_state = true;
  s.final_state = true;
  s.lengths = {};
  using problem = ssd_problem<Data, State>;
  const problem p(s, rng);
  const std::vector<std::int32_t> from = {4, -1, 3};
  const std::vector<std::int32_t> to = {4, 2, 5};

  tensor<State, 4> pool({6, s.H, s.P, s.N}, transposed ? layout<4>{{0, 1, 3, 2}, 0} : row_major<4>());
  for (std::size_t b = 0; b < from.size(); ++b) {
    if (from[b] >= 0) {
      assign(pool.view().select(0, from[b]), p.initial_state.view().select(0, static_cast<std::int64_t>(b)));
    }
  }
  tensor<std::int32_t, 1> read({3}), write({3});
  read.assign(from);
  write.assign(to);
  tensor<State, 5> between({3, tokens, s.H, s.P, s.N});
  const device_ssd<Data, State> device(p);
  const device_tensor<State, 4> device_pool(pool);
  const device_tensor<State, 5> device_between(between);
  const device_tensor<std::int32_t, 1> device_read(read), device_write(write);
  auto step = problem::step_of(device.args());
  step.state = device_pool.view();
  step.read_indices = device_read.view();
  step.write_indices = device_write.view();
  step.intermediate_states = device_between.view();
  ssd_step(on_cuda{}, step);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem got = p;
  device.y.download(got.y);
  auto after = pool;
  device_pool.download(after);
  device_between.download(between);
  EXPECT_TRUE(after.untouched_outside() && between.untouched_outside() && got.y.untouched_outside());

  for (std::int64_t b = 0; b < 3; ++b) {
    const auto row = static_cast<std::size_t>(b);
    if (from[row] < 0) {  // bugs B106: zeros, and nothing else
      for_each(got.y.view().select(0, b), [](const Data& x) { EXPECT_EQ(static_cast<float>(x), 0.0f); });
      for_each(between.view().select(0, b), [](const State& x) { EXPECT_TRUE(std::isnan(static_cast<float>(x))); });
      continue;
    }
    for (std::int64_t t = 1; t <= tokens; ++t) {  // bugs B104: each state between is a final state
      using double_problem = ssd_problem<double>;
      double_problem one = p.in_double();
      const auto part = double_problem::part(double_problem::part(one.args(), 0, b, b + 1), 1, 0, t);
      double_problem alone = one;
      alone.x = copy_of(part.x);
      alone.B = copy_of(part.B);
      alone.C = copy_of(part.C);
      alone.dt = copy_of(part.dt);
      if (part.z) alone.z = copy_of(part.z);
      alone.y = copy_of(part.y);
      alone.initial_state = copy_of(part.initial_state.slice(0, b, b + 1));
      alone.final_state = copy_of(part.final_state.slice(0, b, b + 1));
      run_reference(alone);
      const auto state = copy_of(between.view().slice(0, b, b + 1).select(1, t - 1));
      EXPECT_TRUE(within_relative_blocks(state, alone.final_state, ssd_bound<State>, 1)) << "row " << b << ", " << t;
      if (t < tokens) continue;
      EXPECT_TRUE(within_relative_blocks(copy_of(got.y.view().slice(0, b, b + 1)), alone.y, ssd_bound<Data>, 2));
      EXPECT_TRUE(bitwise_equal(copy_of(after.view().slice(0, to[row], to[row] + 1)), state));
    }
  }
  // bugs B094, B103: what is not written stays.
  for (const std::int64_t slot : {0, 1, 2, 3}) {
    EXPECT_TRUE(
        bitwise_equal(copy_of(after.view().slice(0, slot, slot + 1)), copy_of(pool.view().slice(0, slot, slot + 1))))
        << "slot " << slot;
  }
}

// bugs B055, B076: the same step length, skip and gate as the forward's.
TYPED_TEST(SsdStepCuda, EqualsForward) {
  std::mt19937 rng(91);
  using Data = typename TypeParam::Data;
  using State = typename TypeParam::State;
  for (int i = 0; i < 24; ++i) {
    const ssd_shape s = random_ssd_shape(rng, {1}, {1, 5, 16, 32, 33, 64, 100, 128});
    const std::int64_t tokens = pick<std::int64_t>({1, 1, 2, 5, 8}, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": P " << s.P << ", N " << s.N << ", heads " << s.G << ' '
                                      << s.H << ", tokens " << tokens);
    expect_step_is_forward<Data, State>(s, tokens, rng, coin(rng));
    if (this->HasFailure()) return;
  }
  for (const std::int64_t N : {200, 256, 300, 512}) {
    SCOPED_TRACE(::testing::Message() << "N " << N);
    expect_step_is_forward<Data, State>(ssd_shape{.H = 2, .G = 1, .P = 70, .N = N}, 2, rng);
  }
}

// More states than run at once, as in the gated delta rule's.
TYPED_TEST(SsdStepCuda, ManyStates) {
  std::mt19937 rng(96);
  for (const std::int64_t tokens : {1, 3}) {
    expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State>(
        ssd_shape{.H = 72, .G = 24, .P = 260, .N = 40}, tokens, rng);
  }
}

// Slots without indices, and many rows. bugs B008, B010.
TEST(SsdStepCudaFrame, PlainPoolAndManyRows) {
  std::mt19937 rng(92);
  using problem = ssd_problem<bfloat16>;
  const problem p(ssd_shape{.B = 70000, .T = 1, .H = 1, .G = 1, .P = 4, .N = 8}, rng);
  const device_ssd<bfloat16> device(p);
  auto step = problem::step_of(device.args());
  step.state = device.initial_state.view();
  ssd_step(on_cuda{}, step);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem got = p;
  device.y.download(got.y);
  device.initial_state.download(got.final_state);
  judge(got, p);
}

// bugs B107
TEST(SsdStepCudaFrame, Refusals) {
  std::mt19937 rng(93);
  using problem = ssd_problem<float>;
  const problem p(ssd_shape{.B = 2, .T = 1, .H = 1, .G = 1, .P = 4, .N = 4}, rng);
  const device_ssd<float> device(p);
  auto step = problem::step_of(device.args());
  step.state = device.initial_state.view();
  tensor<std::int32_t, 1> slots({2});
  slots.assign({1, 2});
  const device_tensor<std::int32_t, 1> device_slots(slots);
  EXPECT_TRUE(validate(on_cuda{}, step).ok());
  step.read_indices = device_slots.view();
  EXPECT_TRUE(check(on_cuda{}, step).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, step), error_code::value, "read_indices", "entry 1 is 2"));
  ssd_step(on_cuda{}, step);  // a slot outside the pool is padding
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

TYPED_TEST(SsdStepCuda, SanitizerStep) {
  std::mt19937 rng(94);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State>(
      ssd_shape{.H = 2, .G = 1, .P = 20, .N = 40}, 2, rng);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State>(
      ssd_shape{.H = 1, .G = 1, .P = 5, .N = 20, .z = false, .D = skip::per_head}, 3, rng, true);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State>(
      ssd_shape{.H = 220, .G = 110, .P = 4, .N = 16}, 2, rng);  // more pieces than blocks
}

}  // namespace
}  // namespace polystate::testing
