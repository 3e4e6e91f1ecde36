// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A backward pass of the recurrences with matrix states: its scratch memory, and its kernels in order. Of a window of
/// tokens, last one first, the forward walk runs again and keeps states; the backward walk keeps their derivatives; and
/// with both every sixteen tokens have their gradients by themselves.

#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/operand_gradients.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/reverse.cuh>
#include <polystate/cuda/recurrence/tile_gradients.cuh>
#include <polystate/cuda/vector_access.hpp>
#include <polystate/cuda/workspace.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

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
  int gradient_rows = 0;       ///< of a state, that a block of tile_gradients.cuh has
  std::int64_t row_parts = 0;  ///< blocks that share a token's gradients
  std::int64_t window = 0;     ///< tokens of a window
  std::int64_t windows = 0;
  std::int64_t tiles = 0;  ///< of record_tokens tokens, in a window, all sequences
  bool erases = false;
  bool gated = false;  ///< whether there is a z
  bool wants_query = false, wants_key = false, wants_gates = false, wants_head_sums = false, wants_skip = false;

  [[nodiscard]] std::int64_t state() const { return heads * dv * dk; }
  [[nodiscard]] std::int64_t recorded() const { return heads * recorded_rows(static_cast<int>(dv)) * padded; }
  [[nodiscard]] std::int64_t skip_sums() const { return tiles_of(window, finish_slice) * batch; }
  [[nodiscard]] work_items items(const polystate::sequences& all, std::int64_t w) const {
    return {all, time, w * window, (std::min)(time, (w + 1) * window)};
  }
};

/// The plan with windows of so many tokens.
inline backward_plan with_window(backward_plan p, const sequences& all, std::int64_t window) {
  p.window = window;
  p.windows = std::max<std::int64_t>(1, tiles_of(p.time, window));
  p.tiles = p.items(all, 0).tiles(record_tokens);
  return p;
}

template <class Form>
backward_plan make_plan(const backward_call<Form>& call, const device_limits& limits) {
  backward_plan p;
  p.time = call.time;
  p.batch = call.batch;
  p.heads = call.in.heads();
  p.sequences = call.all.size();
  p.carried = call.all.packed() ? 1 : p.sequences;
  p.dk = call.in.dk();
  p.dv = call.in.dv();
  p.padded = padded_key_dim(call.in.dk());
  p.erases = Form::erases;
  p.gated = call.in.z.given();
  p.wants_query = call.d_query.given();
  p.wants_key = call.d_key.given();
  p.wants_gates = call.wants_gates;
  p.wants_head_sums = call.wants_head_sums;
  p.wants_skip = call.wants_skip;
  p.gradient_rows = gradient_tile::rows_within(static_cast<int>(p.padded), p.erases, limits.shared_bytes);
  p.row_parts = tiles_of(p.dv, p.gradient_rows);
  const std::int64_t of_states = 2 * p.recorded() / record_tokens;
  const std::int64_t of_rows = (1 + p.erases + 2 * p.gated) * p.dv;
  const std::int64_t of_gradients = p.row_parts * ((p.wants_query + p.wants_key) * p.dk + 2);
  const std::int64_t token_floats = of_states + p.heads * (of_rows + of_gradients);
  return with_window(p, call.all,
                     window_tokens(p.time, p.batch * token_floats * static_cast<std::int64_t>(sizeof(float))));
}

struct backward_scratch {
  float* starts = nullptr;  ///< states at the windows' starts but the first
  float* carry[2] = {};     ///< derivatives of the states at a window's end and start
  recording record;
  float* d_states = nullptr;  ///< as those of `record`
  float* d_written = nullptr;
  float* d_o = nullptr;  ///< where there is an output gate; else it is the output's
  float* d_query = nullptr;
  float* d_key = nullptr;
  float* d_gate = nullptr;
  float* d_skip = nullptr;      ///< [skip_sums][head][dv]
  float2* head_sums = nullptr;  ///< [batch][head]
};

inline backward_scratch carve(workspace_carver& from, const backward_plan& p) {
  backward_scratch s;
  if (p.windows > 1) {
    s.starts = from.take<float>((p.windows - 1) * p.carried * p.state());
    for (float*& carry : s.carry) carry = from.take<float>(p.carried * p.state());
  }
  const std::int64_t tokens = p.batch * p.window * p.heads;
  s.record.states = from.take<float>(p.tiles * p.recorded());
  s.d_states = from.take<float>(p.tiles * p.recorded());
  s.d_written = from.take<float>(tokens * p.dv);
  if (p.erases) s.record.error = from.take<float>(tokens * p.dv);
  if (p.gated) {
    s.record.o = from.take<float>(tokens * p.dv);
    s.d_o = from.take<float>(tokens * p.dv);
  }
  if (p.wants_query) s.d_query = from.take<float>(p.row_parts * tokens * p.dk);
  if (p.wants_key) s.d_key = from.take<float>(p.row_parts * tokens * p.dk);
  if (p.wants_gates) s.d_gate = from.take<float>(p.row_parts * tokens * 2);
  if (p.wants_skip) s.d_skip = from.take<float>(p.skip_sums() * p.heads * p.dv);
  if (p.wants_head_sums) s.head_sums = from.take<float2>(p.batch * p.heads);
  return s;
}

