// SPDX-License-Identifier: Apache-2.0

// token_modulation as its users meet it.

#include "support/run_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

namespace {

using nlohmann::json;
using polystate::testing::finished_program;
using polystate::testing::run_program;
using polystate::testing::temporary_folder;

constexpr double seeds = 64;
const std::string small =
    "--width 64 --rank 4 --block-width 4 --states 4 --decoded-width 12 --tokens 16 --seeds 64";  // of all tests

finished_program run(const std::string& arguments) { return run_program(TOKEN_MODULATION_PROGRAM, arguments); }

struct printed {
  std::string out;
  json result;
};
printed run_small() {
  const temporary_folder folder;
  const std::string path = folder.file("result.json");
  const auto done = run(small + " --json '" + path + "'");
  EXPECT_EQ(done.status, 0) << done.err;
  return {done.out, json::parse(std::ifstream(path))};
}

/// Mean over the adapters, and the standard error of it.
struct estimate {
  double mean, error;
};
estimate of_range(const json& series, std::size_t range) {
  return {series["mean_of_ranges"][range], series["deviation_of_ranges"][range].get<double>() / std::sqrt(seeds)};
}
/// Whether a is above b by four standard errors: by chance, once in 30,000 runs.
bool clearly_above(const estimate& a, const estimate& b) {
  return a.mean - b.mean > 4 * std::sqrt(a.error * a.error + b.error * b.error);
}

// By hand: LoRA 2 x 4 x 64. A block of 8 channels: in_proj 64, convolution 40, x_proj 72, dt_proj 16, A 32, D 8,
// out_proj 32; P 256, and phi 5 or 20.
TEST(TokenModulationProgram, CostsByHand) {
  const auto [out, result] = run_small();
  const auto row = [&](std::size_t i, const char* name, int parameters, int multiplications, int bytes) {
    const json& c = result["cost"][i];
    EXPECT_EQ(c["adapter"], name);
    EXPECT_EQ(c["parameters"], parameters) << name;
    EXPECT_EQ(c["multiplications_a_token"], multiplications) << name;
    EXPECT_EQ(c["state_bytes"], bytes) << name;
    EXPECT_NE(out.find(std::to_string(parameters)), std::string::npos) << out;
  };
  row(0, "LoRA", 512, 512, 0);
  row(1, "TopLoRA", 512 + 256 + 4, 512 + 256 + 16, 0);
  row(2, "MaLoRA scalar", 512 + 256 + 264 + 5, 512 + 256 + 360 + 4 + 4, 2 * 3 * 8 + 4 * 8 * 4);
  row(3, "MaLoRA diagonal", 512 + 256 + 264 + 20, 512 + 256 + 360 + 16 + 4, 2 * 3 * 8 + 4 * 8 * 4);
}

TEST(TokenModulationProgram, ForgettingChangesTheFactors) {
  const auto [out, result] = run_small();
  ASSERT_EQ(result["discrepancy"].size(), 2u);
  for (const json& form : result["discrepancy"]) {
    SCOPED_TRACE(form["form"].get<std::string>());
    EXPECT_LE(form["largest_difference_with_both"], 1e-12);
    for (const char* measure : {"of_spread", "of_lam", "of_update", "of_spread_with_window", "of_spread_with_state"}) {
      SCOPED_TRACE(measure);
      const json& series = form[measure];
      ASSERT_EQ(series["mean"].size(), 16u);
      ASSERT_EQ(series["mean_of_ranges"].size(), 5u);  // 0, 1, 2 to 3, 4 to 7, 8 to 15
      EXPECT_EQ(series["mean"][0], 0);                 // nothing to forget yet
      EXPECT_TRUE(clearly_above(of_range(series, 4), {0, 0}));
    }
    // One token forgotten is less than many; the window alone leaves less out than neither.
    EXPECT_TRUE(clearly_above(of_range(form["of_spread"], 4), of_range(form["of_spread"], 1)));
    EXPECT_TRUE(clearly_above(of_range(form["of_spread"], 4), of_range(form["of_spread_with_window"], 4)));
  }
  EXPECT_NE(out.find("random,\nuntrained weights"), std::string::npos) << out;
}

TEST(TokenModulationProgram, TheSameEveryTime) { EXPECT_EQ(run(small).out, run(small).out); }

TEST(TokenModulationProgram, BadArguments) {
  const auto refused = [](const std::string& arguments, const std::string& text) {
    const auto done = run(arguments);
    EXPECT_EQ(done.status, 2) << arguments;
    EXPECT_EQ(done.out, "") << arguments;
    EXPECT_NE(done.err.find(text), std::string::npos) << arguments << ": " << done.err;
  };
  refused("--rank 0", "--rank: Value 0 not in range");
  refused("--tokens many", "--tokens");
  refused("--block 3", "--block");
  refused("--json /no/such/folder/file", "--json /no/such/folder/file: cannot be written");
  EXPECT_EQ(run("--help").status, 0);
}

}  // namespace
