// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward pass of problem.cuh. Apart, so that who needs none compiles no kernels for it.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/recurrence/backward_launch.cuh>
#include <polystate/cuda/routing/problem.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/routing/weights.cuh>
#include <polystate/cuda/segment_moments/moments_backward.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/workspace.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route {

using moments::moment_gradients;

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
                                               const wanted_gradients& wanted, const device_limits& limits) {
  routing_gradient_memory m;
  if (wanted.wants_tau()) m.d_tau = from.take<float2>(p.tokens() * p.heads);
  if (!p.router.reads_mu()) return m;
  m.d_scores = carve_scores(from, p);
  if (!wanted.wants_rows()) return m;
  m.d = moments::carve_gradients(from, p.moments, true);
  m.d_query = from.take<float>(p.tokens() * p.moment_heads() * p.moments.query_pitch());
  m.scratch = recurrence::carve(from, moments::plan_moments_backward(p.moments, true, limits));
  return m;
}

/// The upstream derivatives of the moments at segments' ends, besides those of lam: what d.d_states holds already.
struct moment_upstream {
  bool given = false;
};

/// From the derivatives of the weights to all that is wanted. `m` holds what launch_scores() left.
template <class Shapes>
POLYSTATE_HIDDEN status launch_routing_backward(const char* name, const on_cuda& exec, const routing_problem& p,
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
  if (s.ok()) s = moments::launch_moments_backward<Shapes>(name, exec, p.moments, m.moments, m.query, g.d, g.scratch);
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

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route
