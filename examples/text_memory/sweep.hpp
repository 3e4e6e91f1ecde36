// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What merlin answers at other segment lengths and routing dims, and where it reads its best segments only, beside
/// the bytes that this takes.

#include "estimate.hpp"
#include "memory.hpp"
#include "progress.hpp"
#include "readers.hpp"
#include "report.hpp"
#include "score.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <polystate/memory_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

namespace text_memory {

/// merlin's answers with one choice of sizes.
struct sweep_cell {
  std::int64_t segment_length;
  std::int64_t routing_dim;
  std::size_t bytes;  ///< kept
  score scored;
  std::string scales;
};

/// merlin's answers from its k best segments alone.
struct sweep_top_k {
  std::int64_t k;
  std::int64_t bytes_read;  ///< a question
  score scored;
};

struct sweep_result {
  std::vector<sweep_cell> cells;
  std::vector<sweep_top_k> top_k;  ///< with the sizes and the scales of cells[top_k_of]
  std::size_t top_k_of = 0;
  std::int64_t bytes_read_by_all = 0;  ///< a question, there
  std::size_t bytes_of_pairs = 0;      ///< what softmax attention keeps
};

class sweep {
 public:
  sweep(const text& words, std::int64_t dim, const sampling& sample)
      : words_(words), exam_(words.questions(), sample), dim_(dim), seed_(sample.seed) {
    for (const std::int64_t r : {16, 32, 64, 128}) {
      if (r <= dim) routing_dims_.push_back(r);
    }
    if (routing_dims_.empty()) routing_dims_.push_back(dim);
    memory::check_affordable(static_cast<std::int64_t>(words.tokens()), segment_lengths[0], dim, routing_dims_.back());
  }

  /// Asks every cell, each with scales chosen for it.
  [[nodiscard]] sweep_result run() const {
    sweep_result found;
    announce(expected(), exam_);
    progress asking("sweeping", steps());
    for (const std::int64_t r : routing_dims_) {
      const text_vectors vectors(words_, dim_, r, seed_);
      found.bytes_of_pairs = bytes_of_pairs(vectors);
      for (const std::int64_t m : segment_lengths) {
        const memory written(vectors, m, &asking);
        const subject about{words_, vectors, static_cast<std::size_t>(m)};
        const reader merlin_here = merlin_reader(written);
        const result best = examine(about, merlin_here, exam_, asking);
        found.cells.push_back({m, r, merlin_here.bytes, best.scored, text_of(merlin_here, best.chosen)});
        if (m == top_k_segment_length && r == routing_dims_.back()) {
          found.top_k_of = found.cells.size() - 1;
          found.bytes_read_by_all = bytes_read(written, merlin{});
          for (const std::int64_t k : ks) found.top_k.push_back(ask_top_k(about, written, best.chosen, k, asking));
        }
      }
    }
    return found;
  }

  [[nodiscard]] const questions& exam() const { return exam_; }

 private:
  static constexpr std::int64_t segment_lengths[] = {32, 64, 128, 256, 512};
  static constexpr std::int64_t ks[] = {1, 2, 4, 8};
  static constexpr std::int64_t top_k_segment_length = 64;

  [[nodiscard]] std::int64_t steps() const {
    const auto tokens = static_cast<std::int64_t>(words_.tokens());
    const auto cells = static_cast<std::int64_t>(std::size(segment_lengths) * routing_dims_.size());
    return cells * (memory::steps(tokens) + steps_of(merlin_grid(), exam_)) +
           static_cast<std::int64_t>(std::size(ks) * exam_.scoring.size());
  }

  [[nodiscard]] cost expected() const {
    cost sum;
    for (const std::int64_t r : routing_dims_) {
      for (const std::int64_t m : segment_lengths) {
        sum += estimate(words_, exam_, {m, dim_, r},
                        [](const text_vectors&, const memory& written) { return std::vector{merlin_reader(written)}; });
      }
    }
    return sum;
  }

  template <class Router>
  static std::int64_t bytes_read(const memory& written, const Router& router) {
    const bank& segments = written.segments();
    return ps::plan_memory<float>(segments.shape(), written.separation(), router, segments.counters().tokens).read;
  }

  [[nodiscard]] sweep_top_k ask_top_k(const subject& about, const memory& written, const scales& chosen, std::int64_t k,
                                      progress& asking) const {
    reader best_k = merlin_reader(written);
    best_k.grid = {chosen};
    best_k.read = [&written, k](const queries& asked, const scales& s) {
      return read_by_merlin(written.segments(), asked, s, k);
    };
    return {k, bytes_read(written, ps::router::top_k<merlin>{.of = {}, .k = k}),
            examine(about, best_k, exam_, asking).scored};
  }

  const text& words_;
  questions exam_;
  std::int64_t dim_;
  std::uint32_t seed_;
  std::vector<std::int64_t> routing_dims_;
};

/// Bytes as a part of what softmax attention keeps.
inline std::string share(std::size_t bytes, std::size_t of) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) / static_cast<double>(of));
  return text;
}

inline void print_sweep(const sweep_result& found) {
  std::printf("merlin, each row with scales of its own; softmax attention keeps %zu bytes\n\n", found.bytes_of_pairs);
  std::printf("%8s %12s %10s %13s %11s %11s  %s\n", "segment", "routing dim", "right (%)", "own seg. (%)", "bytes kept",
              "of softmax", "scales");
  for (const auto& c : found.cells) {
    std::printf("%8lld %12lld %10s %13s %11zu %11s  %s\n", static_cast<long long>(c.segment_length),
                static_cast<long long>(c.routing_dim), percentage(c.scored.right, c.scored.asked).c_str(),
                percentage(c.scored.own_segment, c.scored.asked).c_str(), c.bytes,
                share(c.bytes, found.bytes_of_pairs).c_str(), c.scales.c_str());
  }
  const sweep_cell& all = found.cells[found.top_k_of];
  std::printf("\nits k best segments alone, segments of %lld, routing dim %lld\n\n",
              static_cast<long long>(all.segment_length), static_cast<long long>(all.routing_dim));
  std::printf("%8s %10s %20s %11s\n", "k", "right (%)", "bytes read (a query)", "of all");
  const auto row = [&](const std::string& k, const score& of, std::int64_t bytes) {
    std::printf("%8s %10s %20lld %11s\n", k.c_str(), percentage(of.right, of.asked).c_str(),
                static_cast<long long>(bytes),
                share(static_cast<std::size_t>(bytes), static_cast<std::size_t>(found.bytes_read_by_all)).c_str());
  };
  for (const auto& best : found.top_k) row(std::to_string(best.k), best.scored, best.bytes_read);
  row("all", all.scored, found.bytes_read_by_all);
}

}  // namespace text_memory
