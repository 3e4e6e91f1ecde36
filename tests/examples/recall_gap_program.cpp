// SPDX-License-Identifier: Apache-2.0

// recall_gap as its users meet it.

#include "table_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace {

using nlohmann::json;

const polystate::testing::table_program program("recall_gap", RECALL_GAP_PROGRAM);

TEST(recall_gap_program, recalls_as_published) {
  const json result = program.result_of("--stack-pairs 64 --reads 1 2");
  ASSERT_EQ(result["rows"].size(), 9U);
  double past = 2;
  for (const json& row : result["rows"]) {
    const double expected = row["expected"]["mean"], of_8 = row["expected"]["sd"].get<double>() / std::sqrt(8.0);
    // 9 rows: one standard normal beyond 4 in 1700 runs. Rows that are recalled almost always have no spread to speak
    // of; two pairs of 8 m may be missed.
    const double near = 4 * of_8 + 2 / (8 * row["pairs"].get<double>());
    EXPECT_NEAR(row["published"].get<double>(), expected, near) << row;
    EXPECT_NEAR(row["state"]["mean"].get<double>(), expected, near) << row;
    EXPECT_EQ(row["attention"]["mean"], 1) << row;
    EXPECT_LE(expected, past + 1e-12) << row;  // more pairs are harder
    past = expected;

    // What has to hold beside it: segments of 16 pairs do not fill up, one state does.
    EXPECT_GT(row["multi_state"]["mean"].get<double>(), 0.9) << row;
    EXPECT_LE(row["gated_delta"]["mean"].get<double>(), row["delta"]["mean"].get<double>() + 0.02) << row;
    EXPECT_EQ(row["bytes_state"], 32 * 32 * 4);
    EXPECT_EQ(row["bytes_attention"], row["pairs"].get<int>() * 64 * 4);
    EXPECT_EQ(row["bytes_multi_state"], (row["pairs"].get<int>() + 15) / 16 * (32 * 32 + 32 + 32 * 32) * 4);
  }
  ASSERT_EQ(result["stacks"].size(), 4U);
  for (const json& stack : result["stacks"]) {
    if (stack["reads"] == 1) {
      EXPECT_EQ(stack["softmax"]["recall"]["mean"], 1);
    }
    EXPECT_GE(stack["softmax"]["recall"]["mean"], stack["states"]["recall"]["mean"]);
  }
}

TEST(recall_gap_program, repeats_and_obeys_its_options) {
  const std::string small = "--pairs 8 40 --dim 16 --seeds 3 --stack-pairs 20 --reads 1 3 --window 5";
  const auto r = program.run(small);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(program.run(small).out, r.out);
  EXPECT_NE(program.run(small + " --seed 1").out, r.out);
  EXPECT_NE(r.out.find("3 draws, N = P = 16"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("window of 5"), std::string::npos) << r.out;
  EXPECT_TRUE(r.err.starts_with("recalling:   0%\n")) << r.err;
  const json result = program.result_of(small);
  EXPECT_FALSE(result["rows"][0].contains("published"));  // of other dims
}

TEST(recall_gap_program, says_in_a_line_what_is_wrong) {
  program.refuses("--pairs 0", "--pairs");
  program.refuses("--pairs 4096", "--pairs");
  program.refuses("--seeds none", "--seeds");
  program.refuses("--alpha 1.5", "--alpha");
  program.refuses("--dim 1", "--dim");
  program.refuses("--json /no/such/folder/x", "cannot be written");
  program.refuses("extra", "extra");
  EXPECT_EQ(program.run("--help").status, 0);
}

}  // namespace
