// SPDX-License-Identifier: Apache-2.0

// mara_chain: what it selects, what its hook sees, ties, refusals.

#include "support/refusal.hpp"

#include <polystate/adapters/mara_chain.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

using indices = std::vector<std::int64_t>;
using scores = std::vector<double>;

struct selection {
  indices anchors, topk;
};

template <class Score>
selection select(std::int64_t N, std::int64_t passes, std::int64_t k, Score&& score) {
  selection s{indices(static_cast<std::size_t>(std::min(passes, N)), -1), indices(static_cast<std::size_t>(k), -1)};
  mara_chain(score, {.candidates = N,
                     .passes = passes,
                     .anchors = {s.anchors.data(), {static_cast<std::int64_t>(s.anchors.size())}},
                     .topk = {s.topk.data(), {k}}});
  return s;
}

/// The hook of fixed scores, a row a pass.
auto rows(const std::vector<scores>& table) {
  return [&table](std::int64_t pass, const auto&) {
    const scores& row = table.at(static_cast<std::size_t>(pass));
    return tensor_view<const double, 1>(row.data(), {static_cast<std::int64_t>(row.size())});
  };
}

TEST(MaraChain, AnchorsThenTheLastScores) {
  const std::vector<scores> table = {{1, 5, 3, 0}, {2, 9, 1, 8}};
  const auto s = select(4, 2, 4, rows(table));
  EXPECT_EQ(s.anchors, (indices{1, 3}));                       // 9 belongs to an anchor by then
  EXPECT_EQ(s.topk, (indices{1, 3, 0, 2}));                    // the rest by the last pass
  EXPECT_EQ(select(4, 2, 1, rows(table)).topk, (indices{1}));  // k below the number of anchors
  EXPECT_EQ(select(4, 1, 3, rows(table)).topk, (indices{1, 2, 0}));
}

TEST(MaraChain, TiesToTheLowestIndex) {
  const std::vector<scores> table(3, scores{7, 7, 7, 7, 7});
  const auto s = select(5, 3, 5, rows(table));
  EXPECT_EQ(s.anchors, (indices{0, 1, 2}));
  EXPECT_EQ(s.topk, (indices{0, 1, 2, 3, 4}));
  const std::vector<scores> mixed = {{0, 2, 1, 2, 1, 0}};
  EXPECT_EQ(select(6, 1, 6, rows(mixed)).topk, (indices{1, 3, 2, 4, 0, 5}));
}

// The hook gets the anchors so far, and is not asked again once all candidates are anchors.
TEST(MaraChain, HookSeesAnchors) {
  std::vector<indices> seen;
  scores row;
  const auto hook = [&](std::int64_t pass, tensor_view<const std::int64_t, 1> anchors) {
    EXPECT_EQ(pass, static_cast<std::int64_t>(seen.size()));
    seen.emplace_back();
    for (std::int64_t i = 0; i < anchors.extent(0); ++i) seen.back().push_back(anchors(i));
    // The successor of the last anchor is best.
    const std::int64_t next = anchors.extent(0) == 0 ? 1 : (anchors(anchors.extent(0) - 1) + 1) % 3;
    row.assign(3, 0);
    row[static_cast<std::size_t>(next)] = 1;
    return tensor_view<const double, 1>(row.data(), {3});
  };
  const auto s = select(3, 10, 3, hook);
  EXPECT_EQ(seen, (std::vector<indices>{{}, {1}, {1, 2}}));
  EXPECT_EQ(s.anchors, (indices{1, 2, 0}));
  EXPECT_EQ(s.topk, (indices{1, 2, 0}));
}

