// SPDX-License-Identifier: Apache-2.0

// Retrieval over the segments of a context, untrained on texts and trained on chains of facts:
// docs/segment_retrieval.md.

#include "report.hpp"
#include "text_experiment.hpp"
#include "training.hpp"

#include "support/program.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace segment_retrieval;
  CLI::App app("Finds the segments that a question of two hops needs.", "segment_retrieval");
  text_options text{.file = SEGMENT_RETRIEVAL_QUESTIONS};
  training_options training;
  std::string part = "all";
  constexpr std::int64_t many = 1'000'000;
  app.add_option("--file", text.file, "questions with their paragraphs, in MuSiQue's JSON format")
      ->capture_default_str();
  app.add_option("--routing-dim", text.routing_dim, "entries of a word's vector")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--vector-seeds", text.vector_seeds, "how many sets of random word vectors")
      ->check(CLI::Range(std::int64_t{1}, many))
      ->capture_default_str();
  app.add_option("--chains", training.questions.chains, "chains of two facts in a synthetic question")
      ->check(CLI::Range(2, 16))
      ->capture_default_str();
  app.add_option("--retrievers", training.retrievers, "which of them to train; default: all")
      ->check(CLI::IsMember(retriever_names()));
  app.add_option("--seeds", training.seeds, "how often each retriever is trained")
      ->check(CLI::Range(std::int64_t{1}, many))
      ->capture_default_str();
  app.add_option("--steps", training.steps, "steps of training")
      ->check(CLI::Range(std::int64_t{1}, many))
      ->capture_default_str();
  app.add_option("--batch", training.batch, "questions a step")
      ->check(CLI::Range(std::int64_t{1}, many))
      ->capture_default_str();
  app.add_option("--tests", training.tests, "questions asked of each trained retriever")
      ->check(CLI::Range(std::int64_t{1}, many))
      ->capture_default_str();
  app.add_option("--dim", training.dim, "model dims of MaRA; the others get as many parameters")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--part", part, "text: untrained scorers on the file; chains: trained retrievers; all: both")
      ->check(CLI::IsMember({"text", "chains", "all"}))
      ->capture_default_str();
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] {
    file.check();
    training.questions.entities = 3 * training.questions.chains;
    examples::json result = {{"program", "segment_retrieval"}};
    if (part != "chains") {
      const text_collection texts = text_collection::read(text.file);
      result["text"] = print_text(texts, text, compare_scorers(texts, text));
    }
    if (part != "text") {
      const auto retrievers = make_retrievers(training);
      result["chains"] = print_training(retrievers, training, train_all(retrievers, training));
    }
    file.write(result);
  });
}
