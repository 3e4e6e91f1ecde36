// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The forward pass of a layer with segments: the recurrence over segments that know nothing of each other, weights of
/// all tokens over the segments that they see, and the weighted read-out of the closed ones.

#include <polystate/cuda/multi_state/bank_states.hpp>
#include <polystate/cuda/multi_state/operands.cuh>
#include <polystate/cuda/multi_state/policy.hpp>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/routing/problem.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/segment_items.hpp>
#include <polystate/cuda/segment_moments/state_copy.cuh>
#include <polystate/cuda/segment_moments/transfer.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/multi_state.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// Sizes of a call that its scratch memory follows from.
struct segment_plan {
  route::routing_problem routing;  ///< its moments have the segments always, the keys where any moments are wanted
  std::int64_t dv = 0;
  std::int64_t dk = 0;
  bool weighs = true;        ///< else every token reads its own segment alone, and finished
  bool keeps_states = true;  ///< in scratch memory

  [[nodiscard]] bool keeps_moments() const { return routing.moments.key.rows.given(); }
  [[nodiscard]] const moments::segmentation& segments() const { return routing.moments.segments; }
  /// Where Sigma is kept it is scored too: the kernels take both moments or the mean alone.
  [[nodiscard]] bool scores_Sigma() const { return routing.router.reads_mu() && routing.moments.keeps_Sigma; }
  [[nodiscard]] token_window window() const {
    const std::int64_t scores = (routing.router.reads_mu() ? 1 : 0) + (scores_Sigma() ? 1 : 0);
    const std::int64_t numbers = routing.heads + scores * routing.moment_heads();
    return window_of(segments().batch, segments().time, numbers * routing.columns() * std::int64_t{sizeof(float)});
  }
};

struct segment_memory {
  moments::moment_memory moments;  ///< without moments the table alone
  float* query = nullptr;          ///< [token][moment head][query_pitch]
  float* read = nullptr;           ///< [token][moment head][row]
  float* open = nullptr;           ///< [token][head][dv]
  float* states = nullptr;         ///< [slot][head][dv][dk]
  route::score_rows scores;        ///< of a window
  float* lam = nullptr;            ///< [token][head][column], likewise
};

inline segment_memory carve(workspace_carver& from, const segment_plan& p) {
  const route::routing_problem& r = p.routing;
  segment_memory m;
  if (p.keeps_moments()) {
    m.moments = moments::carve(from, r.moments);
  } else {
    m.moments.table = moments::carve(from, p.segments());
  }
  if (p.keeps_states) m.states = from.take<float>(p.segments().slots() * r.heads * p.dv * p.dk);
  if (!p.weighs) return m;
  m.open = from.take<float>(r.tokens() * r.heads * p.dv);
  const std::int64_t tokens = p.window().tokens();
  m.lam = from.take<float>(tokens * r.heads * r.columns());
  m.scores.columns = r.columns();
  if (!r.router.reads_mu()) return m;
  const std::int64_t rows = r.tokens() * r.moment_heads();
  m.query = from.take<float>(rows * r.moments.query_pitch());
  m.read = from.take<float>(rows * r.moments.rows());
  m.scores.r_mu = from.take<float>(tokens * r.moment_heads() * r.columns());
  if (p.scores_Sigma()) m.scores.r_sigma = from.take<float>(tokens * r.moment_heads() * r.columns());
  return m;
}

inline moments::segmentation segmentation_of(const separation::single&, const sequences& all, std::int64_t batch,
                                             std::int64_t time) {
  return moments::make_segmentation(separation::uniform{.m = std::max<std::int64_t>(time, 1)}, all, batch, time);
}
template <class Separation>
moments::segmentation segmentation_of(const Separation& separation, const sequences& all, std::int64_t batch,
                                      std::int64_t time) {
  return moments::make_segmentation(separation, all, batch, time);
}