inline std::size_t scratch_bytes(const backward_plan& p) {
  workspace_carver count;
  carve(count, p);
  return count.bytes();
}

/// Enqueues what comes from one window's tokens once its walk may begin: the derivatives of the read-outs, the walk
/// back along it, and the gradients.
template <class Shapes, class Form>
POLYSTATE_HIDDEN status launch_window_backward(const char* name, const on_cuda& exec, const backward_call<Form>& call,
                                               const backward_plan& plan, const backward_scratch& s,
                                               const work_items& items, const any_element_view<4>& carry_in,
                                               const any_element_view<4>& carry_out) {
  const std::int64_t tokens = items.last() - items.first();
  status result;
  if constexpr (Form::finishes) {
    if (plan.gated || plan.wants_skip) {
      const finish_gradient_params<Form> finish = {.in = call.in,
                                                   .form = call.form,
                                                   .items = items,
                                                   .o = s.record.o,
                                                   .d_o = s.d_o,
                                                   .d_z = call.d_z,
                                                   .d_skip = s.d_skip,
                                                   .batch = plan.batch};
      result =
          launch(name, exec, grid{.blocks = tiles_of(tokens, finish_slice) * plan.batch * plan.heads, .threads = 256},
                 recurrence_finish_gradient_kernel<Form>, finish);
      if (!result.ok()) return result;
    }
  }
  read_out_gradient d_o = {.values = call.in.out, .first = 0, .whole = call.in.whole_out};
  if (plan.gated) {
    const tensor_view<float, 4> of_window(s.d_o, {plan.batch, tokens, plan.heads, plan.dv});
    d_o = {.values = any_element_view<4>(of_window), .first = items.first(), .whole = vectorisable(of_window, 3)};
  }
  const reverse_params<Form> reverse = {.in = call.in,
                                        .form = call.form,
                                        .items = items,
                                        .d_o = d_o,
                                        .d_final_state = call.d_final_state,
                                        .d_initial_state = call.d_initial_state,
                                        .carry_in = carry_in,
                                        .carry_out = carry_out,
                                        .d_states = s.d_states,
                                        .d_written = s.d_written};
  result = launch_reverse<Shapes>(name, exec, reverse);
  if (result.ok() && (call.d_value.given() || plan.wants_query || plan.wants_key || plan.wants_gates)) {
    const tile_gradient_params<Form> tiles = {.in = call.in,
                                              .form = call.form,
                                              .items = items,
                                              .d_o = d_o,
                                              .states = s.record.states,
                                              .d_states = s.d_states,
                                              .error = s.record.error,
                                              .d_written = s.d_written,
                                              .rows = plan.gradient_rows,
                                              .d_value = call.d_value,
                                              .d_query = s.d_query,
                                              .d_key = s.d_key,
                                              .d_gate = s.d_gate};
    result = launch_tile_gradients<Shapes>(name, exec, tiles);
  }
  if (result.ok() && (plan.wants_query || plan.wants_key)) {
    const row_gradient_params rows = {.in = call.in,
                                      .part = {s.d_query, s.d_key},
                                      .d_query = call.d_query,
                                      .d_key = call.d_key,
                                      .items = items,
                                      .batch = plan.batch,
                                      .row_parts = plan.row_parts};
    const std::int64_t warps = plan.batch * tokens * call.in.key.extent(2) * 2;
    result = with_padded<Shapes>(name, call.in.dk(), [&](auto padded) {
      return launch(name, exec, grid{.blocks = tiles_of(warps, split::warps), .threads = split::threads},
                    recurrence_row_gradient_kernel<split::threads, padded>, rows);
    });
  }
  if (result.ok() && plan.wants_gates) {
    const gate_gradient_params<Form> gates = {.form = call.form,
                                              .to = call.gates,
                                              .part = s.d_gate,
                                              .head_sums = s.head_sums,
                                              .items = items,
                                              .heads = plan.heads,
                                              .row_parts = plan.row_parts};
    result = launch(name, exec, grid{.blocks = plan.batch * plan.heads, .threads = gate_threads},
                    recurrence_gate_gradient_kernel<Form>, gates);
  }
  return result;
}

/// Enqueues the gradients, all but those of the numbers that a head's tokens share: their sums are in `s`.
template <class Shapes, class Form>
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
  status result = clear(s.d_skip, plan.skip_sums() * plan.heads * plan.dv * static_cast<std::int64_t>(sizeof(float)));
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
    result = launch_forward<Shapes>(name, exec, forward);
  }

  forward.carry_out = {};
  forward.record = s.record;
  for (std::int64_t w = plan.windows - 1; w >= 0 && result.ok(); --w) {
    forward.items = plan.items(call.all, w);
    forward.carry_in = w == 0 ? any_element_view<4>() : states_at(s.starts, w - 1);
    result = launch_forward<Shapes>(name, exec, forward);
    if (!result.ok()) break;
    result = launch_window_backward<Shapes>(name, exec, call, plan, s, forward.items,
                                            states_at(s.carry[(w + 1) % 2], 0), states_at(s.carry[w % 2], 0));
  }
  return result;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
