// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The delta family on CUDA: docs/gated_delta_rule.md says which kernel runs when.

#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/gated_delta_rule/operands.cuh>
#include <polystate/cuda/recurrence/backward_launch.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/shared_memory.cuh>
#include <polystate/cuda/recurrence/step.cuh>
#include <polystate/cuda/row_range.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/gated_delta_rule.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// What CUDA asks beside the contract; `s` is the contract's answer.
template <class Args>
status check_delta_operands(const char* name, const on_cuda& exec, const Args& args, status s,
                            std::size_t scratch_bytes) {
  if (s.ok()) s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, scratch_bytes);
  if (!s.ok()) return s;
  argument_checks c(name);
  c.bind("dk", args.q.extent(3), "q").range("dk", gated_delta_rule_limits::cuda_dk);
  c.bind("dv", args.v.extent(3), "v").range("dv", gated_delta_rule_limits::cuda_dv);
  return c.result();
}

/// The same of the passes over time, whose tiles are in shared memory.
template <class Data, class Rule, class State, class... Grads>
status check_delta_tiles(const char* name, const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                         status s, const Grads&... grads) {
  using Form = form_of_rule<Rule>;
  s = check_delta_operands(name, exec, args, s, s.ok() ? workspace_bytes(exec, args, grads...) : 0);
  if (!s.ok()) return s;
  constexpr int bytes = sizeof(Data);
  const std::int64_t dk = args.q.extent(3);
  if constexpr (sizeof...(Grads) > 0) {
    return check_backward_fits<Form>(name, "q", "dk", dk, bytes, bytes, limits_of(exec));
  } else {
    return check_forward_fits<Form>(name, "q", "dk", dk, bytes, false, limits_of(exec));
  }
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Data, class Rule, class State>
backward_call<form_of_rule<Rule>> make_backward_call(const gated_delta_rule_args<Data, Rule, State>& args,
                                                     const gated_delta_rule_grads<Data, Rule, State>& grads) {
  const auto in = operands_of(args);
  backward_call<form_of_rule<Rule>> call;
  call.in = make_shared_operands(in, tensor_view<Data, 4>());
  call.in.out = any_element_view<4>(grads.d_o);
  call.in.whole_out = vectorisable(grads.d_o, 3);
  call.form = make_form(in);
  call.all = sequences(args.q.extent(0), args.q.extent(1), args.cu_seqlens);
  call.batch = args.q.extent(0);
  call.time = args.q.extent(1);
  call.initial_state = any_element_view<4>(args.initial_state);
  call.d_final_state = any_element_view<4>(grads.d_final_state);
  call.d_initial_state = any_element_view<4>(grads.d_initial_state);
  call.d_query = any_element_view<4>(grads.d_q);
  call.d_key = any_element_view<4>(grads.d_k);
  call.d_value = any_element_view<4>(grads.d_v);
  call.gates = {.d_g = grads.d_g, .d_beta = grads.d_beta};
  call.wants_gates = grads.d_g || grads.d_beta;
  return call;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence

/// For the operands of a valid call; 0 for one that check() refuses.
template <class Data, class Rule, class State>
std::size_t workspace_bytes(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                            const gated_delta_rule_grads<Data, Rule, State>& grads) {
  namespace rec = polystate_detail::cuda::recurrence;
  if (!check(args, grads).ok() || !gated_delta_rule_limits::cuda_dk.contains(args.q.extent(3))) return 0;
  return rec::scratch_bytes(
      rec::make_plan(rec::make_backward_call(args, grads), polystate_detail::cuda::limits_of(exec)));
}

/// What on_cuda asks of the operands: check(), dk and dv up to 512, a stream of the current device, and a workspace, if
/// given, that is aligned and large enough. Reads no elements.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args) {
  return polystate_detail::cuda::recurrence::check_delta_tiles("gated_delta_rule", exec, args, check<Dims>(args));
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_cuda& exec, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  return polystate_detail::cuda::recurrence::check_delta_operands("gated_delta_rule_step", exec, args,
                                                                  check<Dims>(args), workspace_bytes(exec, args));
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                           const gated_delta_rule_grads<Data, Rule, State>& grads) {
  return polystate_detail::cuda::recurrence::check_delta_tiles("gated_delta_rule_backward", exec, args,
                                                               check<Dims>(args, grads), grads);
}

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Refuses rows that are to be normalised and whose squares leave float.
template <class Args>
status check_delta_rows(const char* name, const on_cuda& exec, const Args& args) {
  if (!args.qk_l2norm) return {};
  const status s = check_row_squares(name, exec, "q", args.q, args.l2norm_eps);
  return s.ok() ? check_row_squares(name, exec, "k", args.k, args.l2norm_eps) : s;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence

/// check(), the contents of the index operands, and with qk_l2norm the range of the rows' squares. Copies them to the
/// host and waits for exec.stream, so it cannot run under graph capture.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status validate(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args) {
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read("gated_delta_rule", exec, "cu_seqlens", args.cu_seqlens);
  if (s.ok()) s = polystate_detail::cuda::recurrence::check_delta_rows("gated_delta_rule", exec, args);
  if (!s.ok()) return s;
  gated_delta_rule_args<Data, Rule, State> here = args;
  here.cu_seqlens = cu_seqlens.view();
  return check_contents(here);
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status validate(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                              const gated_delta_rule_grads<Data, Rule, State>& grads) {
  constexpr const char* name = "gated_delta_rule_backward";
  status s = check<Dims>(exec, args, grads);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read(name, exec, "cu_seqlens", args.cu_seqlens);
  if (s.ok()) s = polystate_detail::cuda::recurrence::check_delta_rows(name, exec, args);
  return s.ok() ? check_cu_seqlens(name, cu_seqlens.view(), args.q.extent(1)) : s;
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status validate(const on_cuda& exec, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  constexpr const char* name = "gated_delta_rule_step";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices read;
  polystate_detail::cuda::host_indices write;
  if (s.ok()) s = read.read(name, exec, "read_indices", args.read_indices);
  if (s.ok()) s = write.read(name, exec, "write_indices", args.write_indices);
  if (s.ok()) s = polystate_detail::cuda::recurrence::check_delta_rows(name, exec, args);
  if (!s.ok()) return s;
  gated_delta_rule_step_args<Data, Rule, State> here = args;
  here.read_indices = read.view();
  here.write_indices = write.view();
  return check_contents(here);
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "gated_delta_rule on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "gated_delta_rule on_cuda takes float, half and bfloat16 states");
  constexpr const char* name = "gated_delta_rule";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const auto in = operands_of(args);
  const rec::forward_params<rec::form_of_rule<Rule>> params = {
      .in = rec::make_shared_operands(in, args.o),
      .form = rec::make_form(in),
      .items = rec::work_items(sequences(args.q.extent(0), args.q.extent(1), args.cu_seqlens), args.q.extent(1)),
      .initial_state = polystate_detail::cuda::any_element_view<4>(args.initial_state),
      .final_state = polystate_detail::cuda::any_element_view<4>(args.final_state),
      .carry_in = {},
      .carry_out = {},
      .record = {}};
  const status run = rec::launch_forward<rec::shapes_of<Dims, 0, 1>>(name, exec, params);
  const sequences all(args.q.extent(0), args.q.extent(1), args.cu_seqlens);
  return run.ok() ? polystate_detail::cuda::launch_clear_tail(name, exec, all, args.o) : run;
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule_step(const on_cuda& exec, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "gated_delta_rule_step on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "gated_delta_rule_step on_cuda takes float, half and bfloat16 states");
  constexpr const char* name = "gated_delta_rule_step";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const auto in = operands_of(args);
  return rec::launch_step<rec::shapes_of<Dims, 0, 1>>(
      name, exec,
      rec::make_step_params<Data>(rec::make_shared_operands(in, args.o), rec::make_form(in),
                                  state_pool(args.state.extent(0), args.read_indices, args.write_indices), args.state,
                                  args.intermediate_states));
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule_backward(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                                     const gated_delta_rule_grads<Data, Rule, State>& grads) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "gated_delta_rule on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "gated_delta_rule on_cuda takes float, half and bfloat16 states");
  constexpr const char* name = "gated_delta_rule_backward";
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  const auto call = rec::make_backward_call(args, grads);
  const rec::backward_plan plan = rec::make_plan(call, polystate_detail::cuda::limits_of(exec));
  const polystate_detail::cuda::scratch memory(name, exec, rec::scratch_bytes(plan));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  const status run =
      rec::launch_backward<rec::shapes_of<Dims, 0, 1>>(name, exec, call, plan, rec::carve(hand_out, plan));
  if (!run.ok()) return run;
  return polystate_detail::cuda::launch_clear_tail(name, exec, call.all, grads.d_q, grads.d_k, grads.d_v, grads.d_g,
                                                   grads.d_beta);
}

}  // namespace polystate::inline POLYSTATE_ABI
