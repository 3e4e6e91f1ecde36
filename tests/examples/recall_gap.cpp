// SPDX-License-Identifier: Apache-2.0

// The formulas of recall_gap by hand, and the library's operators against them.

#include "recall_gap/stack.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace {

using namespace recall_gap;

TEST(recall_gap, formulas_by_hand) {
  MatrixXd keys(2, 2), values(1, 2);
  keys << 1, 0, 0, 1;
  values << 3, -5;
  EXPECT_EQ(linear_state(keys, values), (MatrixXd(1, 2) << 3, -5).finished());
  const double near = std::exp(2.0) / (std::exp(2.0) + 1);
  const MatrixXd read = read_attention(keys, values, keys, 2);
  EXPECT_NEAR(read(0, 0), 3 * near - 5 * (1 - near), 1e-14);
  EXPECT_NEAR(read(0, 1), -5 * near + 3 * (1 - near), 1e-14);
  EXPECT_EQ(share_recalled(MatrixXd::Constant(1, 2, 1.0), values), 0.5);   // both take 3 for the nearest
  EXPECT_EQ(share_recalled(MatrixXd::Constant(1, 2, -1.0), values), 0.5);  // both take -5
  EXPECT_EQ(share_recalled(values, values), 1);
}

drawn_pairs pairs_of(std::int64_t dim, std::int64_t count, std::uint64_t seed = 3) {
  std::mt19937_64 random(seed);
  return {random, dim, count};
}

TEST(recall_gap, operators_write_what_the_formulas_say) {
  const auto p = pairs_of(8, 20);
  EXPECT_LT((written_state<ps::rule::linear>(p.keys, p.values) - linear_state(p.keys, p.values)).norm(), 1e-13);
  // the delta rule: the last pair is held exactly, and decay 1 changes nothing
  const MatrixXd delta = written_state<ps::rule::delta>(p.keys, p.values);
  EXPECT_LT((delta * p.keys.rightCols(1) - p.values.rightCols(1)).norm(), 1e-13);
  EXPECT_LT((written_state<ps::rule::gated_delta>(p.keys, p.values, 0) - delta).norm(), 1e-13);
  EXPECT_GT((written_state<ps::rule::gated_delta>(p.keys, p.values, -0.1) - delta).norm(), 1e-2);
  // one segment is one state
  const written_bank bank(p.keys, p.values, 100);
  EXPECT_LT((bank.read(p.keys, {0.25, 10, 30}) - delta * p.keys).norm(), 1e-12);
}

TEST(recall_gap, draws_differ_by_purpose_and_repeat) {
  options chosen;
  const auto first = [&](purpose what, std::int64_t draw, std::int64_t m) {
    return generator(chosen, what, draw, m)();
  };
  EXPECT_EQ(first(purpose::score, 0, 8), first(purpose::score, 0, 8));
  EXPECT_NE(first(purpose::score, 0, 8), first(purpose::choose, 0, 8));
  EXPECT_NE(first(purpose::score, 0, 8), first(purpose::score, 1, 8));
  EXPECT_NE(first(purpose::score, 0, 8), first(purpose::score, 0, 9));
  const auto random = pairs_of(32, 1000);
  EXPECT_LT((random.keys.colwise().norm().array() - 1).abs().maxCoeff(), 1e-12);
  // entries of unit vectors: mean 0, mean square 1/32, within 5 standard errors of 32000 numbers
  EXPECT_NEAR(random.keys.mean(), 0, 5 / std::sqrt(32.0 * 32000));
  EXPECT_NEAR(random.keys.array().pow(4).mean() * 32 * 32, 3 * 32.0 / 34, 0.15);
}

// A window of w of m pairs recalls those w alone; a softmax over all of them recalls all.
TEST(recall_gap, stacks_of_one_read) {
  options chosen;
  chosen.seeds = 4;
  chosen.stack_pairs = 128;
  chosen.window = 32;
  const stack_row one = measure_stack<ps::rule::linear>(chosen, 1);
  EXPECT_EQ(one.with_softmax.recall.mean, 1);
  EXPECT_GE(one.with_window.recall.mean, 0.25);
  EXPECT_LE(one.with_window.recall.mean, 0.25 + 96.0 / 128 * 0.05);
  EXPECT_EQ(one.states.bytes, 32 * 32 * 4);
  EXPECT_EQ(one.with_softmax.bytes, 128 * 64 * 4);
  EXPECT_EQ(one.with_window.bytes, 32 * 64 * 4);

  // 8 states hold 128 pairs that one cannot
  const stack_row eight = measure_stack<ps::rule::linear>(chosen, 8);
  EXPECT_GT(eight.states.recall.mean, one.states.recall.mean + 0.3);
  EXPECT_EQ(eight.with_softmax.bytes, 7 * one.states.bytes + one.with_softmax.bytes);
}

}  // namespace
