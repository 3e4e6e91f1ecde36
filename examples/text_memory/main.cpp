// SPDX-License-Identifier: Apache-2.0

// Writes a text into memory states and asks for the word behind each pair of words: docs/text_memory.md.

#include "estimate.hpp"
#include "memory.hpp"
#include "readers.hpp"
#include "report.hpp"
#include "score.hpp"
#include "sweep.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace text_memory;

/// A text of some length that most machines have, else the licence in this project's folder.
std::string default_text() {
  const std::string installed = "/usr/share/common-licenses/GPL-3";
  return std::filesystem::exists(installed) ? installed : TEXT_MEMORY_FALLBACK;
}

struct options {
  std::string path = default_text();
  std::int64_t segment_length = 64;
  std::int64_t dim = 128;
  std::int64_t routing_dim = 0;  // 0: dim
  std::optional<std::string> ask;
  std::size_t questions = 3000;
  std::uint32_t seed = 0;
  bool sweep = false;
};

void print_subject(const options& chosen, const text& words) {
  std::printf("text: %s\n%zu tokens, %zu distinct words", chosen.path.c_str(), words.tokens(), words.distinct_words());
}

void print_exam(const questions& exam) {
  std::printf("%zu questions", exam.all);
  if (exam.is_sample()) std::printf(", a sample of %zu", exam.kept);
  std::printf(": %zu choose the scales, %zu score\n\n", exam.choosing.size(), exam.scoring.size());
}

void run(const options& chosen) {
  const std::int64_t routing_dim = chosen.routing_dim == 0 ? chosen.dim : chosen.routing_dim;
  if (routing_dim > chosen.dim) {
    throw bad_input("--routing-dim " + std::to_string(routing_dim) + " is more than --dim " +
                    std::to_string(chosen.dim));
  }
  const text words = read_text(chosen.path);
  std::vector<std::size_t> asked;
  if (chosen.ask) {
    const auto phrase = split_into_words(*chosen.ask);
    if (phrase.size() != 2) throw bad_input("--ask takes two words, not " + std::to_string(phrase.size()));
    asked = words.find(phrase[0], phrase[1]);
  }

  memory::check_affordable(static_cast<std::int64_t>(words.tokens()), chosen.segment_length, chosen.dim, routing_dim);
  const questions exam(words.questions(), {chosen.questions, chosen.seed});
  announce(estimate(words, exam, {chosen.segment_length, chosen.dim, routing_dim}, make_readers), exam);

  const text_vectors vectors(words, chosen.dim, routing_dim, chosen.seed);
  const memory written(vectors, chosen.segment_length);
  const std::vector<reader> readers = make_readers(vectors, written);
  const subject about{words, vectors, static_cast<std::size_t>(chosen.segment_length)};
  const std::vector<result> results = examine_all(about, readers, exam);

  print_subject(chosen, words);
  std::printf(", %zu segments of %zu tokens\n", static_cast<std::size_t>(written.segments().counters().segments),
              about.segment_length);
  print_exam(exam);
  print_header();
  for (std::size_t i = 0; i < readers.size(); ++i) print_row(readers[i], results[i]);
  if (!asked.empty()) print_recall(about, readers, results, asked);
}

void run_sweep(const options& chosen) {
  const text words = read_text(chosen.path);
  const sweep all(words, chosen.dim, {chosen.questions, chosen.seed});
  const sweep_result found = all.run();
  print_subject(chosen, words);
  std::printf("\n");
  print_exam(all.exam());
  print_sweep(found);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int bad_input_status = 2;
  CLI::App app("Writes a text into memory states and asks for the word behind each pair of words.", "text_memory");
  options chosen;
  app.add_option("--text", chosen.path, "text file")->capture_default_str();
  auto* segment_length = app.add_option("--segment-length", chosen.segment_length, "tokens that share a state")
                             ->check(CLI::Range(1, 1'000'000'000))
                             ->capture_default_str();
  app.add_option("--dim", chosen.dim, "entries of a word's vector")->check(CLI::Range(1, 1024))->capture_default_str();
  auto* routing_dim =
      app.add_option("--routing-dim", chosen.routing_dim, "entries of a key that routers see; default: all")
          ->check(CLI::Range(1, 1024));
  auto* ask = app.add_option("--ask", chosen.ask, "two words of the text: show what each reader recalls behind them");
  app.add_option("--questions", chosen.questions, "at most so many are asked, of a longer text a sample by --seed")
      ->check(CLI::Range(2, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--seed", chosen.seed, "of the words' random vectors, and of the sample of questions")
      ->check(CLI::Range(0, 2'147'483'647))
      ->capture_default_str();
  app.add_flag("--sweep", chosen.sweep, "merlin over segment lengths and routing dims, and its top k: minutes")
      ->excludes(segment_length)
      ->excludes(routing_dim)
      ->excludes(ask);
  try {
    app.parse(argc, argv);
    if (chosen.sweep) {
      run_sweep(chosen);
    } else {
      run(chosen);
    }
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "text_memory: %s\n", e.what());
    return bad_input_status;
  }
  return 0;
}
