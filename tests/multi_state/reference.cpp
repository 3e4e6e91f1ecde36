// SPDX-License-Identifier: Apache-2.0

// What holds between cells, and between a layer and the single-state operators; banks of unequal sequences;
// types.

#include "multi_state/expected.hpp"
#include "multi_state/runs.hpp"
#include "support/compare.hpp"

#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/multi_state.hpp>
#include <polystate/reference/ssd.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace polystate::testing {
namespace {

using uniform_merlin = cell<rule::gated_delta, separation::uniform, router::merlin<double>>;

// The single-state operator's bits.
TEST(MultiStateReference, SingleIsGatedDeltaRule) {
  std::mt19937 rng(1);
  for (const std::int64_t T : {0, 1, 37}) {
    const layer_problem<float, cell<rule::gated_delta, separation::single, router::none>> p(
        {.T = T, .dk = 24, .dv = 20, .qk_l2norm = true}, rng);
    const auto layer = forward(p);
    tensor<float, 4> o(layer.o.extents()), state({2, 4, 20, 24});
    gated_delta_rule(on_reference{}, gated_delta_rule_args<float>{.q = p.in.q.view(),
                                                                  .k = p.in.k.view(),
                                                                  .v = p.in.v.view(),
                                                                  .g = p.in.g.view(),
                                                                  .beta = p.in.beta.view(),
                                                                  .o = o.view(),
                                                                  .final_state = state.view(),
                                                                  .scale = 0.6,
                                                                  .qk_l2norm = true});
    EXPECT_TRUE(bitwise_equal(layer.o, o));
    if (T > 0) {
      EXPECT_TRUE(bitwise_equal(copy_of(layer.S.view().select(1, 0)), state));
    }
  }
}

TEST(MultiStateReference, SingleIsSsd) {
  std::mt19937 rng(2);
  const layer_problem<float, cell<rule::ssd, separation::single, router::none>> p({.T = 37, .dk = 24, .dv = 20}, rng);
  const auto layer = forward(p);
  tensor<float, 4> y(layer.o.extents()), state({2, 4, 20, 24});
  ssd(on_reference{}, ssd_args<float>{.x = p.in.x.view(),
                                      .dt = p.in.dt.view(),
                                      .A = p.in.A.view(),
                                      .B = p.in.B.view(),
                                      .C = p.in.C.view(),
                                      .D = p.in.D.view(),
                                      .z = p.in.z.view(),
                                      .dt_bias = p.in.dt_bias.view(),
                                      .y = y.view(),
                                      .final_state = state.view(),
                                      .dt_softplus = true});
  EXPECT_TRUE(bitwise_equal(layer.o, y));
  EXPECT_TRUE(bitwise_equal(copy_of(layer.S.view().select(1, 0)), state));
}

// One segment over everything, weight 1, in every router: the single state.
TEST(MultiStateReference, OneSegmentIsSingle) {
  const auto same = [](auto other) {
    std::mt19937 rng(3);
    const layer_problem<double, cell<rule::gated_delta, separation::single, router::none>> one({}, rng);
    rng.seed(3);
    const layer_problem<double, decltype(other)> p({.m = 100}, rng);
    EXPECT_TRUE(bitwise_equal(forward(p).o, forward(one).o));
  };
  same(cell<rule::gated_delta, separation::uniform, router::uniform>{});
  same(cell<rule::gated_delta, separation::uniform, router::position<double>>{});
  same(cell<rule::gated_delta, separation::uniform, router::top_k<router::cumulant<double>>>{});
}

// shared_kq is the same call with the operands written out, to the bit.
TEST(MultiStateReference, SharedKeysAndQueriesWrittenOut) {
  std::mt19937 rng(4);
  layer_problem<double, uniform_merlin> shared({.qkp_l2norm = true, .shared_kq = true}, rng);
  auto explicit_operands = shared;
  explicit_operands.shape.shared_kq = false;
  explicit_operands.keys.k = shared.in.k;
  explicit_operands.router.q = shared.in.q;
  const auto a = forward(shared);
  const auto b = forward(explicit_operands);
  EXPECT_TRUE(bitwise_equal(a.o, b.o));
  EXPECT_TRUE(bitwise_equal(a.lam, b.lam));
  EXPECT_TRUE(bitwise_equal(a.Sigma, b.Sigma));
}

// fenwick with all weights 1 is the single state.
TEST(MultiStateReference, FenwickOfEqualWeightsIsSingle) {
  std::mt19937 rng(5);
  layer_problem<double, cell<rule::delta, separation::fenwick, router::position<double>>> levels({.T = 37}, rng);
  levels.router.weights.for_each([](double& x) { x = 1; });
  layer_problem<double, cell<rule::delta, separation::single, router::none>> one({.T = 0}, rng);
  one.shape = levels.shape;
  one.in = levels.in;
  EXPECT_LE(relative_l2(forward(levels).o, forward(one).o), 1e-13);
}

/// One head of one entry a state: q = k = 1, values and, where the rule has them, log decays as given.
template <class Rule>
auto scalar_fenwick(const std::vector<double>& v, const std::vector<double>& g, const std::vector<double>& by_level) {
  std::mt19937 rng(1);
  const auto T = static_cast<std::int64_t>(v.size());
  layer_problem<double, cell<Rule, separation::fenwick, router::position<double>>> p(
      {.B = 1, .T = T, .H = 1, .HK = 1, .dk = 1, .dv = 1}, rng);
  p.in.q.for_each([](double& x) { x = 1; });
  p.in.k.for_each([](double& x) { x = 1; });
  p.in.v.assign(v);
  if constexpr (Rule::has_decay) p.in.g.assign(g);
  // a tensor that ends with its last weight, NaN behind it
  p.router.weights = tensor<double, 4>({1, T, 1, static_cast<std::int64_t>(by_level.size())});
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::size_t l = 0; l < by_level.size(); ++l) {
      p.router.weights.view()(0, t, 0, static_cast<std::int64_t>(l)) = by_level[l];
    }
  }
  return p;
}

