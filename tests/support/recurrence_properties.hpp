// SPDX-License-Identifier: Apache-2.0
#pragma once

// Properties of the operators with one state a head, or a channel. A problem type P says, beside its owned operands
// initial_state, final_state and cu_seqlens:
//   data_type, state_type, shape_type, args()
//   output()             its output tensor, (B, T, H, ...)
//   for_each_operand(f)  f(name, tensor) for each operand (B, T, heads or groups, ...)
// and of its operator, as static members:
//   run(exec, args)              also of step args
//   output_of(args)              a reference to the output view, also of step args
//   part(args, dim, begin, end)  batch entries (dim 0) or tokens (dim 1) of the operands and the output
//   step_of(args)                a step of these tokens; its pool is still to be given

#include "support/compare.hpp"
#include "support/tensor.hpp"

#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// The view, or an absent one as it is.
template <class T, int Rank>
tensor_view<T, Rank> part_of(const tensor_view<T, Rank>& view, int dim, std::int64_t begin, std::int64_t end) {
  return view ? view.slice(dim, begin, end) : view;
}

/// Whether two views show the same bits.
template <class T, class U, int Rank>
bool same_bits(const tensor_view<T, Rank>& a, const tensor_view<U, Rank>& b) {
  return static_cast<bool>(bitwise_equal(copy_of(a), copy_of(b)));
}

/// Whether every element is the value; NaN is the value NaN.
template <class T, int Rank>
bool all_are(const tensor_view<T, Rank>& view, double value) {
  bool yes = true;
  for_each(view, [&](const T& x) {
    const double d = static_cast<double>(x);
    yes = yes && (std::isnan(value) ? std::isnan(d) : d == value);
  });
  return yes;
}

/// A fresh state for one sequence of the problem.
template <class P>
auto one_state(const P& p) {
  auto extents = p.initial_state ? p.initial_state.extents() : p.final_state.extents();
  extents[0] = 1;
  return decltype(p.initial_state)(extents);
}

/// The definition: the double run, rounded once.
template <class P>
void expect_rounded_once(P p) {
  auto in_double = p.in_double();
  P::run(on_reference{}, p.args());
  decltype(in_double)::run(on_reference{}, in_double.args());
  EXPECT_TRUE(bitwise_equal(p.output(), convert<typename P::data_type>(in_double.output())));
  EXPECT_TRUE(bitwise_equal(p.final_state, convert<typename P::state_type>(in_double.final_state)));
  EXPECT_TRUE(p.output().untouched_outside() && p.final_state.untouched_outside());
}

/// Every memory order and padding of the operands and states gives the bits of the contiguous run.
template <class P>
void expect_strides_change_nothing(const typename P::shape_type& shape) {
  std::mt19937 rng(4);
  P plain(shape, rng);
  P::run(on_reference{}, plain.args());
  for (const std::int64_t pad : {0, 3}) {
    for (const auto& order : {std::array{0, 2, 1, 3}, std::array{0, 1, 3, 2}, std::array{3, 2, 1, 0},
                              std::array{1, 3, 0, 2}, std::array{0, 1, 2, 3}}) {
      auto strided = shape;
      strided.memory = {order, pad};
      strided.state_memory = {order, pad};
      for (const auto& gate_order : {std::array{0, 2, 1}, std::array{2, 1, 0}}) {
        strided.gate_memory = {gate_order, pad};
        rng.seed(4);
        P p(strided, rng);
        P::run(on_reference{}, p.args());
        EXPECT_TRUE(bitwise_equal(p.output(), plain.output()));
        EXPECT_TRUE(bitwise_equal(p.final_state, plain.final_state));
        EXPECT_TRUE(p.output().untouched_outside() && p.final_state.untouched_outside());
      }
    }
  }
}

/// Each packed sequence, empty ones too, is what a call of its own gives.
template <class P>
void expect_packed_equals_separate(P packed) {
  const auto all = packed.args();
  P::run(on_reference{}, all);
  const sequences ranges(1, P::output_of(all).extent(1), all.cu_seqlens);
  for (std::int64_t s = 0; s < ranges.size(); ++s) {
    const token_range range = ranges[s];
    auto args = P::part(all, 1, range.begin, range.end);
    auto out = copy_of(P::output_of(args));
    out.poison();
    auto last = one_state(packed);
    args.cu_seqlens = {};
    args.initial_state = part_of(all.initial_state, 0, s, s + 1);
    args.final_state = last.view();
    P::output_of(args) = out.view();
    P::run(on_reference{}, args);
    EXPECT_TRUE(same_bits(P::output_of(all).slice(1, range.begin, range.end), out.view())) << "sequence " << s;
    EXPECT_TRUE(same_bits(packed.final_state.view().slice(0, s, s + 1), last.view())) << "sequence " << s;
  }
}

