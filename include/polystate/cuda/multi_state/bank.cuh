// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Steps and reads: what is written into a bank, and what queries read of it.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/multi_state/bank_read.cuh>
#include <polystate/cuda/multi_state/bank_scores.cuh>
#include <polystate/cuda/multi_state/counting.hpp>
#include <polystate/cuda/multi_state/operands.cuh>
#include <polystate/cuda/multi_state/policy.hpp>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/multi_state/write.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/routing/weights.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/multi_state.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// Sizes of a read, or of a step's reads, that scratch memory follows from.
struct bank_plan {
  std::int64_t batch = 0;
  std::int64_t time = 0;     ///< tokens of a row in the call
  std::int64_t at_once = 0;  ///< of these the queries that a read has
  std::int64_t heads = 0;
  std::int64_t moment_heads = 0;
  std::int64_t capacity = 0;
  std::int64_t max_visible = 0;
  std::int64_t dv = 0;
  std::int64_t dk = 0;
  std::int64_t dr = 0;
  bool reads_mu = false;
  bool reads_Sigma = false;
  bool weighs = true;          ///< else one entry with weight 1
  bool keeps_moments = false;  ///< a step writes moments
  int shares = 1;              ///< of a list of entries

  [[nodiscard]] std::int64_t queries() const { return batch * at_once; }
  /// Entries that a query sees, at most.
  [[nodiscard]] int columns() const {
    return static_cast<int>(max_visible > 0 ? (std::min)(max_visible, capacity) : capacity);
  }
  [[nodiscard]] int query_pitch() const { return static_cast<int>(tiles_of(dr, 4)) * 4; }
  /// Of a staged key, (k', 1, 0 ..).
  [[nodiscard]] int key_pitch() const { return static_cast<int>(tiles_of(dr + 1, 4)) * 4; }
  /// Whether the states are streamed for every query, or shared by many.
  [[nodiscard]] bool streams() const { return at_once <= few_queries; }
};

struct bank_memory {
  moments::visible_slots* visible = nullptr;  ///< [query]
  float* keys = nullptr;                      ///< [token][moment head][key_pitch]
  float* query = nullptr;                     ///< [token][moment head][query_pitch]
  route::score_rows scores;                   ///< of the queries of one read
  float* lam = nullptr;                       ///< [query][head][column]
  weighted_entries list;
  float* partial = nullptr;  ///< [query][head][share][dv]
};

inline bank_memory carve(workspace_carver& from, const bank_plan& p) {
  bank_memory m;
  const std::int64_t units = p.queries() * p.heads;
  if (p.keeps_moments) m.keys = from.take<float>(p.batch * p.time * p.moment_heads * p.key_pitch());
  if (p.at_once == 0) return m;
  m.visible = from.take<moments::visible_slots>(p.queries());
  if (p.weighs) m.lam = from.take<float>(units * p.columns());
  if (p.streams()) {
    m.list.count = from.take<std::int32_t>(units);
    m.list.entry = from.take<std::int32_t>(units * p.columns());
    m.list.weight = from.take<float>(units * p.columns());
    m.partial = from.take<float>(units * p.shares * p.dv);
  }
  m.scores.columns = p.columns();
  if (!p.reads_mu) return m;
  m.query = from.take<float>(p.batch * p.time * p.moment_heads * p.query_pitch());
  m.scores.r_mu = from.take<float>(p.queries() * p.moment_heads * p.columns());
  if (p.reads_Sigma) m.scores.r_sigma = from.take<float>(p.queries() * p.moment_heads * p.columns());
  return m;
}

inline void choose_shares(bank_plan& p, const on_cuda& exec, int element_bytes) {
  const int padded = recurrence::padded_key_dim(p.dk);
  if (padded == 0 || !p.streams()) return;
  const std::int64_t of_query = p.heads * tiles_of(p.dv, split_of_bank(padded, element_bytes).block_rows());
  p.shares = bank_shares(exec.batch_invariant ? of_query : p.queries() * of_query, p.columns(),
                         limits_of(exec).multiprocessors);
}

