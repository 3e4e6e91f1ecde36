// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the sequences of a bank are after some tokens more: separations as plain numbers. Host and device.

#include <polystate/core/macros.hpp>
#include <polystate/separation.hpp>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

enum class bank_kind { single, uniform, fenwick };

/// What count_token() makes of n tokens at once.
struct token_counting {
  bank_kind kind = bank_kind::single;
  std::int64_t m = 1;  ///< tokens of a segment; uniform only

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bank_counters after(bank_counters c, std::int64_t n) const {
    if (n <= 0) return c;
    const std::int64_t open = c.open_tokens + n;
    c.tokens += n;
    switch (kind) {
      case bank_kind::single:
        if (c.open_tokens == 0) ++c.segments;
        c.open_tokens = open;
        break;
      case bank_kind::uniform:
        c.segments += (c.open_tokens == 0 ? 0 : -1) + open / m + (open % m != 0 ? 1 : 0);
        c.open_tokens = open % m;
        break;
      case bank_kind::fenwick:
        c.segments = separation::fenwick{}.count(c.tokens);
        c.open_tokens = 1;
        break;
    }
    return c;
  }

  /// Of fenwick: the level that the levels below it are summed into before token t, -1 for the first token.
  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr std::int64_t merged_level(std::int64_t t) {
    if (t <= 0) return -1;
    std::int64_t level = 1;
    for (; (t & 1) == 0; t >>= 1) ++level;
    return level;
  }
};

inline token_counting counting_of(const separation::single&) { return {bank_kind::single, 1}; }
inline token_counting counting_of(const separation::uniform& s) { return {bank_kind::uniform, s.m}; }
inline token_counting counting_of(const separation::fenwick&) { return {bank_kind::fenwick, 1}; }

static_assert(std::is_trivially_copyable_v<token_counting>);

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
