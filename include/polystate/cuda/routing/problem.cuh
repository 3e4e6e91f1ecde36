// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A routing problem from keys and queries to weights, and back: the passes of the operator, in the memory that carve()
/// hands out. For other operators: fill in a routing_problem, and launch_routing() and launch_routing_backward() do for
/// any weight_view what the operator does for lam and its derivative; the states of all segments are in
/// memory.moments.states.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/backward_launch.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/routing/weights.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/workspace.cuh>

#include <algorithm>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::route {

using moments::moment_gradients;
using moments::row_source;

struct routing_problem {
  router_params router;
  moment_problem moments;  ///< its segments always; the rest where the router reads moments
  row_source query;        ///< q' or u, where the router reads moments
  std::int64_t heads = 0;  ///< H
  std::int64_t max_visible = 0;

  /// Segments that a token sees, at most.
  [[nodiscard]] int columns() const {
    const std::int64_t most = moments.segments.most;
    return static_cast<int>(max_visible > 0 ? std::min(max_visible, most) : most);
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
inline POLYSTATE_HIDDEN status launch_scores(const char* name, const on_cuda& exec, const routing_problem& p,
                                             const routing_memory& m) {
  if (p.is_empty()) return {};
  if (!p.router.reads_mu()) {
    return moments::launch_segment_table(name, exec, p.moments.segments, m.moments.table, p.max_visible);
  }
  status s = moments::launch_stage_rows(name, exec, {.from = p.query, .to = m.query, .pitch = p.moments.query_pitch()});
  if (s.ok()) s = moments::launch_moments(name, exec, p.moments, m.moments, p.max_visible, {m.query, m.read});
  if (s.ok()) s = launch_closed_scores(name, exec, make_score_params(p, m, m.scores));
  if (s.ok()) s = launch_open_scores(name, exec, make_open_params(p, m, m.scores));
  return s;
}

/// Those, and the weights.
inline POLYSTATE_HIDDEN status launch_routing(const char* name, const on_cuda& exec, const routing_problem& p,
                                              const routing_memory& m, const weight_view<float>& lam) {
  const status s = launch_scores(name, exec, p, m);
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

/// What is wanted of a backward pass; absent: not wanted.
struct wanted_gradients {
  any_element_view<4> d_k;            ///< (B, T, HR, dr)
  tensor_view<float, 3> d_g{};        ///< (B, T, HR)
  tensor_view<float, 3> d_beta{};     ///< (B, T, HR)
  any_element_view<4> d_query;        ///< (B, T, HR, dr)
  tensor_view<float, 4> d_weights{};  ///< (B, T, H, A)
  tensor_view<float, 3> d_gamma{};    ///< (B, T, H)
  tensor_view<float, 1> d_tau[2]{};   ///< (H), of tau_mu (cumulant: delta) and tau_sigma

  [[nodiscard]] bool wants_tau() const { return d_tau[0] || d_tau[1]; }
  [[nodiscard]] bool wants_rows() const { return d_k.given() || d_g || d_beta || d_query.given(); }
};

struct routing_gradient_memory {
  score_rows d_scores;
  float2* d_tau = nullptr;
  moment_gradients d;
  float* d_query = nullptr;  ///< [token][moment head][query_pitch]: the scores' part; d.d_query is the recurrence's
  recurrence::backward_scratch scratch;
};

inline routing_gradient_memory carve_gradients(workspace_carver& from, const routing_problem& p,
                                               const wanted_gradients& wanted) {
  routing_gradient_memory m;
  if (wanted.wants_tau()) m.d_tau = from.take<float2>(p.tokens() * p.heads);
  if (!p.router.reads_mu()) return m;
  m.d_scores = carve_scores(from, p);
  if (!wanted.wants_rows()) return m;
  m.d = moments::carve_gradients(from, p.moments, true);
  m.d_query = from.take<float>(p.tokens() * p.moment_heads() * p.moments.query_pitch());
  m.scratch = recurrence::carve(from, moments::plan_moments_backward(p.moments, true));
  return m;
}

/// The upstream derivatives of the moments at segments' ends, besides those of lam: what d.d_states holds already.
struct moment_upstream {
  bool given = false;
};

/// From the derivatives of the weights to all that is wanted. `m` holds what launch_scores() left.
inline POLYSTATE_HIDDEN status launch_routing_backward(const char* name, const on_cuda& exec, const routing_problem& p,
                                                       const routing_memory& m, const weight_view<const float>& d_lam,
                                                       const wanted_gradients& wanted, const routing_gradient_memory& g,
                                                       moment_upstream upstream = {}) {
  const tau_sum_params tau = {.d_tau = g.d_tau,
                              .to = {wanted.d_tau[0], wanted.d_tau[1]},
                              .tokens = p.is_empty() ? 0 : p.tokens(),
                              .heads = p.heads};
  if (p.is_empty()) return wanted.wants_tau() ? launch_tau_sum(name, exec, tau) : status{};
  status s = launch_weights_gradient(name, exec,
                                     {.router = p.router,
                                      .visible = m.moments.table.visible,
                                      .scores = m.scores,
                                      .d_scores = g.d_scores,
                                      .d_lam = d_lam,
                                      .d_weights = wanted.d_weights,
                                      .d_gamma = wanted.d_gamma,
                                      .d_tau = g.d_tau,
                                      .tokens = p.tokens(),
                                      .time = p.moments.segments.time,
                                      .heads = p.heads,
                                      .moment_heads = p.moment_heads()});
  if (s.ok() && wanted.wants_tau()) s = launch_tau_sum(name, exec, tau);
  if (!s.ok() || !p.router.reads_mu() || !wanted.wants_rows()) return s;

  score_params closed = make_score_params(p, m, g.d_scores);
  closed.d_query = g.d_query;
  s = launch_query_gradient(name, exec, closed);
  if (s.ok()) {
    s = launch_moment_gradient(name, exec,
                               {.table = m.moments.table,
                                .query = m.query,
                                .d_scores = g.d_scores,
                                .d_states = g.d.d_states,
                                .adds = upstream.given,
                                .slots = p.moments.slots(),
                                .heads = p.moment_heads(),
                                .max_visible = p.max_visible,
                                .dr = p.moments.dr(),
                                .query_pitch = p.moments.query_pitch(),
                                .rows = p.moments.rows(),
                                .mu_row = p.moments.mu_row()});
  }
  if (s.ok()) {
    open_params open = make_open_params(p, m, g.d_scores);
    open.d_read = g.d.d_out;
    open.d_query = g.d_query;
    s = launch_open_gradient(name, exec, open);
  }
  if (s.ok()) s = moments::launch_moments_backward(name, exec, p.moments, m.moments, m.query, g.d, g.scratch);
  if (s.ok()) {
    s = moments::launch_key_gradients(name, exec, p.moments, g.d, wanted.d_k, wanted.d_g, wanted.d_beta);
  }
  if (s.ok() && wanted.d_query.given()) {
    const int pitch = p.moments.query_pitch();
    s = moments::launch_unstage_rows(
        name, exec, {.from = p.query, .parts = {{g.d_query, pitch}, {g.d.d_query, pitch}, {}}, .to = wanted.d_query});
  }
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::route
