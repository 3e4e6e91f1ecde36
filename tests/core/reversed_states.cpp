// SPDX-License-Identifier: Apache-2.0

// States in reverse order from checkpoints: at every edge of every block, and at what cost.

#include <polystate/reference/adjoint.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polystate::testing {
namespace {

/// A state that remembers the steps that made it.
using history = std::vector<std::int64_t>;

TEST(ReversedStates, BeforeAndAfterEveryStep) {
  for (const std::int64_t steps : {0, 1, 2, 3, 4, 5, 8, 9, 10, 15, 16, 17, 24, 25, 26, 99, 100, 101}) {
    std::int64_t made = 0;
    polystate_detail::reference::reversed_states states(history{-1}, steps, [&](history& h, std::int64_t t) {
      h.push_back(t);
      ++made;
    });
    history want{-1};
    for (std::int64_t t = 0; t < steps; ++t) want.push_back(t);
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      EXPECT_EQ(states.after(t), want) << "after step " << t << " of " << steps;
      want.pop_back();
      EXPECT_EQ(states.before(t), want) << "before step " << t << " of " << steps;
    }
    EXPECT_LE(made, 2 * steps) << "each step is made at most twice";
  }
}

// A read of the state after a step must not depend on whether that before it is asked for, nor on the order of the two.
TEST(ReversedStates, EitherSideAlone) {
  for (const std::int64_t steps : {1, 4, 5, 9, 17}) {
    const auto advance = [](history& h, std::int64_t t) { h.push_back(t); };
    polystate_detail::reference::reversed_states after(history{}, steps, advance);
    polystate_detail::reference::reversed_states before(history{}, steps, advance);
    polystate_detail::reference::reversed_states swapped(history{}, steps, advance);
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      EXPECT_EQ(after.after(t).size(), static_cast<std::size_t>(t + 1));
      EXPECT_EQ(before.before(t).size(), static_cast<std::size_t>(t));
      EXPECT_EQ(swapped.before(t).size(), static_cast<std::size_t>(t));
      EXPECT_EQ(swapped.after(t).size(), static_cast<std::size_t>(t + 1));
    }
  }
}

/// Counts the states that are alive.
struct counted {
  static inline int alive = 0;
  static inline int most = 0;
  counted() { born(); }
  counted(const counted&) { born(); }
  counted& operator=(const counted&) = default;
  ~counted() { --alive; }
  static void born() { most = std::max(most, ++alive); }
};

TEST(ReversedStates, KeepsAFewTimesTheRoot) {
  for (const std::int64_t steps : {100, 2500, 10000}) {
    counted::most = counted::alive = 0;
    polystate_detail::reference::reversed_states states(counted{}, steps, [](counted&, std::int64_t) {});
    for (std::int64_t t = steps - 1; t >= 0; --t) states.before(t);
    // vector growth holds up to twice as many while it copies
    EXPECT_LE(counted::most, 4 * static_cast<int>(std::sqrt(static_cast<double>(steps))) + 4) << steps;
  }
}

}  // namespace
}  // namespace polystate::testing
