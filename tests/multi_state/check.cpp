// SPDX-License-Identifier: Apache-2.0

// Every argument of forward, step and read refused with its name; nothing written.

#include "multi_state/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace polystate::testing {
namespace {

using merlin_cell = cell<rule::gated_delta, separation::uniform, router::merlin<float>>;
using raw_cell = cell<rule::gated_delta, separation::uniform, router::top_k<router::position<float>>>;
using levels_cell = cell<rule::gated_delta, separation::fenwick, router::position<float>>;
using single_cell = cell<rule::gated_delta, separation::single, router::none>;

/// A forward, a step of the last 3 of 11 tokens and a read, all good; a test spoils one thing.
template <class Cell>
struct calls {
  explicit calls(const layer_shape& shape = {})
      : p(shape, rng), out(p.results()), bank(p.bank_shape(2), p.entries(11)), o({2, 3, 4, 3}) {
    for (std::int64_t b = 0; b < 2; ++b) bank.resume(b, p.separation(), 8);
    reset();
  }

  void reset() {
    forward = p.args(out);
    step = p.step(bank.view(), {every_entry, 8, 11});
    step.o = o.view();
    if constexpr (!std::is_same_v<typename Cell::Router, router::none>) {
      read = p.read(bank.view(), {every_entry, 8, 11});
      read.o = o.view();
    }
  }

  void forward_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(try_multi_state(on_reference{}, forward), code, argument, text));
    EXPECT_THROW(multi_state(on_reference{}, forward), argument_error);
    EXPECT_TRUE(bitwise_equal(out.o, tensor<float, 4>(out.o.extents()))) << "written to";
    EXPECT_TRUE(bitwise_equal(out.S, tensor<float, 5>(out.S.extents()))) << "written to";
    reset();
  }
  void step_refused(error_code code, const std::string& argument, const std::string& text) {
    const auto before = bank;
    EXPECT_TRUE(refuses(try_multi_state_step(on_reference{}, step), code, argument, text));
    EXPECT_THROW(multi_state_step(on_reference{}, step), argument_error);
    unwritten(before);
  }
  void read_refused(error_code code, const std::string& argument, const std::string& text) {
    const auto before = bank;
    EXPECT_TRUE(refuses(try_multi_state_read(on_reference{}, read), code, argument, text));
    EXPECT_THROW(multi_state_read(on_reference{}, read), argument_error);
    unwritten(before);
  }
  void unwritten(const state_bank<float>& before) {
    EXPECT_TRUE(bitwise_equal(o, tensor<float, 4>(o.extents()))) << "written to";
    EXPECT_TRUE(bitwise_equal(copy_of(bank.view().S), copy_of(before.view().S))) << "written to";
    for (std::int64_t b = 0; b < 2; ++b) EXPECT_EQ(bank.counters(b).tokens, before.counters(b).tokens);
    reset();
  }

  std::mt19937 rng{1};
  layer_problem<float, Cell> p;
  layer_results<float> out;
  state_bank<float> bank;
  tensor<float, 4> o;
  typename layer_problem<float, Cell>::forward_args forward;
  typename layer_problem<float, Cell>::step_args step;
  std::conditional_t<std::is_same_v<typename Cell::Router, router::none>, int,
                     typename layer_problem<float, Cell>::read_args>
      read;
};

TEST(MultiStateCheck, AcceptsTheProblems) {
  const auto accepts = [](auto c) {
    EXPECT_TRUE(check(on_reference{}, c.forward).ok()) << check(on_reference{}, c.forward).message();
    EXPECT_TRUE(check(on_reference{}, c.step).ok()) << check(on_reference{}, c.step).message();
  };
  accepts(calls<merlin_cell>());
  accepts(calls<raw_cell>());
  accepts(calls<levels_cell>());
  accepts(calls<single_cell>());
  calls<merlin_cell> c;
  EXPECT_TRUE(check(on_reference{}, c.read).ok()) << check(on_reference{}, c.read).message();
}

TEST(MultiStateCheck, Operands) {
  calls<merlin_cell> c;
  c.forward.in.q = {};
  c.forward_refused(error_code::missing, "q", "(B, T, HK, dk)");
  c.forward.in.v = {};
  c.forward_refused(error_code::missing, "v", "dv");
  c.forward.in.beta = {};
  c.forward_refused(error_code::missing, "beta", "(B, T, ");
  c.forward.o = {};
  c.forward_refused(error_code::missing, "o", "(B, T, H, dv)");
  c.forward.o = {c.p.in.v.view().data(), {2, 11, 4, 3}};
  c.forward_refused(error_code::overlap, "o", "v");
  c.forward.separation.m = 0;
  c.forward_refused(error_code::value, "separation.m", "0, supported: at least 1");
  c.forward.max_visible = -1;
  c.forward_refused(error_code::value, "max_visible", "-1, supported: at least 0");
}

