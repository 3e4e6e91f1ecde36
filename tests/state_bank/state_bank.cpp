// SPDX-License-Identifier: Apache-2.0

// The bank as a container: room, copies, counters.

#include "support/compare.hpp"
#include "support/tensor.hpp"

#include <polystate/separation.hpp>
#include <polystate/state_bank.hpp>

#include <gtest/gtest.h>

#include <type_traits>

namespace polystate::testing {
namespace {

constexpr bank_shape small{.B = 2, .H = 3, .dv = 2, .dk = 4, .HR = 1, .dr = 5};

/// Numbers every element of the entries 0 .. count-1.
template <class Data, class State>
void fill(state_bank<Data, State>& bank, std::int64_t count) {
  double next = 1;
  const auto v = bank.view();
  for_each(v.S.slice(1, 0, count), [&](State& x) { x = static_cast<State>(next++); });
  for_each(v.mu.slice(1, 0, count), [&](acc_t<Data>& x) { x = static_cast<acc_t<Data>>(next++); });
  for_each(v.Sigma.slice(1, 0, count), [&](acc_t<Data>& x) { x = static_cast<acc_t<Data>>(next++); });
}

template <class Data, class State>
void expect_same(const state_bank<Data, State>& a, const state_bank<Data, State>& b, std::int64_t count) {
  const auto x = a.view();
  const auto y = b.view();
  EXPECT_TRUE(bitwise_equal(copy_of(x.S.slice(1, 0, count)), copy_of(y.S.slice(1, 0, count))));
  EXPECT_TRUE(bitwise_equal(copy_of(x.mu.slice(1, 0, count)), copy_of(y.mu.slice(1, 0, count))));
  EXPECT_TRUE(bitwise_equal(copy_of(x.Sigma.slice(1, 0, count)), copy_of(y.Sigma.slice(1, 0, count))));
}

TEST(StateBank, StartsEmpty) {
  const state_bank<float> bank(small, 3);
  EXPECT_EQ(bank.capacity(), 3);
  EXPECT_EQ(bank.bytes(), 0u);
  for (std::int64_t b = 0; b < 2; ++b) {
    EXPECT_EQ(bank.counters(b).tokens, 0);
    EXPECT_EQ(bank.counters(b).segments, 0);
    EXPECT_EQ(bank.counters(b).open_tokens, 0);
  }
  EXPECT_EQ(state_bank<float>(small).capacity(), 0);
}

TEST(StateBank, ViewHasItsShapes) {
  state_bank<bfloat16, bfloat16> bank(small, 3);
  const auto v = bank.view();
  static_assert(std::is_same_v<decltype(v), const bank_view<bfloat16, bfloat16>>);
  static_assert(std::is_same_v<decltype(v.mu), tensor_view<float, 4>>);  // moments stay in float
  const std::int64_t S[] = {2, 3, 3, 2, 4}, mu[] = {2, 3, 1, 5}, Sigma[] = {2, 3, 1, 5, 5};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(v.S.extent(i), S[i]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(v.mu.extent(i), mu[i]);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(v.Sigma.extent(i), Sigma[i]);
  EXPECT_EQ(v.counters.extent(0), 2);
  const state_bank<bfloat16, bfloat16>& only_read = bank;
  static_assert(std::is_same_v<decltype(only_read.view()), bank_view<bfloat16, const bfloat16>>);
  const bank_view<bfloat16, const bfloat16> from_mutable = bank.view();  // as multi_state_read() takes it
  EXPECT_EQ(from_mutable.S.data(), v.S.data());
}

TEST(StateBank, WithoutMoments) {
  state_bank<float> bank({.B = 1, .H = 2, .dv = 3, .dk = 4}, 2);
  EXPECT_TRUE(bank.view().S);
  EXPECT_FALSE(bank.view().mu);
  EXPECT_FALSE(bank.view().Sigma);
}

TEST(StateBank, ReserveKeepsContentsAndNeverShrinks) {
  state_bank<float> bank(small, 2);
  fill(bank, 2);
  bank.view().counters(1) = {7, 2, 3};
  const auto before = bank;
  for (const std::int64_t capacity : {2, 3, 8, 1, 0}) {
    bank.reserve(capacity);
    EXPECT_EQ(bank.capacity(), std::max<std::int64_t>(bank.capacity(), capacity));
    expect_same(bank, before, 2);
    EXPECT_EQ(bank.counters(1).tokens, 7);
  }
  EXPECT_EQ(bank.capacity(), 8);
}

TEST(StateBank, ACopyIsASnapshotAndAFork) {
  state_bank<float> bank(small, 2);
  fill(bank, 2);
  bank.view().counters(0) = {5, 2, 1};
  const auto snapshot = bank;
  auto fork = bank;
  bank.view().S(1, 1, 2, 1, 3) = -1;
  bank.view().mu(0, 0, 0, 0) = -1;
  bank.view().Sigma(0, 0, 0, 0, 0) = -1;
  bank.view().counters(0) = {6, 2, 2};
  expect_same(fork, snapshot, 2);
  EXPECT_EQ(fork.counters(0).tokens, 5);
  EXPECT_EQ(bank.view().S(1, 1, 2, 1, 3), -1);
  bank = snapshot;  // restores
  expect_same(bank, snapshot, 2);
  EXPECT_EQ(bank.counters(0).tokens, 5);
  EXPECT_NE(bank.view().S.data(), snapshot.view().S.data());
}

TEST(StateBank, CloseClearAndBytes) {
  state_bank<float> bank(small, 4);
  bank.view().counters(0) = {5, 2, 1};
  bank.view().counters(1) = {9, 3, 3};
  constexpr std::size_t entry = (3 * 2 * 4 + 5 + 25) * sizeof(float);
  EXPECT_EQ(bank.bytes(), 5 * entry);
  bank.close(1);
  EXPECT_EQ(bank.counters(1).open_tokens, 0);
  EXPECT_EQ(bank.counters(1).segments, 3);
  EXPECT_EQ(bank.counters(1).tokens, 9);
  EXPECT_EQ(bank.counters(0).open_tokens, 1);
  bank.close(1);  // nothing is open
  EXPECT_EQ(bank.counters(1).segments, 3);
  bank.clear();
  EXPECT_EQ(bank.bytes(), 0u);
  EXPECT_EQ(bank.counters(0).tokens, 0);
  EXPECT_EQ(bank.counters(1).segments, 0);
  EXPECT_EQ(bank.capacity(), 4);
  EXPECT_THROW(bank.close(2), std::out_of_range);

  state_bank<bfloat16, bfloat16> narrow({.B = 1, .H = 3, .dv = 2, .dk = 4}, 1);
  narrow.view().counters(0) = {1, 1, 1};
  EXPECT_EQ(narrow.bytes(), 3u * 2 * 4 * 2);
}

TEST(StateBank, Resume) {
  state_bank<float> bank(small, 4);
  const auto expect_counters = [&](std::int64_t tokens, std::int64_t segments, std::int64_t open) {
    EXPECT_EQ(bank.counters(1).tokens, tokens);
    EXPECT_EQ(bank.counters(1).segments, segments);
    EXPECT_EQ(bank.counters(1).open_tokens, open);
    EXPECT_EQ(bank.counters(0).tokens, 0);
  };
  const separation::uniform m4{4};
  bank.resume(1, m4, 0);
  expect_counters(0, 0, 0);
  bank.resume(1, m4, 3);
  expect_counters(3, 1, 3);
  bank.resume(1, m4, 8);
  expect_counters(8, 2, 0);
  bank.resume(1, m4, 9);
  expect_counters(9, 3, 1);
  bank.resume(1, separation::single{}, 9);
  expect_counters(9, 1, 9);
  bank.resume(1, separation::fenwick{}, 9);  // levels 0 and 4
  expect_counters(9, 5, 1);
}

// bugs B133: the number of levels at, below and above powers of two.
TEST(Separation, FenwickLevels) {
  const separation::fenwick f;
  EXPECT_EQ(f.count(0), 0);
  for (std::int64_t T = 1; T < 70; ++T) {
    std::int64_t highest = 0;
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t s = 0; s < t; ++s) {
        std::int64_t level = 1;
        while ((t ^ s) >> level != 0) ++level;
        highest = std::max(highest, level);
      }
    }
    EXPECT_EQ(f.count(T), highest + 1) << T;
  }
  EXPECT_EQ(f.count((std::int64_t{1} << 40) + 1), 42);
}

}  // namespace
}  // namespace polystate::testing
