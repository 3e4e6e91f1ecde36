// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The two indirections that operators share: packed sequences, and heads that share a group.

#include <polystate/core/tensor_view.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

/// Where one sequence lies: tokens begin .. end-1 of a batch entry.
struct token_range {
  std::int64_t batch;
  std::int64_t begin;
  std::int64_t end;
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t size() const { return end - begin; }
};

/// The independent sequences of a call: the batch entries, or with cu_seqlens (S+1) the S packed sequences of
/// the one entry. Sequence s has row s of every operand with a leading size S (initial and final states).
class sequences {
 public:
  sequences() = default;
  POLYSTATE_HOST_DEVICE constexpr sequences(std::int64_t batch, std::int64_t time, index_view cu_seqlens)
      : batch_(batch), time_(time), cu_seqlens_(cu_seqlens) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool packed() const { return static_cast<bool>(cu_seqlens_); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t size() const {
    return packed() ? cu_seqlens_.extent(0) - 1 : batch_;
  }
  /// Sequence s. Contents that validation would refuse are clamped into 0 .. time, so no access leaves the
  /// operand; the first one counts as 0.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr token_range operator[](std::int64_t s) const {
    if (!packed()) return {s, 0, time_};
    const std::int64_t begin = boundary(s);
    const std::int64_t end = boundary(s + 1);
    return {0, begin, end < begin ? begin : end};
  }
  /// The first token of a batch entry that no sequence holds: time, or where sequences are packed their last offset.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t end() const { return packed() ? boundary(size()) : time_; }
  /// The sequence that holds token t of the packed entry: the last one that begins at or before t.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t of_token(std::int64_t t) const {
    std::int64_t low = 0;
    std::int64_t high = size() - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (boundary(middle) <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t boundary(std::int64_t i) const {
    if (i == 0) return 0;
    const std::int64_t t = cu_seqlens_(i);
    return t < 0 ? 0 : (t > time_ ? time_ : t);
  }

  std::int64_t batch_ = 0;
  std::int64_t time_ = 0;
  index_view cu_seqlens_;
};

/// The group that a head uses: consecutive heads share one, head h of H uses floor(h / (H / groups)).
POLYSTATE_HOST_DEVICE constexpr std::int64_t group_of_head(std::int64_t head, std::int64_t heads, std::int64_t groups) {
  return head / (heads / groups);
}

}  // namespace polystate::inline POLYSTATE_ABI