template <class Data, class Rule, class Separation, class Router, class State>
bank_plan make_bank_plan(const on_cuda& exec,
                         const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  bank_plan p;
  p.batch = args.bank.S.extent(0);
  p.time = value_of(args.in).extent(1);
  p.at_once = args.o && p.time > 0 ? 1 : 0;
  p.heads = args.bank.S.extent(2);
  p.capacity = args.bank.S.extent(1);
  p.max_visible = args.max_visible;
  p.dv = args.bank.S.extent(3);
  p.dk = args.bank.S.extent(4);
  p.reads_mu = Router::reads_moments;
  p.reads_Sigma = Router::reads_Sigma;
  p.weighs = !std::is_same_v<Router, router::none>;
  p.keeps_moments = args.bank.mu || args.bank.Sigma;
  if (p.keeps_moments) {
    p.moment_heads = args.bank.mu ? args.bank.mu.extent(2) : args.bank.Sigma.extent(2);
    p.dr = args.bank.mu ? args.bank.mu.extent(3) : args.bank.Sigma.extent(3);
  }
  choose_shares(p, exec, static_cast<int>(sizeof(State)));
  return p;
}
template <class Data, class Rule, class Router, class State>
bank_plan make_bank_plan(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  bank_plan p;
  p.batch = args.bank.S.extent(0);
  p.time = args.o.extent(1);
  p.at_once = p.time;
  p.heads = args.bank.S.extent(2);
  p.capacity = args.bank.S.extent(1);
  p.max_visible = args.max_visible;
  p.dv = args.bank.S.extent(3);
  p.dk = args.bank.S.extent(4);
  p.reads_mu = Router::reads_moments;
  p.reads_Sigma = Router::reads_Sigma;
  if (p.reads_mu) {
    p.moment_heads = args.bank.mu.extent(2);
    p.dr = args.bank.mu.extent(3);
  }
  choose_shares(p, exec, static_cast<int>(sizeof(State)));
  return p;
}

/// A bank's moments as routing's kernels for many queries find them.
template <class Data, class State>
route::slot_moments slots_of(const bank_view<Data, const State>& bank, bool reads_Sigma) {
  route::slot_moments s;
  s.slots_per_row = bank.mu.extent(1);
  s.mu = bank.mu.data();
  for (int i = 0; i < 4; ++i) s.mu_strides[i] = bank.mu.stride(i);
  if (!reads_Sigma) return s;
  s.Sigma = bank.Sigma.data();
  for (int i = 0; i < 5; ++i) s.Sigma_strides[i] = bank.Sigma.stride(i);
  return s;
}

/// One read: p.at_once queries of every row, those of all operands here, `first` tokens into those of the call.
template <class Data, class Rule, class State>
struct bank_reading {
  bank_view<Data, const State> bank;
  token_counting counting{};
  std::int64_t counted = 0;  ///< tokens that the counters do not know of
  std::int64_t first = 0;
  query_operands<Data, Rule> query;
  route::router_params router;
  finishing finish{};
  tensor_view<Data, 4> o;
  tensor_view<float, 4> lam{};  ///< (B, T, heads, capacity), optional
};

template <class Data, class Rule, class State>
POLYSTATE_HIDDEN status run_bank_weights(const char* name, const on_cuda& exec, const bank_plan& p,
                                         const bank_memory& m, const bank_reading<Data, Rule, State>& r) {
  status s;
  if (p.reads_mu) {
    const std::int64_t row = p.moment_heads * p.query_pitch();
    const float* const query = m.query + r.first * row;
    const tensor_view<const float, 5> Sigma = p.reads_Sigma ? r.bank.Sigma : tensor_view<const float, 5>();
    if (p.at_once < many_queries) {
      s = launch_bank_scores(name, exec,
                             {.mu = r.bank.mu,
                              .Sigma = Sigma,
                              .whole = vectorisable(Sigma, 4),
                              .query = query,
                              .query_pitch = p.query_pitch(),
                              .query_stride = p.at_once == 1 ? p.time * row : row,
                              .visible = m.visible,
                              .queries = p.queries(),
                              .scores = m.scores});
    } else {
      s = route::launch_closed_scores(name, exec,
                                      {.from = slots_of(r.bank, p.reads_Sigma),
                                       .query = query,
                                       .visible = m.visible,
                                       .scores = m.scores,
                                       .tokens = p.queries(),
                                       .heads = p.moment_heads,
                                       .dr = static_cast<int>(p.dr),
                                       .query_pitch = p.query_pitch(),
                                       .last_is_open = false});
    }
  }
  if (!s.ok()) return s;
  route::weights_params weights;
  weights.router = r.router;
  weights.visible = m.visible;
  weights.scores = m.scores;
  weights.lam = {{m.lam, {p.batch, p.at_once, p.heads, p.columns()}}, true};
  weights.tokens = p.queries();
  weights.time = p.at_once;
  weights.heads = p.heads;
  weights.moment_heads = p.reads_mu ? p.moment_heads : p.heads;
  s = route::launch_weights(name, exec, weights);
  weights.lam = {r.lam, false};
  return s.ok() && r.lam ? route::launch_weights(name, exec, weights) : s;
}

