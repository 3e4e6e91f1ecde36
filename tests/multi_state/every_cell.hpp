// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tests that every cell of the axes passes. A source of its own instantiates them for each recurrence.

#include "multi_state/cells.hpp"
#include "multi_state/expected.hpp"
#include "multi_state/runs.hpp"
#include "support/compare.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace polystate::testing {

/// Shapes that change one thing each.
inline std::vector<layer_shape> layer_shapes() {
  return {
      {},
      {.HK = 1, .HR = 1},                                          // one group for all heads
      {.HK = 4, .HR = 4},                                          // one each
      {.HK = 2, .HR = 4},                                          // moment heads are not the key heads
      {.dk = 1, .dv = 1, .dr = 1},                                 // scalars
      {.m = 1},                                                    // every token closes its segment
      {.m = 11},                                                   // one segment, closed
      {.m = 64},                                                   // one segment, open
      {.max_visible = 1},                                          // the current segment alone
      {.max_visible = 2},                                          //
      {.qk_l2norm = true},                                         //
      {.qkp_l2norm = true},                                        //
      {.shared_kq = true},                                         //
      {.qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true},  // normalised once for the state, once for routing
      {.moment_rule = moment_rule::decay_write},                   //
      {.moment_rule = moment_rule::delta},                         //
      {.shared_kq = true, .moment_rule = moment_rule::delta},
      {.keep_current = true},
  };
}

template <class Cell>
class EveryCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(EveryCell);

TYPED_TEST_P(EveryCell, Definition) {
  std::mt19937 rng(1);
  int row = 0;
  for (const auto& shape : layer_shapes()) {
    SCOPED_TRACE("row " + std::to_string(row++));
    const layer_problem<double, TypeParam> p(shape, rng);
    expect_close(forward(p), expected(p));
  }
  const layer_problem<double, TypeParam> count({.divide_by = divide_by::count}, rng);
  expect_close(forward(count), expected(count));
}

TYPED_TEST_P(EveryCell, ShortSequences) {
  std::mt19937 rng(2);
  for (std::int32_t T = 0; T < 5; ++T) {
    const layer_problem<double, TypeParam> p(
        {.T = T, .cuts = T > 0 ? std::vector<std::int32_t>{0, T} : std::vector<std::int32_t>{0}}, rng);
    expect_close(forward(p), expected(p));
  }
}

// The bank and the weights are by-products: the outputs are the same bits without them.
TYPED_TEST_P(EveryCell, OutputsAlone) {
  std::mt19937 rng(3);
  const layer_problem<double, TypeParam> p({}, rng);
  const auto whole = forward(p);
  layer_results<double> alone;
  alone.o = tensor<double, 4>(whole.o.extents());
  multi_state(on_reference{}, p.args(alone));
  EXPECT_TRUE(bitwise_equal(alone.o, whole.o));
}

REGISTER_TYPED_TEST_SUITE_P(EveryCell, Definition, ShortSequences, OutputsAlone);

/// Cells with a step: all but boundaries.
template <class Cell>
class EverySteppingCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(EverySteppingCell);

TYPED_TEST_P(EverySteppingCell, PackedEqualsSeparate) {
  std::mt19937 rng(4);
  const layer_problem<double, TypeParam> p({.B = 1, .T = 16, .lengths = {0, 5, 1, 0, 0, 10, 0}}, rng);
  const sequences all(1, 16, p.cu_seqlens.view());
  std::int64_t L = 0;
  for (std::int64_t s = 0; s < all.size(); ++s) L += p.entries(all[s].size());
  auto packed = p.results(L);
  multi_state(on_reference{}, p.args(packed));
  EXPECT_TRUE(packed.untouched_outside());

  auto separate = p.results(L);
  std::int64_t first = 0;
  for (std::int64_t s = 0; s < all.size(); ++s) {
    auto args = p.part(all[s]);
    const std::int64_t last = first + p.entries(all[s].size());
    const auto entries = [&](const auto& v) { return v ? v.slice(1, first, last) : v; };
    args.o = tokens_of(separate.o.view(), all[s]);
    args.S = entries(separate.S.view());
    args.mu = entries(separate.mu.view());
    args.Sigma = entries(separate.Sigma.view());
    multi_state(on_reference{}, args);
    first = last;
  }
  EXPECT_TRUE(bitwise_equal(packed.o, separate.o));
  EXPECT_TRUE(bitwise_equal(packed.S, separate.S));
  EXPECT_TRUE(bitwise_equal(packed.mu, separate.mu));
  EXPECT_TRUE(bitwise_equal(packed.Sigma, separate.Sigma));
}

// From every token on, by any number of tokens a call: outputs, and the bank afterwards.
TYPED_TEST_P(EverySteppingCell, StepEqualsForward) {
  std::mt19937 rng(5);
  for (const layer_shape& shape :
       {layer_shape{}, layer_shape{.HR = 4, .max_visible = 2, .moment_rule = moment_rule::delta},
        layer_shape{.qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true}}) {
    const layer_problem<double, TypeParam> p(shape, rng);
    const auto whole = forward(p);
    const std::int64_t T = shape.T;
    for (std::int64_t t0 = 0; t0 <= T; ++t0) {
      for (const std::int64_t n : {1, 2, 7, 11}) {
        SCOPED_TRACE("from " + std::to_string(t0) + " by " + std::to_string(n));
        state_bank<double> bank(p.bank_shape(shape.B), p.entries(T));
        auto got = whole;
        got.o.poison();
        const auto head = prefill(p, bank, {every_entry, 0, t0});
        EXPECT_TRUE(bitwise_equal(head, copy_of(tokens_of(whole.o.view(), {every_entry, 0, t0}))));
        for (std::int64_t begin = t0; begin < T; begin += n) {
          const token_range range{every_entry, begin, std::min(begin + n, T)};
          auto args = p.step(bank.view(), range);
          args.o = tokens_of(got.o.view(), range);
          multi_state_step(on_reference{}, args);
        }
        const auto tail = [&](const tensor<double, 4>& o) {
          return copy_of(tokens_of(o.view(), {every_entry, t0, T}));
        };
        EXPECT_LE(relative_l2(tail(got.o), tail(whole.o)), 1e-13);
        const auto kept = contents(bank, p.entries(T));
        got.S = kept.S;
        got.mu = kept.mu;
        got.Sigma = kept.Sigma;
        got.o = whole.o;
        expect_close(got, whole);
        EXPECT_EQ(bank.counters(1).tokens, T);
        EXPECT_EQ(bank.counters(1).segments, p.separation().count(T));
      }
    }
  }
}

