// SPDX-License-Identifier: Apache-2.0

// segment_mass as its users meet it.

#include "table_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace {

using nlohmann::json;

const polystate::testing::table_program program("segment_mass", SEGMENT_MASS_PROGRAM);

TEST(segment_mass_program, second_moments_help_below_the_limit) {
  const json result = program.result_of("--segments 32 --segment-length 32 --dim 32 --draws 6 --deltas 1 4 200");
  std::map<std::string, json> kinds;
  for (const json& of : result["kinds"]) kinds[of["kind"]] = of["rows"];
  ASSERT_EQ(kinds.size(), 4U);
  for (const auto& [name, rows] : kinds) {
    ASSERT_EQ(rows.size(), 3U);
    for (const json& row : rows) {
      // helps: by three standard errors over the draws
      EXPECT_EQ(row["helps"], row["gain"]["mean"].get<double>() > 3 * row["gain"]["error"].get<double>())
          << name << row;
      EXPECT_NEAR(row["gain"]["mean"].get<double>(),
                  row["first"]["mean"].get<double>() - row["second"]["mean"].get<double>(), 1e-12);
      EXPECT_GT(row["even"]["mean"].get<double>(), 0);
      EXPECT_LE(row["second"]["mean"].get<double>(), 1);
    }
    // far below the limit of about 15 the expansion holds for every kind
    EXPECT_TRUE(rows[0]["helps"]) << name;
    EXPECT_LT(rows[0]["second"]["mean"], rows[0]["first"]["mean"]);
    EXPECT_GE(rows[0]["second_named"]["mean"], rows[0]["first_named"]["mean"]) << name;
  }
  // far above it: what was stored is still found, where keys cluster the mean alone is better
  EXPECT_TRUE(kinds["stored"][2]["helps"]);
  EXPECT_FALSE(kinds["topic"][2]["helps"]);
}

TEST(segment_mass_program, repeats) {
  const std::string small = "--segments 4 --segment-length 8 --dim 8 --draws 2 --queries 4";
  const auto r = program.run(small);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(program.run(small).out, r.out);
  EXPECT_NE(program.run(small + " --seed 1").out, r.out);
  EXPECT_NE(r.out.find("4 segments of 8 keys, dim 8; 2 draws of 4 queries"), std::string::npos) << r.out;
}

TEST(segment_mass_program, says_in_a_line_what_is_wrong) {
  program.refuses("--dim 0", "--dim");
  program.refuses("--pull 2", "--pull");
  program.refuses("--deltas -1", "--deltas");
  program.refuses("--draws many", "--draws");
  program.refuses("--json /no/such/folder/x", "cannot be written");
  program.refuses("extra", "extra");
  EXPECT_EQ(program.run("--help").status, 0);
}

}  // namespace