// Against the definition written as sorting by (score, index) afresh.
TEST(MaraChain, SecondFormulation) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto N = static_cast<std::int64_t>(1 + rng() % 8), passes = static_cast<std::int64_t>(1 + rng() % 5);
    const auto k = static_cast<std::int64_t>(1 + rng() % static_cast<unsigned>(N));
    std::vector<scores> table(5, scores(static_cast<std::size_t>(N)));
    for (auto& row : table) {
      for (double& x : row) x = static_cast<double>(rng() % 4);  // many ties
    }
    indices anchors;
    std::vector<bool> taken(static_cast<std::size_t>(N));
    const auto take_best = [&](const scores& row) {
      std::int64_t best = -1;
      for (std::int64_t i = 0; i < N; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (!taken[at] && (best < 0 || row[at] > row[static_cast<std::size_t>(best)])) best = i;
      }
      taken[static_cast<std::size_t>(best)] = true;
      return best;
    };
    std::size_t last = 0;
    for (std::size_t n = 0; n < static_cast<std::size_t>(passes) && anchors.size() < taken.size(); ++n) {
      anchors.push_back(take_best(table[last = n]));
    }
    indices all = anchors;
    while (all.size() < taken.size()) all.push_back(take_best(table[last]));
    all.resize(static_cast<std::size_t>(k));
    const auto s = select(N, passes, k, rows(table));
    EXPECT_EQ(s.anchors, anchors);
    EXPECT_EQ(s.topk, all);
  }
}

TEST(MaraChain, Refusals) {
  indices anchors(2, -1), topk(3, -1);
  const std::vector<scores> table(4, scores{1, 2, 3, 4});
  const mara_chain_args good{
      .candidates = 4, .passes = 2, .anchors = {anchors.data(), {2}}, .topk = {topk.data(), {3}}};
  const auto refused = [&](const mara_chain_args& args, error_code code, const std::string& argument,
                           const std::string& text) {
    EXPECT_TRUE(refuses(check(args), code, argument, text));
    EXPECT_THROW(mara_chain(rows(table), args), argument_error);
    EXPECT_EQ(anchors, indices(2, -1));
    EXPECT_EQ(topk, indices(3, -1));
  };
  auto args = good;
  args.candidates = 0;
  refused(args, error_code::value, "candidates", "mara_chain: candidates: 0, supported: at least 1");
  args = good;
  args.passes = 0;
  refused(args, error_code::value, "passes", "0, supported: at least 1");
  args = good;
  args.passes = 3;
  refused(args, error_code::shape, "anchors", "shape (2), supported: (min(passes, N)) = (3)");
  args = good;
  args.topk = {};
  refused(args, error_code::missing, "topk", "(k)");
  args.topk = {topk.data(), {5}};
  refused(args, error_code::value, "topk", "k = 5, supported: 1 to N = 4");
  args.topk = {topk.data(), {0}};
  refused(args, error_code::value, "topk", "k = 0");
  args.topk = {anchors.data(), {2}};
  refused(args, error_code::overlap, "topk", "anchors");

  const auto refused_score = [&](const scores& second, error_code code, const std::string& text) {
    const std::vector<scores> bad = {{1, 2, 3, 4}, second};
    EXPECT_TRUE(refuses(try_mara_chain(rows(bad), good), code, "score", text));
    EXPECT_THROW(mara_chain(rows(bad), good), argument_error);
    EXPECT_EQ(anchors, indices(2, -1));
    EXPECT_EQ(topk, indices(3, -1));
  };
  refused_score({1, 2, 3}, error_code::shape, "pass 1: 3 scores, supported: (N) = (4)");
  refused_score({1, std::nan(""), 3, 4}, error_code::value, "pass 1: score 1 is NaN");
  const auto throws = [](std::int64_t, tensor_view<const std::int64_t, 1>) -> tensor_view<const double, 1> {
    throw std::runtime_error("no scores");
  };
  EXPECT_THROW(mara_chain(throws, good), std::runtime_error);
  EXPECT_EQ(topk, indices(3, -1));

  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<scores> infinite = {{-inf, 1, inf, 0}};
  EXPECT_EQ(select(4, 1, 4, rows(infinite)).topk, (indices{2, 1, 3, 0}));
}

}  // namespace
}  // namespace polystate::testing
