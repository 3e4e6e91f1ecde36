// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How far decoding that forgets a state drifts from decoding that carries it, by position.

#include "adapter.hpp"

#include <polystate/reference/adapters/token_modulation.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace token_modulation {

/// What decoding carries from a token to the next.
struct carried {
  bool convolution, scan;
};

/// Factors and updates of every token, rows are tokens.
struct modulated {
  matrix lam, update;
};

/// All tokens in one call.
inline modulated full_pass(const adapter& of, const matrix& x) {
  modulated out{matrix(x.rows(), of.size().factors()), matrix(x.rows(), of.size().dout)};
  auto args = of.args();
  args.x = tokens(x);
  args.h = tokens(out.update);
  args.lam = tokens(out.lam);
  ps::malora(ps::on_reference{}, args);
  return out;
}

/// Token by token; what is not carried is zero before each token.
inline modulated decode(const adapter& of, const matrix& x, const carried& what) {
  const sizes& n = of.size();
  modulated out{matrix(x.rows(), n.factors()), matrix(x.rows(), n.dout)};
  std::vector<double> window(static_cast<std::size_t>((n.taps - 1) * n.di), 0);
  std::vector<double> state(static_cast<std::size_t>(n.di * n.states), 0);
  auto args = of.step_args();
  args.conv_state = {window.data(), {1, n.taps - 1, n.di}};
  args.scan_state = {state.data(), {1, n.di, n.states}};
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    args.x = tokens(x).slice(1, t, t + 1);
    args.h = tokens(out.update).slice(1, t, t + 1);
    args.lam = tokens(out.lam).slice(1, t, t + 1);
    ps::malora_step(ps::on_reference{}, args);
    if (!what.convolution) std::fill(window.begin(), window.end(), 0.0);
    if (!what.scan) std::fill(state.begin(), state.end(), 0.0);
  }
  return out;
}

/// Of one adapter, by position: the length of what changed over a length of the full pass, averaged over its tokens
/// (root mean square), since single factors may be near 0.
struct discrepancy {
  vector of_spread;  ///< lam' - lam over how much lam varies between tokens, lam - its mean
  vector of_lam;     ///< lam' - lam over lam
  vector of_update;  ///< h' - h over h, the update without the frozen layer
};

inline discrepancy compare(const modulated& want, const modulated& got) {
  const auto length = [](const matrix& m) { return m.norm() / std::sqrt(static_cast<double>(m.rows())); };
  const vector lam = (got.lam - want.lam).rowwise().norm();
  const vector update = (got.update - want.update).rowwise().norm();
  return {lam / length(want.lam.rowwise() - want.lam.colwise().mean()), lam / length(want.lam),
          update / length(want.update)};
}

/// Mean over adapters and their standard deviation, of each entry.
class over_seeds {
 public:
  void add(const vector& values) {
    if (count_++ == 0) sum_ = squares_ = vector::Zero(values.size());
    sum_ += values;
    squares_ += values.cwiseAbs2();
  }
  [[nodiscard]] vector mean() const { return sum_ / count_; }
  [[nodiscard]] vector deviation() const {
    if (count_ < 2) return vector::Zero(sum_.size());
    return ((squares_ - sum_.cwiseAbs2() / count_) / (count_ - 1)).cwiseMax(0).cwiseSqrt();
  }

 private:
  double count_ = 0;
  vector sum_, squares_;
};

/// Positions first .. last.
struct range {
  std::int64_t first, last;
};

/// 0, 1, 2 to 3, 4 to 7 and so on.
inline std::vector<range> ranges_of(std::int64_t tokens) {
  std::vector<range> all{{0, 0}};
  for (std::int64_t t = 1; t < tokens; t *= 2) all.push_back({t, std::min(2 * t, tokens) - 1});
  return all;
}

/// One measure: of every position, and averaged over each of the ranges.
struct series {
  over_seeds positions, ranges;

  void add(const vector& values) {
    positions.add(values);
    const std::vector<range> all = ranges_of(values.size());
    vector means(static_cast<Eigen::Index>(all.size()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      means(static_cast<Eigen::Index>(i)) = values.segment(all[i].first, all[i].last - all[i].first + 1).mean();
    }
    ranges.add(means);
  }
};

/// Of all adapters of one form.
struct discrepancies {
  series spread, lam, update;      ///< nothing carried
  series with_window, with_state;  ///< of lam over its spread: the convolution's alone, the scan's alone carried
  double largest_with_both = 0;    ///< |h' - h|, both carried
};

/// One more adapter and one more sequence of random tokens.
inline void measure(discrepancies& into, const adapter& of, const matrix& x) {
  const modulated want = full_pass(of, x);
  const discrepancy neither = compare(want, decode(of, x, {false, false}));
  into.lam.add(neither.of_lam);
  into.spread.add(neither.of_spread);
  into.update.add(neither.of_update);
  into.with_window.add(compare(want, decode(of, x, {true, false})).of_spread);
  into.with_state.add(compare(want, decode(of, x, {false, true})).of_spread);
  const modulated both = decode(of, x, {true, true});
  into.largest_with_both = std::max(into.largest_with_both, (both.update - want.update).cwiseAbs().maxCoeff());
}

}  // namespace token_modulation
