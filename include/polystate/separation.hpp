// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Second axis of a layer: which tokens share a state.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// How far a bank of states has come. All zero: an empty bank.
struct bank_counters {
  std::int64_t tokens = 0;       ///< seen in all
  std::int64_t segments = 0;     ///< entries in use; the last one may be open
  std::int64_t open_tokens = 0;  ///< in the open segment; 0: the last one is closed, the next token opens another
};

/// has_segments: whether tokens fall into segments with moments of their own.
namespace separation {

/// One state over the whole sequence, no weights: the single-state operator.
struct single {
  static constexpr const char* name = "single";
  static constexpr bool has_segments = false;
  /// Segments of a sequence of T tokens.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t count(std::int64_t T) const { return T > 0 ? 1 : 0; }
  /// Whether the open segment ends with the last token counted.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool closes(const bank_counters&) const { return false; }
  /// Whether a bank of this separation can have these counters.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool reaches(const bank_counters& c) const {
    return c.segments == count(c.tokens) && c.open_tokens == c.tokens;
  }
};

/// Segments of m tokens; the last one of a sequence may be partial.
struct uniform {
  static constexpr const char* name = "uniform";
  static constexpr bool has_segments = true;
  std::int64_t m = 0;  ///< tokens, at least 1

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t count(std::int64_t T) const {
    return T / m + (T % m != 0 ? 1 : 0);  // no overflow where m means "one segment"
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool closes(const bank_counters& c) const { return c.open_tokens == m; }
  /// Segments closed by hand included.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool reaches(const bank_counters& c) const {
    return c.open_tokens < m && c.segments >= count(c.tokens);
  }
  /// What `divide_by m` divides segment l by.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t length(std::int64_t) const { return m; }
};

/// Explicit segments, shared by the batch: segment l is the tokens boundaries[l] .. boundaries[l+1]-1.
struct boundaries {
  static constexpr const char* name = "boundaries";
  static constexpr bool has_segments = true;
  index_view boundaries{};  ///< (L+1), from 0 strictly increasing to T; T = 0: one entry, 0

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t count(std::int64_t) const {
    return boundaries.extent(0) - 1;
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool closes(const bank_counters& c) const {
    return c.tokens == boundaries(c.segments);
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t length(std::int64_t l) const {
    return boundaries(l + 1) - boundaries(l);
  }
};

/// Log-linear attention's Fenwick partition (Guo et al. 2025, arXiv:2506.04761): one state a level, level 0
/// the current token, level n >= 1 a block of 2^(n-1) older ones. Before token t > 0 the levels 0 .. j are
/// summed into level j+1 and cleared, j = number of trailing zero bits of t.
struct fenwick {
  static constexpr const char* name = "fenwick";
  static constexpr bool has_segments = false;
  /// Levels of a sequence of T tokens: bit length of T-1, and level 0.
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t count(std::int64_t T) const {
    std::int64_t levels = T > 0 ? 1 : 0;
    for (std::int64_t rest = T - 1; rest > 0; rest >>= 1) ++levels;
    return levels;
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool reaches(const bank_counters& c) const {
    return c.segments == count(c.tokens);
  }
};

}  // namespace separation

/// Counts a token under the Fenwick partition; every level stays open.
POLYSTATE_HOST_DEVICE constexpr bank_counters count_token(const separation::fenwick& separation, bank_counters c) {
  ++c.tokens;
  c.segments = separation.count(c.tokens);
  c.open_tokens = 1;
  return c;
}

/// Counts one token: opens a segment where the last one is closed, and closes it behind its last token.
template <class Separation>
POLYSTATE_HOST_DEVICE constexpr bank_counters count_token(const Separation& separation, bank_counters c) {
  if (c.open_tokens == 0) ++c.segments;
  ++c.tokens;
  ++c.open_tokens;
  if (separation.closes(c)) c.open_tokens = 0;
  return c;
}

/// Checks a separation's own members; uses the bound "T".
inline void check_separation(argument_checks&, const separation::single&, const index_view&) {}
inline void check_separation(argument_checks&, const separation::fenwick&, const index_view&) {}
inline void check_separation(argument_checks& c, const separation::uniform& s, const index_view&) {
  c.expect(s.m >= 1, error_code::value, "separation.m", std::to_string(s.m) + ", supported: at least 1");
}
inline void check_separation(argument_checks& c, const separation::boundaries& s, const index_view& cu_seqlens) {
  c.absent("cu_seqlens", cu_seqlens, "separation boundaries is shared by a batch of equal lengths")
      .required("separation.boundaries", s.boundaries, {{"L", 1}})
      .expect(s.boundaries.extent(0) >= 1, error_code::shape, "separation.boundaries", "empty; it has L+1 entries");
}

/// Checks the contents of a separation's index operands, which must be readable here.
inline status check_contents(const char*, const separation::single&, std::int64_t) { return {}; }
inline status check_contents(const char*, const separation::fenwick&, std::int64_t) { return {}; }
inline status check_contents(const char*, const separation::uniform&, std::int64_t) { return {}; }
inline status check_contents(const char* op, const separation::boundaries& s, std::int64_t T) {
  argument_checks c(op);
  const auto at = [&](std::int64_t i) {
    return "entry " + std::to_string(i) + " is " + std::to_string(s.boundaries(i)) + ", supported: ";
  };
  const std::int64_t last = s.boundaries.extent(0) - 1;
  c.expect(s.boundaries(0) == 0, error_code::value, "separation.boundaries", at(0) + "0");
  for (std::int64_t l = 1; l <= last && !c.failed(); ++l) {
    c.expect(s.boundaries(l) > s.boundaries(l - 1), error_code::value, "separation.boundaries",
             at(l) + "more than the entry before, " + std::to_string(s.boundaries(l - 1)));
  }
  c.expect(s.boundaries(last) == T, error_code::value, "separation.boundaries", at(last) + "T = " + std::to_string(T));
  return c.result();
}

}  // namespace polystate::inline POLYSTATE_ABI
