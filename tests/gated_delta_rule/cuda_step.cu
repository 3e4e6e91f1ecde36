// SPDX-License-Identifier: Apache-2.0

// The CUDA step of the delta family: it is the forward, token for token.

#include "gated_delta_rule/cuda_problem.cuh"
#include "support/refusal.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::testing {
namespace {

template <class Types>
class GatedDeltaRuleStepCuda : public ::testing::Test {};
template <class D, class S>
struct types {
  using Data = D;
  using State = S;
};
using type_pairs = ::testing::Types<types<float, float>, types<bfloat16, float>, types<bfloat16, bfloat16>,
                                    types<half, half>, types<half, float>>;
TYPED_TEST_SUITE(GatedDeltaRuleStepCuda, type_pairs);

/// Row b of the problem has slot slots[b]; a call's state is rounded to State between the calls.
template <class Data, class State, class Rule>
void expect_step_is_forward(const delta_shape& shape, std::int64_t tokens, std::mt19937& rng, bool transposed = false) {
  delta_shape s = shape;
  s.B = 3;
  s.T = tokens;
  s.initial_state = true;
  s.final_state = true;
  s.lengths = {};
  const delta_problem<Data, Rule, State> p(s, rng);
  const std::vector<std::int32_t> from = {4, -1, 3};
  const std::vector<std::int32_t> to = {4, 2, 5};

  tensor<State, 4> pool({6, s.HV, s.dv, s.dk}, transposed ? layout<4>{{0, 1, 3, 2}, 0} : row_major<4>());
  for (std::size_t b = 0; b < from.size(); ++b) {
    if (from[b] >= 0) {
      assign(pool.view().select(0, from[b]),
             tensor_view<const State, 4>(p.initial_state.view()).select(0, static_cast<std::int64_t>(b)));
    }
  }
  tensor<std::int32_t, 1> read({3}), write({3});
  read.assign(from);
  write.assign(to);
  tensor<State, 5> between({3, tokens, s.HV, s.dv, s.dk});
  const device_delta<Data, Rule, State> device(p);
  const device_tensor<State, 4> device_pool(pool);
  const device_tensor<State, 5> device_between(between);
  const device_tensor<std::int32_t, 1> device_read(read), device_write(write);
  auto step = delta_problem<Data, Rule, State>::step_of(device.args());
  step.state = device_pool.view();
  step.read_indices = device_read.view();
  step.write_indices = device_write.view();
  step.intermediate_states = device_between.view();
  gated_delta_rule_step(on_cuda{}, step);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  delta_problem<Data, Rule, State> got = p;
  device.o.download(got.o);
  auto after = pool;
  device_pool.download(after);
  device_between.download(between);
  EXPECT_TRUE(after.untouched_outside() && between.untouched_outside() && got.o.untouched_outside());

  for (std::int64_t b = 0; b < 3; ++b) {
    const auto row = static_cast<std::size_t>(b);
    if (from[row] < 0) {  // bugs B106: zeros, and nothing else
      for_each(got.o.view().select(0, b), [](const Data& x) { EXPECT_EQ(static_cast<float>(x), 0.0f); });
      for_each(between.view().select(0, b), [](const State& x) { EXPECT_TRUE(std::isnan(static_cast<float>(x))); });
      continue;
    }
    for (std::int64_t t = 1; t <= tokens; ++t) {  // bugs B104: each state between is a final state
      delta_problem<double, Rule> want = p.in_double();
      auto one = want;
      const auto part =
          delta_problem<double, Rule>::part(delta_problem<double, Rule>::part(want.args(), 0, b, b + 1), 1, 0, t);
      one.q = copy_of(part.q);
      one.k = copy_of(part.k);
      one.v = copy_of(part.v);
      if (part.g) one.g = copy_of(part.g);
      if (part.beta) one.beta = copy_of(part.beta);
      one.o = copy_of(part.o);
      one.initial_state = copy_of(part.initial_state.slice(0, b, b + 1));
      one.final_state = copy_of(part.final_state.slice(0, b, b + 1));
      run_reference(one);
      const auto state = copy_of(between.view().slice(0, b, b + 1).select(1, t - 1));
      EXPECT_TRUE(within_relative_blocks(state, one.final_state, delta_bound<State>, 1)) << "row " << b << ", " << t;
      if (t < tokens) continue;
      EXPECT_TRUE(within_relative_blocks(copy_of(got.o.view().slice(0, b, b + 1)), one.o, delta_bound<Data>, 2));
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

TYPED_TEST(GatedDeltaRuleStepCuda, EqualsForward) {
  std::mt19937 rng(61);
  using Data = typename TypeParam::Data;
  using State = typename TypeParam::State;
  const std::vector<std::int64_t> head_dims = {1, 5, 16, 32, 33, 64, 100, 128};
  for (int i = 0; i < 24; ++i) {
    const delta_shape s = random_delta_shape(rng, {1}, head_dims);
    const std::int64_t tokens = pick<std::int64_t>({1, 1, 2, 5, 8}, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": dk " << s.dk << ", dv " << s.dv << ", heads " << s.HK
                                      << ' ' << s.HV << ", tokens " << tokens);
    with_any_rule(rng, [&]<class Rule>(Rule) { expect_step_is_forward<Data, State, Rule>(s, tokens, rng, coin(rng)); });
    if (this->HasFailure()) return;
  }
  for (const std::int64_t dk : {200, 256, 300, 512}) {
    SCOPED_TRACE(::testing::Message() << "dk " << dk);
    expect_step_is_forward<Data, State, rule::gated_delta>(
        delta_shape{.HK = 1, .HV = 2, .dk = dk, .dv = 70, .qk_l2norm = true}, 2, rng);
  }
}

// More states than run at once: a block has several, or asks early for another's; all numbers of a piece overflow.
TYPED_TEST(GatedDeltaRuleStepCuda, ManyStates) {
  std::mt19937 rng(66);
  for (const std::int64_t tokens : {1, 3}) {
    expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State, rule::gated_delta>(
        delta_shape{.HK = 24, .HV = 72, .dk = 40, .dv = 260, .qk_l2norm = true}, tokens, rng);
  }
}

// Slots without indices, no tokens, and many rows. bugs B008, B010.
TEST(GatedDeltaRuleStepCudaFrame, PlainPoolAndManyRows) {
  std::mt19937 rng(62);
  using problem = delta_problem<bfloat16, rule::gated_delta>;
  const problem p(delta_shape{.B = 70000, .T = 1, .HK = 1, .HV = 1, .dk = 8, .dv = 4}, rng);
  const device_delta<bfloat16, rule::gated_delta> device(p);
  auto step = problem::step_of(device.args());
  step.state = device.initial_state.view();
  auto none = step;
  none.q = none.q.slice(1, 0, 0);
  none.k = none.k.slice(1, 0, 0);
  none.v = none.v.slice(1, 0, 0);
  none.g = none.g.slice(1, 0, 0);
  none.beta = none.beta.slice(1, 0, 0);
  none.o = none.o.slice(1, 0, 0);
  gated_delta_rule_step(on_cuda{}, none);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  EXPECT_TRUE(device.initial_state.unchanged());
  gated_delta_rule_step(on_cuda{}, step);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem got = p;
  device.o.download(got.o);
  device.initial_state.download(got.final_state);
  judge(got, p);
}

// bugs B116, B127: a replay reads the slots of now.
TEST(GatedDeltaRuleStepCudaFrame, GraphReplaysReadCurrentSlots) {
  std::mt19937 rng(63);
  using problem = delta_problem<bfloat16, rule::gated_delta>;
  const problem p(delta_shape{.B = 2, .T = 1, .HK = 1, .HV = 2, .dk = 32, .dv = 16}, rng);
  const device_delta<bfloat16, rule::gated_delta> device(p);
  tensor<float, 4> pool({4, 2, 16, 32});
  pool.uniform(rng, -1, 1);
  device_tensor<float, 4> device_pool(pool);
  tensor<std::int32_t, 1> slots({2});
  slots.assign({0, 1});
  device_tensor<std::int32_t, 1> device_slots(slots);
  auto step = problem::step_of(device.args());
  step.state = device_pool.view();
  step.read_indices = device_slots.view();
  const device_stream stream;
  const captured_graph graph(stream, [&] { gated_delta_rule_step(stream.exec(), step); });
  slots.assign({2, -1});
  device_slots.upload(slots);
  graph.replay(stream);
  tensor<float, 4> after = pool;
  device_pool.download(after);
  for (const std::int64_t slot : {0, 1, 3}) {
    EXPECT_TRUE(
        bitwise_equal(copy_of(after.view().slice(0, slot, slot + 1)), copy_of(pool.view().slice(0, slot, slot + 1))));
  }
  problem want = p;
  assign(want.initial_state.view().select(0, 0), pool.view().select(0, 2));
  problem got = want;
  device.o.download(got.o);
  auto reference = want.in_double();
  run_reference(reference);
  EXPECT_TRUE(within_relative_blocks(copy_of(after.view().slice(0, 2, 3)),
                                     copy_of(reference.final_state.view().slice(0, 0, 1)), delta_bound<float>, 1));
  for_each(got.o.view().select(0, 1), [](const bfloat16& x) { EXPECT_EQ(static_cast<float>(x), 0.0f); });
}

// bugs B107
TEST(GatedDeltaRuleStepCudaFrame, Refusals) {
  std::mt19937 rng(64);
  using problem = delta_problem<float, rule::delta>;
  const problem p(delta_shape{.B = 2, .T = 1, .HK = 1, .HV = 1, .dk = 4, .dv = 4}, rng);
  const device_delta<float, rule::delta> device(p);
  auto step = problem::step_of(device.args());
  step.state = device.initial_state.view();
  tensor<std::int32_t, 1> slots({2});
  slots.assign({1, 2});
  const device_tensor<std::int32_t, 1> device_slots(slots);
  EXPECT_TRUE(validate(on_cuda{}, step).ok());
  step.read_indices = device_slots.view();
  EXPECT_TRUE(check(on_cuda{}, step).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, step), error_code::value, "read_indices", "entry 1 is 2"));
  gated_delta_rule_step(on_cuda{}, step);  // a slot outside the pool is padding
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

TYPED_TEST(GatedDeltaRuleStepCuda, SanitizerStep) {
  std::mt19937 rng(65);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State, rule::gated_delta>(
      delta_shape{.HK = 1, .HV = 2, .dk = 40, .dv = 20, .qk_l2norm = true}, 2, rng);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State, rule::linear>(
      delta_shape{.HK = 1, .HV = 1, .dk = 20, .dv = 5}, 3, rng, true);
  expect_step_is_forward<typename TypeParam::Data, typename TypeParam::State, rule::gated_delta>(
      delta_shape{.HK = 110, .HV = 220, .dk = 16, .dv = 4}, 2, rng);  // more pieces than blocks
}

}  // namespace
}  // namespace polystate::testing
