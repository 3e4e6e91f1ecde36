// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Backward passes over a bank of segments. A sequence is walked backwards: the bank holds every segment as
/// it ended; the open one is put back token by token to what it was, recomputed from checkpoints. Token t
/// read the bank as it was after t, so its read adds to the derivatives of all entries that it saw; then its
/// write takes the open entry's derivatives to those before t.

#include <polystate/core/sequences.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/recurrence.hpp>
#include <polystate/separation.hpp>
#include <polystate/state_bank.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// One segment on its own, in a bank of one entry: never closes, and keeps its declared length.
template <class Separation>
struct one_segment {
  static constexpr bool has_segments = Separation::has_segments;
  std::int64_t declared_length;
  [[nodiscard]] bool closes(const bank_counters&) const { return false; }
  [[nodiscard]] std::int64_t length(std::int64_t) const { return declared_length; }
};

/// Derivatives of a bank: [entry][head] and [entry][moment head].
template <class Scalar>
struct bank_derivatives {
  std::vector<std::vector<matrix<Scalar>>> S;
  std::vector<std::vector<vector<Scalar>>> mu;
  std::vector<std::vector<matrix<Scalar>>> Sigma;

  bank_derivatives(const bank_shape& n, std::int64_t entries) {
    const auto each_entry = [&](const auto& zero, std::int64_t heads) {
      using value = std::remove_cvref_t<decltype(zero)>;
      return std::vector<std::vector<value>>(static_cast<std::size_t>(entries),
                                             std::vector<value>(static_cast<std::size_t>(heads), zero));
    };
    S = each_entry(matrix<Scalar>(matrix<Scalar>::Zero(n.dv, n.dk)), n.H);
    mu = each_entry(vector<Scalar>(vector<Scalar>::Zero(n.dr)), n.HR);
    Sigma = each_entry(matrix<Scalar>(matrix<Scalar>::Zero(n.dr, n.dr)), n.HR);
  }

  /// Adds the derivatives of a returned bank, where there are any: entries from `first` on of batch entry b.
  template <class State, class Moment>
  void add_upstream(std::int64_t b, std::int64_t first, const tensor_view<const State, 5>& d_S,
                    const tensor_view<const Moment, 4>& d_mu, const tensor_view<const Moment, 5>& d_Sigma) {
    for (std::size_t l = 0; l < S.size(); ++l) {
      const std::int64_t entry = first + static_cast<std::int64_t>(l);
      const auto add_heads = [&](auto& sums, const auto& view) {
        for (std::size_t h = 0; view && h < sums.size(); ++h) {
          sums[h] += load<typename std::remove_cvref_t<decltype(view)>::element_type, Scalar>(
              view.select(0, b).select(0, entry).select(0, static_cast<std::int64_t>(h)));
        }
      };
      add_heads(S[l], d_S);
      add_heads(mu[l], d_mu);
      add_heads(Sigma[l], d_Sigma);
    }
  }
};

/// Token ranges of a sequence's segments.
template <class Separation>
std::vector<token_range> segments_of(const Separation& separation, const token_range& tokens) {
  std::vector<token_range> segments;
  bank_counters c;
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    if (c.open_tokens == 0) segments.push_back({tokens.batch, t, t});
    c = count_token(separation, c);
    segments.back().end = t + 1;
  }
  return segments;
}

/// Copies the first entry of a bank's first row to entry `to` of another's.
template <class Scalar>
void copy_entry(const bank_view<Scalar>& source, const bank_view<Scalar>& target, std::int64_t to) {
  const auto copy_heads = [&](const auto& a, const auto& b) {
    for (std::int64_t h = 0; b && h < b.extent(2); ++h) {
      store(b.select(0, 0).select(0, to).select(0, h), load(a.select(0, 0).select(0, 0).select(0, h)));
    }
  };
  copy_heads(source.S, target.S);
  copy_heads(source.mu, target.mu);
  copy_heads(source.Sigma, target.Sigma);
}

/// Walks a sequence backwards. write(bank, separation, token) makes one token's write. For every token, last
/// first: read(entry, token, bank) with the bank as the token left it, its counters aside; then
/// unwrite(entry, length, token, before), `before` a bank of the one entry, first, as the token found it.
template <class Scalar, class Separation, class Write, class Read, class Unwrite>
void walk_back(const bank_shape& shape, const Separation& separation, const token_range& tokens, const Write& write,
               const Read& read, const Unwrite& unwrite) {
  const auto segments = segments_of(separation, tokens);
  state_bank<Scalar> ended(shape, static_cast<std::int64_t>(segments.size()));
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) write(ended.view(), separation, token{tokens.batch, t});

  for (auto entry = static_cast<std::int64_t>(segments.size()) - 1; entry >= 0; --entry) {
    const token_range& segment = segments[static_cast<std::size_t>(entry)];
    std::int64_t length = 0;
    if constexpr (Separation::has_segments) length = separation.length(entry);
    const one_segment<Separation> alone{length};
    reversed_states states(state_bank<Scalar>(shape, 1), segment.size(), [&](state_bank<Scalar>& open, std::int64_t i) {
      write(open.view(), alone, token{segment.batch, segment.begin + i});
    });
    for (std::int64_t i = segment.size() - 1; i >= 0; --i) {
      const token at{segment.batch, segment.begin + i};
      state_bank<Scalar> after = states.after(i);
      copy_entry(after.view(), ended.view(), entry);
      read(entry, at, ended.view());
      state_bank<Scalar> before = states.before(i);
      unwrite(entry, length, at, before.view());
    }
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
