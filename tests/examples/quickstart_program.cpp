// SPDX-License-Identifier: Apache-2.0

// The quickstart prints what is promised, and the README quotes both the program and its output.

#include "support/run_program.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace {

using polystate::testing::content_of;
using polystate::testing::run_program;

const std::string folder = POLYSTATE_SOURCE_DIR "/examples/quickstart/";

/// The code blocks of a Markdown text behind the first line that holds `mark`.
std::vector<std::string> blocks_behind(const std::string& markdown, const std::string& mark) {
  std::vector<std::string> blocks;
  std::istringstream lines(markdown);
  bool marked = false;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (!marked) {
      marked = line.find(mark) != std::string::npos;
    } else if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.emplace_back();
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

TEST(quickstart, prints_what_is_promised) {
  const auto r = run_program(QUICKSTART_PROGRAM);
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(r.out, content_of(folder + "output.txt"));
}

TEST(quickstart, is_quoted_by_the_readme) {
  const std::string readme = content_of(POLYSTATE_SOURCE_DIR "/README.md");
  const auto blocks = blocks_behind(readme, "quickstart/main.cpp");
  ASSERT_GE(blocks.size(), 2U);
  std::string program = content_of(folder + "main.cpp");
  const std::string licence = "// SPDX-License-Identifier: Apache-2.0\n\n";
  ASSERT_TRUE(program.starts_with(licence));
  program.erase(0, licence.size());
  EXPECT_EQ(blocks[0], program);
  EXPECT_EQ(blocks[1], content_of(folder + "output.txt"));
}

}  // namespace