constexpr double scale_of_problems = 0.6;  // layer_problem's

// bugs B133: level weights that are digits show which token is read at which level.
TEST(MultiStateReference, FenwickLevelsByHand) {
  const auto p = scalar_fenwick<rule::linear>({1, 2, 4, 8, 16, 32}, {}, {1, 10, 100, 1000});
  auto out = p.results(4);
  multi_state(on_reference{}, p.args(out));
  const auto o = out.o.values();
  EXPECT_DOUBLE_EQ(o[0], scale_of_problems);
  EXPECT_DOUBLE_EQ(o[3], scale_of_problems * (8 + 10 * 4 + 100 * (1 + 2)));
  EXPECT_DOUBLE_EQ(o[5], scale_of_problems * (32 + 10 * 16 + 1000 * (1 + 2 + 4 + 8)));
}

// bugs B020: lengths about powers of two, forward and the gradient of the decay, against the sum over all pairs.
TEST(MultiStateReference, FenwickTails) {
  for (const std::size_t T : {1u, 6u, 63u, 64u, 65u, 100u}) {
    const std::vector<double> g(T, -0.05);
    std::vector<double> v(T), by_level;
    for (std::size_t t = 0; t < T; ++t) v[t] = 0.1 * static_cast<double>(t + 1);
    const auto levels = separation::fenwick{}.count(static_cast<std::int64_t>(T));
    for (std::int64_t l = 0; l < levels; ++l) by_level.push_back(std::pow(0.5, static_cast<double>(l)));
    const auto p = scalar_fenwick<rule::gated>(v, g, by_level);
    auto out = p.results(levels);
    const auto args = p.args(out);
    multi_state(on_reference{}, args);

    tensor<double, 4> d_o(out.o.extents());
    d_o.for_each([](double& x) { x = 1; });
    tensor<double, 3> d_g({1, static_cast<std::int64_t>(T), 1});
    multi_state_backward(
        on_reference{}, args,
        multi_state_grads<double, rule::gated, router::position<double>>{.d_o = d_o.view(), .in = {.d_g = d_g.view()}});
    std::vector<double> o(T, 0), d_decay(T, 0);
    for (std::size_t t = 0; t < T; ++t) {
      for (std::size_t s = 0; s <= t; ++s) {
        const auto level = static_cast<std::size_t>(std::bit_width(t ^ s));  // 0: itself
        const double term =
            scale_of_problems * by_level.at(level) * std::exp(-0.05 * static_cast<double>(t - s)) * v[s];
        o[t] += term;
        for (std::size_t between = s + 1; between <= t; ++between) d_decay[between] += term;
      }
    }
    const auto got = out.o.values();
    const auto d_got = d_g.values();
    for (std::size_t t = 0; t < T; ++t) {
      EXPECT_NEAR(got[t], o[t], 1e-12 * std::abs(o[t])) << T << ' ' << t;
      EXPECT_NEAR(d_got[t], d_decay[t], 1e-11 * std::abs(d_decay[t])) << T << ' ' << t;
    }
  }
}

