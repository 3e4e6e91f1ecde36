// SPDX-License-Identifier: Apache-2.0

// The memory that is planned is the memory that a bank takes, and the ratios are those by hand.

#include <polystate/memory_plan.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace polystate::testing {
namespace {

using merlin = router::merlin<float>;
using meanpool = router::meanpool<float>;

/// Bytes of a bank that has seen T tokens a sequence.
template <class Data, class State, class Separation>
std::int64_t bytes_of_bank(const bank_shape& shape, const Separation& separation, std::int64_t T) {
  state_bank<Data, State> bank(shape);
  for (std::int64_t b = 0; b < shape.B; ++b) bank.resume(b, separation, T);
  return static_cast<std::int64_t>(bank.bytes());
}

TEST(MemoryPlan, IsWhatABankTakes) {
  for (const std::int64_t T : {0, 1, 7, 8, 9, 1000}) {
    for (const std::int64_t B : {1, 3}) {
      const bank_shape with{.B = B, .H = 6, .dv = 4, .dk = 8, .HR = 2, .dr = 3};
      const bank_shape without{.B = B, .H = 6, .dv = 4, .dk = 8};
      const separation::uniform m8{8};
      EXPECT_EQ(plan_memory<float>(with, m8, merlin{}, T).bytes(), (bytes_of_bank<float, float>(with, m8, T)));
      EXPECT_EQ((plan_memory<bfloat16, bfloat16>(with, m8, router::cumulant<bfloat16>{}, T).bytes()),
                (bytes_of_bank<bfloat16, bfloat16>(with, m8, T)));
      EXPECT_EQ(plan_memory<double>(with, m8, merlin{}, T).bytes(), (bytes_of_bank<double, double>(with, m8, T)));
      EXPECT_EQ(plan_memory<float>(without, m8, router::uniform{}, T).bytes(),
                (bytes_of_bank<float, float>(without, m8, T)));
      EXPECT_EQ(plan_memory<float>(without, separation::single{}, router::none{}, T).bytes(),
                (bytes_of_bank<float, float>(without, separation::single{}, T)));
      EXPECT_EQ(plan_memory<float>(without, separation::fenwick{}, router::position<float>{}, T).bytes(),
                (bytes_of_bank<float, float>(without, separation::fenwick{}, T)));
    }
  }
}

TEST(MemoryPlan, ByHand) {
  const bank_shape shape{.B = 2, .H = 3, .dv = 5, .dk = 7, .HR = 1, .dr = 4};
  const auto p = plan_memory<bfloat16>(shape, separation::uniform{8}, merlin{}, 20);
  EXPECT_EQ(p.entries, 3);
  EXPECT_EQ(p.states, 2 * 3 * 3 * 35 * 4);
  EXPECT_EQ(p.moments, 2 * 3 * (4 + 16) * 4);
  EXPECT_EQ(p.read, p.bytes());
  EXPECT_EQ(p.single_state, 2 * 3 * 35 * 4);
  EXPECT_EQ(p.kv_cache, 2 * 20 * 3 * (5 + 7) * 2);
  EXPECT_EQ(plan_memory<bfloat16>(shape, separation::uniform{8}, meanpool{}, 20).moments, 2 * 3 * 4 * 4);
  EXPECT_EQ(plan_memory<bfloat16>(shape, separation::uniform{8}, router::uniform{}, 20).moments, 0);

  // top_k skips states, not moments; with fewer entries than k there is nothing to skip.
  const auto read = [&](std::int64_t k) {
    return plan_memory<bfloat16>(shape, separation::uniform{8}, router::top_k<merlin>{.of = {}, .k = k}, 20);
  };
  EXPECT_EQ(read(1).read, p.states / 3 + p.moments);
  EXPECT_EQ(read(2).read, p.states / 3 * 2 + p.moments);
  EXPECT_EQ(read(8).read, p.read);
  EXPECT_EQ(read(1).bytes(), p.bytes());
}

// MERLIN on the heads of Gated DeltaNet at 1.3B parameters: states and moments of one type, the open segment counted.
TEST(MemoryPlan, RatiosOfMerlin) {
  const bank_shape heads{.B = 1, .H = 6, .dv = 512, .dk = 256, .HR = 6, .dr = 64};
  constexpr std::int64_t T = 16384;
  const struct {
    std::int64_t m;
    double ratio;
  } rows[] = {{512, 33.0}, {256, 66.0}, {128, 132.1}, {64, 264.1}};
  for (const auto& [m, ratio] : rows) {
    const auto p = plan_memory<bfloat16>(heads, separation::uniform{m}, router::merlin<bfloat16>{}, T);
    EXPECT_EQ(std::round(p.ratio_to_single_state() * 10) / 10, ratio) << m;
    EXPECT_EQ(p.ratio_to_single_state(), static_cast<double>(T / m) * (1 + 6.0 * (64 + 64 * 64) / (6 * 512 * 256)));
  }
  const auto p = plan_memory<bfloat16>(heads, separation::uniform{512}, router::merlin<bfloat16>{}, T);
  EXPECT_EQ(p.kv_cache, T * 6 * (256 + 512) * 2);
  EXPECT_EQ(p.ratio_to_kv_cache(), static_cast<double>(p.bytes()) / static_cast<double>(p.kv_cache));
  EXPECT_EQ(plan_memory<bfloat16>(heads, separation::single{}, router::none{}, T).ratio_to_single_state(), 1);
  // states of two bytes: the single state halves as well, the moments do not
  EXPECT_NEAR((plan_memory<bfloat16, bfloat16>(heads, separation::uniform{512}, router::merlin<bfloat16>{}, T)
                   .ratio_to_single_state()),
              34.03, 0.01);
}

TEST(MemoryPlan, Refusals) {
  const bank_shape shape{.B = 1, .H = 1, .dv = 2, .dk = 2, .HR = 1, .dr = 2};
  EXPECT_THROW((void)plan_memory<float>(shape, separation::uniform{0}, merlin{}, 8), argument_error);
  EXPECT_THROW((void)plan_memory<float>(shape, separation::uniform{8}, merlin{}, -1), argument_error);
  EXPECT_THROW((void)plan_memory<float>(shape, separation::uniform{8}, router::top_k<merlin>{.of = {}, .k = 0}, 8),
               argument_error);
  bank_shape negative = shape;
  negative.dr = -1;
  EXPECT_THROW((void)plan_memory<float>(negative, separation::uniform{8}, merlin{}, 8), argument_error);
}

}  // namespace
}  // namespace polystate::testing
