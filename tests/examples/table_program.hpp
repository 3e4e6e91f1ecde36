// SPDX-License-Identifier: Apache-2.0
#pragma once

// Programs that print a table and write it with --json, as their users meet them.

#include "support/run_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace polystate::testing {

class table_program {
 public:
  table_program(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {}

  [[nodiscard]] finished_program run(const std::string& arguments) const { return run_program(path_, arguments); }

  /// What it writes with --json.
  [[nodiscard]] nlohmann::json result_of(const std::string& arguments) const {
    const temporary_folder folder;
    const auto r = run(arguments + " --json '" + folder.file("result") + "'");
    EXPECT_EQ(r.status, 0) << r.err;
    return nlohmann::json::parse(content_of(folder.file("result")), nullptr, false);
  }

  /// It names what is wrong in one line, prints nothing and ends with status 2.
  void refuses(const std::string& arguments, const std::string& reason) const {
    const auto r = run(arguments);
    EXPECT_EQ(r.status, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(r.err.starts_with(name_ + ": ")) << r.err;
    EXPECT_NE(r.err.find(reason), std::string::npos) << arguments << ": " << r.err;
  }

 private:
  std::string name_, path_;
};

}  // namespace polystate::testing
