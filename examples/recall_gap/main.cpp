// SPDX-License-Identifier: Apache-2.0

// How many key-value pairs a fixed state recalls, beside attention and what lies between: docs/recall_gap.md.

#include "experiment.hpp"
#include "stack.hpp"

#include "support/program.hpp"
#include "text_memory/progress.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace recall_gap;
using examples::fixed;
using examples::json;

json json_of(const average& a) { return {{"mean", a.mean}, {"sd", a.sd}}; }

json print_rows(const options& chosen, const std::vector<row>& rows) {
  std::printf(
      "%lld draws, N = P = %lld; gated delta rule: alpha %g; multi-state: delta rule, segments of %lld, merlin\n\n",
      static_cast<long long>(chosen.seeds), static_cast<long long>(chosen.dim), chosen.alpha,
      static_cast<long long>(chosen.segment));
  std::printf("pairs  state  expected  published  off by  attention  delta  gated delta  multi-state  bytes\n");
  json all = json::array();
  for (const row& r : rows) {
    json one = {{"pairs", r.pairs},
                {"state", json_of(r.state)},
                {"expected", json_of(r.expected)},
                {"attention", json_of(r.attention)},
                {"delta", json_of(r.delta)},
                {"gated_delta", json_of(r.gated_delta)},
                {"multi_state", json_of(r.bank)},
                {"multi_state_scales", {r.scales.gamma, r.scales.tau_mu, r.scales.tau_sigma}},
                {"bytes_state", bytes_of_state(chosen.dim, chosen.dim)},
                {"bytes_attention", bytes_of_pairs(chosen.dim, chosen.dim, r.pairs)},
                {"bytes_multi_state", bytes_of_bank(chosen.dim, chosen.dim, chosen.segment, r.pairs)}};
    std::string published = "-", off = "-";
    const auto found = published_state().find(r.pairs);
    if (chosen.dim == 32 && found != published_state().end()) {
      published = fixed(found->second, 3);
      off = fixed(deviation(r, found->second), 1);
      one["published"] = found->second;
      one["off_by"] = deviation(r, found->second);
    }
    std::printf("%5lld  %5.3f     %5.3f  %9s  %6s      %5.3f  %5.3f        %5.3f        %5.3f  %lld, %lld, %lld\n",
                static_cast<long long>(r.pairs), r.state.mean, r.expected.mean, published.c_str(), off.c_str(),
                r.attention.mean, r.delta.mean, r.gated_delta.mean, r.bank.mean, one["bytes_state"].get<long long>(),
                one["bytes_attention"].get<long long>(), one["bytes_multi_state"].get<long long>());
    all.push_back(one);
  }
  std::printf(
      "\nexpected: the state over %lld further draws; off by: of the published average of 8, in its standard\n"
      "deviations; bytes: of the state, of attention, of multi-state\n\n",
      static_cast<long long>(spread_draws));
  return all;
}

json print_stacks(const options& chosen, const char* rule, const std::vector<stack_row>& rows) {
  std::printf("stacks of r reads of %lld pairs, each with keys of its own and normalised; states by the %s rule\n\n",
              static_cast<long long>(chosen.stack_pairs), rule);
  const std::string window = "window of " + std::to_string(chosen.window);
  std::printf("   r      states              1 softmax           1 %s\n", window.c_str());
  json all = json::array();
  for (const stack_row& r : rows) {
    json one = {{"rule", rule}, {"reads", r.reads}};
    std::printf("%4lld", static_cast<long long>(r.reads));
    for (const auto& [name, cell] :
         {std::pair{"states", r.states}, {"softmax", r.with_softmax}, {"window", r.with_window}}) {
      std::printf("  %5.3f %8lld B  ", cell.recall.mean, static_cast<long long>(cell.bytes));
      one[name] = {{"recall", json_of(cell.recall)}, {"bytes", cell.bytes}};
    }
    std::printf("\n");
    all.push_back(one);
  }
  std::printf("\n");
  return all;
}

void run(const options& chosen, const examples::json_option& file) {
  file.check();
  std::vector<row> rows;
  std::vector<stack_row> linear, delta;
  {
    text_memory::progress done("recalling", static_cast<std::int64_t>(chosen.pairs.size() + 2 * chosen.reads.size()));
    for (const std::int64_t m : chosen.pairs) {
      rows.push_back(measure(chosen, m));
      done.advance();
    }
    for (const std::int64_t r : chosen.reads) {
      linear.push_back(measure_stack<ps::rule::linear>(chosen, r));
      done.advance();
      delta.push_back(measure_stack<ps::rule::delta>(chosen, r));
      done.advance();
    }
  }
  json result = {{"program", "recall_gap"},
                 {"seeds", chosen.seeds},
                 {"dim", chosen.dim},
                 {"beta", chosen.beta},
                 {"alpha", chosen.alpha},
                 {"segment", chosen.segment},
                 {"stack_pairs", chosen.stack_pairs},
                 {"window", chosen.window}};
  result["rows"] = print_rows(chosen, rows);
  result["stacks"] = print_stacks(chosen, "linear", linear);
  for (json& one : print_stacks(chosen, "delta", delta)) result["stacks"].push_back(one);
  file.write(result);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How many key-value pairs a fixed state recalls, beside attention and what lies between.", "recall_gap");
  options chosen;
  app.add_option("--pairs", chosen.pairs, "pairs written, one or several numbers")
      ->check(CLI::Range(std::int64_t{1}, most_pairs))
      ->capture_default_str();
  app.add_option("--dim", chosen.dim, "entries of a key and of a value")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  app.add_option("--seeds", chosen.seeds, "draws that are averaged")
      ->check(CLI::Range(std::int64_t{1}, most_seeds))
      ->capture_default_str();
  app.add_option("--seed", chosen.seed, "of the first draw")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  app.add_option("--beta", chosen.beta, "inverse temperature of attention")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--alpha", chosen.alpha, "decay a token of the gated delta rule")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--segment", chosen.segment, "pairs that share a state of multi-state")
      ->check(CLI::Range(std::int64_t{1}, most_pairs))
      ->capture_default_str();
  app.add_option("--stack-pairs", chosen.stack_pairs, "pairs that the stacks read")
      ->check(CLI::Range(std::int64_t{1}, most_pairs))
      ->capture_default_str();
  app.add_option("--window", chosen.window, "pairs that a sliding-window read sees")
      ->check(CLI::Range(std::int64_t{1}, most_pairs))
      ->capture_default_str();
  app.add_option("--reads", chosen.reads, "r, one or several numbers")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] { run(chosen, file); });
}
