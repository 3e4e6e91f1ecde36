// SPDX-License-Identifier: Apache-2.0
// Two units of one program, the second built with the options of one test: each runs its own code. Without inlining
// both define every function; where two had one name, the linker would keep that of the unit it meets first.
// bugs B163, B178.

#include "unit.hpp"

#include <gtest/gtest.h>

TEST(build_tags, each_unit_throws_as_it_was_built_to) {
  EXPECT_TRUE(first::throws_when_refused());
  EXPECT_TRUE(first::throws_when_a_chain_is_refused());
}

TEST(build_tags, each_unit_keeps_its_own_containers) {
  EXPECT_TRUE(first::copies_a_bank());
  EXPECT_TRUE(second::copies_a_bank());
}

// What the second does with a NaN is for its options to say.
TEST(build_tags, each_unit_has_its_own_arithmetic) { EXPECT_TRUE(first::keeps_nan()); }

TEST(build_tags, checks_hold_whatever_the_options) {
  EXPECT_TRUE(first::refuses_infinity());
  EXPECT_TRUE(second::refuses_infinity());
}
