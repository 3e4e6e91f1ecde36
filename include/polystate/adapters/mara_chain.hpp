// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Chained selection of segments: each pass adds the best segment so far to the anchors, and the next pass scores the
/// others given these. It reads scores on the host and takes no execution policy.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

/// Operands of mara_chain(). N candidates, indices 0 .. N-1. For pass n = 0 .. passes-1, stopping once all candidates
/// are anchors:
///
///     last = score(n, anchors)
///     append to anchors the candidate outside them with the highest `last` (ties: the lowest index)
///
/// topk = the first k of: the anchors in the order of their selection, then the others by descending `last` (ties: the
/// lowest index).
///
/// Source: MaRA, chained selection.
struct mara_chain_args {
  std::int64_t candidates = 0;             ///< N, at least 1
  std::int64_t passes = 0;                 ///< at least 1
  tensor_view<std::int64_t, 1> anchors{};  ///< (min(passes, N)), optional, out
  tensor_view<std::int64_t, 1> topk;       ///< (k), out; k from 1 to N
};

/// Whether `args` is a supported problem. Reads no elements.
[[nodiscard]] inline status check(const mara_chain_args& args) {
  argument_checks c("mara_chain");
  c.expect(args.candidates >= 1, error_code::value, "candidates",
           std::to_string(args.candidates) + ", supported: at least 1")
      .expect(args.passes >= 1, error_code::value, "passes", std::to_string(args.passes) + ", supported: at least 1")
      .bind("min(passes, N)", (std::min)(args.passes, args.candidates))
      .optional("anchors", args.anchors, {"min(passes, N)"})
      .required("topk", args.topk, {"k"})
      .expect(c.size("k") >= 1 && c.size("k") <= args.candidates, error_code::value, "topk",
              "k = " + std::to_string(c.size("k")) + ", supported: 1 to N = " + std::to_string(args.candidates))
      .no_overlap();
  return c.result();
}

inline namespace POLYSTATE_BUILD {

/// What mara_chain() does, with a status for an exception.
template <class Score>
[[nodiscard]] status try_mara_chain(Score&& score, const mara_chain_args& args) {
  if (status s = check(args); !s.ok()) return s;

  const std::int64_t N = args.candidates;
  std::vector<std::int64_t> anchors;
  // Of the candidates outside the anchors, by ascending index.
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < N; ++i) others.push_back(i);
  const auto refused = [](std::int64_t pass, error_code code, const std::string& detail) {
    return status{code, "mara_chain", "score", "pass " + std::to_string(pass) + ": " + detail};
  };
  for (std::int64_t pass = 0; pass < args.passes && !others.empty(); ++pass) {
    const tensor_view<const std::int64_t, 1> selected(anchors.data(), {static_cast<std::int64_t>(anchors.size())});
    const auto last = score(pass, selected);
    static_assert(decltype(last)::rank == 1, "score(pass, anchors) returns a view of N scores");
    if (last.extent(0) != N || last.data() == nullptr) {
      return refused(pass, error_code::shape,
                     std::to_string(last.extent(0)) + " scores, supported: (N) = (" + std::to_string(N) + ")");
    }
    for (std::int64_t i = 0; i < N; ++i) {
      if (last(i) != last(i)) {
        return refused(pass, error_code::value, "score " + std::to_string(i) + " is NaN, supported: an ordered value");
      }
    }
    // The first of the highest is the lowest index among ties.
    const auto best = std::max_element(others.begin(), others.end(),
                                       [&](std::int64_t a, std::int64_t b) { return last(a) < last(b); });
    anchors.push_back(*best);
    others.erase(best);
    if (pass + 1 == args.passes) {
      std::stable_sort(others.begin(), others.end(), [&](std::int64_t a, std::int64_t b) { return last(a) > last(b); });
    }
  }
  if (args.anchors) {
    for (std::int64_t i = 0; i < args.anchors.extent(0); ++i) args.anchors(i) = anchors[static_cast<std::size_t>(i)];
  }
  anchors.insert(anchors.end(), others.begin(), others.end());
  for (std::int64_t i = 0; i < args.topk.extent(0); ++i) args.topk(i) = anchors[static_cast<std::size_t>(i)];
  return {};
}

/// Selects anchors and topk. The hook `score(pass, anchors)` gets the pass, from 0, and a view of the anchors so far,
/// tensor_view<const std::int64_t, 1>; it returns a view of N scores, of any ordered type, which must stay readable
/// until its next call. Scores of anchors are not read but for the check: the hook may leave anything ordered there.
///
/// Throws argument_error when check() fails or the hook returns another number of scores or a NaN, and lets the hook's
/// own exceptions pass; nothing is written then. Deterministic.
template <class Score>
void mara_chain(Score&& score, const mara_chain_args& args) {
  raise_on_error(try_mara_chain(std::forward<Score>(score), args));
}

}  // namespace POLYSTATE_BUILD

}  // namespace polystate::inline POLYSTATE_ABI
