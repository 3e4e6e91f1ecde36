// SPDX-License-Identifier: Apache-2.0

// What token-modulated low-rank adapters cost, and what a decoder that forgets their state gets wrong:
// docs/token_modulation.md.

#include "adapter.hpp"
#include "cost.hpp"
#include "discrepancy.hpp"

#include "support/program.hpp"
#include "text_memory/progress.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace token_modulation;
using examples::json;

struct options {
  sizes adapter;
  std::int64_t width = 4096;
  std::int64_t tokens = 64;
  std::int64_t decoded_width = 256;
  std::int64_t seeds = 128;
  std::uint64_t seed = 0;
};

json print_costs(const options& chosen) {
  const sizes n = chosen.adapter.resolved();
  std::printf(
      "a layer of %lld x %lld, rank %lld; block: width %lld, channels %lld, taps %lld, dt rank %lld, states %lld\n\n",
      static_cast<long long>(n.dout), static_cast<long long>(n.din), static_cast<long long>(n.rank),
      static_cast<long long>(n.dp), static_cast<long long>(n.di), static_cast<long long>(n.taps),
      static_cast<long long>(n.dt_rank), static_cast<long long>(n.states));
  std::printf("%-16s %12s %9s %16s %9s %12s\n", "adapter", "parameters", "of LoRA", "mults a token", "of layer",
              "state bytes");
  json rows = json::array();
  const std::vector<cost> all = costs_of(n);
  const auto layer = static_cast<double>(n.din * n.dout);
  for (const cost& c : all) {
    const double of_lora = static_cast<double>(c.parameters) / static_cast<double>(all.front().parameters);
    const double of_layer = static_cast<double>(c.multiplications) / layer;
    std::printf("%-16s %12lld %8.3fx %16lld %8.2f%% %12lld\n", c.name.c_str(), static_cast<long long>(c.parameters),
                of_lora, static_cast<long long>(c.multiplications), 100 * of_layer,
                static_cast<long long>(c.state_bytes));
    rows.push_back({{"adapter", c.name},
                    {"parameters", c.parameters},
                    {"parameters_of_lora", of_lora},
                    {"multiplications_a_token", c.multiplications},
                    {"multiplications_of_layer", of_layer},
                    {"state_bytes", c.state_bytes}});
  }
  return rows;
}

json values_of(const vector& v) { return std::vector<double>(v.begin(), v.end()); }
json both_of(const series& s) {
  return {{"mean", values_of(s.positions.mean())},
          {"deviation", values_of(s.positions.deviation())},
          {"mean_of_ranges", values_of(s.ranges.mean())},
          {"deviation_of_ranges", values_of(s.ranges.deviation())}};
}

void print_discrepancy(const std::string& name, const discrepancies& d, std::int64_t tokens) {
  std::printf("\nMaLoRA %s: nothing carried                                    carried: window   scan state\n",
              name.c_str());
  std::printf("%9s %18s %18s %18s %13s %12s\n", "position", "lam / its spread", "lam", "update", "alone", "alone");
  const std::vector<range> ranges = ranges_of(tokens);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto row = static_cast<Eigen::Index>(i);
    const auto cell = [&](const series& s) {
      char text[32];
      std::snprintf(text, sizeof text, "%.3f +- %.3f", s.ranges.mean()(row), s.ranges.deviation()(row));
      return std::string(text);
    };
    const auto [first, last] = ranges[i];
    const std::string where = std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
    std::printf("%9s %18s %18s %18s %13.3f %12.3f\n", where.c_str(), cell(d.spread).c_str(), cell(d.lam).c_str(),
                cell(d.update).c_str(), d.with_window.ranges.mean()(row), d.with_state.ranges.mean()(row));
  }
  std::printf("both carried: the full pass, largest difference of the update %g\n", d.largest_with_both);
}

json print_discrepancies(const options& chosen) {
  std::vector<discrepancies> forms(2);
  {
    text_memory::progress shown("decoding", 2 * chosen.seeds);
    for (std::int64_t i = 0; i < chosen.seeds; ++i) {
      for (const bool diagonal : {false, true}) {
        sizes n = chosen.adapter;
        n.din = n.dout = chosen.decoded_width;
        n.diagonal = diagonal;
        const auto seed = chosen.seed + 2 * static_cast<std::uint64_t>(i);
        std::mt19937_64 random(seed + 1);
        measure(forms[diagonal ? 1 : 0], adapter(n, seed), gaussian(random, chosen.tokens, n.din));
        shown.advance();
      }
    }
  }
  std::printf(
      "\ndecoding that forgets, against the full pass: %lld tokens of normal numbers, %lld adapters with random,\n"
      "untrained weights (width %lld), mean +- deviation. The paper, trained modulators, a measure of its own: 0.13 "
      "at\n"
      "position 1, 0.61 to 0.63 later.\n",
      static_cast<long long>(chosen.tokens), static_cast<long long>(chosen.seeds),
      static_cast<long long>(chosen.decoded_width));
  json rows = json::array();
  for (const bool diagonal : {false, true}) {
    const discrepancies& d = forms[diagonal ? 1 : 0];
    const std::string name = diagonal ? "diagonal" : "scalar";
    print_discrepancy(name, d, chosen.tokens);
    rows.push_back({{"form", name},
                    {"of_spread", both_of(d.spread)},
                    {"of_lam", both_of(d.lam)},
                    {"of_update", both_of(d.update)},
                    {"of_spread_with_window", both_of(d.with_window)},
                    {"of_spread_with_state", both_of(d.with_state)},
                    {"largest_difference_with_both", d.largest_with_both}});
  }
  return rows;
}

void run(options chosen, const examples::json_option& file) {
  file.check();
  chosen.adapter.din = chosen.adapter.dout = chosen.width;
  const sizes n = chosen.adapter.resolved();
  json result = {
      {"program", "token_modulation"},
      {"width", chosen.width},
      {"rank", n.rank},
      {"block", {{"width", n.dp}, {"channels", n.di}, {"taps", n.taps}, {"dt_rank", n.dt_rank}, {"states", n.states}}},
      {"tokens", chosen.tokens},
      {"seeds", chosen.seeds},
      {"weights", "random, untrained"}};
  result["cost"] = print_costs(chosen);
  result["discrepancy"] = print_discrepancies(chosen);
  file.write(result);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What token-modulated adapters cost, and what a decoder that forgets their state gets wrong.",
               "token_modulation");
  options chosen;
  sizes& n = chosen.adapter;
  const auto size = [&](const char* name, std::int64_t& value, const char* what, std::int64_t least,
                        std::int64_t most) {
    return app.add_option(name, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  size("--width", chosen.width, "inputs and outputs of the layer", 1, 65536);
  size("--rank", n.rank, "of the adapter", 1, 4096);
  size("--block-width", n.dp, "of the block that modulates", 1, 4096);
  size("--block-channels", n.di, "0: twice its width", 0, 16384);
  size("--taps", n.taps, "of the block's convolution", 1, 64);
  size("--dt-rank", n.dt_rank, "0: a sixteenth of the block's width", 0, 4096);
  size("--states", n.states, "of a channel", 1, 256);
  size("--decoded-width", chosen.decoded_width, "inputs and outputs of the layer that is decoded", 1, 65536);
  size("--tokens", chosen.tokens, "of a sequence", 2, 65536);
  size("--seeds", chosen.seeds, "adapters and sequences to average over", 1, 10000);
  app.add_option("--seed", chosen.seed, "of the first adapter")
      ->check(CLI::Range(0, 2'147'483'647))
      ->capture_default_str();
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] { run(chosen, file); });
}