// Segments are independent of what lies before them: with the current one alone visible, o of a segment is
// that of its tokens run by themselves.
TEST(MultiStateReference, CurrentSegmentAloneForgetsTheRest) {
  std::mt19937 rng(6);
  const layer_problem<double, uniform_merlin> p({.m = 4, .max_visible = 1}, rng);
  const auto whole = forward(p);
  const token_range second{every_entry, 4, 8};
  tensor<double, 4> o({2, 4, 4, 3});
  auto args = p.part(second);
  args.o = o.view();
  multi_state(on_reference{}, args);
  EXPECT_TRUE(bitwise_equal(o, copy_of(tokens_of(whole.o.view(), second))));
}

// A later token changes nothing before it, whatever it holds.
TEST(MultiStateReference, Causal) {
  std::mt19937 rng(7);
  const layer_problem<double, uniform_merlin> a({}, rng);
  for (const double change : {3.0, std::numeric_limits<double>::quiet_NaN()}) {
    auto b = a;
    b.in.v.view()(1, 5, 0, 0) = change;
    b.in.k.view()(1, 5, 0, 0) = change;
    b.keys.k.view()(1, 5, 0, 0) = change;
    const auto before = forward(a).o;
    const auto after = forward(b).o;
    for (std::int64_t n = 0; n < 2; ++n) {
      for (std::int64_t t = 0; t < 11; ++t) {
        const token_range now{n, t, t + 1};
        const bool same = static_cast<bool>(
            bitwise_equal(copy_of(tokens_of(before.view(), now)), copy_of(tokens_of(after.view(), now))));
        EXPECT_EQ(same, n == 0 || t < 5) << n << ' ' << t;
      }
    }
  }
}

// A NaN reaches the heads that read it, in its batch entry, from its token on.
TEST(MultiStateReference, NanStaysInItsSequenceAndHeads) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto heads_with_nan = [&](const auto& p) {
    const auto o = forward(p).o;
    std::vector<bool> heads(4);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t t = 0; t < 11; ++t) {
          const bool is_nan = std::isnan(o.view()(b, t, h, 0));
          EXPECT_FALSE(is_nan && (b == 0 || t < 5));
          if (is_nan) heads[static_cast<std::size_t>(h)] = true;
        }
      }
    }
    return heads;
  };
  std::mt19937 rng(8);
  const layer_problem<double, uniform_merlin> good({}, rng);
  auto p = good;
  p.in.v.view()(1, 5, 2, 0) = nan;
  EXPECT_EQ(heads_with_nan(p), (std::vector<bool>{false, false, true, false}));
  p = good;
  p.in.k.view()(1, 5, 0, 0) = nan;  // heads 0 and 1 share it
  EXPECT_EQ(heads_with_nan(p), (std::vector<bool>{true, true, false, false}));
  p = good;
  p.keys.k.view()(1, 5, 1, 0) = nan;  // a moment head of heads 2 and 3
  EXPECT_EQ(heads_with_nan(p), (std::vector<bool>{false, false, true, true}));
  p = good;
  p.router.gamma.view()(1, 5, 3) = nan;
  EXPECT_EQ(heads_with_nan(p), (std::vector<bool>{false, false, false, true}));
}

// alpha = 0 at g = -inf: a segment forgets its past, others keep theirs.
TEST(MultiStateReference, InfiniteDecay) {
  std::mt19937 rng(9);
  layer_problem<double, uniform_merlin> p({}, rng);
  p.in.g.view()(0, 4, 0) = -std::numeric_limits<double>::infinity();
  expect_close(forward(p), expected(p));
  layer_problem<double, cell<rule::gated, separation::fenwick, router::position<double>>> levels({}, rng);
  levels.in.g.view()(0, 4, 0) = -std::numeric_limits<double>::infinity();
  expect_close(forward(levels), expected(levels));
}

