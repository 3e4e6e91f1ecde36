// SPDX-License-Identifier: Apache-2.0

// The simplified gated model trained by SGD, beside what the theory of gating says of it: docs/gating_theory.md.

#include "experiment.hpp"
#include "report.hpp"

#include "support/program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace gating;

void run(const options& chosen, const std::vector<std::string>& panels, const examples::json_option& file) {
  file.check();
  json result = {{"program", "gating_theory"}, {"batch", chosen.batch},     {"seeds", chosen.seeds},
                 {"steps", chosen.steps},      {"samples", chosen.samples}, {"seed", chosen.seed}};
  const auto asked = [&](const char* panel) { return std::find(panels.begin(), panels.end(), panel) != panels.end(); };
  if (asked("a")) result["a"] = report_a(chosen, panel_a(chosen));
  if (asked("b")) result["b"] = report_b(chosen, panel_b(chosen));
  if (asked("c")) result["c"] = report_c(chosen, panel_c(chosen));
  if (asked("d")) result["d"] = report_d(chosen, panel_d(chosen));
  file.write(result);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The simplified gated model trained by SGD, beside what the theory of gating says of it.",
               "gating_theory");
  options chosen;
  std::vector<std::string> panels = {"a", "b", "c", "d"};
  bool full = false;
  constexpr std::int64_t most = 1 << 24;
  app.add_option("--panels", panels, "some of a, b, c, d")
      ->check(CLI::IsMember({"a", "b", "c", "d"}))
      ->capture_default_str();
  app.add_option("--batch", chosen.batch, "contexts a step")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->capture_default_str();
  auto* seeds = app.add_option("--seeds", chosen.seeds, "trainings that are averaged, panels a and b")
                    ->check(CLI::Range(std::int64_t{1}, most))
                    ->capture_default_str();
  auto* steps = app.add_option("--steps", chosen.steps, "of training, panels c and d")
                    ->check(CLI::Range(std::int64_t{1}, most))
                    ->capture_default_str();
  auto* samples = app.add_option("--samples", chosen.samples, "contexts that an accuracy is measured on")
                      ->check(CLI::Range(std::int64_t{1}, most))
                      ->capture_default_str();
  app.add_option("--context-c", chosen.context_c, "tokens of a context, panel c")
      ->check(CLI::Range(8, 1 << 16))
      ->capture_default_str();
  app.add_option("--context-d", chosen.context_d, "tokens of a context, panel d")
      ->check(CLI::Range(2, 1 << 16))
      ->capture_default_str();
  app.add_option("--seed", chosen.seed, "of the random numbers")->check(CLI::Range(0, 1 << 30))->capture_default_str();
  app.add_flag("--full", full, "32 trainings, 1000 steps, 16384 contexts: half an hour")
      ->excludes(seeds)
      ->excludes(steps)
      ->excludes(samples);
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] {
    if (full) {
      chosen.seeds = 32;
      chosen.steps = 1000;
      chosen.samples = 16384;
    }
    run(chosen, panels, file);
  });
}
