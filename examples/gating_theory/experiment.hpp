// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The four panels: what is trained, and what the theory says of it.

#include "fresh.hpp"
#include "patterns.hpp"
#include "theory.hpp"

#include "text_memory/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace gating {

using text_memory::progress;

struct options {
  std::int64_t batch = 128;
  std::int64_t seeds = 8;       ///< trainings that are averaged, panels a and b
  std::int64_t steps = 50;      ///< of training, panels c and d
  std::int64_t samples = 2048;  ///< contexts that an accuracy is measured on
  std::int64_t context_c = 1024;
  std::int64_t context_d = 512;
  std::uint64_t seed = 0;
};

/// Mean and its standard error.
struct estimate {
  double mean = 0, error = 0;

  explicit estimate(const std::vector<double>& of) {
    const auto n = static_cast<double>(of.size());
    for (const double x : of) mean += x / n;
    for (const double x : of) error += (x - mean) * (x - mean);
    error = n > 1 ? std::sqrt(error / (n - 1) / n) : 0;
  }
};

/// Panel a: the margins after 25 steps from nothing.
struct margin_row {
  double alpha;
  estimate delta_m, delta_r;
  double ratio;           ///< delta_r / delta_m
  double expected_ratio;  ///< Proposition 1
};

inline constexpr pattern_task task_a{.d = 512, .P = 32, .ell = 8, .Delta = 4, .eps = 0.1};
inline constexpr std::int64_t steps_a = 25;
inline constexpr double rate_a = 0.1;

inline std::vector<margin_row> panel_a(const options& chosen) {
  const std::vector<double> alphas = {0.05, 0.08, 0.11, 0.14, 0.17, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7};
  std::vector<margin_row> rows;
  progress done("panel a", static_cast<std::int64_t>(alphas.size()) * chosen.seeds);
  for (const double alpha : alphas) {
    std::vector<double> delta_m, delta_r;
    for (std::int64_t s = 0; s < chosen.seeds; ++s) {
      pattern_trainer trained(task_a, alpha, chosen.seed + static_cast<std::uint64_t>(s));
      for (std::int64_t i = 0; i < steps_a; ++i) trained.step(chosen.batch, rate_a);
      delta_m.push_back((1 + trained.alpha()) * trained.u());
      delta_r.push_back(trained.alpha() * trained.v());
      done.advance();
    }
    const estimate m(delta_m), r(delta_r);
    const double lambda = lambda_of(alpha, static_cast<double>(task_a.Delta));
    rows.push_back({alpha, m, r, r.mean / m.mean,
                    prop1_ratio({.lambda = lambda,
                                 .Delta = static_cast<double>(task_a.Delta),
                                 .P = static_cast<double>(task_a.P),
                                 .eps = task_a.eps})});
  }
  return rows;
}

/// Where the measured ratio passes 1, between two rows on logarithmic axes.
inline std::optional<double> crossing(const std::vector<margin_row>& rows) {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const double before = std::log(rows[i - 1].ratio), after = std::log(rows[i].ratio);
    if (before < 0 && after >= 0) {
      const double part = -before / (after - before);
      return rows[i - 1].alpha * std::pow(rows[i].alpha / rows[i - 1].alpha, part);
    }
  }
  return {};
}

/// Panel b: when the gate opens. Time is steps times rate.
struct escape_row {
  double alpha;
  double scale;  ///< 1 / (alpha log 1/alpha)
  estimate time;
  double flow_time;    ///< of the gradient flow
  std::int64_t stuck;  ///< trainings that did not escape
};

inline constexpr pattern_task task_b{.d = 512, .P = 32, .ell = 4, .Delta = 1, .eps = 0.1};
inline constexpr double rate_b = 0.3;
inline constexpr double escaped_b = 0.5;  // alpha; the rise is so steep that the choice hardly matters
inline constexpr std::int64_t most_steps_b = 2000;

inline std::vector<escape_row> panel_b(const options& chosen) {
  const std::vector<double> alphas = {0.02, 0.03, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2};
  std::vector<escape_row> rows;
  progress done("panel b", static_cast<std::int64_t>(alphas.size()) * chosen.seeds);
  for (const double alpha : alphas) {
    std::vector<double> times;
    std::int64_t stuck = 0;
    for (std::int64_t s = 0; s < chosen.seeds; ++s) {
      pattern_trainer trained(task_b, alpha, chosen.seed + static_cast<std::uint64_t>(s));
      std::int64_t steps = 0;
      while (trained.alpha() < escaped_b && steps < most_steps_b) {
        trained.step(chosen.batch, rate_b);
        ++steps;
      }
      if (trained.alpha() < escaped_b) ++stuck;
      times.push_back(static_cast<double>(steps) * rate_b);
      done.advance();
    }
    rows.push_back({alpha, 1 / (alpha * std::log(1 / alpha)), estimate(times),
                    escape_time_of_flow(alpha, static_cast<double>(task_b.P), task_b.eps, escaped_b,
                                        static_cast<double>(most_steps_b) * rate_b),
                    stuck});
  }
  return rows;
}

