// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a layer must give, put together from the other operators: weights from routing(), the states of each
// segment from the single-state operator run on its tokens alone, the sum in plain loops.

#include "multi_state/cases.hpp"
#include "segment_moments/cases.hpp"

#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/routing.hpp>
#include <polystate/reference/ssd.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace polystate::testing {

/// States after the tokens of a range, (B, H, dv, dk), from the single-state operator.
template <class Rule>
tensor<double, 4> single_state(const recurrence_operands<double, Rule>& in, const layer_shape& s,
                               const token_range& range) {
  const auto part = tokens_of(in.view(), range);
  tensor<double, 4> o({s.B, range.size(), s.H, s.dv}), state({s.B, s.H, s.dv, s.dk});
  if constexpr (is_delta_family<Rule>) {
    gated_delta_rule(on_reference{}, gated_delta_rule_args<double, Rule>{.q = part.q,
                                                                         .k = part.k,
                                                                         .v = part.v,
                                                                         .g = part.g,
                                                                         .beta = part.beta,
                                                                         .o = o.view(),
                                                                         .final_state = state.view(),
                                                                         .qk_l2norm = part.qk_l2norm});
  } else {
    ssd(on_reference{}, ssd_args<double>{.x = part.x,
                                         .dt = part.dt,
                                         .A = part.A,
                                         .B = part.B,
                                         .C = part.C,
                                         .dt_bias = part.dt_bias,
                                         .y = o.view(),
                                         .final_state = state.view(),
                                         .dt_softplus = part.dt_softplus});
  }
  return state;
}

/// Queries and keys as the state uses them, (B, T, HK, dk): normalised, not scaled.
template <class Rule>
tensor<double, 4> used_rows(const recurrence_operands<double, Rule>& in, bool key) {
  if constexpr (is_delta_family<Rule>) {
    tensor<double, 4> rows = key ? in.k : in.q;
    if (!in.qk_l2norm) return rows;
    std::vector<double> values;
    const auto n = rows.extents();
    for (std::int64_t b = 0; b < n[0]; ++b) {
      for (std::int64_t t = 0; t < n[1]; ++t) {
        for (std::int64_t h = 0; h < n[2]; ++h) {
          const auto row = unit_row(row_of(rows, b, t, h));
          values.insert(values.end(), row.begin(), row.end());
        }
      }
    }
    rows.assign(values);
    return rows;
  } else {
    return key ? in.B : in.C;
  }
}

/// Skip and gate, once a token.
template <class Rule>
double finished(const recurrence_operands<double, Rule>& in, double o, std::int64_t b, std::int64_t t, std::int64_t h,
                std::int64_t i) {
  if constexpr (is_delta_family<Rule>) {
    return o;
  } else {
    const double z = in.z.view()(b, t, h, i);
    return (o + in.D.view()(h, i) * in.x.view()(b, t, h, i)) * z / (1 + std::exp(-z));
  }
}

/// A separation of segments: o, lam and the bank.
template <class Cell>
layer_results<double> expected_segments(const layer_problem<double, Cell>& p) {
  using Router = typename Cell::Router;
  using Separation = typename Cell::Separation;
  const auto& s = p.shape;
  auto out = p.results();

  auto keys = p.keys;
  auto router = p.router;
  if (s.shared_kq) {
    keys.k = used_rows(p.in, true);
    router.q = used_rows(p.in, false);
  }
  routing_args<double, Separation, Router> routed{.separation = p.separation(),
                                                  .router = router_of<Router>::view(router, false),
                                                  .lam = out.lam.view(),
                                                  .max_visible = s.max_visible};
  if (Router::reads_moments) routed.moments = keys.view();
  routing(on_reference{}, routed);
  segment_moments(
      on_reference{},
      segment_moments_args<double, Separation>{
          .moments = keys.view(), .separation = p.separation(), .mu = out.mu.view(), .Sigma = out.Sigma.view()});

  const auto segments = segments_of(p.separation(), s.T);
  const auto L = static_cast<std::int64_t>(segments.size());
  std::vector<tensor<double, 4>> after;  // each token, the state of its own segment
  for (const auto& of : segments) {
    for (std::int64_t t = of.begin; t < of.end; ++t)
      after.push_back(single_state(p.in, s, {every_entry, of.begin, t + 1}));
  }
  const auto q = used_rows(p.in, false);
  const double scale = is_delta_family<typename Cell::Rule> ? 0.6 : 1;
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      for (std::int64_t i = 0; i < s.dv; ++i) {
        for (std::int64_t t = 0; t < s.T; ++t) {
          double sum = 0;
          for (std::int64_t l = 0; l < L && segments[static_cast<std::size_t>(l)].begin <= t; ++l) {
            const std::int64_t last = std::min(t, segments[static_cast<std::size_t>(l)].end - 1);
            const auto S = after[static_cast<std::size_t>(last)].view();
            for (std::int64_t j = 0; j < s.dk; ++j)
              sum += out.lam.view()(b, t, h, l) * scale * S(b, h, i, j) * q.view()(b, t, h / (s.H / s.HK), j);
          }
          out.o.view()(b, t, h, i) = finished(p.in, sum, b, t, h, i);
        }
        for (std::int64_t l = 0; l < L; ++l) {
          const auto S = after[static_cast<std::size_t>(segments[static_cast<std::size_t>(l)].end - 1)].view();
          for (std::int64_t j = 0; j < s.dk; ++j) out.S.view()(b, l, h, i, j) = S(b, h, i, j);
        }
      }
    }
  }
  return out;
}

