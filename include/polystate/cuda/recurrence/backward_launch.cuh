// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A backward pass of the recurrences with matrix states: its scratch memory, and its kernels in order.

#include <polystate/cuda/recurrence/backward.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/workspace.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form>
struct backward_call {
  shared_operands in;  ///< its `out` is the output's derivative; may be absent
  Form form;
  sequences all;
  std::int64_t batch = 0;
  std::int64_t time = 0;
  any_element_view<4> initial_state, d_final_state;                   ///< may be absent
  any_element_view<4> d_initial_state, d_query, d_key, d_value, d_z;  ///< absent: not wanted
  typename Form::gate_gradients gates;
  bool wants_gates = false;      ///< those, or the sums over a head's tokens
  bool wants_head_sums = false;  ///< the latter
  bool wants_skip = false;       ///< the skip weight's
};

/// Sizes of a backward pass.
struct backward_plan {
  std::int64_t time = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t sequences = 0;
  std::int64_t carried = 0;  ///< sequences that cross an end of a window, at most
  std::int64_t dk = 0;
  std::int64_t dv = 0;
  std::int64_t padded = 0;
  std::int64_t row_tiles = 0;
  std::int64_t window = 0;  ///< tokens of a window
  std::int64_t windows = 0;
  std::int64_t tiles = 0;  ///< of tokens, in a window, all sequences
  bool erases = false;
  bool wants_query = false, wants_key = false, wants_gates = false, wants_head_sums = false, wants_skip = false;

  [[nodiscard]] std::int64_t state() const { return heads * dv * dk; }
  [[nodiscard]] work_items items(const polystate::sequences& all, std::int64_t w) const {
    return {all, time, w * window, std::min(time, (w + 1) * window)};
  }
};

/// The plan with windows of so many tokens.
inline backward_plan with_window(backward_plan p, const sequences& all, std::int64_t window) {
  p.window = window;
  p.windows = std::max<std::int64_t>(1, tiles_of(p.time, window));
  p.tiles = p.items(all, 0).tiles(tile_tokens(static_cast<int>(p.padded)));
  return p;
}

template <class Form>
backward_plan make_plan(const backward_call<Form>& call) {
  backward_plan p;
  const auto padded = static_cast<int>(padded_key_dim(call.in.dk()));
  const int tile = tile_tokens(padded);
  p.time = call.time;
  p.batch = call.batch;
  p.heads = call.in.heads();
  p.sequences = call.all.size();
  p.carried = call.all.packed() ? 1 : p.sequences;
  p.dk = call.in.dk();
  p.dv = call.in.dv();
  p.padded = padded;
  p.erases = Form::erases;
  p.wants_query = call.d_query.given();
  p.wants_key = call.d_key.given();
  p.wants_gates = call.wants_gates;
  p.wants_head_sums = call.wants_head_sums;
  p.wants_skip = call.wants_skip;
  const int rows = split_over_time(padded).block_rows();
  p.row_tiles = tiles_of(p.dv, rows);
  const std::int64_t kept_rows = p.row_tiles * rows;
  const std::int64_t token_floats =
      kept_rows * padded / tile + (p.erases ? 3 : 1) * p.dv + p.row_tiles * ((p.wants_query + p.wants_key) * p.dk + 2);
  return with_window(
      p, call.all,
      window_tokens(p.time, p.batch * p.heads * token_floats * static_cast<std::int64_t>(sizeof(float)), tile));
}

struct backward_scratch {
  float* starts = nullptr;  ///< states at the windows' starts but the first
  float* carry[2] = {};     ///< derivatives of the states at a window's end and start
  recording record;
  float* d_query = nullptr;
  float* d_key = nullptr;
  float* d_gate = nullptr;
  float* d_skip = nullptr;      ///< [sequence][head][dv]
  float2* head_sums = nullptr;  ///< [batch][head]
};

inline backward_scratch carve(workspace_carver& from, const backward_plan& p) {
  backward_scratch s;
  if (p.windows > 1) {
    s.starts = from.take<float>((p.windows - 1) * p.carried * p.state());
    for (float*& carry : s.carry) carry = from.take<float>(p.carried * p.state());
  }
  const std::int64_t rows = p.row_tiles * split_over_time(static_cast<int>(p.padded)).block_rows();
  const std::int64_t tokens = p.batch * p.window * p.heads;
  s.record.states = from.take<float>(p.tiles * p.heads * rows * p.padded);
  s.record.read = from.take<float>(tokens * p.dv);
  if (p.erases) {
    s.record.error = from.take<float>(tokens * p.dv);
    s.record.erased = from.take<float>(tokens * p.dv);
  }
  if (p.wants_query) s.d_query = from.take<float>(p.row_tiles * tokens * p.dk);
  if (p.wants_key) s.d_key = from.take<float>(p.row_tiles * tokens * p.dk);
  if (p.wants_gates) s.d_gate = from.take<float>(p.row_tiles * tokens * 2);
  if (p.wants_skip) s.d_skip = from.take<float>(p.sequences * p.heads * p.dv);
  if (p.wants_head_sums) s.head_sums = from.take<float2>(p.batch * p.heads);
  return s;
}

