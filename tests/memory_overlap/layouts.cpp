// SPDX-License-Identifier: Apache-2.0

// When two views share memory: by hand, and against every pair of bytes.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/memory_overlap.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace polystate::testing {
namespace {

template <class T, int RankT, class U, int RankU>
bool share(const tensor_view<T, RankT>& a, const tensor_view<U, RankU>& b) {
  const bool found = memory_overlap::between(memory_layout::of(a), memory_layout::of(b));
  EXPECT_EQ(memory_overlap::between(memory_layout::of(b), memory_layout::of(a)), found);
  return found;
}

class MemoryLayouts : public ::testing::Test {
 protected:
  std::vector<float> memory = std::vector<float>(4 * 6 * 10);
  tensor_view<float, 3> dense{memory.data(), {4, 6, 10}};
};

TEST_F(MemoryLayouts, SlicesAlongOneIndex) {
  for (int d = 0; d < 3; ++d) {
    const std::int64_t n = dense.extent(d);
    EXPECT_FALSE(share(dense.slice(d, 0, n / 2), dense.slice(d, n / 2, n))) << d;
    EXPECT_TRUE(share(dense.slice(d, 0, n / 2 + 1), dense.slice(d, n / 2, n))) << d;
    EXPECT_FALSE(share(dense.slice(d, 1, 2), dense.slice(d, 2, n))) << d;
    EXPECT_FALSE(share(dense.slice(d, 0, 1), dense.slice(d, n - 1, n))) << d;
  }
}

TEST_F(MemoryLayouts, Transposes) {
  EXPECT_TRUE(share(dense, dense.permuted({2, 0, 1})));
  const auto left = dense.slice(2, 0, 4), right = dense.slice(2, 4, 10);
  EXPECT_FALSE(share(left.permuted({1, 0, 2}), right));
  EXPECT_FALSE(share(left.permuted({2, 1, 0}), right.permuted({0, 2, 1})));
  EXPECT_TRUE(share(left.permuted({2, 1, 0}), dense.slice(2, 3, 5)));
}

TEST_F(MemoryLayouts, TheSameMemoryInOtherShapes) {
  // Heads of a wide row against a part of that row.
  const tensor_view<float, 4> heads(memory.data(), {4, 6, 2, 3}, {60, 10, 5, 1});  // columns 0 .. 2 and 5 .. 7
  EXPECT_FALSE(share(heads, dense.slice(2, 3, 5)));
  EXPECT_FALSE(share(heads, dense.slice(2, 8, 10)));
  EXPECT_TRUE(share(heads, dense.slice(2, 7, 8)));
  EXPECT_TRUE(share(heads, dense.slice(2, 3, 6)));
  // One row more than there is in between.
  const tensor_view<float, 1> row(memory.data() + 60, {10});
  EXPECT_FALSE(share(row, dense.slice(0, 0, 1)));
  EXPECT_TRUE(share(row, dense.slice(0, 1, 2)));
}

TEST_F(MemoryLayouts, ShiftedByOneRow) {
  const tensor_view<float, 2> rows(memory.data(), {5, 10}), next(memory.data() + 10, {5, 10});
  EXPECT_TRUE(share(rows, rows));
  EXPECT_TRUE(share(rows, next));
  EXPECT_FALSE(share(rows, tensor_view<float, 2>(memory.data() + 50, {5, 10})));
}

TEST_F(MemoryLayouts, Reversed) {
  const auto reversed = [&](std::int64_t first, std::int64_t count) {
    return tensor_view<float, 3>(memory.data() + 3 * 60 + first + count - 1, {4, 6, count}, {-60, 10, -1});
  };
  EXPECT_FALSE(share(reversed(0, 5), dense.slice(2, 5, 10)));
  EXPECT_TRUE(share(reversed(0, 6), dense.slice(2, 5, 10)));
  EXPECT_FALSE(share(reversed(0, 5), reversed(5, 5)));
  EXPECT_TRUE(share(reversed(0, 10), dense));
  // The same bytes, but not the same view.
  EXPECT_FALSE(memory_layout::of(reversed(0, 10)) == memory_layout::of(dense));
}

TEST_F(MemoryLayouts, EveryOtherElement) {
  const tensor_view<float, 1> even(memory.data(), {100}, {2}), odd(memory.data() + 1, {100}, {2});
  EXPECT_FALSE(share(even, odd));
  EXPECT_TRUE(share(even, tensor_view<float, 1>(memory.data() + 1, {100}, {3})));
  EXPECT_FALSE(
      share(tensor_view<float, 1>(memory.data(), {9}, {6}), tensor_view<float, 1>(memory.data() + 1, {9}, {4})));
}

TEST_F(MemoryLayouts, ElementsOfOtherSizes) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
  const tensor_view<const unsigned char, 1> second(bytes + 1, {20}, {8});
  EXPECT_TRUE(share(tensor_view<float, 1>(memory.data(), {20}, {2}), second));
  EXPECT_FALSE(share(tensor_view<float, 1>(memory.data() + 1, {20}, {2}), second));
}