/// Without tokens the final state is the initial one, or zero.
template <class P>
void expect_empty_keeps_the_state(typename P::shape_type shape) {
  std::mt19937 rng(5);
  shape.T = 0;
  P p(shape, rng);
  P::run(on_reference{}, p.args());
  EXPECT_TRUE(bitwise_equal(p.final_state, p.initial_state));
  p.initial_state = {};
  p.final_state.poison();
  P::run(on_reference{}, p.args());
  EXPECT_TRUE(all_are(p.final_state.view(), 0));
  EXPECT_TRUE(p.final_state.untouched_outside());
}

/// Two calls, the state handed over in place, are one call. Bit for bit: for states of the type that the
/// reference computes in.
template <class P>
void expect_split_resumes(const P& problem, const std::vector<std::int64_t>& cuts) {
  static_assert(std::is_same_v<typename P::state_type, compute_t<typename P::data_type>>);
  P whole = problem;
  P::run(on_reference{}, whole.args());
  const std::int64_t T = whole.output().extents()[1];
  for (const std::int64_t cut : cuts) {
    P parts = problem;
    auto args = parts.args();
    args.final_state = parts.initial_state.view();  // in place
    P::run(on_reference{}, P::part(args, 1, 0, cut));
    P::run(on_reference{}, P::part(args, 1, cut, T));
    EXPECT_TRUE(bitwise_equal(parts.output(), whole.output())) << "cut at " << cut;
    EXPECT_TRUE(bitwise_equal(parts.initial_state, whole.final_state)) << "cut at " << cut;
  }
}

/// Steps of `tokens` tokens on a pool are the forward over those tokens from the slots' states. The problem
/// has 4 batch entries; the third becomes a padding row, and nothing of it is read.
template <class P>
void expect_step_equals_forward(P p, std::int64_t tokens) {
  using Data = typename P::data_type;
  using State = typename P::state_type;
  constexpr std::size_t state_rank = std::tuple_size_v<typename decltype(p.initial_state)::extents_type>;
  const double nan = std::nan("");
  p.for_each_operand([&](const char*, auto& x) {
    for_each(x.view().slice(0, 2, 3), [&](auto& e) { e = static_cast<std::remove_reference_t<decltype(e)>>(nan); });
  });
  const auto all = p.args();
  P::run(on_reference{}, all);

  auto extents = p.initial_state.extents();
  const std::vector<std::int32_t> slots = {4, 0, -1, 3};
  tensor<std::int32_t, 1> read({4});
  read.assign(slots);
  extents[0] = 6;
  decltype(p.initial_state) pool(extents);
  for (std::int64_t b = 0; b < 4; ++b) {
    const std::int64_t slot = slots[static_cast<std::size_t>(b)];
    if (slot >= 0) assign(pool.view().select(0, slot), p.initial_state.view().select(0, b));
  }

  auto out_extents = p.output().extents();
  const std::int64_t T = out_extents[1];
  out_extents[1] = tokens;
  std::array<std::int64_t, state_rank + 1> between_extents{4, tokens};
  std::copy(extents.begin() + 1, extents.end(), between_extents.begin() + 2);
  for (std::int64_t begin = 0; begin + tokens <= T; begin += tokens) {
    const auto now = P::part(all, 1, begin, begin + tokens);
    const auto before = pool;
    std::remove_reference_t<decltype(p.output())> out(out_extents);
    tensor<State, state_rank + 1> between(between_extents);
    auto step = P::step_of(now);
    step.read_indices = read.view();
    step.state = pool.view();
    step.intermediate_states = between.view();
    P::output_of(step) = out.view();
    P::run(on_reference{}, step);

    for (std::int64_t b = 0; b < 4; ++b) {
      const std::int64_t slot = slots[static_cast<std::size_t>(b)];
      if (slot < 0) {
        EXPECT_TRUE(all_are(out.view().select(0, b), 0)) << "padding row";
        EXPECT_TRUE(all_are(between.view().select(0, b), nan)) << "padding row";
        continue;
      }
      for (std::int64_t t = 1; t <= tokens; ++t) {  // each intermediate state is a final state
        auto prefix = P::part(P::part(now, 0, b, b + 1), 1, 0, t);
        auto want = copy_of(P::output_of(prefix));
        want.poison();
        auto last = one_state(p);
        prefix.initial_state = before.view().slice(0, slot, slot + 1);
        prefix.final_state = last.view();
        P::output_of(prefix) = want.view();
        P::run(on_reference{}, prefix);
        EXPECT_TRUE(same_bits(between.view().select(0, b).slice(0, t - 1, t), last.view())) << b << ' ' << t;
        if (t < tokens) continue;
        EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), want.view())) << b;
        EXPECT_TRUE(same_bits(pool.view().slice(0, slot, slot + 1), last.view())) << b;
      }
      if constexpr (std::is_same_v<State, compute_t<Data>>) {  // no rounding between the calls: one run
        EXPECT_TRUE(same_bits(out.view().select(0, b), P::output_of(now).select(0, b))) << b;
      }
    }
    for (const std::int64_t unused : {1, 2, 5}) EXPECT_TRUE(all_are(pool.view().select(0, unused), nan));
    EXPECT_TRUE(out.untouched_outside() && between.untouched_outside() && pool.untouched_outside());
  }
}

