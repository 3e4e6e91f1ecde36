// SPDX-License-Identifier: Apache-2.0
#pragma once

// Programs run as their users run them: arguments in, output and an exit status out.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace polystate::testing {

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A folder of its own, removed with its content at the end.
class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = ::testing::TempDir() + "/polystate_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", pattern, {});
    path_ = pattern;
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct finished_program {
  int status;  ///< -1: it did not exit by itself
  std::string out;
  std::string err;
};

/// `arguments` is shell text: quote what needs it.
inline finished_program run_program(const std::string& program, const std::string& arguments = "") {
  const temporary_folder folder;
  const std::string out = folder.file("out");
  const std::string err = folder.file("err");
  const std::string command = "'" + program + "' " + arguments + " >'" + out + "' 2>'" + err + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out), content_of(err)};
}

}  // namespace polystate::testing