template <class Shapes, class Data, class Rule, class State>
POLYSTATE_HIDDEN status run_reading(const char* name, const on_cuda& exec, const bank_plan& p, const bank_memory& m,
                                    const bank_reading<Data, Rule, State>& r) {
  status s = launch_bank_sight(name, exec,
                               {.counters = r.bank.counters,
                                .counting = r.counting,
                                .tokens = r.counted,
                                .time = p.at_once,
                                .capacity = p.capacity,
                                .max_visible = p.max_visible,
                                .to = m.visible});
  if (s.ok() && p.weighs) s = run_bank_weights(name, exec, p, m, r);
  const weight_rows weights = {m.lam, p.columns()};
  if (!s.ok()) return s;
  if (!p.streams()) {
    return launch_read_out<Shapes>(name, exec,
                                   {.query = rows_of(r.query),
                                    .scale = scale_of(r.query),
                                    .states = any_element_view<5>(r.bank.S),
                                    .whole_states = whole_fours(r.bank.S),
                                    .visible = m.visible,
                                    .weights = weights,
                                    .open = nullptr,
                                    .finish = r.finish,
                                    .out = any_element_view<4>(r.o),
                                    .first = 0,
                                    .last = p.queries()});
  }
  s = launch_list(name, exec,
                  {.visible = m.visible,
                   .weights = weights,
                   .queries = p.queries(),
                   .heads = p.heads,
                   .columns = p.columns(),
                   .weighted = p.weighs,
                   .to = m.list});
  if (s.ok()) {
    s = launch_bank_read<Shapes>(name, exec,
                                 bank_read_params<State>{.query = rows_of(r.query),
                                                         .states = r.bank.S,
                                                         .whole = vectorisable(r.bank.S, 4),
                                                         .list = m.list,
                                                         .columns = p.columns(),
                                                         .queries = p.queries(),
                                                         .shares = p.shares,
                                                         .partial = m.partial});
  }
  if (!s.ok()) return s;
  return launch_combine(name, exec,
                        {.partial = m.partial,
                         .shares = p.shares,
                         .scale = scale_of(r.query),
                         .finish = r.finish,
                         .out = any_element_view<4>(r.o)});
}

/// Rows of k' as the moments' rule writes them, staged for the whole call.
template <class Args>
POLYSTATE_HIDDEN status stage_bank_keys(const char* name, const on_cuda& exec, const Args& args, const bank_plan& p,
                                        const bank_memory& m) {
  const auto& own = args.moments;
  const moments::row_source key =
      normalized(args.shared_kq ? shared_key(args.in) : source_of(own.k, false, 0), own.qkp_l2norm, own.l2norm_eps);
  return moments::launch_stage_rows(name, exec, {.from = key, .to = m.keys, .pitch = p.key_pitch(), .after = 1.0f});
}

/// Token t's key enters the moments: states of a delta rule with key k' and the value k'/m, for the mean 1/m.
template <class Shapes, bool Erases, class Data, class State>
POLYSTATE_HIDDEN status run_moment_write(const char* name, const on_cuda& exec, const key_moments<Data>& in,
                                         const bank_view<Data, State>& bank, const bank_plan& p, const bank_memory& m,
                                         const token_counting& counting, std::int64_t t) {
  recurrence::delta_form<Erases> form;
  form.g = in.g;
  form.beta = in.beta;
  const std::int64_t pitch = p.key_pitch();
  const auto staged = [&](std::int64_t first, std::int64_t columns) {
    return tensor_view<const float, 4>(m.keys + first, {p.batch, p.time, p.moment_heads, columns},
                                       {p.time * p.moment_heads * pitch, p.moment_heads * pitch, pitch, 1});
  };
  const auto key = staged(0, p.dr);
  write_params<recurrence::delta_form<Erases>> write = {.in = {},
                                                        .form = form,
                                                        .divisor = static_cast<float>(counting.m),
                                                        .states = {},
                                                        .counters = bank.counters,
                                                        .counting = counting,
                                                        .t = t};
  status s;
  if (bank.Sigma) {
    write.in = recurrence::make_shared_operands<float>(key, key, key, {}, {});
    write.states = any_element_view<5>(bank.Sigma);
    s = launch_write<Shapes>(name, exec, write);
  }
  if (s.ok() && bank.mu) {
    const auto& mu = bank.mu;
    write.in = recurrence::make_shared_operands<float>(key, key, staged(p.dr, 1), {}, {});
    write.states = any_element_view<5>(
        tensor_view<float, 5>(mu.data(), {mu.extent(0), mu.extent(1), mu.extent(2), 1, mu.extent(3)},
                              {mu.stride(0), mu.stride(1), mu.stride(2), 0, mu.stride(3)}));
    s = launch_write<Shapes>(name, exec, write);
  }
  return s;
}