/// The share of token `source` in the state after each later token, (dv, dk) for one head: its write carried
/// through the transitions between.
template <class Rule>
std::vector<std::vector<double>> carried_write(
    const layer_problem<double, cell<Rule, separation::fenwick, router::position<double>>>& p,
    const tensor<double, 4>& keys, std::int64_t b, std::int64_t h, std::int64_t source, std::int64_t target) {
  const auto& s = p.shape;
  const auto key = [&](std::int64_t t) { return row_of(keys, b, t, h / (s.H / s.HK)); };
  // log decay, beta and the value's factor of a token
  const auto log_decay = [&](std::int64_t t) {
    if constexpr (!is_delta_family<Rule>) {
      return std::log1p(std::exp(p.in.dt.view()(b, t, h) + p.in.dt_bias.view()(h))) * p.in.A.view()(h);
    } else {
      return Rule::has_decay ? p.in.g.view()(b, t, h) : 0.0;
    }
  };
  const auto beta = [&](std::int64_t t) {
    if constexpr (is_delta_family<Rule>) {
      if (Rule::has_beta) return p.in.beta.view()(b, t, h);
    }
    return 0.0;
  };
  const auto value = [&](std::int64_t i) {
    if constexpr (is_delta_family<Rule>) {
      return (Rule::has_beta ? beta(source) : 1) * p.in.v.view()(b, source, h, i);
    } else {
      return std::log1p(std::exp(p.in.dt.view()(b, source, h) + p.in.dt_bias.view()(h))) *
             p.in.x.view()(b, source, h, i);
    }
  };
  auto row = key(source);
  for (std::int64_t t = source + 1; t <= target; ++t) {
    const auto k = key(t);
    const double erased = beta(t) * dot(row, k);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = std::exp(log_decay(t)) * (row[j] - erased * k[j]);
  }
  std::vector<std::vector<double>> M;
  for (std::int64_t i = 0; i < s.dv; ++i) {
    M.push_back(row);
    for (double& x : M.back()) x *= value(i);
  }
  return M;
}

/// Level of source s for target t.
inline std::int64_t fenwick_level(std::int64_t t, std::int64_t s) {
  return t == s ? 0 : 1 + static_cast<std::int64_t>(std::floor(std::log2(static_cast<double>(t ^ s))));
}

/// fenwick, as the double sum over sources and targets.
template <class Rule>
layer_results<double> expected_levels(
    const layer_problem<double, cell<Rule, separation::fenwick, router::position<double>>>& p) {
  const auto& s = p.shape;
  auto out = p.results();
  out.o.for_each([](double& x) { x = 0; });
  out.S.for_each([](double& x) { x = 0; });
  out.lam.for_each([](double& x) { x = 0; });
  const auto q = used_rows(p.in, false);
  const auto keys = used_rows(p.in, true);
  const double scale = is_delta_family<Rule> ? 0.6 : 1;
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      for (std::int64_t t = 0; t < s.T; ++t) {
        for (std::int64_t source = 0; source <= t; ++source) {
          const auto M = carried_write(p, keys, b, h, source, t);
          const std::int64_t level = fenwick_level(t, source);
          const double lam = p.router.weights.view()(b, t, h, level);
          for (std::int64_t i = 0; i < s.dv; ++i) {
            const auto& row = M[static_cast<std::size_t>(i)];
            out.o.view()(b, t, h, i) += lam * scale * dot(row, row_of(q, b, t, h / (s.H / s.HK)));
            for (std::int64_t j = 0; t + 1 == s.T && j < s.dk; ++j)
              out.S.view()(b, level, h, i, j) += row[static_cast<std::size_t>(j)];
          }
        }
        for (std::int64_t n = 0; n < separation::fenwick{}.count(t + 1); ++n)
          out.lam.view()(b, t, h, n) = p.router.weights.view()(b, t, h, n);
        for (std::int64_t i = 0; i < s.dv; ++i)
          out.o.view()(b, t, h, i) = finished(p.in, out.o.view()(b, t, h, i), b, t, h, i);
      }
    }
  }
  return out;
}

/// single: the single-state operator, in one segment of weight 1.
template <class Rule>
layer_results<double> expected_single(const layer_problem<double, cell<Rule, separation::single, router::none>>& p) {
  layer_problem<double, cell<Rule, separation::uniform, router::uniform>> one;
  one.shape = p.shape;
  one.shape.m = std::max<std::int64_t>(1, p.shape.T);
  one.in = p.in;
  one.keys = p.keys;
  one.router = p.router;
  auto out = expected_segments(one);
  out.mu = {};
  out.Sigma = {};
  return out;
}

template <class Cell>
layer_results<double> expected(const layer_problem<double, Cell>& p) {
  if constexpr (std::is_same_v<typename Cell::Separation, separation::single>) {
    return expected_single(p);
  } else if constexpr (std::is_same_v<typename Cell::Separation, separation::fenwick>) {
    return expected_levels(p);
  } else {
    return expected_segments(p);
  }
}

}  // namespace polystate::testing