// Sequences of one bank at different tokens, each stepped and read as if alone.
TEST(MultiStateReference, BankOfUnequalSequences) {
  std::mt19937 rng(10);
  const layer_problem<double, uniform_merlin> p({}, rng);
  const auto whole = forward(p);
  state_bank<double> bank(p.bank_shape(2), 4);
  const std::int64_t seen[] = {7, 2};
  for (std::int64_t b = 0; b < 2; ++b) prefill(p, bank, {b, 0, seen[b]}, b);

  // two further tokens each, gathered into one step: token seen[b] + t of entry b
  layer_problem<double, uniform_merlin> next({.T = 2}, rng);
  const auto gather = [&](auto& to, const auto& from) {
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto source = copy_of(tokens_of(from.view(), {b, seen[b], seen[b] + 2})).values();
      auto at = source.begin();
      for_each(to.view().slice(0, b, b + 1), [&](double& x) { x = *at++; });
    }
  };
  gather(next.in.q, p.in.q);
  gather(next.in.k, p.in.k);
  gather(next.in.v, p.in.v);
  gather(next.in.g, p.in.g);
  gather(next.in.beta, p.in.beta);
  gather(next.keys.k, p.keys.k);
  gather(next.router.q, p.router.q);
  gather(next.router.gamma, p.router.gamma);
  next.router.tau_mu = p.router.tau_mu;
  next.router.tau_sigma = p.router.tau_sigma;
  tensor<double, 4> o({2, 2, 4, 3}), want({2, 2, 4, 3});
  gather(want, whole.o);
  auto args = next.step(bank.view(), {every_entry, 0, 2});
  args.o = o.view();
  multi_state_step(on_reference{}, args);
  EXPECT_LE(relative_l2(o, want), 1e-13);
  EXPECT_EQ(bank.counters(0).segments, 3);
  EXPECT_EQ(bank.counters(1).segments, 2);

  // the second token's queries read what the step read behind it
  auto read = next.read(bank.view(), {every_entry, 1, 2});
  tensor<double, 4> again({2, 1, 4, 3});
  read.o = again.view();
  multi_state_read(on_reference{}, read);
  EXPECT_LE(relative_l2(again, copy_of(want.view().slice(1, 1, 2))), 1e-13);
}

// close() ends a segment by hand: the bank is that of boundaries at the same tokens. divide_by m divides by
// the configured size all the same.
TEST(MultiStateReference, CloseByHand) {
  std::mt19937 rng(11);
  const layer_problem<double, cell<rule::gated_delta, separation::uniform, router::merlin<double>>> p({.m = 5}, rng);
  state_bank<double> bank(p.bank_shape(2), 5);
  const auto step = [&](std::int64_t begin, std::int64_t end) {
    multi_state_step(on_reference{}, p.step(bank.view(), {every_entry, begin, end}));
  };
  const auto close = [&] {
    for (std::int64_t b = 0; b < 2; ++b) bank.close(b);
  };
  step(0, 1);
  close();
  step(1, 6);  // five tokens: closed by themselves
  close();     // nothing is open
  step(6, 9);
  close();
  step(9, 11);
  EXPECT_EQ(bank.counters(0).segments, 4);
  EXPECT_EQ(bank.counters(0).open_tokens, 2);

  // cuts are 0 1 6 9 11
  layer_problem<double, cell<rule::gated_delta, separation::boundaries, router::uniform>> cut({}, rng);
  cut.in = p.in;
  cut.keys = p.keys;
  const auto want = forward(cut);
  const auto got = contents(bank, 4);
  EXPECT_LE(relative_l2(got.S, want.S), 1e-13);
  for (std::int64_t l = 0; l < 4; ++l) {
    const double length = cut.shape.cuts[static_cast<std::size_t>(l) + 1] - cut.shape.cuts[static_cast<std::size_t>(l)];
    EXPECT_NEAR(got.mu.view()(1, l, 1, 2) * 5, want.mu.view()(1, l, 1, 2) * length, 1e-13) << l;
    EXPECT_NEAR(got.Sigma.view()(1, l, 0, 1, 2) * 5, want.Sigma.view()(1, l, 0, 1, 2) * length, 1e-13) << l;
  }
}

