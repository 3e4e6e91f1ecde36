// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How well a reader answers: its scales are chosen on some questions and it is scored on others.

#include "progress.hpp"
#include "readers.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

namespace text_memory {

struct score {
  std::int64_t asked = 0;
  std::int64_t right = 0;
  std::int64_t own_segment = 0;  ///< the segment of the question's pair has the highest weight
  std::int64_t weighed = 0;      ///< some segment has a higher weight than another

  score& operator+=(const score& other) {
    asked += other.asked;
    right += other.right;
    own_segment += other.own_segment;
    weighed += other.weighed;
    return *this;
  }
};

/// How many of a text's questions are asked at most, and which: a long text has so many that all would take hours.
struct sampling {
  std::size_t most;
  std::uint32_t seed;
};

/// The exam: half of the questions choose scales, the others count.
struct questions {
  std::vector<std::size_t> choosing;  ///< even-numbered ones, at most 256 (of a sample 64), evenly spread
  std::vector<std::size_t> scoring;   ///< odd-numbered ones
  std::size_t all;                    ///< how many the text has
  std::size_t kept;                   ///< how many of them the sample has

  questions(const std::vector<std::size_t>& of, const sampling& sample)
      : all(of.size()), kept(std::min(all, sample.most)) {
    std::vector<std::size_t> asked;  // in the order of the text
    std::sample(of.begin(), of.end(), std::back_inserter(asked), kept, std::mt19937(sample.seed));
    const std::size_t even = (kept + 1) / 2;
    const std::size_t chosen = std::min(even, is_sample() ? std::size_t{64} : std::size_t{256});
    for (std::size_t i = 0; i < chosen; ++i) choosing.push_back(asked[2 * (i * even / chosen)]);
    for (std::size_t i = 1; i < kept; i += 2) scoring.push_back(asked[i]);
  }

  [[nodiscard]] bool is_sample() const { return kept < all; }
};

/// The word whose vector has the largest dot product with each recalled value.
inline std::vector<std::size_t> nearest_words(const text_vectors& vectors, const recalled& answers) {
  const MatrixXf similarity = vectors.words.transpose() * answers.values;
  std::vector<std::size_t> nearest;
  for (const auto& column : similarity.colwise()) {
    Eigen::Index best = 0;
    column.maxCoeff(&best);
    nearest.push_back(static_cast<std::size_t>(best));
  }
  return nearest;
}

/// A text to ask about.
struct subject {
  const text& words;
  const text_vectors& vectors;
  std::size_t segment_length;
};

/// Asks one batch of questions, each given by the token that it was written with.
inline score ask_batch(const subject& about, const reader& r, const scales& s, const std::vector<std::size_t>& tokens) {
  const recalled answers = r.read(queries(about.vectors, tokens), s);
  const auto words = nearest_words(about.vectors, answers);
  score sum;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ++sum.asked;
    sum.right += words[i] == about.words.next_word(tokens[i]) ? 1 : 0;
    if (answers.weights.rows() == 0) continue;
    const auto weights = answers.weights.col(static_cast<Eigen::Index>(i));
    Eigen::Index highest = 0;
    if (weights.maxCoeff(&highest) == weights.minCoeff()) continue;
    ++sum.weighed;
    sum.own_segment += static_cast<std::size_t>(highest) == tokens[i] / about.segment_length ? 1 : 0;
  }
  return sum;
}

constexpr std::size_t questions_a_batch = 64;

inline std::size_t thread_count() { return std::max(1U, std::thread::hardware_concurrency()); }

/// Asks all questions, a batch at a time since a read loads each state once for all of its queries, on every
/// core: the operators are thread-safe.
inline score ask_all(const subject& about, const reader& r, const scales& s, const std::vector<std::size_t>& tokens) {
  constexpr std::size_t batch = questions_a_batch;
  const std::size_t threads = thread_count();
  std::vector<std::future<score>> shares;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    shares.push_back(std::async(std::launch::async, [&, thread] {
      score sum;
      for (std::size_t begin = thread * batch; begin < tokens.size(); begin += threads * batch) {
        const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
        const auto size = static_cast<std::ptrdiff_t>(std::min(batch, tokens.size() - begin));
        sum += ask_batch(about, r, s, std::vector(first, first + size));
      }
      return sum;
    }));
  }
  score sum;
  for (auto& share : shares) sum += share.get();
  return sum;
}

struct result {
  scales chosen;
  score scored;
};

/// Questions that examining a reader asks: each is a step of its progress.
inline std::int64_t steps_of(const std::vector<scales>& grid, const questions& exam) {
  const std::size_t choosing = grid.size() == 1 ? 0 : grid.size() * exam.choosing.size();
  return static_cast<std::int64_t>(choosing + exam.scoring.size());
}

/// The scales that answer most of the choosing questions, the first of equals, and their score.
inline result examine(const subject& about, const reader& r, const questions& exam, progress& asking) {
  result best{r.grid.front(), {}};
  std::int64_t most = -1;
  for (const auto& s : r.grid) {
    if (r.grid.size() == 1) break;  // nothing to choose
    const std::int64_t right = ask_all(about, r, s, exam.choosing).right;
    if (right > most) {
      most = right;
      best.chosen = s;
    }
    asking.advance(static_cast<std::int64_t>(exam.choosing.size()));
  }
  best.scored = ask_all(about, r, best.chosen, exam.scoring);
  asking.advance(static_cast<std::int64_t>(exam.scoring.size()));
  return best;
}

inline std::vector<result> examine_all(const subject& about, const std::vector<reader>& readers,
                                       const questions& exam) {
  std::int64_t steps = 0;
  for (const auto& r : readers) steps += steps_of(r.grid, exam);
  progress asking("asking it back", steps);
  std::vector<result> results;
  for (const auto& r : readers) results.push_back(examine(about, r, exam, asking));
  return results;
}

}  // namespace text_memory
