// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The rows of the table: recall of m pairs from each memory, averaged over draws.

#include "memories.hpp"

#include "support/gaussian.hpp"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <vector>

namespace recall_gap {

struct options {
  std::vector<std::int64_t> pairs = {4, 8, 16, 24, 32, 48, 64, 96, 128};
  std::int64_t dim = 32;  ///< N and P
  std::int64_t seeds = 8;
  std::int64_t seed = 0;
  double beta = 12;
  double alpha = 0.98;  ///< decay a token of the gated delta rule
  std::int64_t segment = 16;
  std::int64_t stack_pairs = 512;
  std::int64_t window = 64;
  std::vector<std::int64_t> reads = {1, 2, 4, 8, 16};
};

/// What the random numbers are for: draws of different purposes never meet.
enum class purpose { score, choose, spread, stack };

inline constexpr std::int64_t most_pairs = 4095;
inline constexpr std::int64_t most_seeds = 1023;

inline std::mt19937_64 generator(const options& chosen, purpose what, std::int64_t draw, std::int64_t pairs) {
  const auto key = ((chosen.seed * 4 + static_cast<std::int64_t>(what)) * (most_seeds + 1) + draw) * (most_pairs + 1);
  return std::mt19937_64(static_cast<std::uint64_t>(key + pairs));
}

struct drawn_pairs {
  MatrixXd keys, values;

  drawn_pairs(std::mt19937_64& random, std::int64_t dim, std::int64_t pairs)
      : keys(examples::random_directions<double>(random, dim, pairs)),
        values(examples::random_directions<double>(random, dim, pairs)) {}
};

struct average {
  double mean = 0;
  double sd = 0;  ///< of one draw; 0 for a single one
};

/// Of f(draw) over draws 0 .. n-1.
template <class F>
average average_of(std::int64_t n, F&& f) {
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = f(i);
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(n);
  const double mean = sum / count;
  return {mean, n > 1 ? std::sqrt(std::max(0.0, (squares - count * mean * mean) / (count - 1))) : 0};
}

/// The published average of 8 draws, N = P = 32.
inline const std::map<std::int64_t, double>& published_state() {
  static const std::map<std::int64_t, double> rows = {{4, 1.000},  {8, 1.000},  {16, 1.000}, {24, 0.990}, {32, 0.984},
                                                      {48, 0.904}, {64, 0.820}, {96, 0.646}, {128, 0.453}};
  return rows;
}
inline constexpr double published_draws = 8;

struct row {
  std::int64_t pairs;
  average state{}, attention{}, delta{}, gated_delta{}, bank{};
  average expected{};  ///< of the linear state over many draws: what an average of a few is compared with
  merlin_scales scales{};
};

inline constexpr std::int64_t spread_draws = 256;

inline row measure(const options& chosen, std::int64_t pairs) {
  const auto over = [&](purpose what, std::int64_t draws, const std::function<double(const drawn_pairs&)>& recall) {
    return average_of(draws, [&](std::int64_t draw) {
      auto random = generator(chosen, what, draw, pairs);
      return recall(drawn_pairs(random, chosen.dim, pairs));
    });
  };
  const auto with_state = [&](auto write) {
    return over(purpose::score, chosen.seeds,
                [&](const drawn_pairs& p) { return share_recalled(write(p) * p.keys, p.values); });
  };
  row r{.pairs = pairs};
  r.state = with_state([](const auto& p) { return written_state<ps::rule::linear>(p.keys, p.values); });
  r.delta = with_state([](const auto& p) { return written_state<ps::rule::delta>(p.keys, p.values); });
  r.gated_delta = with_state([log_decay = std::log(chosen.alpha)](const auto& p) {
    return written_state<ps::rule::gated_delta>(p.keys, p.values, log_decay);
  });
  r.attention = over(purpose::score, chosen.seeds, [&](const drawn_pairs& p) {
    return share_recalled(read_attention(p.keys, p.values, p.keys, chosen.beta), p.values);
  });
  r.expected = over(purpose::spread, spread_draws, [](const drawn_pairs& p) {
    return share_recalled(linear_state(p.keys, p.values) * p.keys, p.values);
  });

  // The router's scales are chosen on draws of their own.
  constexpr std::int64_t choosing_draws = 2;
  std::vector<written_bank> banks;
  std::vector<drawn_pairs> drawn;
  for (std::int64_t draw = 0; draw < choosing_draws; ++draw) {
    auto random = generator(chosen, purpose::choose, draw, pairs);
    drawn.emplace_back(random, chosen.dim, pairs);
    banks.emplace_back(drawn.back().keys, drawn.back().values, chosen.segment);
  }
  double best = -1;
  for (const merlin_scales& s : merlin_grid()) {
    double recall = 0;
    for (std::size_t i = 0; i < banks.size(); ++i) {
      recall += share_recalled(banks[i].read(drawn[i].keys, s), drawn[i].values);
    }
    if (recall > best) {
      best = recall;
      r.scales = s;
    }
  }
  r.bank = over(purpose::score, chosen.seeds, [&](const drawn_pairs& p) {
    return share_recalled(written_bank(p.keys, p.values, chosen.segment).read(p.keys, r.scales), p.values);
  });
  return r;
}

/// How far the published average lies from what is expected, in standard deviations of an average of as many draws.
inline double deviation(const row& r, double published) {
  const double sd = r.expected.sd / std::sqrt(published_draws);
  // rows where every draw recalls all pairs have no spread; a printed 1.000 is then all that can be met
  return sd > 0 ? (published - r.expected.mean) / sd : (std::abs(published - r.expected.mean) < 5e-4 ? 0 : INFINITY);
}

}  // namespace recall_gap
