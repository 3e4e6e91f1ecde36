// SPDX-License-Identifier: Apache-2.0

// memory_cost as its users meet it: every ratio is that of the formula, to the printed digit.

#include "table_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace {

using nlohmann::json;

const polystate::testing::table_program program("memory_cost", MEMORY_COST_PROGRAM);

struct layer {
  double H, dk, dv, HR, d_model;
};

TEST(memory_cost_program, prints_the_ratios_of_the_formula) {
  const std::map<std::string, layer> layers = {{"GDN-1.3B", {6, 256, 512, 6, 2048}},
                                               {"Mamba-2-780M", {48, 128, 64, 1, 1536}}};
  const json result = program.result_of("");
  ASSERT_EQ(result["memory"].size(), 2U * 4 * 4);
  for (const json& row : result["memory"]) {
    const layer& of = layers.at(row["model"]);
    const double m = row["segment"], dr = row["d_r"];
    const double ratio = 16384 / m * (1 + of.HR * (dr + dr * dr) / (of.H * of.dk * of.dv));
    EXPECT_NEAR(std::stod(row["ratio"].get<std::string>()), ratio, 0.05 + 1e-9) << row;
    EXPECT_EQ(row["bytes_kv_cache"], 16384 * of.H * (of.dk + of.dv) * 2) << row;
  }
  ASSERT_EQ(result["parameters"].size(), 2U * 4);
  for (const json& row : result["parameters"]) {
    const layer& of = layers.at(row["model"]);
    EXPECT_EQ(row["parameters"], of.d_model * (2 * of.HR * row["d_r"].get<double>() + of.H) + 2 * of.H) << row;
  }
}

// The figures stated for the two models, written out.
TEST(memory_cost_program, prints_the_stated_ratios) {
  const std::map<int, std::string> stated = {{512, "33.0"}, {256, "66.0"}, {128, "132.1"}, {64, "264.1"}};
  const json result = program.result_of("--routing-dims 64");
  std::size_t found = 0;
  for (const json& row : result["memory"]) {
    if (row["model"] != "GDN-1.3B") continue;
    EXPECT_EQ(row["ratio"], stated.at(row["segment"])) << row;
    ++found;
  }
  EXPECT_EQ(found, stated.size());
  const std::string out = program.run("--routing-dims 64 --segments 128").out;
  EXPECT_NE(out.find("132.1x"), std::string::npos) << out;
}

// The mixers' own parameters, counted matrix by matrix.
TEST(memory_cost_program, compares_with_the_parameters_of_the_mixer) {
  const json result = program.result_of("--routing-dims 64");
  const std::int64_t gdn = 2048 * (1536 + 1536 + 3072 + 3072 + 3072 + 6 + 6) + 4 * (1536 + 1536 + 3072) + 6 + 6 + 512;
  const std::int64_t mamba2 =
      1536 * (3072 + 3072 + 128 + 128 + 48) + 3072 * 1536 + (4 + 1) * (3072 + 256) + 3 * 48 + 3072;
  EXPECT_EQ(result["parameters"][0]["mixer_parameters"], gdn);
  EXPECT_EQ(result["parameters"][1]["mixer_parameters"], mamba2);
}

TEST(memory_cost_program, plans_a_layer_of_ones_own) {
  const json result = program.result_of(
      "--heads 4 --dk 8 --dv 16 --moment-heads 2 --model-dim 32 --tokens 100 --segments 30 --routing-dims 4 5");
  ASSERT_EQ(result["memory"].size(), 2U);
  EXPECT_EQ(result["memory"][0]["states"], 4);  // the last one partial
  EXPECT_EQ(result["memory"][0]["bytes"], 4 * (4 * 8 * 16 + 2 * (4 + 16)) * 4);
  EXPECT_EQ(result["memory"][1]["ratio"], "4.5");  // 4 (1 + 2 * 30 / 512) = 4.469
  EXPECT_EQ(result["parameters"][1]["parameters"], 32 * (2 * 2 * 5 + 4) + 8);
  EXPECT_FALSE(result["parameters"][1].contains("per_cent_of_mixer"));
}

TEST(memory_cost_program, says_in_a_line_what_is_wrong) {
  program.refuses("--tokens 0", "--tokens");
  program.refuses("--segments 64 0", "--segments");
  program.refuses("--routing-dims none", "--routing-dims");
  program.refuses("--dk 8", "--heads");
  program.refuses("--heads 8 --dk 8", "requires");
  program.refuses("--json /no/such/folder/x", "cannot be written");
  program.refuses("--colour", "--colour");
  EXPECT_EQ(program.run("--help").status, 0);
}

}  // namespace
