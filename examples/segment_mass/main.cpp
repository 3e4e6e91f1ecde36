// SPDX-License-Identifier: Apache-2.0

// How well a segment's moments tell its softmax mass, by temperature: docs/segment_mass.md.

#include "contexts.hpp"
#include "mass.hpp"

#include "support/program.hpp"
#include "text_memory/progress.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace segment_mass;
using examples::json;

struct options {
  sizes n;
  std::int64_t draws = 8;
  std::int64_t seed = 0;
  std::vector<double> deltas = {1, 2, 4, 8, 12, 16, 24, 32, 64};
};

/// Mean over draws and its standard error.
struct measured {
  std::vector<double> draws;
  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const double x : draws) sum += x;
    return sum / static_cast<double>(draws.size());
  }
  [[nodiscard]] double error() const {
    if (draws.size() < 2) return 0;
    double squares = 0;
    for (const double x : draws) squares += (x - mean()) * (x - mean());
    const auto n = static_cast<double>(draws.size());
    return std::sqrt(squares / (n - 1) / n);
  }
};

struct row {
  double delta;
  measured uniform, first, second;     ///< misplaced mass
  measured first_named, second_named;  ///< largest segment named
  measured gain;                       ///< first - second, draw by draw
};

struct table {
  kind_text of;
  measured spread;
  std::vector<row> rows;

  /// The second moment helps where its gain is above 0 by three standard errors, at this temperature.
  static bool helps(const row& r) { return r.gain.mean() > 3 * r.gain.error(); }
};

table measure(const options& chosen, const kind_text& of, text_memory::progress& done) {
  table t{.of = of, .spread = {}, .rows = {}};
  for (const double delta : chosen.deltas)
    t.rows.push_back(
        {.delta = delta, .uniform = {}, .first = {}, .second = {}, .first_named = {}, .second_named = {}, .gain = {}});
  for (std::int64_t draw_index = 0; draw_index < chosen.draws; ++draw_index) {
    std::mt19937_64 random((static_cast<std::uint64_t>(chosen.seed) << 20U) + static_cast<std::uint64_t>(draw_index));
    const context c = draw(random, of.value, chosen.n);
    const moments_of_segments moments(c, chosen.n.m);
    t.spread.draws.push_back(moments.spread(c.queries));
    for (row& r : t.rows) {
      const MatrixXd exact = exact_mass(c, chosen.n.m, r.delta);
      const MatrixXd first = moments.first_order(c.queries, r.delta);
      const MatrixXd second = moments.second_order(c.queries, r.delta);
      const MatrixXd even = MatrixXd::Constant(exact.rows(), exact.cols(), 1 / static_cast<double>(exact.rows()));
      r.uniform.draws.push_back(misplaced(even, exact));
      r.first.draws.push_back(misplaced(first, exact));
      r.second.draws.push_back(misplaced(second, exact));
      r.gain.draws.push_back(r.first.draws.back() - r.second.draws.back());
      r.first_named.draws.push_back(same_first(first, exact));
      r.second_named.draws.push_back(same_first(second, exact));
      done.advance();
    }
  }
  return t;
}

json json_of(const measured& m) { return {{"mean", m.mean()}, {"error", m.error()}}; }

json print(const options& chosen, const table& t) {
  const double spread = t.spread.mean();
  const double limit = std::sqrt(2 * std::log(static_cast<double>(chosen.n.m))) / spread;
  std::printf("%s: %s\n\n", t.of.name, t.of.meaning);
  std::printf("            mass misplaced               largest segment named\n");
  std::printf("delta   even   first  second  helps       first  second\n");
  json rows = json::array();
  std::string where;
  for (const row& r : t.rows) {
    const bool helps = table::helps(r);
    if (helps) where += (where.empty() ? "" : ", ") + examples::fixed(r.delta, 0);
    std::printf("%5g  %5.3f   %5.3f   %5.3f  %-5s       %5.3f   %5.3f\n", r.delta, r.uniform.mean(), r.first.mean(),
                r.second.mean(), helps ? "yes" : "no", r.first_named.mean(), r.second_named.mean());
    rows.push_back({{"delta", r.delta},
                    {"even", json_of(r.uniform)},
                    {"first", json_of(r.first)},
                    {"second", json_of(r.second)},
                    {"gain", json_of(r.gain)},
                    {"first_named", json_of(r.first_named)},
                    {"second_named", json_of(r.second_named)},
                    {"helps", helps}});
  }
  std::printf(
      "\nthe second moment helps at delta %s; spread of q . k in a segment %.3f, sqrt(2 log m) / spread = %.1f\n\n",
      where.empty() ? "(none)" : where.c_str(), spread, limit);
  return {{"kind", t.of.name}, {"meaning", t.of.meaning}, {"spread", spread}, {"limit", limit}, {"rows", rows}};
}

void run(const options& chosen, const examples::json_option& file) {
  file.check();
  std::vector<table> tables;
  {
    text_memory::progress done("measuring",
                               static_cast<std::int64_t>(kinds.size() * chosen.deltas.size()) * chosen.draws);
    for (const kind_text& of : kinds) tables.push_back(measure(chosen, of, done));
  }
  std::printf("%lld segments of %lld keys, dim %lld; %lld draws of %lld queries\n\n",
              static_cast<long long>(chosen.n.segments), static_cast<long long>(chosen.n.m),
              static_cast<long long>(chosen.n.dim), static_cast<long long>(chosen.draws),
              static_cast<long long>(chosen.n.queries));
  json result = {{"program", "segment_mass"}, {"dim", chosen.n.dim},         {"segments", chosen.n.segments},
                 {"m", chosen.n.m},           {"queries", chosen.n.queries}, {"draws", chosen.draws},
                 {"pull", chosen.n.pull},     {"kinds", json::array()}};
  for (const table& t : tables) result["kinds"].push_back(print(chosen, t));
  file.write(result);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How well a segment's moments tell its softmax mass, by temperature.", "segment_mass");
  options chosen;
  const auto size = [&](const char* name, std::int64_t& to, const char* what, std::int64_t most) {
    app.add_option(name, to, what)->check(CLI::Range(std::int64_t{1}, most))->capture_default_str();
  };
  size("--dim", chosen.n.dim, "entries of a key", 512);
  size("--segments", chosen.n.segments, "segments of a context", 1 << 16);
  size("--segment-length", chosen.n.m, "keys of a segment", 1 << 16);
  size("--queries", chosen.n.queries, "queries of a draw", 1 << 16);
  size("--draws", chosen.draws, "contexts that are averaged", 1 << 16);
  app.add_option("--pull", chosen.n.pull, "cosine of a key with its segment's direction, kinds topic and axis")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--deltas", chosen.deltas, "inverse temperatures, one or several")
      ->check(CLI::Range(0.0, 1e4))
      ->capture_default_str();
  app.add_option("--seed", chosen.seed, "of the random numbers")->check(CLI::Range(0, 1 << 30))->capture_default_str();
  const examples::json_option file(app);
  return examples::parse_and_run(app, argc, argv, [&] { run(chosen, file); });
}
