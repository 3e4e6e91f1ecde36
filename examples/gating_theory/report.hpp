// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the program prints, and the same as JSON.

#include "experiment.hpp"

#include "support/program.hpp"

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace gating {

using examples::json;

inline json json_of(const estimate& e) { return {{"mean", e.mean}, {"error", e.error}}; }

inline json report_a(const options& chosen, const std::vector<margin_row>& rows) {
  const auto P = static_cast<double>(task_a.P);
  std::printf(
      "a. Which margin dominates after %lld steps: memory of the pattern (m) or recall from the context (r);\n"
      "   %lld trainings\n\n",
      static_cast<long long>(steps_a), static_cast<long long>(chosen.seeds));
  std::printf("alpha  margin m  margin r   r / m  Proposition 1\n");
  json all = json::array();
  for (const margin_row& r : rows) {
    std::printf("%5.2f  %8.4f  %8.4f  %6.3f         %6.3f\n", r.alpha, r.delta_m.mean, r.delta_r.mean, r.ratio,
                r.expected_ratio);
    all.push_back({{"alpha", r.alpha},
                   {"delta_m", json_of(r.delta_m)},
                   {"delta_r", json_of(r.delta_r)},
                   {"ratio", r.ratio},
                   {"expected_ratio", r.expected_ratio}});
  }
  const std::optional<double> at = crossing(rows);
  std::printf(
      "\nr / m passes 1 at alpha %s; alpha* = sqrt((1 - 2 eps) / P) = %.3f, exactly alpha* / (1 - alpha*) = %.3f\n\n",
      at ? examples::fixed(*at, 3).c_str() : "-", alpha_star(P, task_a.eps), alpha_crossing(P, task_a.eps));
  return {{"rows", all},
          {"crossing", at ? json(*at) : json()},
          {"alpha_star", alpha_star(P, task_a.eps)},
          {"alpha_crossing", alpha_crossing(P, task_a.eps)}};
}

inline json report_b(const options& chosen, const std::vector<escape_row>& rows) {
  std::printf("b. Time (steps x rate) until the gate has opened to alpha %.1f; %lld trainings\n\n", escaped_b,
              static_cast<long long>(chosen.seeds));
  std::printf("alpha  1/(alpha log 1/alpha)   time  +-      flow  stuck\n");
  json all = json::array();
  for (const escape_row& r : rows) {
    std::printf("%5.2f  %21.2f  %5.1f  %-5.1f  %5.1f  %5lld\n", r.alpha, r.scale, r.time.mean, r.time.error,
                r.flow_time, static_cast<long long>(r.stuck));
    all.push_back({{"alpha", r.alpha},
                   {"scale", r.scale},
                   {"time", json_of(r.time)},
                   {"flow_time", r.flow_time},
                   {"stuck", r.stuck}});
  }
  const line fit = fitted(rows);
  std::printf("\ntime = %.1f + %.2f / (alpha log 1/alpha), correlation %.3f\n\n", fit.offset, fit.slope,
              fit.correlation);
  return {{"rows", all}, {"slope", fit.slope}, {"offset", fit.offset}, {"correlation", fit.correlation}};
}

inline json cells_of(const accuracy_grid& grid) {
  json all = json::array();
  for (const accuracy_cell& c : grid.cells) {
    all.push_back({{"tau", c.tau}, {"distance", c.distance}, {"accuracy", c.accuracy}, {"bayes", c.bayes}});
  }
  return all;
}

inline json report_c(const options& chosen, const accuracy_grid& grid) {
  std::printf("c. Accuracy after %lld steps, and the Bayes accuracy, over the effective context length tau\n\n    tau",
              static_cast<long long>(chosen.steps));
  for (const auto Delta : grid.task.distances) std::printf("   distance %-4lld ", static_cast<long long>(Delta));
  std::printf("\n");
  double farthest = 0;
  for (std::size_t i = 0; i < grid.task.taus.size(); ++i) {
    std::printf("%7.0f", grid.task.taus[i]);
    for (std::size_t j = 0; j < grid.task.distances.size(); ++j) {
      const accuracy_cell& c = grid.at(i, j);
      std::printf("     %5.3f  %5.3f", c.accuracy, c.bayes);
      farthest = std::max(farthest, std::abs(c.accuracy - c.bayes));
    }
    std::printf("\n");
  }
  std::printf("\nfarthest from Bayes: %.3f; one standard error is %.3f\n\n", farthest,
              0.5 / std::sqrt(static_cast<double>(chosen.samples)));
  return {{"cells", cells_of(grid)}, {"context", grid.task.ell}, {"farthest", farthest}};
}

inline json report_d(const options& chosen, const accuracy_grid& grid) {
  std::printf("d. How far back %.0f per cent are recalled after %lld steps, over tau\n\n", 100 * recalled_d,
              static_cast<long long>(chosen.steps));
  std::printf("    tau  measured  Bayes  tau log(d/tau)\n");
  json all = json::array();
  for (const reach_row& r : reaches(grid)) {
    std::printf("%7.0f  %8.1f  %5.0f  %14s\n", r.tau, r.measured, r.bayes,
                r.contour ? examples::fixed(*r.contour, 1).c_str() : "-");
    all.push_back({{"tau", r.tau},
                   {"measured", r.measured},
                   {"bayes", r.bayes},
                   {"contour", r.contour ? json(*r.contour) : json()}});
  }
  std::printf("\n");
  return {{"cells", cells_of(grid)}, {"context", grid.task.ell}, {"d", grid.task.d}, {"reach", all}};
}

}  // namespace gating
