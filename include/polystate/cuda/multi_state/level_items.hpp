// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the recurrences' forward kernel scans for the levels of a Fenwick partition, in the place of
/// recurrence::work_items: pairs of blocks. Host and device.

#include <polystate/core/macros.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// Every item starts from a state of zeros and is independent of the others; item i leaves row i of the states.
///
/// At level n >= 1 of a Fenwick partition a token sees the block of 2^(n-1) tokens whose right sibling it is in. The
/// item is the pair of siblings: the state takes up the left one, and goes through the right one, where it is read,
/// without further writes. Tokens are counted from the start of their sequence.
class level_items {
 public:
  level_items() = default;

  /// All pairs of blocks of a level.
  static level_items of_level(const sequences& all, std::int64_t time, int level) {
    level_items r;
    r.kind_ = kind::pairs;
    r.all_ = all;
    r.time_ = time;
    r.level_ = level;
    r.size_ = all.packed() ? (time >> level) + all.size() : all.size() * r.pairs();
    return r;
  }
  /// Of every sequence and each of `levels` levels the block that its last token sees: item s * levels + n.
  static level_items of_last_tokens(const sequences& all, std::int64_t time, std::int64_t levels) {
    level_items r;
    r.kind_ = kind::last_tokens;
    r.all_ = all;
    r.time_ = time;
    r.levels_ = levels;
    r.size_ = all.size() * levels;
    return r;
  }

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t size() const { return size_; }

  /// Tokens of an item, and from where on they are only read.
  [[nodiscard]] POLYSTATE_HOST_DEVICE token_range operator[](std::int64_t i) const { return tokens_of(i).range; }
  static constexpr bool all_write = false;
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t silent_from(std::int64_t i) const {
    return tokens_of(i).silent_from;
  }

  /// A pair without a right sibling is not read; a level that no token sees is 0.
  [[nodiscard]] POLYSTATE_HOST_DEVICE bool active(std::int64_t i) const {
    const item it = tokens_of(i);
    return kind_ == kind::last_tokens || it.silent_from < it.range.end;
  }
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
  enum class kind { pairs, last_tokens };
  struct item {
    token_range range;
    std::int64_t silent_from;
  };

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t pairs() const { return tiles_of(time_, std::int64_t{1} << level_); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t first_pair(std::int64_t s) const {
    return (all_[s].begin >> level_) + s;
  }
  /// Tokens begin .. end-1 of a sequence, clamped, that write until `silent_from`.
  [[nodiscard]] POLYSTATE_HOST_DEVICE static item within(const token_range& whole, std::int64_t begin,
                                                         std::int64_t silent_from, std::int64_t end) {
    const auto clamped = [&](std::int64_t t) { return whole.begin + (t < whole.size() ? t : whole.size()); };
    return {{whole.batch, clamped(begin), clamped(end)}, clamped(silent_from)};
  }

  [[nodiscard]] POLYSTATE_HOST_DEVICE item tokens_of(std::int64_t i) const {
    if (kind_ == kind::last_tokens) {
      const token_range whole = all_[i / levels_];
      const std::int64_t last = whole.size() - 1;
      const std::int64_t n = i % levels_;
      if (last < 0) return within(whole, 0, 0, 0);
      if (n == 0) return within(whole, last, last + 1, last + 1);
      const std::int64_t half = n < 63 ? std::int64_t{1} << (n - 1) : 0;
      if ((last & half) == 0) return within(whole, last + 1, last + 1, last + 1);
      const std::int64_t middle = last / half * half;
      return within(whole, middle - half, middle, last + 1);
    }
    std::int64_t s = 0;
    if (all_.packed()) {
      std::int64_t high = all_.size() - 1;
      while (s < high) {
        const std::int64_t middle = (s + high + 1) / 2;
        if (first_pair(middle) <= i) {
          s = middle;
        } else {
          high = middle - 1;
        }
      }
    } else {
      s = i / pairs();
    }
    const std::int64_t begin = (i - (all_.packed() ? first_pair(s) : s * pairs())) << level_;
    const std::int64_t half = (std::int64_t{1} << level_) / 2;
    return within(all_[s], begin, begin + half, begin + 2 * half);
  }

  kind kind_ = kind::pairs;
  sequences all_;
  std::int64_t time_ = 0;
  std::int64_t levels_ = 0;
  std::int64_t size_ = 0;
  int level_ = 0;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