TEST(MultiStateCheck, MomentsAndRouter) {
  calls<merlin_cell> c;
  c.forward.moments.k = {};
  c.forward_refused(error_code::missing, "moments.k", "(B, T, HR, dr)");
  c.forward.moments.moment_rule = moment_rule::delta;
  c.forward_refused(error_code::missing, "moments.g", "(B, T, HR)");
  c.forward.router.q = {};
  c.forward_refused(error_code::missing, "router.q", "(B, T, HR, dr)");
  c.forward.router.gamma = {};
  c.forward_refused(error_code::missing, "router.gamma", "(B, T, H)");
  c.forward.router.tau_sigma = c.forward.router.tau_sigma.slice(0, 0, 3);
  c.forward_refused(error_code::shape, "router.tau_sigma", "(H) = (4)");
  c.forward.shared_kq = true;
  c.forward_refused(error_code::unexpected, "moments.k", "shared_kq");

  calls<merlin_cell> shared({.shared_kq = true});
  EXPECT_TRUE(check(on_reference{}, shared.forward).ok()) << check(on_reference{}, shared.forward).message();
  shared.forward.router.q = shared.p.router.q.view();
  shared.forward_refused(error_code::unexpected, "router.q", "shared_kq");
  shared.forward.moments.moment_rule = moment_rule::decay_write;
  shared.forward_refused(error_code::missing, "moments.g", "(B, T, HR)");

  calls<raw_cell> raw;
  raw.forward.moments = {};
  raw.forward.mu = {};
  raw.forward.Sigma = {};
  raw.forward.moments.g = raw.p.in.g.view();
  raw.forward_refused(error_code::unexpected, "moments.g", "no moments.k");
  raw.forward.moments = {};
  raw.forward_refused(error_code::missing, "moments.k", "(B, T, HR, dr)");  // mu is asked for
  raw.forward.router.of.weights = raw.forward.router.of.weights.slice(3, 0, 3);
  raw.forward_refused(error_code::shape, "router.weights", "A = 3, supported: at least L = 4");
  raw.forward.router.k = 0;
  raw.forward_refused(error_code::value, "router.k", "0, supported: at least 1");
}

TEST(MultiStateCheck, Outputs) {
  calls<merlin_cell> c;
  c.forward.lam = c.forward.lam.slice(3, 0, 3);
  c.forward_refused(error_code::shape, "lam", "(B, T, H, L) = (2, 11, 4, 4)");
  c.forward.S = c.forward.S.slice(1, 0, 3);
  c.forward_refused(error_code::shape, "S", "(B, L, H, dv, dk)");
  c.forward.mu = c.forward.mu.slice(3, 0, 3);
  c.forward_refused(error_code::shape, "mu", "(B, L, HR, dr)");
  c.forward.Sigma = c.forward.Sigma.slice(2, 0, 1);
  c.forward_refused(error_code::shape, "Sigma", "(B, L, HR, dr, dr)");
}

TEST(MultiStateCheck, WithoutSegments) {
  calls<single_cell> single;
  single.forward.max_visible = 1;
  single.forward_refused(error_code::value, "max_visible", "separation single, which has no segments: 0");
  single.forward.mu = {single.out.S.view().data(), {2, 1, 2, 4}};
  single.forward_refused(error_code::unexpected, "mu", "separation single has no segments");
  calls<levels_cell> levels;
  levels.forward.moments.k = levels.p.keys.k.view();
  levels.forward_refused(error_code::unexpected, "moments.k", "separation fenwick has no segments");
  levels.forward.router.position_norm = position_norm::softmax;
  levels.forward_refused(error_code::value, "router.position_norm", "none and absolute");
  levels.forward.router.position_index = position_index::age;
  levels.forward_refused(error_code::value, "router.position_norm", "none and absolute");
  levels.forward.router.weights = levels.forward.router.weights.slice(3, 0, 4);
  levels.forward_refused(error_code::shape, "router.weights", "A = 4, supported: at least L = 5");
}

// bugs B086: two descriptions of the boundaries are refused, also where they agree.
TEST(MultiStateCheck, BoundariesOfPackedSequences) {
  std::mt19937 rng(1);
  const layer_problem<float, cell<rule::gated, separation::boundaries, router::uniform>> p({.B = 1}, rng);
  auto out = p.results();
  auto args = p.args(out);
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  tensor<std::int32_t, 1> cu({2});
  cu.assign({0, 11});
  args.cu_seqlens = cu.view();
  args.lam = {};
  EXPECT_TRUE(refuses(check(args), error_code::unexpected, "cu_seqlens", "shared by a batch"));
}