// Without o the bank ends the same to the bit, and no tokens change nothing.
TYPED_TEST_P(EverySteppingCell, StepThatOnlyWrites) {
  std::mt19937 rng(6);
  const layer_problem<double, TypeParam> p({}, rng);
  const std::int64_t L = p.entries(11);
  state_bank<double> read(p.bank_shape(2), L), written(p.bank_shape(2), L);
  tensor<double, 4> o({2, 11, 4, 3});
  auto args = p.step(read.view(), {every_entry, 0, 11});
  args.o = o.view();
  multi_state_step(on_reference{}, args);
  multi_state_step(on_reference{}, p.step(written.view(), {every_entry, 0, 11}));
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_TRUE(bitwise_equal(contents(read, L).S, contents(written, L).S));
    EXPECT_TRUE(bitwise_equal(contents(read, L).mu, contents(written, L).mu));
    EXPECT_TRUE(bitwise_equal(contents(read, L).Sigma, contents(written, L).Sigma));
    EXPECT_EQ(read.counters(0).tokens, written.counters(0).tokens);
    multi_state_step(on_reference{}, p.step(written.view(), {every_entry, 11, 11}));
  }
}

REGISTER_TYPED_TEST_SUITE_P(EverySteppingCell, PackedEqualsSeparate, StepEqualsForward, StepThatOnlyWrites);

/// Cells with a read: those with weights and a step.
template <class Cell>
class EveryReadableCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(EveryReadableCell);

// Token t's query, on the bank after token t, gives token t's output (before ssd's skip and gate) and
// weights.
TYPED_TEST_P(EveryReadableCell, ReadEqualsForward) {
  std::mt19937 rng(7);
  for (const layer_shape& shape :
       {layer_shape{}, layer_shape{.HR = 4, .max_visible = 2, .moment_rule = moment_rule::delta, .keep_current = true},
        layer_shape{.qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true}}) {
    layer_problem<double, TypeParam> p(shape, rng);
    if constexpr (!is_delta_family<typename TypeParam::Rule>) {
      p.in.D = {};
      p.in.z = {};
    }
    const auto whole = forward(p);
    const std::int64_t L = p.entries(shape.T);
    state_bank<double> bank(p.bank_shape(shape.B), L);
    for (std::int64_t t = 0; t < shape.T; ++t) {
      const token_range now{every_entry, t, t + 1};
      multi_state_step(on_reference{}, p.step(bank.view(), now));
      tensor<double, 4> o({shape.B, 1, shape.H, shape.dv}), lam({shape.B, 1, shape.H, L});
      auto args = p.read(bank.view(), now);
      args.o = o.view();
      args.lam = lam.view();
      multi_state_read(on_reference{}, args);
      EXPECT_LE(relative_l2(o, copy_of(tokens_of(whole.o.view(), now))), 1e-13);
      EXPECT_LE(relative_l2(lam, copy_of(tokens_of(whole.lam.view(), now))), 1e-13);
    }
  }
}

// Many queries a call give what each gives alone, and leave the bank as it was.
TYPED_TEST_P(EveryReadableCell, ManyQueriesLeaveTheBankAlone) {
  std::mt19937 rng(8);
  const layer_problem<double, TypeParam> p({.max_visible = 3}, rng);
  const std::int64_t L = p.entries(11);
  state_bank<double> bank(p.bank_shape(2), L);
  multi_state_step(on_reference{}, p.step(bank.view(), {every_entry, 0, 8}));
  const auto before = contents(bank, L);
  const state_bank<double> held = bank;  // a bank that is only read may be const
  tensor<double, 4> many({2, 11, 4, 3}), single({2, 11, 4, 3});
  auto args = p.read(held.view(), {every_entry, 0, 11});
  args.o = many.view();
  multi_state_read(on_reference{}, args);
  for (std::int64_t t = 0; t < 11; ++t) {
    args = p.read(bank.view(), {every_entry, t, t + 1});
    args.o = tokens_of(single.view(), {every_entry, t, t + 1});
    multi_state_read(on_reference{}, args);
  }
  EXPECT_LE(relative_l2(many, single), 1e-14);
  EXPECT_TRUE(many.untouched_outside());
  EXPECT_TRUE(bitwise_equal(contents(bank, L).S, before.S));
  EXPECT_TRUE(bitwise_equal(contents(bank, L).mu, before.mu));
  EXPECT_TRUE(bitwise_equal(contents(bank, L).Sigma, before.Sigma));
  EXPECT_EQ(bank.counters(1).tokens, 8);
  args = p.read(bank.view(), {every_entry, 4, 4});
  args.o = tokens_of(single.view(), {every_entry, 4, 4});
  multi_state_read(on_reference{}, args);  // no query
}

REGISTER_TYPED_TEST_SUITE_P(EveryReadableCell, ReadEqualsForward, ManyQueriesLeaveTheBankAlone);

}  // namespace polystate::testing
