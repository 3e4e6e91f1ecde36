// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the program prints, and the same as JSON.

#include "text_experiment.hpp"
#include "training.hpp"

#include "support/program.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace segment_retrieval {

using examples::json;

inline json print_text(const text_collection& texts, const text_options& chosen, const std::vector<text_row>& rows) {
  const std::string name = std::filesystem::path(chosen.file).filename().string();
  std::printf("%s: %zu questions, %zu distinct paragraphs; no training\n", name.c_str(), texts.questions().size(),
              texts.distinct_paragraphs());
  std::printf("recall of supporting paragraphs among the %zu best; %lld sets of word vectors of %lld entries\n\n",
              paragraphs_shown, static_cast<long long>(chosen.vector_seeds),
              static_cast<long long>(chosen.routing_dim));
  std::printf("%-17s  recall@%zu  +- error  +- vectors  beside bm25  +- error\n", "scorer", paragraphs_shown);
  json all = json::array();
  for (const text_row& r : rows) {
    const bool random = r.scorer != rows.front().scorer;
    std::printf("%-17s  %8.3f  %8.3f", r.scorer.c_str(), r.recall, r.error);
    json one = {{"scorer", r.scorer}, {"recall", r.recall}, {"error", r.error}};
    if (random) {
      std::printf("  %10.3f  %+11.3f  %8.3f\n", r.by_seed, r.above_bm25, r.above_bm25_error);
      one["deviation_by_vectors"] = r.by_seed;
      one["above_bm25"] = r.above_bm25;
      one["above_bm25_error"] = r.above_bm25_error;
    } else {
      std::printf("  %10s  %11s  %8s\n", "-", "-", "-");
    }
    all.push_back(one);
  }
  std::printf("\n");
  return {{"file", name},
          {"questions", texts.questions().size()},
          {"paragraphs", texts.distinct_paragraphs()},
          {"routing_dim", chosen.routing_dim},
          {"vector_seeds", chosen.vector_seeds},
          {"rows", all}};
}

/// The recall that is left, where the first fact is always found, to scores that see each segment by itself: the second
/// is any of the others. And to those that know the order of the segments too, but not what the others say.
struct chance {
  double by_itself;
  double with_order;

  explicit chance(std::int64_t chains) {
    const auto N = static_cast<double>(2 * chains);
    by_itself = (1 + 1 / (N - 1)) / 2;
    // The chain stands at any two of the N places with the same probability. The place of its first fact leaves those
    // behind it, each as probable: a guess is right for one of the N - 1 first places' pairs, of N (N - 1) / 2 in all.
    with_order = (1 + 2 / N) / 2;
  }
};

inline json print_training(const std::vector<retriever>& retrievers, const training_options& chosen,
                           const std::vector<std::vector<trained_result>>& results) {
  const chance at_best(chosen.questions.chains);
  std::printf("chains of two facts, %lld segments a question, %lld seeds, %lld steps of %lld questions, %lld asked\n",
              static_cast<long long>(chosen.questions.segments()), static_cast<long long>(chosen.seeds),
              static_cast<long long>(chosen.steps), static_cast<long long>(chosen.batch),
              static_cast<long long>(chosen.tests));
  std::printf("recall of both facts among the two best; at best %.3f by segments alone, %.3f with their order\n\n",
              at_best.by_itself, at_best.with_order);
  std::printf("%-17s  parameters      one pass    second fact   global head       chained     loss\n", "retriever");
  json all = json::array();
  for (std::size_t i = 0; i < retrievers.size(); ++i) {
    const auto of = [&](double trained_result::*figure) {
      std::vector<double> values;
      for (const auto& r : results[i]) values.push_back(r.*figure);
      return summary(values);
    };
    json one = {{"retriever", retrievers[i].name}, {"parameters", retrievers[i].parameters()}};
    std::printf("%-17s  %10lld", retrievers[i].name.c_str(), static_cast<long long>(retrievers[i].parameters()));
    const auto print = [&](const char* name, double trained_result::*figure) {
      const summary s = of(figure);
      std::printf("  %.3f +-%.3f", s.mean, s.deviation);
      one[name] = {{"mean", s.mean}, {"sd", s.deviation}};
    };
    print("one_pass", &trained_result::recall);
    print("second_fact", &trained_result::second_hop);
    print("global", &trained_result::global);
    print("chained", &trained_result::chained);
    const summary loss = of(&trained_result::loss);
    one["loss"] = {{"mean", loss.mean}, {"sd", loss.deviation}};
    std::printf("  %7.3f\n", loss.mean);
    all.push_back(one);
  }
  std::printf("\n+-: standard deviation over seeds\n");
  return {{"chains", chosen.questions.chains},
          {"segments", chosen.questions.segments()},
          {"dim", chosen.dim},
          {"seeds", chosen.seeds},
          {"steps", chosen.steps},
          {"batch", chosen.batch},
          {"tests", chosen.tests},
          {"best_by_itself", at_best.by_itself},
          {"best_with_order", at_best.with_order},
          {"rows", all}};
}

}  // namespace segment_retrieval