inline std::size_t scratch_bytes(const backward_plan& p) {
  workspace_carver count;
  carve(count, p);
  return count.bytes();
}

/// Enqueues the gradients, all but those of the numbers that a head's tokens share: their sums are in `s`.
template <class KeyDims, class Form>
POLYSTATE_HIDDEN status launch_backward(const char* name, const on_cuda& exec, const backward_call<Form>& call,
                                        const backward_plan& plan, const backward_scratch& s) {
  if (plan.sequences == 0 || plan.heads == 0) return {};
  const auto states_at = [&](float* memory, std::int64_t i) {
    if (memory == nullptr) return any_element_view<4>();
    return any_element_view<4>(
        tensor_view<float, 4>(memory + i * plan.carried * plan.state(), {plan.carried, plan.heads, plan.dv, plan.dk}));
  };
  const auto clear = [&](void* memory, std::int64_t bytes) {
    if (memory == nullptr || bytes == 0) return status{};
    return runtime_status(name, "scratch memory",
                          cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), exec.stream));
  };
  status result = clear(s.d_skip, plan.sequences * plan.heads * plan.dv * static_cast<std::int64_t>(sizeof(float)));
  if (result.ok()) {
    result = clear(s.head_sums, plan.batch * plan.heads * static_cast<std::int64_t>(sizeof(float2)));
  }

  forward_params<Form> forward = {.in = call.in,
                                  .form = call.form,
                                  .items = {},
                                  .initial_state = call.initial_state,
                                  .final_state = {},
                                  .carry_in = {},
                                  .carry_out = {},
                                  .record = {}};
  forward.in.out = {};
  forward.in.z = {};
  for (std::int64_t w = 0; w + 1 < plan.windows && result.ok(); ++w) {
    forward.items = plan.items(call.all, w);
    forward.carry_in = w == 0 ? any_element_view<4>() : states_at(s.starts, w - 1);
    forward.carry_out = states_at(s.starts, w);
    result = launch_forward<KeyDims>(name, exec, forward);
  }

  backward_params<Form> backward = {.in = call.in,
                                    .form = call.form,
                                    .items = {},
                                    .d_final_state = call.d_final_state,
                                    .d_initial_state = call.d_initial_state,
                                    .carry_in = {},
                                    .carry_out = {},
                                    .record = s.record,
                                    .d_value = call.d_value,
                                    .d_z = call.d_z,
                                    .d_query = s.d_query,
                                    .d_key = s.d_key,
                                    .d_gate = s.d_gate,
                                    .d_skip = s.d_skip};
  forward.carry_out = {};
  forward.record = s.record;
  for (std::int64_t w = plan.windows - 1; w >= 0 && result.ok(); --w) {
    const work_items items = plan.items(call.all, w);
    forward.items = items;
    forward.carry_in = w == 0 ? any_element_view<4>() : states_at(s.starts, w - 1);
    result = launch_forward<KeyDims>(name, exec, forward);
    if (!result.ok()) break;

    backward.items = items;
    backward.carry_in = states_at(s.carry[(w + 1) % 2], 0);
    backward.carry_out = states_at(s.carry[w % 2], 0);
    result = with_padded<KeyDims>(name, backward.in.dk(), [&](auto padded) {
      using Tile = backward_tile<padded>;
      const grid g{.blocks = items.size() * plan.heads * plan.row_tiles,
                   .threads = split::threads,
                   .shared_bytes = sizeof(Tile)};
      return launch(name, exec, g, recurrence_bwd_kernel<Form, padded>, backward);
    });
    const std::int64_t tokens = items.last() - items.first();
    if (result.ok() && (plan.wants_query || plan.wants_key)) {
      const row_gradient_params rows = {.in = call.in,
                                        .part = {s.d_query, s.d_key},
                                        .d_query = call.d_query,
                                        .d_key = call.d_key,
                                        .items = items,
                                        .batch = plan.batch,
                                        .row_tiles = plan.row_tiles};
      const std::int64_t warps = plan.batch * tokens * call.in.key.extent(2) * 2;
      result = launch(name, exec, grid{.blocks = tiles_of(warps, split::warps), .threads = split::threads},
                      recurrence_row_gradient_kernel<split::threads>, rows);
    }
    if (result.ok() && plan.wants_gates) {
      const gate_gradient_params<Form> gates = {.form = call.form,
                                                .to = call.gates,
                                                .part = s.d_gate,
                                                .head_sums = s.head_sums,
                                                .items = items,
                                                .heads = plan.heads,
                                                .row_tiles = plan.row_tiles};
      result = launch(name, exec, grid{.blocks = plan.batch * plan.heads, .threads = split::threads},
                      recurrence_gate_gradient_kernel<Form>, gates);
    }
  }
  return result;
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
