// SPDX-License-Identifier: Apache-2.0
#pragma once

// Relative L2 errors of recurrences with a state a head: by batch entry, head and 64 tokens, so that a wrong tail is
// not averaged away.

#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace polystate::testing {

/// || got - want || <= bound * max(|| want ||, a tenth of what the tensor's mean square makes of it) in every block. A
/// NaN or an infinity passes only where the reference has it. `heads` is the head's index; the index before it, unless
/// that is the batch entry, is the token's.
template <class T>
::testing::AssertionResult within_relative_blocks(const tensor<T, 4>& got, const tensor<double, 4>& want, double bound,
                                                  int heads) {
  constexpr std::int64_t block_tokens = 64;
  if (got.extents() != want.extents()) return ::testing::AssertionFailure() << "shapes differ";
  double squares = 0;
  double count = 0;
  for (const double w : want.values()) {
    if (std::isfinite(w)) squares += w * w;
    count += 1;
  }
  if (count == 0) return ::testing::AssertionSuccess() << "nothing to compare";
  const double mean_square = squares / count;
  const auto g = got.view();
  const auto w = want.view();
  const std::int64_t tokens = heads == 2 ? w.extent(1) : 1;
  const std::int64_t step = heads == 2 ? block_tokens : 1;
  double worst = 0;
  for (std::int64_t b = 0; b < w.extent(0); ++b) {
    for (std::int64_t h = 0; h < w.extent(heads); ++h) {
      for (std::int64_t begin = 0; begin < tokens; begin += step) {
        double difference = 0;
        double norm = 0;
        double n = 0;
        bool same_kind = true;
        const auto add = [&](const T& x, const double& y) {
          const double d = static_cast<double>(x);
          n += 1;
          if (!std::isfinite(y)) {
            same_kind = same_kind && (std::isnan(y) ? std::isnan(d) : d == y);
          } else {
            difference += (d - y) * (d - y);
            norm += y * y;
          }
        };
        if (heads == 2) {
          for (std::int64_t t = begin; t < std::min(tokens, begin + step); ++t) {
            for (std::int64_t i = 0; i < w.extent(3); ++i) add(g(b, t, h, i), w(b, t, h, i));
          }
        } else {
          for (std::int64_t i = 0; i < w.extent(2); ++i) {
            for (std::int64_t j = 0; j < w.extent(3); ++j) add(g(b, h, i, j), w(b, h, i, j));
          }
        }
        const double size = std::sqrt(std::max(norm, 0.01 * mean_square * n));
        const double error = difference == 0 ? 0 : std::sqrt(difference) / size;
        if (!same_kind || !(error <= bound)) {
          return ::testing::AssertionFailure()
                 << "entry " << b << ", head " << h << ", tokens from " << begin << ": relative error " << error
                 << (same_kind ? "" : ", infinities or NaN differ") << ", bound " << bound;
        }
        worst = std::max(worst, error);
      }
    }
  }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
  return ::testing::AssertionSuccess() << "worst relative error " << worst << ", bound " << bound;
}

/// The same for a gate's tensor (B, T, heads).
template <class T>
::testing::AssertionResult within_relative_blocks(const tensor<T, 3>& got, const tensor<double, 3>& want,
                                                  double bound) {
  const auto with_one_column = [](const auto& from) {
    using element = std::remove_cvref_t<decltype(from.values().front())>;
    tensor<element, 4> to({from.extents()[0], from.extents()[1], from.extents()[2], 1});
    to.assign(from.values());
    return to;
  };
  return within_relative_blocks(with_one_column(got), with_one_column(want), bound, 2);
}

}  // namespace polystate::testing