/// The whole step, token by token.
template <class Shapes, class MomentShapes, class Data, class Rule, class Separation, class Router, class State>
POLYSTATE_HIDDEN status run_step(const char* name, const on_cuda& exec,
                                 const multi_state_step_args<Data, Rule, Separation, Router, State>& args,
                                 const bank_plan& p, const bank_memory& m) {
  const token_counting counting = counting_of(args.separation);
  const query_operands<Data, Rule> query = query_side(args.in);
  status s;
  if (p.keeps_moments) s = stage_bank_keys(name, exec, args, p, m);
  if (s.ok() && m.query != nullptr) {
    const moments::row_source rows =
        router_source(args.router, query, args.shared_kq, args.moments.qkp_l2norm, args.moments.l2norm_eps);
    s = moments::launch_stage_rows(name, exec, {.from = rows, .to = m.query, .pitch = p.query_pitch()});
  }
  write_params<form_of<Data, Rule>> write = {
      .in = recurrence::make_shared_operands(unfinished(args.in), tensor_view<Data, 4>()),
      .form = recurrence::make_form(unfinished(args.in)),
      .divisor = 1.0f,
      .states = any_element_view<5>(args.bank.S),
      .counters = args.bank.counters,
      .counting = counting,
      .t = 0};
  route::router_params router;
  if constexpr (!std::is_same_v<Router, router::none>) router = route::make_router(args.router);
  for (std::int64_t t = 0; t < p.time && s.ok(); ++t) {
    write.t = t;
    s = launch_write<Shapes>(name, exec, write);
    if (s.ok() && p.keeps_moments) {
      s = args.moments.moment_rule == moment_rule::delta
              ? run_moment_write<MomentShapes, true>(name, exec, args.moments, args.bank, p, m, counting, t)
              : run_moment_write<MomentShapes, false>(name, exec, args.moments, args.bank, p, m, counting, t);
    }
    if (!s.ok() || !args.o) continue;
    s = run_reading<Shapes>(name, exec, p, m,
                            bank_reading<Data, Rule, State>{.bank = args.bank,
                                                            .counting = counting,
                                                            .counted = t + 1,
                                                            .first = t,
                                                            .query = at_token(query, t),
                                                            .router = part_of(router, 0, p.batch, t, t + 1),
                                                            .finish = finishing_at(args.in, t),
                                                            .o = at_token(args.o, t)});
  }
  if (!s.ok()) return s;
  return launch_count(name, exec, {.counters = args.bank.counters, .counting = counting, .tokens = p.time});
}

template <class Shapes, class Data, class Rule, class Router, class State>
POLYSTATE_HIDDEN status run_read(const char* name, const on_cuda& exec,
                                 const multi_state_read_args<Data, Rule, Router, State>& args, const bank_plan& p,
                                 const bank_memory& m) {
  status s;
  if (m.query != nullptr) {
    const moments::row_source rows =
        router_source(args.router, args.in, args.shared_kq, args.qkp_l2norm, args.l2norm_eps);
    s = moments::launch_stage_rows(name, exec, {.from = rows, .to = m.query, .pitch = p.query_pitch()});
  }
  if (!s.ok()) return s;
  return run_reading<Shapes>(name, exec, p, m,
                             bank_reading<Data, Rule, State>{.bank = args.bank,
                                                             .query = args.in,
                                                             .router = route::make_router(args.router),
                                                             .o = args.o,
                                                             .lam = args.lam});
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
