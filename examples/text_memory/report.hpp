// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the program prints.

#include "readers.hpp"
#include "score.hpp"
#include "text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

namespace text_memory {

inline std::string percentage(std::int64_t part, std::int64_t of) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f", 100.0 * static_cast<double>(part) / static_cast<double>(of));
  return text;
}

inline std::string text_of(const reader& r, const scales& chosen) {
  std::string all;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    char number[32];
    std::snprintf(number, sizeof number, " %g", static_cast<double>(chosen[i]));
    all += (i > 0 ? ", " : "") + r.scale_names[i] + number;
  }
  return all.empty() ? "-" : all;
}

inline void print_header() {
  std::printf("%-10s %12s %14s %12s  %s\n", "reader", "right (%)", "own seg. (%)", "bytes kept", "scales");
}

/// One row of the table. Where no segment ever has a higher weight than another, "own segment" means nothing.
inline void print_row(const reader& r, const result& of) {
  const score& s = of.scored;
  std::printf("%-10s %12s %14s %12zu  %s\n", r.name.c_str(), percentage(s.right, s.asked).c_str(),
              s.weighed == 0 ? "-" : percentage(s.own_segment, s.asked).c_str(), r.bytes,
              text_of(r, of.chosen).c_str());
}

/// Words in lines of at most 100 characters.
inline void print_wrapped(const std::string& words, const char* indent) {
  std::istringstream in(words);
  std::string line = indent;
  for (std::string word; in >> word;) {
    if (line.size() + word.size() >= 100) {
      std::printf("%s\n", line.c_str());
      line = indent;
    }
    line += " " + word;
  }
  std::printf("%s\n", line.c_str());
}

/// The segments with the highest weights as bars, and what the first of them says.
inline void print_weights(const subject& about, const Eigen::VectorXf& weights,
                          const std::vector<std::size_t>& tokens) {
  constexpr std::size_t rows = 5;
  constexpr float width = 40;
  std::vector<std::size_t> order(static_cast<std::size_t>(weights.size()));
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto weight = [&](std::size_t l) { return weights(static_cast<Eigen::Index>(l)); };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return weight(a) > weight(b); });
  const std::size_t m = about.segment_length;
  std::printf("    highest weights of %zu segments:\n", order.size());
  for (std::size_t i = 0; i < std::min(rows, order.size()); ++i) {
    const bool holds = std::any_of(tokens.begin(), tokens.end(), [&](auto t) { return t / m == order[i]; });
    const std::string bar(static_cast<std::size_t>(weight(order[i]) * width + 0.5F), '#');
    std::printf("    segment %5zu  %5.3f%s%s%s\n", order[i], static_cast<double>(weight(order[i])),
                bar.empty() ? "" : "  ", bar.c_str(), holds ? " < written here" : "");
  }
  const std::size_t begin = order[0] * m;
  std::printf("    segment %zu says:\n", order[0]);
  print_wrapped(about.words.words_of(begin, std::min(begin + m, about.words.tokens())), "     ");
}

/// What each reader recalls behind a pair of words, given by its tokens in the text.
inline void print_recall(const subject& about, const std::vector<reader>& readers, const std::vector<result>& results,
                         const std::vector<std::size_t>& tokens) {
  const auto [first, second] = about.words.pair_of(tokens.front());
  std::printf("\nasked: %s %s\nin the text:", about.words.spelling(first).c_str(),
              about.words.spelling(second).c_str());
  for (const std::size_t t : tokens) {
    std::printf(" %s (segment %zu)", about.words.spelling(about.words.next_word(t)).c_str(), t / about.segment_length);
  }
  std::printf("\n");
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const recalled answer = readers[i].read(queries(about.vectors, {tokens.front()}), results[i].chosen);
    std::printf("  %-10s recalls: %s\n", readers[i].name.c_str(),
                about.words.spelling(nearest_words(about.vectors, answer).front()).c_str());
    if (results[i].scored.weighed > 0) print_weights(about, answer.weights.col(0), tokens);
  }
}

}  // namespace text_memory