// An input may repeat: stride 0 is one element.
TEST_F(MemoryLayouts, Repeated) {
  const tensor_view<float, 3> repeated(memory.data() + 7, {4, 6, 10}, {60, 0, 0});
  EXPECT_TRUE(share(repeated, dense));
  EXPECT_FALSE(share(repeated, dense.slice(2, 0, 7)));
}

TEST(MemoryOverlap, FarApart) {
  constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max() / 8;
  float x = 0;
  const tensor_view<float, 2> everywhere(&x, {2, 2}, {far, 1});
  const tensor_view<float, 2> backwards(&x, {2, 2}, {-far, 1});
  EXPECT_TRUE(share(everywhere, backwards));
  EXPECT_TRUE(share(everywhere, tensor_view<float, 1>(&x, {1})));
}

/// The bytes of a view that are its elements'.
template <int Rank>
std::set<std::int64_t> bytes_of(const tensor_view<std::int16_t, Rank>& v) {
  std::set<std::int64_t> bytes;
  std::int64_t at[Rank] = {};
  for (std::int64_t i = 0; i < v.size(); ++i) {
    std::int64_t offset = 0;
    for (int d = 0; d < Rank; ++d) offset += at[d] * v.stride(d);
    const auto first = reinterpret_cast<std::int64_t>(v.data()) + 2 * offset;
    bytes.insert({first, first + 1});
    for (int d = Rank - 1; d >= 0 && ++at[d] == v.extent(d); --d) at[d] = 0;
  }
  return bytes;
}

// Random strides of either sign, mostly not nested; the search finds every answer well within its steps.
TEST(MemoryOverlap, EqualsTheSetsOfBytes) {
  std::mt19937 rng(3);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  int shared = 0;
  constexpr int trials = 4000;
  for (int trial = 0; trial < trials; ++trial) {
    const auto view = [&] {
      const std::int64_t e[3] = {number(1, 4), number(1, 4), number(1, 4)};
      const std::int64_t s[3] = {number(-60, 60), number(-20, 20), number(-3, 3)};
      return tensor_view<std::int16_t, 3>(reinterpret_cast<std::int16_t*>(1 << 20) + number(0, 40), e, s);
    };
    const auto a = view(), b = view();
    const auto of_a = bytes_of(a), of_b = bytes_of(b);
    const bool expected = std::any_of(of_a.begin(), of_a.end(), [&](std::int64_t x) { return of_b.count(x) > 0; });
    shared += expected ? 1 : 0;
    ASSERT_EQ(share(a, b), expected) << "trial " << trial;
  }
  EXPECT_GT(shared, trials / 10);
  EXPECT_LT(shared, trials * 9 / 10);
}

TEST(MemoryOverlap, AbsentAndEmptyViewsShareNone) {
  float x[4] = {};
  argument_checks c("op");
  c.required("a", tensor_view<float, 1>(x, {4}), {"N"})
      .optional("b", tensor_view<float, 1>(), {"N"})
      .optional("c", tensor_view<float, 1>(x, {0}), {"M"})
      .optional("d", tensor_view<const float, 2>(x, {2, 0}), {"K", "M"})
      .no_overlap();
  EXPECT_TRUE(c.result().ok()) << c.result().message();
}

TEST(MemoryOverlap, InputsMayShare) {
  float x[8] = {};
  argument_checks c("op");
  c.required("q", tensor_view<const float, 1>(x, {4}), {"N"})
      .required("k", tensor_view<const float, 1>(x, {4}), {"N"})
      .required("o", tensor_view<float, 1>(x + 4, {4}), {"N"})
      .no_overlap();
  EXPECT_TRUE(c.result().ok()) << c.result().message();
}

// One view for a promised pair, and nothing else of that memory.
TEST(MemoryOverlap, InPlaceIsTheSameView) {
  float x[9] = {};
  const auto result = [&](const tensor_view<float, 2>& out) {
    argument_checks c("op");
    return c.required("initial_state", tensor_view<const float, 2>(x, {2, 3}, {3, 1}), {"S", "N"})
        .required("final_state", out, {"S", "N"})
        .no_overlap({{"final_state", "initial_state"}})
        .result();
  };
  EXPECT_TRUE(result({x, {2, 3}, {3, 1}}).ok());
  const status reversed = result({x + 3, {2, 3}, {-3, 1}});
  EXPECT_EQ(reversed.code, error_code::overlap);
  EXPECT_EQ(reversed.message(),
            "op: final_state: shares memory with initial_state; it may be that very view or another memory");
  EXPECT_EQ(result({x + 3, {2, 3}, {3, 1}}).code, error_code::overlap);
}

}  // namespace
}  // namespace polystate::testing
