// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How long a run will take, said before it starts: from the first tokens of the text, written and asked once.

#include "memory.hpp"
#include "progress.hpp"
#include "readers.hpp"
#include "score.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace text_memory {

/// Seconds of one core.
struct cost {
  double writing = 0;
  double asking = 0;

  cost& operator+=(const cost& other) {
    writing += other.writing;
    asking += other.asking;
    return *this;
  }
  /// By the clock: questions are shared out over the cores, writing is one chain.
  [[nodiscard]] double seconds() const { return writing + asking / static_cast<double>(thread_count()); }
};

struct sizes {
  std::int64_t segment_length;
  std::int64_t dim;
  std::int64_t routing_dim;
};

template <class Act>
double seconds_of(const Act& act) {
  const auto begin = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The cost of writing a text and asking it by the readers that `make(vectors, memory)` gives.
template <class Make>
cost estimate(const text& words, const questions& exam, const sizes& of, const Make& make) {
  // about as many multiplications for each dim; 64 tokens make one batch of questions
  const std::int64_t probed = std::clamp<std::int64_t>((std::int64_t{1} << 23) / (of.dim * of.dim), 64, 512);
  const auto all = static_cast<std::int64_t>(words.tokens());
  const auto tokens = std::min(probed, all);
  const text begin(split_into_words(words.words_of(0, static_cast<std::size_t>(tokens))));
  const text_vectors vectors(begin, of.dim, of.routing_dim, 0);
  progress silent = progress::silent(memory::steps(tokens));
  const auto started = std::chrono::steady_clock::now();
  const memory written(vectors, of.segment_length, &silent);
  const double writing = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

  const ps::separation::uniform separation{.m = of.segment_length};
  const double more_tokens = static_cast<double>(all) / static_cast<double>(tokens);
  const double more_segments =
      static_cast<double>(separation.count(all)) / static_cast<double>(separation.count(tokens));
  const double more_words = static_cast<double>(words.distinct_words()) / static_cast<double>(begin.distinct_words());

  std::vector<std::size_t> batch(std::min<std::size_t>(questions_a_batch, static_cast<std::size_t>(tokens)));
  std::iota(batch.begin(), batch.end(), std::size_t{0});
  const queries asked(vectors, batch);
  cost sum{.writing = writing * more_tokens};
  for (const reader& r : make(vectors, written)) {
    recalled answers;
    const double reading = seconds_of([&] { answers = r.read(asked, r.grid.front()); });
    const double naming = seconds_of([&] { (void)nearest_words(vectors, answers); });
    const double more = r.grows_with == growth::tokens     ? more_tokens
                        : r.grows_with == growth::segments ? more_segments
                                                           : 1;
    const double a_question = (reading * more + naming * more_words) / static_cast<double>(batch.size());
    sum.asking += a_question * static_cast<double>(steps_of(r.grid, exam));
  }
  return sum;
}

/// One line on stderr, for a run that takes its time.
inline void announce(const cost& expected, const questions& exam) {
  constexpr double worth_saying = 20;
  if (expected.seconds() < worth_saying) return;
  std::fprintf(stderr, "this takes about %.0f s: %.0f to write the text, %.0f to ask it on %zu cores",
               expected.seconds(), expected.writing, expected.seconds() - expected.writing, thread_count());
  if (exam.is_sample()) std::fprintf(stderr, "; %zu of %zu questions (--questions)", exam.kept, exam.all);
  std::fprintf(stderr, "\n");
}

}  // namespace text_memory
