// SPDX-License-Identifier: Apache-2.0

// What a bank of states costs in memory and parameters, from the planner: docs/memory_cost.md.

#include "models.hpp"

#include "support/program.hpp"

#include <polystate/memory_plan.hpp>
#include <polystate/parameter_plan.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

namespace ps = polystate;
using namespace memory_cost;
using examples::fixed;
using examples::json;

// States and moments in float, keys and values in bfloat16: what the ratio to a KV cache is about.
using merlin = ps::router::merlin<ps::bfloat16>;

struct options {
  std::int64_t tokens = 16384;
  std::vector<std::int64_t> segments = {512, 256, 128, 64};
  std::vector<std::int64_t> routing_dims = {16, 32, 64, 128};
  model own{"own", {.H = 0}, 0, 0};
};

json memory_rows(const model& of, const options& chosen) {
  json rows = json::array();
  std::printf("%s: %lld heads, states of %lld x %lld, moments of %lld; %lld tokens\n\n", of.name.c_str(),
              static_cast<long long>(of.heads.H), static_cast<long long>(of.heads.dk),
              static_cast<long long>(of.heads.dv), static_cast<long long>(of.heads.HR),
              static_cast<long long>(chosen.tokens));
  std::printf("segment  d_r  states     bytes a layer  of one state  of keys and values\n");
  for (const std::int64_t m : chosen.segments) {
    for (const std::int64_t dr : chosen.routing_dims) {
      const auto plan =
          ps::plan_memory<ps::bfloat16>(of.with_routing_dim(dr), ps::separation::uniform{m}, merlin{}, chosen.tokens);
      const std::string ratio = fixed(plan.ratio_to_single_state(), 1), to_kv = fixed(plan.ratio_to_kv_cache(), 3);
      std::printf("%7lld %4lld %7lld %17lld %12sx %18sx\n", static_cast<long long>(m), static_cast<long long>(dr),
                  static_cast<long long>(plan.entries), static_cast<long long>(plan.bytes()), ratio.c_str(),
                  to_kv.c_str());
      rows.push_back({{"model", of.name},
                      {"segment", m},
                      {"d_r", dr},
                      {"states", plan.entries},
                      {"bytes", plan.bytes()},
                      {"bytes_single_state", plan.single_state},
                      {"bytes_kv_cache", plan.kv_cache},
                      {"ratio", ratio},
                      {"ratio_to_kv_cache", to_kv}});
    }
  }
  std::printf("\n");
  return rows;
}

json parameter_rows(const model& of, const options& chosen) {
  json rows = json::array();
  for (const std::int64_t dr : chosen.routing_dims) {
    const auto plan = ps::plan_parameters(of.with_routing_dim(dr), merlin{}, of.d_model);
    json row = {{"model", of.name},      {"d_r", dr},
                {"d_model", of.d_model}, {"queries", plan.queries},
                {"keys", plan.keys},     {"mixing", plan.mixing},
                {"scales", plan.scales}, {"parameters", plan.total()}};
    std::string share = "-";
    if (of.mixer_parameters > 0) {
      share = fixed(100 * static_cast<double>(plan.total()) / static_cast<double>(of.mixer_parameters), 2);
      row["mixer_parameters"] = of.mixer_parameters;
      row["per_cent_of_mixer"] = share;
    }
    std::printf("%-14s %4lld %12lld %10lld %9s\n", of.name.c_str(), static_cast<long long>(dr),
                static_cast<long long>(2 * plan.queries), static_cast<long long>(plan.total()), share.c_str());
    rows.push_back(row);
  }
  return rows;
}

void run(const options& chosen, const examples::json_option& file) {
  file.check();
  const std::vector<model> models = chosen.own.heads.H > 0 ? std::vector<model>{chosen.own} : published_models();
  json result = {
      {"program", "memory_cost"}, {"tokens", chosen.tokens}, {"memory", json::array()}, {"parameters", json::array()}};
  for (const model& of : models) {
    for (json& row : memory_rows(of, chosen)) result["memory"].push_back(row);
  }
  std::printf("parameters that the router adds to a layer\n\n");
  std::printf("%-14s %4s %12s %10s %9s\n", "model", "d_r", "q' and k'", "all", "of mixer");
  for (const model& of : models) {
    for (json& row : parameter_rows(of, chosen)) result["parameters"].push_back(row);
  }
  file.write(result);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What a bank of memory states costs in memory and parameters, from the planner.", "memory_cost");
  options chosen;
  constexpr std::int64_t most = 1 << 24;
  app.add_option("--tokens", chosen.tokens, "tokens of the context")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->capture_default_str();
  app.add_option("--segments", chosen.segments, "tokens that share a state, one or several")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->capture_default_str();
  app.add_option("--routing-dims", chosen.routing_dims, "d_r, one or several")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  auto* own = app.add_option_group("a layer of your own, instead of the published ones");
  auto& shape = chosen.own.heads;
  auto* heads = own->add_option("--heads", shape.H, "states a layer");
  const auto needs_heads = [&](CLI::Option* option) { return option->check(CLI::Range(1, 1 << 20))->needs(heads); };
  heads->check(CLI::Range(1, 1 << 20))
      ->needs(needs_heads(own->add_option("--dk", shape.dk, "columns of a state")))
      ->needs(needs_heads(own->add_option("--dv", shape.dv, "rows of a state")))
      ->needs(needs_heads(own->add_option("--moment-heads", shape.HR, "moments a segment; fewer where heads share")))
      ->needs(needs_heads(own->add_option("--model-dim", chosen.own.d_model, "entries of the layer's input")));
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] { run(chosen, file); });
}
