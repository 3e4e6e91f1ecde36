// SPDX-License-Identifier: Apache-2.0

// gating_theory as its users meet it; the propositions themselves are in gating_theory.cpp.

#include "table_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>

namespace {

using nlohmann::json;

const polystate::testing::table_program program("gating_theory", GATING_THEORY_PROGRAM);

TEST(gating_theory_program, finds_the_margins_and_the_escape) {
  const json result = program.result_of("--panels a b --seeds 3");
  EXPECT_FALSE(result.contains("c"));
  const json& a = result["a"];
  // between where the proposition is approximated and where it is exact, give or take what 25 steps move it
  EXPECT_GT(a["crossing"].get<double>(), 0.9 * a["alpha_star"].get<double>());
  EXPECT_LT(a["crossing"].get<double>(), 1.1 * a["alpha_crossing"].get<double>());
  for (const json& row : a["rows"]) {
    EXPECT_NEAR(row["ratio"].get<double>() / row["expected_ratio"].get<double>(), 1, 0.25) << row;
  }
  const json& b = result["b"];
  EXPECT_GT(b["correlation"].get<double>(), 0.98);
  for (const json& row : b["rows"]) {
    EXPECT_EQ(row["stuck"], 0) << row;
    EXPECT_NEAR(row["time"]["mean"].get<double>() / row["flow_time"].get<double>(), 1, 0.1) << row;
  }
}

TEST(gating_theory_program, comes_near_bayes) {
  constexpr double samples = 512;
  const json result = program.result_of("--panels c d --steps 8 --samples 512 --context-c 32 --context-d 32");
  for (const char* panel : {"c", "d"}) {
    ASSERT_FALSE(result[panel]["cells"].empty());
    for (const json& cell : result[panel]["cells"]) {
      const double bayes = cell["bayes"];
      const double error = 4 * std::sqrt(bayes * (1 - bayes) / samples) + 1 / samples;
      // few steps: a model may lag behind, never be ahead
      EXPECT_LT(cell["accuracy"].get<double>(), bayes + error) << panel << cell;
      if (bayes > 0.99) {
        EXPECT_GT(cell["accuracy"].get<double>(), 0.9) << panel << cell;
      }
    }
  }
  for (const json& row : result["d"]["reach"]) {
    EXPECT_LE(row["measured"].get<double>(), 1.5 * row["bayes"].get<double>() + 1) << row;
    EXPECT_NEAR(row["contour"].get<double>(), row["tau"].get<double>() * std::log(128 / row["tau"].get<double>()),
                1e-9);
  }
}

TEST(gating_theory_program, repeats) {
  const std::string small = "--panels a c --seeds 1 --steps 2 --samples 64 --context-c 16 --batch 16";
  const auto r = program.run(small);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(program.run(small).out, r.out);
  EXPECT_NE(program.run(small + " --seed 1").out, r.out);
  EXPECT_NE(r.err.find("panel c: 100%\n"), std::string::npos) << r.err;
}

TEST(gating_theory_program, says_in_a_line_what_is_wrong) {
  program.refuses("--panels e", "--panels");
  program.refuses("--steps 0", "--steps");
  program.refuses("--full --steps 5", "excludes");
  program.refuses("--context-c 4", "--context-c");
  program.refuses("--json /no/such/folder/x", "cannot be written");
  program.refuses("--colour", "--colour");
  EXPECT_EQ(program.run("--help").status, 0);
}

}  // namespace
