// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Whether two views share memory.

#include <polystate/core/tensor_view.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {
inline namespace POLYSTATE_BUILD {

/// Where a view's elements are, without their type: strides in bytes. Aggregates without initialisers, so that an
/// array of them costs nothing until it is filled.
struct memory_layout {
  static constexpr int max_rank = 6;
  /// No memory is that large. What reaches further counts as one block of bytes.
  static constexpr std::int64_t max_bytes = std::int64_t{1} << 60;

  std::int64_t address;      ///< of element (0, 0, ...)
  std::int64_t element;      ///< bytes
  std::int64_t first, last;  ///< addresses of the lowest and of the highest byte
  int rank;
  std::int64_t extents[max_rank];  ///< at least 1 each: an empty view has no layout
  std::int64_t strides[max_rank];

  /// Of a view with elements, whose offsets in bytes fit in 64 bits.
  template <class T, int Rank>
  [[nodiscard]] static memory_layout of(const tensor_view<T, Rank>& view) {
    static_assert(Rank <= max_rank);
    memory_layout m;
    m.address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data()));
    m.element = static_cast<std::int64_t>(sizeof(T));
    m.rank = Rank;
    std::int64_t before = 0;
    std::int64_t after = 0;
    for (int i = 0; i < Rank; ++i) {
      m.extents[i] = view.extent(i);
      m.strides[i] = view.extent(i) > 1 ? view.stride(i) * m.element : 0;
      const std::int64_t span = (m.extents[i] - 1) * m.strides[i];
      (span < 0 ? before : after) += span;
    }
    if (after - before > max_bytes) {
      m.rank = 0;
      m.address -= max_bytes;
      m.element = 2 * max_bytes;
      before = after = 0;
    }
    m.first = m.address + before;
    m.last = m.address + after + m.element - 1;
    return m;
  }

  /// Whether every index finds the same element in both.
  [[nodiscard]] bool operator==(const memory_layout& other) const {
    bool same = address == other.address && element == other.element && rank == other.rank;
    for (int i = 0; i < rank && same; ++i) same = extents[i] == other.extents[i] && strides[i] == other.strides[i];
    return same;
  }
};

/// Whether a byte belongs to elements of both: whether integers i, j, x, y exist with
///
///     a.address + sum_k a.strides[k] i_k + x = b.address + sum_k b.strides[k] j_k + y
///
/// where the indices are within the extents and x, y within an element. Terms with the same stride are one; those
/// that leave no gaps are an interval; the others are tried, the widest stride first, while the rest can still
/// reach. For strides that are nested (slices along any index of one dense buffer, its transposes, blocks and halves
/// of its rows, reversed or not) that is a step or two a stride, and the answer is exact. After `max_steps`, which only
/// strides that interlock at random take, the answer is that they do: a refusal is seen, a wrong number is not.
class memory_overlap {
 public:
  static constexpr int max_steps = 512;

  [[nodiscard]] static bool between(const memory_layout& a, const memory_layout& b) {
    if (a.last < b.first || b.last < a.first) return false;
    memory_overlap search(a, b);
    return search.reaches(search.terms_ - 1, b.address - a.address);
  }

 private:
  /// The values stride * z, low <= z <= high, and the interval of all sums with the terms before.
  struct term {
    std::int64_t stride, low, high;
    std::int64_t first, last;
  };

  memory_overlap(const memory_layout& a, const memory_layout& b) : first_(1 - b.element), last_(a.element - 1) {
    for (int k = 0; k < a.rank; ++k) add(a.strides[k], a.extents[k] - 1);
    for (int k = 0; k < b.rank; ++k) add(-b.strides[k], b.extents[k] - 1);
    // In ascending order, terms whose steps are no wider than the interval so far leave no gaps in it.
    int kept = 0;
    std::int64_t first = first_, last = last_;
    for (int k = 0; k < terms_; ++k) {
      term& t = term_[k];
      first += t.stride * t.low;
      last += t.stride * t.high;
      if (kept == 0 && t.stride <= last_ - first_ + 1) {
        first_ = first;
        last_ = last;
        continue;
      }
      t.first = first;
      t.last = last;
      term_[kept++] = t;
    }
    terms_ = kept;
  }

  /// Adds the values stride * z, 0 <= z <= high, at its place in ascending order of strides.
  void add(std::int64_t stride, std::int64_t high) {
    if (stride == 0) return;
    std::int64_t low = 0;
    if (stride < 0) {
      stride = -stride;
      low = -high;
      high = 0;
    }
    int at = terms_;
    while (at > 0 && term_[at - 1].stride >= stride) --at;
    if (at < terms_ && term_[at].stride == stride) {
      term_[at].low += low;
      term_[at].high += high;
      return;
    }
    for (int k = terms_; k > at; --k) term_[k] = term_[k - 1];
    term_[at] = {stride, low, high, 0, 0};
    ++terms_;
  }

  static std::int64_t floor_of(std::int64_t value, std::int64_t divisor) {
    return value / divisor - (value % divisor < 0 ? 1 : 0);
  }

  /// Whether the terms 0 .. k and the interval sum to `distance`.
  [[nodiscard]] bool reaches(int k, std::int64_t distance) {
    if (k < 0) return distance >= first_ && distance <= last_;
    if (++steps_ > max_steps) return true;
    const term& t = term_[k];
    const std::int64_t first = k > 0 ? term_[k - 1].first : first_;
    const std::int64_t last = k > 0 ? term_[k - 1].last : last_;
    const std::int64_t least = -floor_of(last - distance, t.stride);
    const std::int64_t most = floor_of(distance - first, t.stride);
    for (std::int64_t z = least > t.low ? least : t.low; z <= most && z <= t.high; ++z) {
      if (reaches(k - 1, distance - t.stride * z)) return true;
    }
    return false;
  }

  term term_[2 * memory_layout::max_rank];
  int terms_ = 0;
  std::int64_t first_, last_;  // of the terms that leave no gaps, and of x - y
  int steps_ = 0;
};

}  // namespace POLYSTATE_BUILD
}  // namespace polystate::inline POLYSTATE_ABI