template <class Data, class Rule, class Separation, class Router, class State>
segment_plan make_segment_plan(const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  const auto& v = value_of(args.in);
  segment_plan p;
  p.dv = v.extent(3);
  p.dk = key_of(args.in).extent(3);
  p.weighs = !std::is_same_v<Router, router::none>;
  p.keeps_states = !takes_states(args.S) || args.cu_seqlens;
  if (!p.weighs && !args.S) p.keeps_states = false;
  route::routing_problem& r = p.routing;
  r.heads = v.extent(2);
  r.max_visible = args.max_visible;
  if constexpr (!std::is_same_v<Router, router::none>) {
    r.router = route::make_router(args.router);
    r.query = router_source(args.router, query_side(args.in), args.shared_kq, args.moments.qkp_l2norm,
                            args.moments.l2norm_eps);
  }
  moments::moment_problem& m = r.moments;
  m.segments =
      segmentation_of(args.separation, sequences(v.extent(0), v.extent(1), args.cu_seqlens), v.extent(0), v.extent(1));
  m.segments.divides_by_count = args.moments.divide_by == divide_by::count;
  if (Router::reads_moments || args.mu || args.Sigma) {
    const auto& own = args.moments;
    m.key =
        normalized(args.shared_kq ? shared_key(args.in) : source_of(own.k, false, 0), own.qkp_l2norm, own.l2norm_eps);
    m.g = own.g;
    m.beta = own.beta;
    m.erases = own.moment_rule == moment_rule::delta;
    m.keeps_Sigma = Router::reads_Sigma || args.Sigma;
  }
  return p;
}

/// Table, moments and, where the router reads them, the running read-outs.
template <class MomentShapes>
POLYSTATE_HIDDEN status run_moments(const char* name, const on_cuda& exec, const segment_plan& p,
                                    const segment_memory& m) {
  const route::routing_problem& r = p.routing;
  if (!p.keeps_moments()) {
    return moments::launch_segment_table(name, exec, p.segments(), m.moments.table, r.max_visible);
  }
  status s;
  if (m.query != nullptr) {
    s = moments::launch_stage_rows(name, exec, {.from = r.query, .to = m.query, .pitch = r.moments.query_pitch()});
  }
  return s.ok() ? moments::launch_moments<MomentShapes, moments::segment_items>(name, exec, r.moments, m.moments,
                                                                                r.max_visible, {m.query, m.read})
                : s;
}

/// Scores and weights of tokens first .. first+count-1, of `time` tokens each of some batch entries; `router` has their
/// part of the operands, `lam` of the weights that the caller wants back, if any.
inline POLYSTATE_HIDDEN status run_weights(const char* name, const cuda_policy auto& exec, const segment_plan& p,
                                           const segment_memory& m, const route::router_params& router,
                                           const tensor_view<float, 4>& lam, std::int64_t first, std::int64_t count,
                                           std::int64_t time) {
  const route::routing_problem& r = p.routing;
  const moments::visible_slots* const visible = m.moments.table.visible + first;
  status s;
  if (router.reads_mu()) {
    const route::score_params closed = {.from = route::slots_of(r.moments, m.moments),
                                        .query = m.query + first * r.moment_heads() * r.moments.query_pitch(),
                                        .visible = visible,
                                        .scores = m.scores,
                                        .tokens = count,
                                        .heads = r.moment_heads(),
                                        .dr = r.moments.dr(),
                                        .query_pitch = r.moments.query_pitch()};
    s = route::launch_closed_scores(name, exec, closed);
    const route::open_params open = {.table = m.moments.table,
                                     .query = closed.query,
                                     .read = m.read + first * r.moment_heads() * r.moments.rows(),
                                     .scores = m.scores,
                                     .counts = r.moments.segments.divides_by_count,
                                     .first = first,
                                     .tokens = count,
                                     .heads = r.moment_heads(),
                                     .dr = r.moments.dr(),
                                     .query_pitch = r.moments.query_pitch(),
                                     .rows = r.moments.rows(),
                                     .mu_row = r.moments.mu_row()};
    if (s.ok()) s = route::launch_open_scores(name, exec, open);
  }
  if (!s.ok()) return s;
  route::weights_params weights = {.router = router,
                                   .visible = visible,
                                   .scores = m.scores,
                                   .lam = {{m.lam, {count / time, time, r.heads, r.columns()}}, true},
                                   .tokens = count,
                                   .time = time,
                                   .heads = r.heads,
                                   .moment_heads = r.moment_heads()};
  s = route::launch_weights(name, exec, weights);
  weights.lam = {lam, false};
  return s.ok() && lam ? route::launch_weights(name, exec, weights) : s;
}

