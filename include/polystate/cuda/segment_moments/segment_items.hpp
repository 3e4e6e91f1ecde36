// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the recurrences' forward kernel scans where each segment has a state of its own, in the place of
/// recurrence::work_items. Host and device. Moments and the layer share the type, so a rule that both use is one
/// kernel.

#include <polystate/core/macros.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// Every segment starts from a state of zeros; segment i leaves row i of the states, an empty one zeros.
class segment_items {
 public:
  segment_items() = default;

  /// `begins` (slots+1, on the device): first tokens of the segments, counted over all batch entries, and their end.
  /// `time`: tokens of a batch entry.
  segment_items(const std::int32_t* begins, std::int64_t slots, std::int64_t time)
      : begins_(begins), size_(slots), time_(time) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t size() const { return size_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE token_range operator[](std::int64_t i) const {
    const std::int64_t batch = begins_[i] / time_;
    const std::int64_t begin = begins_[i] - batch * time_;
    std::int64_t end = begins_[i + 1] - batch * time_;
    if (end > time_) end = time_;  // boundaries that are none
    return {batch, begin, end < begin ? begin : end};
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr bool active(std::int64_t) { return true; }
  static constexpr bool all_write = true;
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t silent_from(std::int64_t) const { return time_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr bool starts(std::int64_t) { return true; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr bool ends(std::int64_t) { return true; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr std::int64_t carry_row(std::int64_t i) { return i; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t first_tile(std::int64_t i, int tokens) const {
    return i * tiles_of(time_, tokens);
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t token_index(std::int64_t b, std::int64_t t) const {
    return b * time_ + t;
  }

 private:
  const std::int32_t* begins_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t time_ = 0;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
