// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the kernels of the recurrences walk along: token ranges with states of their own. Host and device.

#include <polystate/core/macros.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// The sequences of a call, or what of them lies in a window of tokens: a long problem is worked through window by
/// window where states must be kept. Item i has row i of the states that the caller gives and takes; where its sequence
/// begins before the window or ends after it, a carried state stands for them, row carry_row(i).
class work_items {
 public:
  work_items() = default;
  POLYSTATE_HOST_DEVICE work_items(const sequences& all, std::int64_t time) : work_items(all, time, 0, time) {}
  /// The window is the tokens first .. last-1 of every batch entry.
  POLYSTATE_HOST_DEVICE work_items(const sequences& all, std::int64_t time, std::int64_t first, std::int64_t last)
      : all_(all), time_(time), first_(first), last_(last) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t size() const { return all_.size(); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE token_range operator[](std::int64_t i) const {
    token_range range = all_[i];
    if (range.begin < first_) range.begin = first_;
    if (range.end > last_) range.end = last_;
    if (range.end < range.begin) range.end = range.begin;
    return range;
  }
  /// Whether the item has anything to do here; an empty sequence has so in one window.
  [[nodiscard]] POLYSTATE_HOST_DEVICE bool active(std::int64_t i) const {
    const token_range whole = all_[i];
    return (whole.begin < last_ || last_ == time_) && (whole.end > first_ || whole.begin >= first_);
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE bool starts(std::int64_t i) const { return all_[i].begin >= first_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE bool ends(std::int64_t i) const { return all_[i].end <= last_; }
  /// From its token silent_from(i) on an item's tokens move the state on without writing their values; here none does.
  static constexpr bool all_write = true;
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t silent_from(std::int64_t) const { return last_; }
  /// At most one packed sequence crosses an end of the window.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t carry_row(std::int64_t i) const { return all_.packed() ? 0 : i; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t carry_rows() const { return all_.packed() ? 1 : all_.size(); }

  /// Tiles of `tokens` tokens are counted over all items: the first of item i, and a bound of their number.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t first_tile(std::int64_t i, int tokens) const {
    return all_.packed() ? ((*this)[i].begin - first_) / tokens + i : i * tiles_of(last_ - first_, tokens);
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t tiles(int tokens) const {
    const std::int64_t each = tiles_of(last_ - first_, tokens);
    return all_.packed() ? each + all_.size() : each * all_.size();
  }
  /// The item that such a tile belongs to. Not every tile below the bound has tokens.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t item_of_tile(std::int64_t tile, int tokens) const {
    if (!all_.packed()) return tile / tiles_of(last_ - first_, tokens);
    std::int64_t low = 0;
    std::int64_t high = all_.size() - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (first_tile(middle, tokens) <= tile) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  /// Token t of batch entry b among those of the window.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t token_index(std::int64_t b, std::int64_t t) const {
    return b * (last_ - first_) + (t - first_);
  }
  /// Tokens of the window in all batch entries.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t token_count() const {
    return (all_.packed() ? 1 : all_.size()) * (last_ - first_);
  }
  /// Behind the last of the window's tokens that a sequence holds.
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t end() const { return all_.end() < last_ ? all_.end() : last_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t first() const { return first_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t last() const { return last_; }

 private:
  sequences all_;
  std::int64_t time_ = 0;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
