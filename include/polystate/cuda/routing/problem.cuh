// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A routing problem from keys and queries to weights, and back: the passes of the operator, in the memory that carve()
/// hands out. For other operators: fill in a routing_problem, and launch_routing() and launch_routing_backward() do for
/// any weight_view what the operator does for lam and its derivative; the states of all segments are in
/// memory.moments.states.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/routing/weights.cuh>
#include <polystate/cuda/row_range.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/workspace.cuh>

#include <algorithm>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route {

using moments::row_source;

/// The query that a router scores with.
template <class Data>
any_element_view<4> query_of(const router::meanpool<Data>& r) {
  return any_element_view<4>(r.u);
}
template <class Data>
any_element_view<4> query_of(const router::merlin<Data>& r) {
  return any_element_view<4>(r.q);
}
template <class Data>
any_element_view<4> query_of(const router::cumulant<Data>& r) {
  return any_element_view<4>(r.q);
}
template <class Router>
any_element_view<4> query_of(const router::top_k<Router>& r) {
  return query_of(r.of);
}

/// Refuses queries that are to be normalised and whose squares leave float. Waits for exec.stream.
template <class Router>
status check_query_rows(const char* name, const on_cuda& exec, const Router& router, double eps) {
  if constexpr (requires { router.of; }) {
    return check_query_rows(name, exec, router.of, eps);
  } else if constexpr (Router::reads_moments && Router::normalizes_query) {
    return check_row_squares(name, exec, "router.q", router.q, eps);
  } else {
    return {};
  }
}

struct routing_problem {
  router_params router;
  moment_problem moments;  ///< its segments always; the rest where the router reads moments
  row_source query;        ///< q' or u, where the router reads moments
  std::int64_t heads = 0;  ///< H
  std::int64_t max_visible = 0;

  /// Segments that a token sees, at most.
  [[nodiscard]] int columns() const {
    const std::int64_t most = moments.segments.most;
    return static_cast<int>(max_visible > 0 ? (std::min)(max_visible, most) : most);
  }
  [[nodiscard]] std::int64_t tokens() const { return moments.tokens(); }
  [[nodiscard]] std::int64_t moment_heads() const { return router.reads_mu() ? moments.heads() : heads; }
  [[nodiscard]] bool is_empty() const { return tokens() == 0 || columns() == 0 || heads == 0; }
};

struct routing_memory {
  moment_memory moments;   ///< of a router without moments the table alone
  float* query = nullptr;  ///< [token][moment head][query_pitch]
  float* read = nullptr;   ///< [token][moment head][row]
  score_rows scores;
};

inline score_rows carve_scores(workspace_carver& from, const routing_problem& p) {
  score_rows s;
  const std::int64_t scores = p.tokens() * p.moment_heads() * p.columns();
  s.columns = p.columns();
  if (p.router.reads_mu()) s.r_mu = from.take<float>(scores);
  if (p.router.reads_Sigma()) s.r_sigma = from.take<float>(scores);
  return s;
}

inline routing_memory carve(workspace_carver& from, const routing_problem& p) {
  routing_memory m;
  m.scores = carve_scores(from, p);
  if (!p.router.reads_mu()) {
    m.moments.table = moments::carve(from, p.moments.segments);
    return m;
  }
  m.moments = moments::carve(from, p.moments);
  const std::int64_t rows = p.tokens() * p.moment_heads();
  m.query = from.take<float>(rows * p.moments.query_pitch());
  m.read = from.take<float>(rows * p.moments.rows());
  return m;
}

inline score_params make_score_params(const routing_problem& p, const routing_memory& m, const score_rows& scores) {
  return {.from = slots_of(p.moments, m.moments),
          .query = m.query,
          .visible = m.moments.table.visible,
          .scores = scores,
          .tokens = p.tokens(),
          .heads = p.moment_heads(),
          .dr = p.moments.dr(),
          .query_pitch = p.moments.query_pitch()};
}

inline open_params make_open_params(const routing_problem& p, const routing_memory& m, const score_rows& scores) {
  return {.table = m.moments.table,
          .query = m.query,
          .read = m.read,
          .scores = scores,
          .counts = p.moments.segments.divides_by_count,
          .tokens = p.tokens(),
          .heads = p.moment_heads(),
          .dr = p.moments.dr(),
          .query_pitch = p.moments.query_pitch(),
          .rows = p.moments.rows(),
          .mu_row = p.moments.mu_row()};
}

/// Table, moments and scores: what weights are made of.
template <class Shapes>
POLYSTATE_HIDDEN status launch_scores(const char* name, const on_cuda& exec, const routing_problem& p,
                                      const routing_memory& m) {
  if (p.is_empty()) return {};
  if (!p.router.reads_mu()) {
    return moments::launch_segment_table(name, exec, p.moments.segments, m.moments.table, p.max_visible);
  }
  status s = moments::launch_stage_rows(name, exec, {.from = p.query, .to = m.query, .pitch = p.moments.query_pitch()});
  if (s.ok()) s = moments::launch_moments<Shapes>(name, exec, p.moments, m.moments, p.max_visible, {m.query, m.read});
  if (s.ok()) s = launch_closed_scores(name, exec, make_score_params(p, m, m.scores));
  if (s.ok()) s = launch_open_scores(name, exec, make_open_params(p, m, m.scores));
  return s;
}

/// Those, and the weights.
template <class Shapes>
POLYSTATE_HIDDEN status launch_routing(const char* name, const on_cuda& exec, const routing_problem& p,
                                       const routing_memory& m, const weight_view<float>& lam) {
  const status s = launch_scores<Shapes>(name, exec, p, m);
  if (!s.ok() || p.is_empty()) return s;
  return launch_weights(name, exec,
                        {.router = p.router,
                         .visible = m.moments.table.visible,
                         .scores = m.scores,
                         .lam = lam,
                         .tokens = p.tokens(),
                         .time = p.moments.segments.time,
                         .heads = p.heads,
                         .moment_heads = p.moment_heads()});
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route
