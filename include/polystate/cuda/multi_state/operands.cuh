// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A layer's operands in the terms of the kernels that it is put together from.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/gated_delta_rule/operands.cuh>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/routing/problem.cuh>
#include <polystate/cuda/routing/weights.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/ssd/operands.cuh>
#include <polystate/multi_state.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

template <class Data, class Rule>
const tensor_view<const Data, 4>& key_of(const operands<Data, Rule>& in) {
  return in.k;
}
template <class Data>
const tensor_view<const Data, 4>& key_of(const operands<Data, rule::ssd>& in) {
  return in.B;
}
template <class Data, class Rule>
const tensor_view<const Data, 4>& value_of(const operands<Data, Rule>& in) {
  return in.v;
}
template <class Data>
const tensor_view<const Data, 4>& value_of(const operands<Data, rule::ssd>& in) {
  return in.x;
}

/// The query side of a layer's operands.
template <class Data, class Rule>
query_operands<Data, Rule> query_side(const operands<Data, Rule>& in) {
  return {.q = in.q, .scale = in.scale, .qk_l2norm = in.qk_l2norm, .l2norm_eps = in.l2norm_eps};
}
template <class Data>
query_operands<Data, rule::ssd> query_side(const operands<Data, rule::ssd>& in) {
  return {.C = in.C};
}

template <class Data, class Rule>
query_rows rows_of(const query_operands<Data, Rule>& in) {
  return {any_element_view<4>(in.q), in.qk_l2norm, static_cast<float>(in.l2norm_eps)};
}
template <class Data>
query_rows rows_of(const query_operands<Data, rule::ssd>& in) {
  return {any_element_view<4>(in.C), false, 0.0f};
}
template <class Data, class Rule>
float scale_of(const query_operands<Data, Rule>& in) {
  return static_cast<float>(in.scale);
}
template <class Data>
float scale_of(const query_operands<Data, rule::ssd>&) {
  return 1.0f;
}

/// Token t of every batch entry alone.
template <class Data, int Rank>
tensor_view<Data, Rank> at_token(const tensor_view<Data, Rank>& v, std::int64_t t) {
  return v ? v.slice(1, t, t + 1) : v;
}
template <class Data, class Rule>
query_operands<Data, Rule> at_token(query_operands<Data, Rule> in, std::int64_t t) {
  in.q = at_token(in.q, t);
  return in;
}
template <class Data>
query_operands<Data, rule::ssd> at_token(query_operands<Data, rule::ssd> in, std::int64_t t) {
  in.C = at_token(in.C, t);
  return in;
}

/// Skip and gate, which come once a token.
template <class Data, class Rule>
finishing finishing_of(const operands<Data, Rule>&) {
  return {};
}
template <class Data>
finishing finishing_of(const operands<Data, rule::ssd>& in) {
  return {recurrence::make_form(in), any_element_view<4>(in.x), any_element_view<4>(in.z)};
}
template <class Data, class Rule>
finishing finishing_at(const operands<Data, Rule>&, std::int64_t) {
  return {};
}
template <class Data>
finishing finishing_at(operands<Data, rule::ssd> in, std::int64_t t) {
  in.x = at_token(in.x, t);
  in.z = at_token(in.z, t);
  return finishing_of(in);
}

/// The operands without what comes once a token: for read-outs that are yet to be weighted.
template <class Data, class Rule>
const operands<Data, Rule>& unfinished(const operands<Data, Rule>& in) {
  return in;
}
template <class Data>
operands<Data, rule::ssd> unfinished(operands<Data, rule::ssd> in) {
  in.D = {};
  in.z = {};
  return in;
}

/// The recurrence, its read-outs going to `out`, [token][head][dv].
template <class Data, class Rule>
recurrence::shared_operands make_unfinished_operands(const operands<Data, Rule>& in, float* out) {
  auto s = recurrence::make_shared_operands(unfinished(in), tensor_view<Data, 4>());
  const auto& v = value_of(in);
  const tensor_view<float, 4> to(out, {v.extent(0), v.extent(1), v.extent(2), v.extent(3)});
  s.out = any_element_view<4>(to);
  s.whole_out = vectorisable(to, 3);
  return s;
}

template <class Data, class Rule>
using form_of = decltype(recurrence::make_form(std::declval<const operands<Data, Rule>&>()));

/// Rows of an operand, normalised as the options say.
template <class Data>
moments::row_source source_of(const tensor_view<const Data, 4>& rows, bool normalize, double eps) {
  moments::row_source s;
  s.rows = any_element_view<4>(rows);
  s.normalizations = normalize ? 1 : 0;
  s.eps[0] = static_cast<float>(eps);
  return s;
}
/// The same, normalised once more.
inline moments::row_source normalized(moments::row_source s, bool normalize, double eps) {
  if (normalize) s.eps[s.normalizations++] = static_cast<float>(eps);
  return s;
}

/// The recurrence's own keys and queries, as the state uses them.
template <class Data, class Rule>
moments::row_source shared_key(const operands<Data, Rule>& in) {
  return source_of(in.k, in.qk_l2norm, in.l2norm_eps);
}
template <class Data>
moments::row_source shared_key(const operands<Data, rule::ssd>& in) {
  return source_of(in.B, false, 0);
}
template <class Data, class Rule>
moments::row_source shared_query(const query_operands<Data, Rule>& in) {
  return source_of(in.q, in.qk_l2norm, in.l2norm_eps);
}
template <class Data>
moments::row_source shared_query(const query_operands<Data, rule::ssd>& in) {
  return source_of(in.C, false, 0);
}

/// The queries that a router scores with.
template <class Data, class Rule, class Router>
moments::row_source router_source(const Router& router, const query_operands<Data, Rule>& in, bool shared_kq,
                                  bool qkp_l2norm, double eps) {
  if constexpr (Router::reads_moments) {
    moments::row_source own;
    own.rows = route::query_of(router);
    if (shared_kq) own = shared_query(in);
    return normalized(own, qkp_l2norm && Router::normalizes_query, eps);
  } else {
    return {};
  }
}

/// A router's operands for a part of the batch entries and tokens.
inline route::router_params part_of(route::router_params r, std::int64_t first_entry, std::int64_t last_entry,
                                    std::int64_t first_token, std::int64_t last_token) {
  if (r.weights) r.weights = r.weights.slice(0, first_entry, last_entry).slice(1, first_token, last_token);
  if (r.gamma) r.gamma = r.gamma.slice(0, first_entry, last_entry).slice(1, first_token, last_token);
  return r;
}

/// Whether four neighbouring columns of a state are one access.
template <class State>
[[nodiscard]] bool whole_fours(const tensor_view<State, 5>& states) {
  if (states.stride(4) != 1 || states.extent(4) % 4 != 0) return false;
  for (int i = 0; i < 4; ++i) {
    if (states.stride(i) % 4 != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(states.data()) % (4 * sizeof(State)) == 0;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
