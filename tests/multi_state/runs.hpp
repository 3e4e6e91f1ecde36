// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs of a problem, what a bank holds afterwards, and how results are compared.

#include "multi_state/cases.hpp"
#include "support/compare.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {

inline void expect_close(const layer_results<double>& got, const layer_results<double>& want) {
  constexpr double bound = 1e-13;
  EXPECT_LE(relative_l2(got.o, want.o), bound);
  EXPECT_LE(relative_l2(got.lam, want.lam), bound);
  EXPECT_LE(relative_l2(got.S, want.S), bound);
  EXPECT_LE(relative_l2(got.mu, want.mu), bound);
  EXPECT_LE(relative_l2(got.Sigma, want.Sigma), bound);
}

template <class Data, class Cell>
layer_results<Data> forward(const layer_problem<Data, Cell>& p) {
  auto out = p.results();
  multi_state(on_reference{}, p.args(out));
  EXPECT_TRUE(out.untouched_outside());
  return out;
}

/// What a bank holds in its first L entries.
template <class Data>
layer_results<Data> contents(state_bank<Data>& bank, std::int64_t L) {
  const auto v = bank.view();
  layer_results<Data> r;
  r.S = copy_of(v.S.slice(1, 0, L));
  if (v.mu) r.mu = copy_of(v.mu.slice(1, 0, L));
  if (v.Sigma) r.Sigma = copy_of(v.Sigma.slice(1, 0, L));
  return r;
}

/// Prefills the tokens of `range`, from 0 on, into rows first .. of a bank.
template <class Data, class Cell>
tensor<Data, 4> prefill(const layer_problem<Data, Cell>& p, state_bank<Data>& bank, const token_range& range,
                        std::int64_t first = 0) {
  auto args = p.part(range);
  const std::int64_t B = range.batch == every_entry ? p.shape.B : 1;
  tensor<Data, 4> o({B, range.size(), p.shape.H, p.shape.dv});
  const std::int64_t L = p.entries(range.size());
  const auto rows = [&](const auto& v) { return v ? v.slice(0, first, first + B).slice(1, 0, L) : v; };
  args.o = o.view();
  args.S = rows(bank.view().S);
  args.mu = rows(bank.view().mu);
  args.Sigma = rows(bank.view().Sigma);
  multi_state(on_reference{}, args);
  for (std::int64_t b = first; b < first + B; ++b) bank.resume(b, p.separation(), range.size());
  return o;
}

}  // namespace polystate::testing