/// time = offset + slope * scale by least squares, and the correlation.
struct line {
  double slope, offset, correlation;
};
inline line fitted(const std::vector<escape_row>& rows) {
  const auto n = static_cast<double>(rows.size());
  double x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  for (const escape_row& r : rows) {
    x += r.scale / n;
    y += r.time.mean / n;
  }
  for (const escape_row& r : rows) {
    xx += (r.scale - x) * (r.scale - x);
    xy += (r.scale - x) * (r.time.mean - y);
    yy += (r.time.mean - y) * (r.time.mean - y);
  }
  return {xy / xx, y - xy / xx * x, xy / std::sqrt(xx * yy)};
}

/// Panels c and d: accuracies of trained models over effective context lengths and distances.
struct accuracy_cell {
  double tau;
  std::int64_t distance;
  double accuracy;
  double bayes;  ///< the best that the label entry allows
};

struct accuracy_grid {
  fresh_task task;
  std::vector<accuracy_cell> cells;  ///< distances of the first tau, of the second, ...

  [[nodiscard]] const accuracy_cell& at(std::size_t tau, std::size_t distance) const {
    return cells[tau * task.distances.size() + distance];
  }
};

inline constexpr double rate_cd = 0.1;
inline constexpr double token_norm = 1;

inline accuracy_grid accuracies(const options& chosen, const fresh_task& task, const char* what) {
  constexpr std::int64_t at_once = 64;  // contexts between two signs of progress
  fresh_trainer trained(task, chosen.seed);
  progress done(what, chosen.steps * chosen.batch + chosen.samples);
  for (std::int64_t i = 0; i < chosen.steps; ++i) {
    trained.step(chosen.batch, rate_cd);
    done.advance(chosen.batch);
  }
  Eigen::MatrixXd right = Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(task.distances.size()),
                                                static_cast<Eigen::Index>(task.taus.size()));
  for (std::int64_t left = chosen.samples; left > 0; left -= at_once) {
    const std::int64_t now = std::min(left, at_once);
    right += trained.right_of(now);
    done.advance(now);
  }
  accuracy_grid grid{.task = task, .cells = {}};
  for (std::size_t i = 0; i < task.taus.size(); ++i) {
    for (std::size_t j = 0; j < task.distances.size(); ++j) {
      const setting s{.lambda = -std::log(task.taus[i]),
                      .d = static_cast<double>(task.d),
                      .ell = static_cast<double>(task.ell),
                      .Delta = static_cast<double>(task.distances[j]),
                      .xnorm = token_norm};
      grid.cells.push_back(
          {task.taus[i], task.distances[j],
           right(static_cast<Eigen::Index>(j), static_cast<Eigen::Index>(i)) / static_cast<double>(chosen.samples),
           1 - bayes_error(s)});
    }
  }
  return grid;
}

/// Doubling from `first` to at most `last`; with halves, also the three halves of each.
inline std::vector<std::int64_t> doubling(std::int64_t first, std::int64_t last, bool halves) {
  std::vector<std::int64_t> all;
  for (std::int64_t x = first; x <= last; x *= 2) {
    all.push_back(x);
    if (halves && x > 1 && 3 * x / 2 <= last) all.push_back(3 * x / 2);
  }
  return all;
}

inline accuracy_grid panel_c(const options& chosen) {
  fresh_task task{.d = 128, .ell = chosen.context_c, .taus = {}, .distances = {}};
  for (const std::int64_t tau : doubling(1, chosen.context_c, false)) task.taus.push_back(static_cast<double>(tau));
  for (const std::int64_t Delta : {8, 32, 128}) {
    if (Delta <= chosen.context_c) task.distances.push_back(Delta);
  }
  return accuracies(chosen, task, "panel c");
}

inline accuracy_grid panel_d(const options& chosen) {
  fresh_task task{.d = 128, .ell = chosen.context_d, .taus = {}, .distances = doubling(1, chosen.context_d, true)};
  for (const std::int64_t tau : doubling(2, chosen.context_d, false)) task.taus.push_back(static_cast<double>(tau));
  return accuracies(chosen, task, "panel d");
}

/// Panel d: how far each effective context length reaches.
struct reach_row {
  double tau;
  double measured;  ///< where the accuracy falls below recalled_d, between two distances tried; 0 if none reaches it
  double bayes;     ///< the largest distance whose Bayes accuracy is that
  std::optional<double> contour;  ///< tau log(d / tau), of tau below d
};
inline constexpr double recalled_d = 0.75;

inline std::vector<reach_row> reaches(const accuracy_grid& grid) {
  std::vector<reach_row> rows;
  for (std::size_t i = 0; i < grid.task.taus.size(); ++i) {
    reach_row r{.tau = grid.task.taus[i], .measured = 0, .bayes = 0, .contour = {}};
    for (std::size_t j = 0; j < grid.task.distances.size(); ++j) {
      const auto distance = static_cast<double>(grid.task.distances[j]);
      const double accuracy = grid.at(i, j).accuracy;
      if (accuracy < recalled_d) {
        if (j == 0) break;
        const double nearer = r.measured, before = grid.at(i, j - 1).accuracy;
        r.measured = nearer * std::pow(distance / nearer, (before - recalled_d) / (before - accuracy));
        break;
      }
      r.measured = distance;
    }
    const auto d = static_cast<double>(grid.task.d);
    r.bayes = delta_max({.lambda = -std::log(r.tau),
                         .d = d,
                         .ell = static_cast<double>(grid.task.ell),
                         .xnorm = token_norm,
                         .target = 1 - recalled_d});
    if (r.tau < d) r.contour = r.tau * std::log(d / r.tau);
    rows.push_back(r);
  }
  return rows;
}

}  // namespace gating