// A fork goes its own way; a snapshot restores the bits.
TEST(MultiStateReference, SnapshotAndFork) {
  std::mt19937 rng(12);
  const layer_problem<double, uniform_merlin> p({}, rng);
  state_bank<double> bank(p.bank_shape(2), 4);
  const auto step = [&](state_bank<double>& on, std::int64_t begin, std::int64_t end) {
    multi_state_step(on_reference{}, p.step(on.view(), {every_entry, begin, end}));
  };
  step(bank, 0, 5);
  const auto snapshot = bank;
  auto fork = bank;
  step(bank, 5, 11);
  const auto straight = contents(bank, 4);
  step(fork, 8, 11);  // other tokens
  bank = snapshot;
  step(bank, 5, 11);
  EXPECT_TRUE(bitwise_equal(contents(bank, 4).S, straight.S));
  EXPECT_TRUE(bitwise_equal(contents(bank, 4).Sigma, straight.Sigma));
  EXPECT_FALSE(bitwise_equal(contents(fork, 4).S, straight.S));
}

// What lies past a sequence's entries is never read: a bank full of NaN.
TEST(MultiStateReference, UnusedEntriesMayHoldAnything) {
  std::mt19937 rng(13);
  const auto check_cell = [&](auto which) {
    const layer_problem<double, decltype(which)> p({}, rng);
    const auto whole = forward(p);
    state_bank<double> bank(p.bank_shape(2), p.entries(11) + 2);
    for_each(bank.view().S, [](double& x) { x = std::nan(""); });
    if (bank.view().mu) for_each(bank.view().mu, [](double& x) { x = std::nan(""); });
    if (bank.view().Sigma) for_each(bank.view().Sigma, [](double& x) { x = std::nan(""); });
    auto got = p.results();
    auto args = p.step(bank.view(), {every_entry, 0, 11});
    args.o = got.o.view();
    multi_state_step(on_reference{}, args);
    EXPECT_LE(relative_l2(got.o, whole.o), 1e-13);
  };
  check_cell(uniform_merlin{});
  check_cell(cell<rule::gated_delta, separation::fenwick, router::position<double>>{});
  check_cell(cell<rule::gated_delta, separation::single, router::none>{});
}

template <class Data>
class MultiStateReferenceTyped : public ::testing::Test {};
using data_types = ::testing::Types<double, float, half, bfloat16>;
TYPED_TEST_SUITE(MultiStateReferenceTyped, data_types);

template <class Rule, class Data>
void expect_rounded_once() {
  using acc = acc_t<Data>;
  std::mt19937 rng(14);
  const layer_problem<Data, cell<Rule, separation::uniform, router::top_k<router::merlin<Data>>>> p(
      {.T = 33, .m = 8, .qkp_l2norm = true}, rng);
  layer_problem<double, cell<Rule, separation::uniform, router::top_k<router::merlin<double>>>> d({.T = 0}, rng);
  d.shape = p.shape;
  d.in = p.in.in_double();
  d.keys = p.keys.in_double();
  d.router = p.router.in_double();
  const auto got = forward(p);
  const auto want = forward(d);
  EXPECT_TRUE(bitwise_equal(got.o, convert<Data>(want.o)));
  EXPECT_TRUE(bitwise_equal(got.lam, convert<acc>(want.lam)));
  EXPECT_TRUE(bitwise_equal(got.S, convert<acc>(want.S)));
  EXPECT_TRUE(bitwise_equal(got.Sigma, convert<acc>(want.Sigma)));
}

// Computed in double and rounded once: the double run, rounded.
TYPED_TEST(MultiStateReferenceTyped, RoundsOnce) {
  expect_rounded_once<rule::gated_delta, TypeParam>();
  expect_rounded_once<rule::ssd, TypeParam>();
}

// A bank in bfloat16 rounds every state once a token: close to the forward, and not its bits.
TEST(MultiStateReference, NarrowBank) {
  std::mt19937 rng(15);
  const layer_problem<float, cell<rule::gated, separation::uniform, router::uniform>> p({}, rng);
  const auto whole = forward(p);
  state_bank<float, bfloat16> bank({.B = 2, .H = 4, .dv = 3, .dk = 5}, 4);
  const auto part = p.part({every_entry, 0, 11});
  tensor<float, 4> o({2, 11, 4, 3});
  multi_state_step(on_reference{},
                   multi_state_step_args<float, rule::gated, separation::uniform, router::uniform, bfloat16>{
                       .in = part.in, .separation = part.separation, .bank = bank.view(), .o = o.view()});
  const double error = relative_l2(o, convert<double>(whole.o));
  EXPECT_GT(error, 1e-5);
  EXPECT_LT(error, 1e-2);
}

}  // namespace
}  // namespace polystate::testing
