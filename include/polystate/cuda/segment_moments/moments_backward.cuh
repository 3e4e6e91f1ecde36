// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward pass of moments.cuh: from the derivatives of the segments' states and of the read-outs to those of what
/// was staged. Apart, so that who needs none compiles no kernels for it.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/recurrence/backward_launch.cuh>
#include <polystate/cuda/recurrence/shared_memory.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/rows.cuh>
#include <polystate/cuda/workspace.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// Derivatives: in, of the states at the segments' ends and of the read-outs; out, of what was staged. In memory that
/// carve() hands out.
struct moment_gradients {
  float* d_states = nullptr;  ///< [slot][head][row][dr], of the undivided states
  float* d_out = nullptr;     ///< [token][head][row]; null where there are no read-outs
  float* d_query = nullptr;   ///< [token][head][query_pitch], out; null where there are no read-outs
  float* d_key = nullptr;     ///< [token][head][query_pitch], out, as key
  float* d_value = nullptr;   ///< [token][head][row], out, as value; null where only mu is kept
  float* d_g = nullptr;       ///< [token][head], out; null in rule plain
  float* d_beta = nullptr;    ///< likewise
};

inline moment_gradients carve_gradients(workspace_carver& from, const moment_problem& p, bool reads) {
  moment_gradients d;
  const std::int64_t rows = p.tokens() * p.heads();
  d.d_states = from.take<float>(p.slots() * p.state());
  if (reads) d.d_out = from.take<float>(rows * p.rows());
  if (reads) d.d_query = from.take<float>(rows * p.query_pitch());
  d.d_key = from.take<float>(rows * p.query_pitch());
  if (p.keeps_Sigma) d.d_value = from.take<float>(rows * p.rows());
  if (p.g) d.d_g = from.take<float>(rows);
  if (p.beta) d.d_beta = from.take<float>(rows);
  return d;
}

template <bool Erases>
recurrence::backward_call<recurrence::delta_form<Erases>> make_moment_call(const moment_problem& p,
                                                                           const moment_memory& m, const float* query,
                                                                           const moment_gradients& d) {
  recurrence::backward_call<recurrence::delta_form<Erases>> call;
  call.in = make_moment_operands(p, m, {.query = query, .out = d.d_out});
  call.form = make_moment_form<Erases>(p, m);
  call.all = m.table.segments(p.segments);
  call.batch = 1;
  call.time = p.tokens();
  call.d_final_state = states_of(d.d_states, p);
  call.d_query = any_element_view<4>(staged(d.d_query, p, p.query_pitch(), 0, p.dr()));
  call.d_key = any_element_view<4>(staged(d.d_key, p, p.query_pitch(), 0, p.dr()));
  call.d_value = any_element_view<4>(staged(d.d_value, p, p.rows(), 0, p.rows()));
  if (d.d_g != nullptr) call.gates.d_g = {d.d_g, {1, p.tokens(), p.heads()}};
  if (d.d_beta != nullptr) call.gates.d_beta = {d.d_beta, {1, p.tokens(), p.heads()}};
  call.wants_gates = d.d_g != nullptr || d.d_beta != nullptr;
  return call;
}

/// Refuses a dr that the device has no room for.
inline status check_moments_backward_fit(const char* name, const moment_problem& p, const device_limits& limits) {
  constexpr int bytes = sizeof(float);  // staged rows
  return p.erases ? recurrence::check_backward_fits<recurrence::delta_form<true>>(name, "moments.k", "dr", p.dr(),
                                                                                  bytes, bytes, limits)
                  : recurrence::check_backward_fits<recurrence::delta_form<false>>(name, "moments.k", "dr", p.dr(),
                                                                                   bytes, bytes, limits);
}

/// Scratch memory of launch_moments_backward() beside carve_gradients(). `reads`: whether there are read-outs.
inline recurrence::backward_plan plan_moments_backward(const moment_problem& p, bool reads,
                                                       const device_limits& limits) {
  // Sizes alone count: any address does.
  alignas(16) static float somewhere[4] = {};
  moment_memory m;
  m.keys = somewhere;
  m.table.begins = reinterpret_cast<std::int32_t*>(somewhere);
  moment_gradients d;
  d.d_key = somewhere;
  if (reads) d.d_out = d.d_query = somewhere;
  if (p.g) d.d_g = somewhere;
  if (p.beta) d.d_beta = somewhere;
  const float* query = reads ? somewhere : nullptr;
  return p.erases ? recurrence::make_plan(make_moment_call<true>(p, m, query, d), limits)
                  : recurrence::make_plan(make_moment_call<false>(p, m, query, d), limits);
}

/// From d_states and d_out to the other members of `d`; `query` and the memory are those of the forward.
template <class Shapes>
POLYSTATE_HIDDEN status launch_moments_backward(const char* name, const on_cuda& exec, const moment_problem& p,
                                                const moment_memory& m, const float* query, const moment_gradients& d,
                                                const recurrence::backward_scratch& scratch) {
  if (p.slots() == 0 || p.heads() == 0 || p.tokens() == 0) return {};
  const recurrence::backward_plan plan = plan_moments_backward(p, d.d_out != nullptr, limits_of(exec));
  return p.erases
             ? recurrence::launch_backward<Shapes>(name, exec, make_moment_call<true>(p, m, query, d), plan, scratch)
             : recurrence::launch_backward<Shapes>(name, exec, make_moment_call<false>(p, m, query, d), plan, scratch);
}

/// The gradients of k' and its gates, where the caller wants them; the parts are those of launch_moments_backward().
inline POLYSTATE_HIDDEN status launch_key_gradients(const char* name, const cuda_policy auto& exec,
                                                    const moment_problem& p, const moment_gradients& d,
                                                    const any_element_view<4>& d_k, const tensor_view<float, 3>& d_g,
                                                    const tensor_view<float, 3>& d_beta) {
  const unstage_params keys = {.from = p.key,
                               .parts = {{d.d_key, p.query_pitch()}, {d.d_value, p.rows()}, {}},
                               .to = d_k,
                               .gates = {d.d_g, d.d_beta},
                               .gates_to = {d_g, d_beta}};
  return launch_unstage_rows(name, exec, keys);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
