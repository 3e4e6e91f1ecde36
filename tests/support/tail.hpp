// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of no sequence: cu_seqlens that end before T.

#include "support/compare.hpp"
#include "support/recurrence_properties.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace polystate::testing {

/// An output, (1, T, ..): zeros from token `end` on, and before it the bits of the run whose sequences hold every
/// token.
template <class T, int Rank>
::testing::AssertionResult cleared_from(std::int64_t end, const tensor<T, Rank>& got, const tensor<T, Rank>& whole) {
  const std::int64_t time = got.view().extent(1);
  if (!all_are(got.view().slice(1, end, time), 0.0)) return ::testing::AssertionFailure() << "the tail is not 0";
  return bitwise_equal(copy_of(got.view().slice(1, 0, end)), copy_of(whole.view().slice(1, 0, end)));
}

/// Zeros from token `end` on.
template <class T, int Rank>
void clear_from(std::int64_t end, tensor<T, Rank>& rows) {
  for_each(rows.view().slice(1, end, rows.view().extent(1)), [](T& x) { x = static_cast<T>(0.0f); });
}

}  // namespace polystate::testing
