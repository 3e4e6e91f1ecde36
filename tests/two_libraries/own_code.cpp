// SPDX-License-Identifier: Apache-2.0
// Two libraries embed the same operator, built differently: each calls its own.

#include "library.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <string>

namespace {

std::string file_of(const void* code) {
  Dl_info info{};
  EXPECT_NE(dladdr(code, &info), 0);
  return info.dli_fname;
}

}  // namespace

TEST(two_libraries, each_runs_its_own_code) {
  EXPECT_NE(first::operator_address(), second::operator_address());
  EXPECT_EQ(file_of(first::operator_address()), file_of(reinterpret_cast<const void*>(&first::convolve)));
  EXPECT_EQ(file_of(second::operator_address()), file_of(reinterpret_cast<const void*>(&second::convolve)));
}
