// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The text written into memory states by the delta rule: into one state, and into a bank with one state a
/// segment.

#include "progress.hpp"
#include "vectors.hpp"

#include <polystate/reference/multi_state.hpp>
#include <polystate/state_bank.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace text_memory {

using bank = ps::state_bank<float>;

class memory {
 public:
  /// Steps of a progress that writing takes.
  static std::int64_t steps(std::int64_t tokens) { return 2 * tokens; }

  /// Throws bad_input where the bank of a text would take too much memory.
  static void check_affordable(std::int64_t tokens, std::int64_t segment_length, std::int64_t dim,
                               std::int64_t routing_dim) {
    constexpr std::int64_t limit_gib = 8;
    const std::int64_t segments = ps::separation::uniform{.m = segment_length}.count(tokens);
    const std::int64_t floats = dim * dim + routing_dim * (routing_dim + 1);
    const std::int64_t gib = segments * floats * std::int64_t{sizeof(float)} >> 30;
    if (gib >= limit_gib) {
      throw bad_input(std::to_string(segments) + " segments of this size would take " + std::to_string(gib) +
                      " GiB: use longer segments or fewer dims");
    }
  }

  /// A text that check_affordable() accepts. Writing is shown as part of a larger act, or on its own.
  memory(const text_vectors& from, std::int64_t segment_length, progress* part_of = nullptr)
      : separation_{.m = segment_length},
        whole_(shape_of(from, 0), 1),
        segments_(shape_of(from, from.routing_keys.rows()), separation_.count(from.keys.cols())) {
    const std::int64_t tokens = from.keys.cols();
    std::optional<progress> own;
    progress& writing = part_of != nullptr ? *part_of : own.emplace("writing the text", steps(tokens));
    for (std::int64_t begin = 0; begin < tokens; begin += tokens_a_step) {
      const std::int64_t end = std::min(begin + tokens_a_step, tokens);
      write(from, begin, end, whole_, ps::separation::single{}, ps::router::none{}, {});
      writing.advance(end - begin);
    }
    for (std::int64_t begin = 0; begin < tokens; begin += tokens_a_step) {
      const std::int64_t end = std::min(begin + tokens_a_step, tokens);
      write(from, begin, end, segments_, separation_, ps::router::uniform{},
            {.k = as_operand(from.routing_keys).slice(1, begin, end)});
      writing.advance(end - begin);
    }
  }

  [[nodiscard]] const ps::separation::uniform& separation() const { return separation_; }
  [[nodiscard]] const bank& whole() const { return whole_; }        ///< one state over all tokens
  [[nodiscard]] const bank& segments() const { return segments_; }  ///< one state and its moments a segment

 private:
  static constexpr std::int64_t tokens_a_step = 64;  // any number; it sets how often progress shows

  static ps::bank_shape shape_of(const text_vectors& from, std::int64_t routing_dim) {
    return {.dv = from.values.rows(), .dk = from.keys.rows(), .HR = routing_dim > 0 ? 1 : 0, .dr = routing_dim};
  }

  /// What is written does not depend on the router: without an output a step reads nothing.
  template <class Separation, class Router>
  static void write(const text_vectors& from, std::int64_t begin, std::int64_t end, bank& into,
                    const Separation& separation, const Router& router, const ps::key_moments<float>& moments) {
    const auto keys = as_operand(from.keys).slice(1, begin, end);
    const float beta = 1;  // each write replaces what the state held under its key
    ps::multi_state_step(ps::on_reference{}, ps::multi_state_step_args<float, ps::rule::delta, Separation, Router>{
                                                 .in = {.q = keys,
                                                        .k = keys,
                                                        .v = as_operand(from.values).slice(1, begin, end),
                                                        .beta = {&beta, {1, end - begin, 1}, {0, 0, 0}}},
                                                 .separation = separation,
                                                 .moments = moments,
                                                 .router = router,
                                                 .bank = into.view()});
  }

  ps::separation::uniform separation_;
  bank whole_;
  bank segments_;
};

}  // namespace text_memory
