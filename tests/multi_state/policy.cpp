// SPDX-License-Identifier: Apache-2.0

// The schedules of the CUDA kernels, and how they count and cut tokens, on the host.

#include "multi_state/cases.hpp"

#include <polystate/cuda/multi_state/counting.hpp>
#include <polystate/cuda/multi_state/level_items.hpp>
#include <polystate/cuda/multi_state/policy.hpp>
#include <polystate/separation.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace polystate::testing {
namespace {

namespace layer = polystate_detail::cuda::layer;

template <class Separation>
void expect_counting(const Separation& separation, bank_counters c) {
  const auto counting = layer::counting_of(separation);
  for (std::int64_t n = 0; n < 40; ++n) {
    bank_counters want = c;
    for (std::int64_t i = 0; i < n; ++i) want = count_token(separation, want);
    const bank_counters got = counting.after(c, n);
    ASSERT_EQ(got.tokens, want.tokens) << n;
    ASSERT_EQ(got.segments, want.segments) << n;
    ASSERT_EQ(got.open_tokens, want.open_tokens) << n;
  }
}

TEST(MultiStateCounting, ManyTokensAtOnce) {
  for (const std::int64_t m : {1, 2, 3, 7, 64}) {
    for (std::int64_t open = 0; open < m; ++open) {
      expect_counting(separation::uniform{m},
                      {.tokens = 5 * m + open, .segments = 5 + (open > 0), .open_tokens = open});
    }
    expect_counting(separation::uniform{m}, {});
    expect_counting(separation::uniform{m}, {.tokens = 2, .segments = 2, .open_tokens = 0});  // closed by hand
  }
  expect_counting(separation::single{}, {});
  expect_counting(separation::single{}, {.tokens = 9, .segments = 1, .open_tokens = 9});
  for (std::int64_t t = 0; t < 70; ++t) {
    expect_counting(separation::fenwick{},
                    {.tokens = t, .segments = separation::fenwick{}.count(t), .open_tokens = t > 0 ? 1 : 0});
  }
}

TEST(MultiStateCounting, MergedLevel) {
  EXPECT_EQ(layer::token_counting::merged_level(0), -1);
  EXPECT_EQ(layer::token_counting::merged_level(1), 1);
  EXPECT_EQ(layer::token_counting::merged_level(6), 2);
  EXPECT_EQ(layer::token_counting::merged_level(64), 7);
}

/// Lengths of packed sequences, and their cu_seqlens.
struct packed {
  std::vector<std::int32_t> cu = {0};
  explicit packed(const std::vector<std::int32_t>& lengths) {
    for (const auto n : lengths) cu.push_back(cu.back() + n);
  }
  [[nodiscard]] index_view view() const { return {cu.data(), {static_cast<std::int64_t>(cu.size())}}; }
};

/// Of every pair of tokens that share a level, the source writes and the target reads in one item of that level, and
/// no token in two.
void expect_levels(const sequences& all, std::int64_t time) {
  for (int level = 1; level <= 8; ++level) {
    const auto items = layer::level_items::of_level(all, time, level);
    std::set<std::pair<std::int64_t, std::int64_t>> read;
    for (std::int64_t i = 0; i < items.size(); ++i) {
      if (!items.active(i)) continue;
      const token_range r = items[i];
      const std::int64_t middle = items.silent_from(i);
      ASSERT_LT(r.begin, middle);
      ASSERT_LT(middle, r.end);
      ASSERT_EQ(middle - r.begin, std::int64_t{1} << (level - 1));
      ASSERT_LE(r.end - middle, middle - r.begin);
      for (std::int64_t t = middle; t < r.end; ++t) {
        EXPECT_TRUE(read.insert({r.batch, t}).second) << "token " << t << " twice";
      }
    }
    for (std::int64_t s = 0; s < all.size(); ++s) {
      const token_range whole = all[s];
      for (std::int64_t t = whole.begin; t < whole.end; ++t) {
        const bool sees = ((t - whole.begin) >> (level - 1) & 1) != 0;
        EXPECT_EQ(read.count({whole.batch, t}) != 0, sees) << "level " << level << ", token " << t;
      }
    }
  }
}

TEST(MultiStateItems, EveryTokenReadsItsLevelsOnce) {
  for (const std::int64_t T : {0, 1, 2, 3, 16, 17, 31, 64, 65, 100}) expect_levels(sequences(3, T, {}), T);
  for (const auto& lengths : std::vector<std::vector<std::int32_t>>{{5}, {0, 5, 1, 0, 0, 10, 0}, {33, 31, 0, 64, 1}}) {
    const packed p(lengths);
    expect_levels(sequences(1, p.cu.back(), p.view()), p.cu.back());
  }
}

TEST(MultiStateItems, LevelsOfTheLastToken) {
  const packed p({0, 1, 6, 64, 37});
  const sequences all(1, p.cu.back(), p.view());
  constexpr std::int64_t levels = 9;
  const auto items = layer::level_items::of_last_tokens(all, p.cu.back(), levels);
  ASSERT_EQ(items.size(), all.size() * levels);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range whole = all[s];
    const std::int64_t last = whole.size() - 1;
    std::int64_t written = 0;
    for (std::int64_t n = 0; n < levels; ++n) {
      const token_range r = items[s * levels + n];
      EXPECT_TRUE(items.active(s * levels + n));  // a level without tokens is 0
      const bool used = last >= 0 && (n == 0 || (last >> (n - 1) & 1) != 0);
      EXPECT_EQ(r.size() > 0, used) << "sequence " << s << ", level " << n;
      if (!used) continue;
      EXPECT_EQ(r.end, whole.end);
      written += items.silent_from(s * levels + n) - r.begin;
    }
    EXPECT_EQ(written, whole.size()) << "every token is in one level";
  }
}

TEST(MultiStatePolicy, BankSplitCoversARow) {
  for (const int padded : {32, 64, 128, 256, 512}) {
    for (const int bytes : {2, 4}) {
      const layer::bank_split s = layer::split_of_bank(padded, bytes);
      EXPECT_EQ(s.lanes * s.vectors * s.elements, padded);
      EXPECT_EQ(layer::bank_split::threads % s.lanes, 0);
      EXPECT_LE(s.lanes, 32);
      EXPECT_GE(s.rows, 1);
    }
  }
}

TEST(MultiStatePolicy, SharesOfABank) {
  EXPECT_EQ(layer::bank_shares(0, 64, 132), 1);
  EXPECT_EQ(layer::bank_shares(100000, 64, 132), 1);
  EXPECT_EQ(layer::bank_shares(1, 3, 132), 3);
  EXPECT_EQ(layer::bank_shares(96, 64, 132), 11);
}

TEST(MultiStatePolicy, WindowsCoverTheTokens) {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t time : {1, 63, 64, 1000, 70000}) {
      for (const std::int64_t bytes : {0, 4, 4096, 1 << 20, 1 << 30}) {
        const auto w = layer::window_of(batch, time, bytes);
        ASSERT_GE(w.entries, 1);
        ASSERT_GE(w.time, 1);
        ASSERT_LE(w.entries, batch);
        if (w.time != time) {
          EXPECT_EQ(w.entries, 1);
          EXPECT_EQ(w.time % 64, 0);
        }
        EXPECT_TRUE(w.tokens() <= 64 || w.tokens() * bytes <= layer::token_window::bytes);
      }
    }
  }
}

}  // namespace
}  // namespace polystate::testing
