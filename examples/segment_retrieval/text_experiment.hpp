// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How many of a question's supporting paragraphs stand among its four best by each scorer.

#include "jobs.hpp"
#include "musique.hpp"
#include "scorers.hpp"
#include "statistics.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace segment_retrieval {

inline constexpr std::size_t paragraphs_shown = 4;

struct text_options {
  std::string file;
  std::int64_t routing_dim = 128;
  std::int64_t vector_seeds = 3;
};

struct text_row {
  std::string scorer;
  double recall;      ///< mean over questions and seeds
  double error;       ///< standard error of that over the questions
  double by_seed;     ///< standard deviation over the word vectors' seeds
  double above_bm25;  ///< mean of the difference, question by question
  double above_bm25_error;
};

namespace detail_text {

inline const std::array<const char*, 4> scorers = {"bm25", "meanpool", "merlin, variance", "merlin, mixed"};

/// recalls[scorer][seed][question]
using all_recalls = std::array<std::vector<std::vector<double>>, scorers.size()>;

inline text_row summarise(const all_recalls& recalls, std::size_t scorer) {
  const auto& own = recalls[scorer];
  const std::size_t seeds = own.size(), questions = own.front().size();
  std::vector<double> of_question(questions), difference(questions), of_seed;
  for (const auto& by_question : own) {
    of_seed.push_back(summary(by_question).mean);
    for (std::size_t q = 0; q < questions; ++q) of_question[q] += by_question[q] / static_cast<double>(seeds);
  }
  for (std::size_t q = 0; q < questions; ++q) difference[q] = of_question[q] - recalls[0].front()[q];
  const double root = std::sqrt(static_cast<double>(questions));
  const summary all(of_question), beside(difference);
  return {scorers[scorer],        all.mean, all.deviation / root, summary(of_seed).deviation, beside.mean,
          beside.deviation / root};
}

}  // namespace detail_text

inline std::vector<text_row> compare_scorers(const text_collection& texts, const text_options& chosen) {
  using namespace detail_text;
  const auto& questions = texts.questions();
  all_recalls recalls;
  for (auto& r : recalls) {
    r.assign(static_cast<std::size_t>(chosen.vector_seeds), std::vector<double>(questions.size()));
  }
  recalls[0].resize(1);
  const auto count = static_cast<std::int64_t>(questions.size());
  shared_progress shown("scoring paragraphs", count * chosen.vector_seeds);
  for (std::int64_t seed = 0; seed < chosen.vector_seeds; ++seed) {
    const word_keys keys(texts, chosen.routing_dim, static_cast<std::uint64_t>(seed));
    for_each_job(count, [&](std::int64_t i) {
      const text_question& q = questions[static_cast<std::size_t>(i)];
      const auto keep = [&](std::size_t scorer, std::int64_t s, const std::vector<double>& scores) {
        recalls[scorer][static_cast<std::size_t>(s)][static_cast<std::size_t>(i)] =
            recall(q.supporting, best(scores, paragraphs_shown));
      };
      if (seed == 0) keep(0, 0, bm25(texts, q));
      const paragraph_bank bank(keys, q);
      keep(1, seed, bank.meanpool());
      keep(2, seed, bank.merlin(0));
      keep(3, seed, bank.merlin(0.5F));
      shown.advance();
    });
  }
  std::vector<text_row> rows;
  for (std::size_t s = 0; s < scorers.size(); ++s) rows.push_back(summarise(recalls, s));
  return rows;
}

}  // namespace segment_retrieval