/// The whole forward pass. `Shapes` and `MomentShapes` list the sizes of the recurrence and of the moments
/// that are compiled.
template <class Shapes, class MomentShapes, class Data, class Rule, class Separation, class Router, class State>
POLYSTATE_HIDDEN status run_segments(const char* name, const on_cuda& exec,
                                     const multi_state_args<Data, Rule, Separation, Router, State>& args,
                                     const segment_plan& p, const segment_memory& m) {
  const route::routing_problem& r = p.routing;
  const std::int64_t tokens = r.tokens();
  const std::int64_t slots = p.segments().slots();
  if (tokens == 0 || r.heads == 0) return {};
  status s = run_moments<MomentShapes>(name, exec, p, m);
  if (!s.ok()) return s;

  const tensor_view<float, 4> states = states_in_rows(args.S, m.states, slots, r.heads, p.dv, p.dk);
  const auto in =
      p.weighs ? make_unfinished_operands(args.in, m.open) : recurrence::make_shared_operands(args.in, args.o);
  const recurrence::forward_params<form_of<Data, Rule>, moments::segment_items> local = {
      .in = in,
      .form = recurrence::make_form(p.weighs ? unfinished(args.in) : args.in),
      .items = moments::segment_items(m.moments.table.begins, slots, p.segments().time),
      .initial_state = {},
      .final_state = any_element_view<4>(states),
      .carry_in = {},
      .carry_out = {},
      .record = {}};
  s = recurrence::launch_forward<Shapes>(name, exec, local);
  if (!s.ok()) return s;

  const token_window window = p.window();
  const std::int64_t batch = p.segments().batch;
  const std::int64_t time = p.segments().time;
  const std::int64_t rows = p.segments().all.packed() ? 1 : batch;
  for (std::int64_t b = 0; b < batch && p.weighs; b += window.entries) {
    for (std::int64_t t = 0; t < time && s.ok(); t += window.time) {
      const std::int64_t last_b = (std::min)(b + window.entries, batch);
      const std::int64_t last_t = (std::min)(t + window.time, time);
      const std::int64_t first = b * time + t;
      const std::int64_t count = (last_b - b) * (last_t - t);
      const auto lam = args.lam ? args.lam.slice(0, b, last_b).slice(1, t, last_t) : tensor_view<float, 4>();
      s = run_weights(name, exec, p, m, part_of(r.router, b, last_b, t, last_t), lam, first, count, last_t - t);
      const weight_rows weights = {m.lam, r.columns(), first};
      if (!s.ok()) return s;
      // The states' rows as slots are counted: of each batch entry, or of all packed sequences.
      const tensor_view<float, 5> bank(
          states.data(), {rows, slots / rows, r.heads, p.dv, p.dk},
          {slots / rows * states.stride(0), states.stride(0), states.stride(1), states.stride(2), states.stride(3)});
      s = launch_read_out<Shapes>(name, exec,
                                  {.query = rows_of(query_side(args.in)),
                                   .scale = scale_of(query_side(args.in)),
                                   .states = any_element_view<5>(bank),
                                   .whole_states = whole_fours(bank),
                                   .visible = m.moments.table.visible,
                                   .weights = weights,
                                   .open = m.open,
                                   .finish = finishing_of(args.in),
                                   .out = any_element_view<4>(args.o),
                                   .first = first,
                                   .last = first + count});
    }
  }
  if (s.ok() && !p.weighs && args.lam) {  // one segment each, whose weight is 1
    s = route::launch_weights(name, exec,
                              {.router = {},
                               .visible = m.moments.table.visible,
                               .scores = {},
                               .lam = {.rows = args.lam, .relative = false},
                               .tokens = tokens,
                               .time = time,
                               .heads = r.heads,
                               .moment_heads = r.heads});
  }
  if (s.ok() && p.keeps_states && args.S) {
    s = moments::launch_state_copy(name, exec,
                                   {.from = m.states,
                                    .rows = p.dv,
                                    .slots = slots,
                                    .slots_per_row = slots / rows,
                                    .entry = m.moments.table.entry,
                                    .to = any_element_view<5>(args.S)});
  }
  if (s.ok() && (args.mu || args.Sigma)) {
    s = moments::launch_moment_output(name, exec, r.moments, m.moments, args.mu, args.Sigma);
  }
  return s.ok() ? moments::launch_clear_tail(name, exec, p.segments(), m.moments.table, args.o, args.lam) : s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
