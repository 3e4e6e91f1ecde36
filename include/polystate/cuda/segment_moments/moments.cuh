// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Moments of all segments on CUDA, as segment_moments, routing and multi_state use them. Times the divisor m, both
/// moments of a segment are one state of the gated delta rule with key k' and value (k', 1): rows 0 .. dr-1 are m
/// Sigma, row dr is m mu. So the kernels are those of cuda/recurrence/, over segments as packed sequences and rows
/// staged in float; what is divided by m is what leaves them.
///
///     moment_problem p{.segments = .., .key = .., ..};
///     const moment_memory memory = carve(carver, p);
///     launch_moments(name, exec, p, memory, max_visible, read);   // states of all segments, and read-outs S_t q_t
///     launch_moments_backward(...)                                // from the derivatives of both

#include <polystate/cuda/gated_delta_rule/operands.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/shared_memory.cuh>
#include <polystate/cuda/row_range.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/segment_moments/segment_items.hpp>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/segment_moments.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// What moments are kept of.
struct moment_problem {
  segmentation segments;
  row_source key;                      ///< k'
  tensor_view<const float, 3> g{};     ///< (B, T, HR), log decay; absent in rule plain
  tensor_view<const float, 3> beta{};  ///< likewise
  bool erases = false;                 ///< rule delta
  bool keeps_Sigma = true;             ///< else only mu

  [[nodiscard]] std::int64_t heads() const { return key.heads(); }
  [[nodiscard]] std::int64_t tokens() const { return segments.tokens(); }
  [[nodiscard]] std::int64_t slots() const { return segments.slots(); }
  [[nodiscard]] int dr() const { return key.dr(); }
  /// Floats of a staged key, (k', 1, 0 ..): 16-byte rows.
  [[nodiscard]] int key_pitch() const { return static_cast<int>(tiles_of(dr() + 1, 4)) * 4; }
  /// Floats of a staged query.
  [[nodiscard]] int query_pitch() const { return static_cast<int>(tiles_of(dr(), 4)) * 4; }
  /// Rows of a state; those behind mu's are 0.
  [[nodiscard]] int rows() const { return key_pitch() - (keeps_Sigma ? 0 : dr()); }
  /// The row of mu; before it lie those of Sigma.
  [[nodiscard]] int mu_row() const { return keeps_Sigma ? dr() : 0; }
  [[nodiscard]] std::int64_t state() const { return heads() * rows() * dr(); }
};

struct moment_memory {
  segment_table table;
  float* keys = nullptr;    ///< [token][head][key_pitch]
  float* g = nullptr;       ///< [token][head]; null in rule plain
  float* beta = nullptr;    ///< likewise
  float* states = nullptr;  ///< [slot][head][row][dr], times the divisor
};

/// Without `keeps_states` there are none: a backward pass that reads no scores needs none.
inline moment_memory carve(workspace_carver& from, const moment_problem& p, bool keeps_states = true) {
  moment_memory m;
  m.table = carve(from, p.segments);
  m.keys = from.take<float>(p.tokens() * p.heads() * p.key_pitch());
  if (p.g) m.g = from.take<float>(p.tokens() * p.heads());
  if (p.beta) m.beta = from.take<float>(p.tokens() * p.heads());
  if (keeps_states) m.states = from.take<float>(p.slots() * p.state());
  return m;
}

/// The read-outs of a segment's running state S_t: out = S_t q_t, times the divisor. Absent: none.
struct moment_read {
  const float* query = nullptr;  ///< [token][head][query_pitch]
  float* out = nullptr;          ///< [token][head][row]
};

template <bool Erases>
recurrence::delta_form<Erases> make_moment_form(const moment_problem& p, const moment_memory& m) {
  recurrence::delta_form<Erases> form;
  if (m.g != nullptr) form.g = {m.g, {1, p.tokens(), p.heads()}};
  if (m.beta != nullptr) form.beta = {m.beta, {1, p.tokens(), p.heads()}};
  return form;
}

/// A staged array of rows as an operand: `columns` of the `pitch` floats, from `first` on.
template <class Float>
tensor_view<Float, 4> staged(Float* rows, const moment_problem& p, int pitch, int first, int columns) {
  if (rows == nullptr) return {};
  return {rows + first, {1, p.tokens(), p.heads(), columns}, {0, p.heads() * pitch, pitch, 1}};
}

inline any_element_view<4> states_of(float* states, const moment_problem& p) {
  if (states == nullptr) return {};
  return any_element_view<4>(tensor_view<float, 4>(states, {p.slots(), p.heads(), p.rows(), p.dr()}));
}