/// One row of one operand changes: it reaches this token and later ones of its sequence in the heads that
/// read it, and no other bit. A NaN change must show there as NaN.
template <class P>
void expect_causal_and_local(const P& problem, std::int64_t sequence, std::int64_t token, double change) {
  P before = problem;
  const auto args = before.args();
  P::run(on_reference{}, args);
  const std::int64_t H = P::output_of(args).extent(2);
  const sequences ranges(P::output_of(args).extent(0), P::output_of(args).extent(1), args.cu_seqlens);
  const token_range range = ranges[sequence];

  int operands = 0;
  before.for_each_operand([&](const char*, auto&) { ++operands; });
  for (int changed = 0; changed < operands; ++changed) {
    P after = problem;
    std::string name;
    std::int64_t heads = 0;
    int i = 0;
    after.for_each_operand([&](const char* operand, auto& x) {
      if (i++ != changed) return;
      name = operand;
      heads = x.extents()[2];
      for_each(x.view()
                   .slice(0, range.batch, range.batch + 1)
                   .slice(1, range.begin + token, range.begin + token + 1)
                   .slice(2, heads - 1, heads),
               [&](auto& e) { e = static_cast<std::remove_reference_t<decltype(e)>>(change); });
    });
    P::run(on_reference{}, after.args());
    for (std::int64_t s = 0; s < ranges.size(); ++s) {
      for (std::int64_t h = 0; h < H; ++h) {
        const bool reads = s == sequence && group_of_head(h, H, heads) == heads - 1;
        if (!reads) {
          EXPECT_TRUE(same_bits(before.final_state.view().select(0, s).select(0, h),
                                after.final_state.view().select(0, s).select(0, h)))
              << name << ": state " << s << ", head " << h;
        }
        for (std::int64_t t = 0; t < ranges[s].size(); ++t) {
          const auto row = [&](P& p) {
            const std::int64_t b = ranges[s].batch;
            const std::int64_t at = ranges[s].begin + t;
            return p.output().view().slice(0, b, b + 1).slice(1, at, at + 1).slice(2, h, h + 1);
          };
          const std::string where =
              name + ": sequence " + std::to_string(s) + ", token " + std::to_string(t) + ", head " + std::to_string(h);
          if (reads && t == token) {
            EXPECT_FALSE(same_bits(row(before), row(after))) << where;
            EXPECT_TRUE(!std::isnan(change) || all_are(row(after), change)) << where;
          } else if (!reads || t < token) {
            EXPECT_TRUE(same_bits(row(before), row(after))) << where;
          }
        }
      }
    }
  }
}

/// Largest |a - b| over the largest |b|.
template <class T, int Rank>
T largest_difference(const tensor<T, Rank>& a, const tensor<T, Rank>& b) {
  const auto x = a.values();
  const auto y = b.values();
  T difference = x.size() == y.size() ? T(0) : std::numeric_limits<T>::infinity();
  T size = 0;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
    const T d = std::abs(x[i] - y[i]);
    difference = d <= difference ? difference : d;  // keeps a NaN
    size = std::max(size, std::abs(y[i]));
  }
  return size > 0 ? difference / size : difference;
}

}  // namespace polystate::testing