TEST(MultiStateCheck, PackedSequences) {
  calls<merlin_cell> c;
  tensor<std::int32_t, 1> cu({3});
  cu.assign({0, 5, 11});
  c.forward.cu_seqlens = cu.view();
  c.forward_refused(error_code::shape, "cu_seqlens", "batch size 2");

  std::mt19937 rng(2);
  layer_problem<float, merlin_cell> p({.B = 1, .lengths = {5, 6}}, rng);
  auto out = p.results(4);
  auto args = p.args(out);
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.lam = {out.o.view().data(), {1, 11, 4, 4}};
  EXPECT_TRUE(refuses(check(args), error_code::unexpected, "lam", "packed sequences have no lam"));
  args = p.args(out);
  args.S = args.S.slice(1, 0, 3);
  args.mu = {};
  args.Sigma = {};
  EXPECT_TRUE(refuses(try_multi_state(on_reference{}, args), error_code::shape, "S", "(1, 4"));
  p.cu_seqlens.assign({0, 5, 12});
  EXPECT_TRUE(refuses(try_multi_state(on_reference{}, p.args(out)), error_code::value, "cu_seqlens", "T = 11"));
  EXPECT_TRUE(bitwise_equal(out.o, tensor<float, 4>(out.o.extents()))) << "written to";
}

TEST(MultiStateCheck, KeptWeightsThatSumToZero) {
  calls<raw_cell> c;
  c.p.router.options.position_norm = position_norm::none;
  for (std::int64_t a = 0; a < 12; ++a) c.p.router.weights.view()(1, 9, 2, a) = 0;
  c.reset();
  c.forward_refused(error_code::value, "router.weights", "batch entry 1, token 9, head 2 sum to 0");
  c.step_refused(error_code::value, "router.weights", "batch entry 1, token 1, head 2 sum to 0");
  c.read_refused(error_code::value, "router.weights", "batch entry 1, token 1, head 2 sum to 0");
}

TEST(MultiStateStepCheck, Bank) {
  calls<merlin_cell> c;
  c.step.bank.S = {};
  c.step_refused(error_code::missing, "bank.S", "(B, capacity, H, dv, dk)");
  c.step.bank.S = c.step.bank.S.slice(3, 0, 2);
  c.step_refused(error_code::shape, "bank.S", "dv, dk) = (2, 4, 4, 3, 5)");
  c.step.bank.mu = {};
  c.step_refused(error_code::missing, "bank.mu", "(B, capacity, HR, dr)");
  c.step.bank.Sigma = {};
  c.step_refused(error_code::missing, "bank.Sigma", "(B, capacity, HR, dr, dr)");
  c.step.bank.counters = c.step.bank.counters.slice(0, 0, 1);
  c.step_refused(error_code::shape, "bank.counters", "(B) = (2)");
  c.step.moments.divide_by = divide_by::count;
  c.step_refused(error_code::value, "moments.divide_by", "count, supported in a step: m");
  c.step.o = c.step.o.slice(1, 0, 2);
  c.step_refused(error_code::shape, "o", "(B, T, H, dv) = (2, 3, 4, 3)");

  calls<raw_cell> raw;
  raw.step.bank.mu = {};
  raw.step.bank.Sigma = {};
  raw.step_refused(error_code::unexpected, "moments.k", "the bank keeps no moments");
  raw.step.router.of.weights = raw.step.router.of.weights.slice(3, 0, 3);
  raw.step_refused(error_code::shape, "router.weights", "A = 3, supported: at least the number of segments, 4");
}

TEST(MultiStateStepCheck, Capacity) {
  calls<merlin_cell> c;
  c.step.bank.S = c.step.bank.S.slice(1, 0, 3);
  c.step.bank.mu = c.step.bank.mu.slice(1, 0, 3);
  c.step.bank.Sigma = c.step.bank.Sigma.slice(1, 0, 3);
  c.step_refused(error_code::shape, "bank.S", "capacity = 3, sequence 0 needs 4 entries; reserve()");
}

