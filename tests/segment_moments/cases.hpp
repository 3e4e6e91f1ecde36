// SPDX-License-Identifier: Apache-2.0
#pragma once

// Routing keys that tests own, the segments of a separation, and moments as direct sums over a segment's
// keys: no running state, so nothing is shared with the reference.

#include "support/tensor.hpp"

#include <polystate/segment_moments.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Sizes and options of routing keys.
struct keys_shape {
  std::int64_t B = 2, T = 11, HR = 2, dr = 5;
  polystate::moment_rule moment_rule = polystate::moment_rule::plain;
  polystate::divide_by divide_by = polystate::divide_by::m;
  bool qkp_l2norm = false;
};

/// Owned routing keys.
template <class Data>
struct routing_keys {
  tensor<Data, 4> k;
  tensor<acc_t<Data>, 3> g, beta;
  keys_shape options;

  routing_keys() = default;
  template <class Rng>
  routing_keys(const keys_shape& s, Rng& rng) : k({s.B, s.T, s.HR, s.dr}), options(s) {
    k.uniform(rng, -1.5, 1.5);
    if (s.moment_rule == moment_rule::plain) return;
    g = tensor<acc_t<Data>, 3>({s.B, s.T, s.HR}).uniform(rng, -1, 0);
    beta = tensor<acc_t<Data>, 3>({s.B, s.T, s.HR}).uniform(rng, 0, 1);
  }

  [[nodiscard]] key_moments<Data> view() const {
    return {.k = k.view(),
            .g = g.view(),
            .beta = beta.view(),
            .moment_rule = options.moment_rule,
            .divide_by = options.divide_by,
            .qkp_l2norm = options.qkp_l2norm};
  }

  template <class To>
  [[nodiscard]] routing_keys<To> in() const {
    routing_keys<To> p;
    p.k = convert<To>(k);
    p.g = convert<acc_t<To>>(g);
    p.beta = convert<acc_t<To>>(beta);
    p.options = options;
    return p;
  }
  [[nodiscard]] routing_keys<double> in_double() const { return in<double>(); }
};

/// A separation with its segments of m tokens, or with these boundaries, which must outlive it.
template <class Separation>
Separation separation_of(std::int64_t m, const std::vector<std::int32_t>& cuts) {
  if constexpr (std::is_same_v<Separation, separation::uniform>) {
    return {m};
  } else if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    return {{cuts.data(), {static_cast<std::int64_t>(cuts.size())}}};
  } else {
    return {};
  }
}

/// Tokens begin .. end-1; `length` is what divide_by m divides by.
struct segment {
  std::int64_t begin, end, length;
};

inline std::vector<segment> segments_of(const separation::uniform& s, std::int64_t T) {
  std::vector<segment> all;
  for (std::int64_t begin = 0; begin < T; begin += s.m) all.push_back({begin, std::min(begin + s.m, T), s.m});
  return all;
}
inline std::vector<segment> segments_of(const separation::boundaries& s, std::int64_t) {
  std::vector<segment> all;
  for (std::int64_t l = 0; l + 1 < s.boundaries.extent(0); ++l) {
    all.push_back({s.boundaries(l), s.boundaries(l + 1), s.boundaries(l + 1) - s.boundaries(l)});
  }
  return all;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// x / sqrt(x.x + 1e-6), the default l2norm_eps
inline std::vector<double> unit_row(std::vector<double> x) {
  const double norm = std::sqrt(dot(x, x) + 1e-6);
  for (double& v : x) v /= norm;
  return x;
}

/// One row of an operand (B, T, heads, dim).
template <class T>
std::vector<double> row_of(const tensor<T, 4>& rows, std::int64_t b, std::int64_t t, std::int64_t head) {
  const auto view = rows.view();
  std::vector<double> x;
  for (std::int64_t i = 0; i < view.extent(3); ++i) x.push_back(static_cast<double>(view(b, t, head, i)));
  return x;
}

/// Moments of the tokens s.begin .. now of one segment, one batch entry and head.
struct summed_moments {
  std::vector<double> mu;                  ///< (dr)
  std::vector<std::vector<double>> Sigma;  ///< (dr, dr)
};

/// Each key's share of the moments is sum_s (b_s/m) k_s row_s^T, with row_s the key carried through the
/// transitions of the later tokens, a_r row (I - b_r k_r k_r^T).
inline summed_moments direct_moments(const routing_keys<double>& keys, std::int64_t b, std::int64_t head,
                                     const segment& s, std::int64_t now) {
  const auto& o = keys.options;
  const auto key = [&](std::int64_t t) {
    return o.qkp_l2norm ? unit_row(row_of(keys.k, b, t, head)) : row_of(keys.k, b, t, head);
  };
  const auto dr = static_cast<std::size_t>(o.dr);
  summed_moments sum{std::vector<double>(dr), std::vector<std::vector<double>>(dr, std::vector<double>(dr))};
  const auto divisor = static_cast<double>(o.divide_by == divide_by::count ? now - s.begin + 1 : s.length);
  for (std::int64_t t = s.begin; t <= now; ++t) {
    const auto k = key(t);
    auto row = k;
    double weight = 1 / divisor;
    if (o.moment_rule != moment_rule::plain) {
      weight *= keys.beta.view()(b, t, head);
      for (std::int64_t r = t + 1; r <= now; ++r) {
        const auto later = key(r);
        const double erased = o.moment_rule == moment_rule::delta ? keys.beta.view()(b, r, head) * dot(row, later) : 0;
        for (std::size_t i = 0; i < dr; ++i)
          row[i] = std::exp(keys.g.view()(b, r, head)) * (row[i] - erased * later[i]);
      }
    }
    for (std::size_t i = 0; i < dr; ++i) {
      sum.mu[i] += weight * row[i];
      for (std::size_t j = 0; j < dr; ++j) sum.Sigma[i][j] += weight * k[i] * row[j];
    }
  }
  return sum;
}

}  // namespace polystate::testing
