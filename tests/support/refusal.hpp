// SPDX-License-Identifier: Apache-2.0
#pragma once

// How tests say that a call must be refused.

#include <polystate/core/error.hpp>

#include <gtest/gtest.h>

#include <string>

namespace polystate::testing {

/// The status refuses with this code and argument, and its text says what was given or supported.
inline ::testing::AssertionResult refuses(const status& s, error_code code, const std::string& argument,
                                          const std::string& text) {
  if (s.ok()) return ::testing::AssertionFailure() << "accepted; expected a refusal of " << argument;
  if (s.code != code || s.argument != argument || s.message().find(text) == std::string::npos) {
    return ::testing::AssertionFailure() << "refused with code " << static_cast<int>(s.code) << ", argument '"
                                         << s.argument << "': " << s.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace polystate::testing