TEST(MultiStateStepCheck, CountersThatNoBankHas) {
  const auto refused = [](auto c, const std::vector<bank_counters>& impossible) {
    const auto good = c.bank.counters(1);
    for (const auto& counters : impossible) {
      c.bank.view().counters(1) = counters;
      c.step_refused(error_code::value, "bank.counters", "sequence 1 has tokens = " + std::to_string(counters.tokens));
    }
    c.bank.view().counters(1) = good;
    EXPECT_TRUE(check(on_reference{}, c.step).ok());
  };
  // m = 3, capacity 4
  refused(calls<merlin_cell>(), {{-1, 0, 0},
                                 {0, 1, 0},
                                 {8, -1, 0},
                                 {8, 5, 2},
                                 {8, 3, -1},
                                 {2, 1, 3},
                                 {2, 3, 1},
                                 {8, 0, 0},
                                 {8, 3, 3},
                                 {8, 2, 2},
                                 {0, 1, 1}});
  refused(calls<levels_cell>(), {{8, 3, 1}, {8, 5, 1}, {0, 1, 1}});
  refused(calls<single_cell>(), {{8, 1, 0}, {8, 1, 7}, {8, 2, 8}});
}

TEST(MultiStateReadCheck, Operands) {
  calls<merlin_cell> c;
  c.read.in.q = {};
  c.read_refused(error_code::missing, "q", "(B, T, HK, dk)");
  c.read.bank.S = {};
  c.read_refused(error_code::missing, "bank.S", "(B, capacity, H, dv, dk)");
  c.read.bank.mu = {};
  c.read_refused(error_code::missing, "bank.mu", "(B, capacity, HR, dr)");
  c.read.bank.Sigma = c.read.bank.Sigma.slice(4, 0, 3);
  c.read_refused(error_code::shape, "bank.Sigma", "(B, capacity, HR, dr, dr)");
  c.read.bank.counters = {};
  c.read_refused(error_code::missing, "bank.counters", "(B)");
  c.read.router.tau_mu = {};
  c.read_refused(error_code::missing, "router.tau_mu", "(H)");
  c.read.o = {};
  c.read_refused(error_code::missing, "o", "(B, T, H, dv)");
  c.read.lam = {c.out.o.view().data(), {2, 3, 4, 3}};
  c.read_refused(error_code::shape, "lam", "(B, T, H, capacity) = (2, 3, 4, 4)");
  c.read.l2norm_eps = -1;
  c.read_refused(error_code::value, "l2norm_eps", "at least 0");
  c.read.max_visible = -2;
  c.read_refused(error_code::value, "max_visible", "-2, supported: at least 0");
  c.read.shared_kq = true;
  c.read_refused(error_code::shape, "bank.mu", "shape (2, 4, 2, 4)");
}

TEST(MultiStateReadCheck, Counters) {
  calls<merlin_cell> c;
  c.bank.clear();
  c.read_refused(error_code::value, "bank.counters", "sequence 0 has no segment; there is nothing to read");
  for (std::int64_t b = 0; b < 2; ++b) c.bank.resume(b, separation::uniform{3}, 8);
  c.bank.view().counters(1).segments = 9;
  c.read_refused(error_code::value, "bank.counters", "segments = 9");
  calls<raw_cell> raw;
  raw.read.router.of.weights = raw.read.router.of.weights.slice(3, 0, 2);
  raw.read_refused(error_code::shape, "router.weights", "A = 2, supported: at least the number of segments, 3");
}

// dims<dk, dv> and dims<dk, dv, dr> accept their shape and refuse others, in every pass; a call without moments has no
// dr.
TEST(MultiStateCheck, FixedDims) {
  const auto refused = [](const status& s, const char* text) {
    return refuses(s, error_code::unsupported, "in", text);
  };
  calls<merlin_cell> c;
  EXPECT_TRUE((check<dims<5, 3>>(on_reference{}, c.forward).ok()));
  EXPECT_TRUE((check<dims<5, 3, 4>>(on_reference{}, c.forward).ok()));
  EXPECT_TRUE((check<dims<5, 3, 4>>(on_reference{}, c.step).ok()));
  EXPECT_TRUE((check<dims<5, 3, 4>>(on_reference{}, c.read).ok()));
  const char* const text = "dk, dv, dr = 5, 3, 4, supported: dims<5, 3, 8> only";
  EXPECT_TRUE(refused(try_multi_state<dims<5, 3, 8>>(on_reference{}, c.forward), text));
  EXPECT_TRUE(refused(try_multi_state_step<dims<5, 3, 8>>(on_reference{}, c.step), text));
  EXPECT_TRUE(refused(try_multi_state_read<dims<5, 3, 8>>(on_reference{}, c.read), text));
  EXPECT_TRUE(refused(try_multi_state<dims<3, 5>>(on_reference{}, c.forward), "dk, dv = 5, 3, supported: dims<3, 5>"));
  calls<levels_cell> levels;
  EXPECT_TRUE((check<dims<5, 3, 8>>(on_reference{}, levels.forward).ok()));
  EXPECT_TRUE(refused(try_multi_state<dims<4, 3, 8>>(on_reference{}, levels.forward), "dims<4, 3> only"));
}

}  // namespace
}  // namespace polystate::testing