inline recurrence::shared_operands make_moment_operands(const moment_problem& p, const moment_memory& m,
                                                        const moment_read& read) {
  const auto key = staged<const float>(m.keys, p, p.key_pitch(), 0, p.dr());
  const auto query = read.query != nullptr ? staged<const float>(read.query, p, p.query_pitch(), 0, p.dr()) : key;
  const auto value = staged<const float>(m.keys, p, p.key_pitch(), p.dr() - p.mu_row(), p.rows());
  return recurrence::make_shared_operands<float>(key, query, value, {}, staged(read.out, p, p.rows(), 0, p.rows()));
}

/// Refuses keys that are to be normalised and whose squares leave float. Waits for exec.stream.
template <class Data>
status check_key_rows(const char* name, const on_cuda& exec, const key_moments<Data>& in) {
  return in.qkp_l2norm ? check_row_squares(name, exec, "moments.k", in.k, in.l2norm_eps) : status{};
}

/// Refuses a dr that the device has no room for.
inline status check_moments_fit(const char* name, const moment_problem& p, const device_limits& limits) {
  constexpr int bytes = sizeof(float);  // staged rows
  return p.erases ? recurrence::check_forward_fits<recurrence::delta_form<true>>(name, "moments.k", "dr", p.dr(), bytes,
                                                                                 false, limits)
                  : recurrence::check_forward_fits<recurrence::delta_form<false>>(name, "moments.k", "dr", p.dr(),
                                                                                  bytes, false, limits);
}

/// The items of one batch entry: the segments of the layer, or those of packed sequences.
template <class Items>
Items make_items(const moment_problem& p, const moment_memory& m) {
  if constexpr (std::is_same_v<Items, segment_items>) {
    return {m.table.begins, p.slots(), p.tokens()};
  } else {
    return {m.table.segments(p.segments), p.tokens()};
  }
}

template <class Shapes, class Items, bool Erases>
POLYSTATE_HIDDEN status launch_moment_states(const char* name, const on_cuda& exec, const moment_problem& p,
                                             const moment_memory& m, const moment_read& read) {
  const recurrence::forward_params<recurrence::delta_form<Erases>, Items> params = {
      .in = make_moment_operands(p, m, read),
      .form = make_moment_form<Erases>(p, m),
      .items = make_items<Items>(p, m),
      .initial_state = {},
      .final_state = states_of(m.states, p),
      .carry_in = {},
      .carry_out = {},
      .record = {}};
  return recurrence::launch_forward<Shapes>(name, exec, params);
}

/// The table of segments, and the keys.
inline POLYSTATE_HIDDEN status launch_staged_keys(const char* name, const cuda_policy auto& exec,
                                                  const moment_problem& p, const moment_memory& m,
                                                  std::int64_t max_visible) {
  const status s = launch_segment_table(name, exec, p.segments, m.table, max_visible);
  const stage_params keys = {.from = p.key,
                             .to = m.keys,
                             .pitch = p.key_pitch(),
                             .after = 1.0f,
                             .gates = {p.g, p.beta},
                             .gates_to = {m.g, m.beta}};
  return s.ok() ? launch_stage_rows(name, exec, keys) : s;
}

/// Those, and the states of all segments at their ends; with `read` also the running read-outs, whose queries must be
/// staged before. `Items`: segment_items where the caller has kernels of them in any case.
template <class Shapes, class Items = recurrence::work_items>
POLYSTATE_HIDDEN status launch_moments(const char* name, const on_cuda& exec, const moment_problem& p,
                                       const moment_memory& m, std::int64_t max_visible, const moment_read& read) {
  const status s = launch_staged_keys(name, exec, p, m, max_visible);
  if (!s.ok() || p.tokens() == 0 || p.slots() == 0 || p.heads() == 0) return s;
  return p.erases ? launch_moment_states<Shapes, Items, true>(name, exec, p, m, read)
                  : launch_moment_states<Shapes, Items, false>(name, exec, p, m, read);
}

/// A moment problem of the contract's operands.
template <class Data, class Separation>
moment_problem make_moment_problem(const key_moments<Data>& in, const Separation& separation,
                                   const index_view& cu_seqlens, bool keeps_Sigma) {
  moment_problem p;
  const std::int64_t B = in.k.extent(0);
  const std::int64_t T = in.k.extent(1);
  p.segments = make_segmentation(separation, sequences(B, T, cu_seqlens), B, T);
  p.segments.divides_by_count = in.divide_by == divide_by::count;
  p.key.rows = any_element_view<4>(in.k);
  p.key.normalizations = in.qkp_l2norm ? 1 : 0;
  p.key.eps[0] = static_cast<float>(in.l2norm_eps);
  p.g = in.g;
  p.beta = in.beta;
  p.erases = in.moment_rule == moment_rule::delta;
  p.keeps_Sigma = keeps_Sigma;
  return p;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
