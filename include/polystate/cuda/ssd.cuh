// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ssd on CUDA: docs/ssd.md says which kernel runs when.

#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/recurrence/backward_launch.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/shared_memory.cuh>
#include <polystate/cuda/recurrence/step.cuh>
#include <polystate/cuda/ssd/head_gradients.cuh>
#include <polystate/cuda/ssd/operands.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/ssd.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// What CUDA asks beside the contract; `s` is the contract's answer.
template <class Args>
status check_ssd_operands(const char* name, const on_cuda& exec, const Args& args, status s,
                          std::size_t scratch_bytes) {
  if (s.ok()) s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, scratch_bytes);
  if (!s.ok()) return s;
  argument_checks c(name);
  c.bind("P", args.x.extent(3), "x").range("P", ssd_limits::cuda_P);
  c.bind("N", args.B.extent(3), "B").range("N", ssd_limits::cuda_N);
  return c.result();
}

/// The same of the passes over time, whose tiles are in shared memory.
template <class Data, class State, class... Grads>
status check_ssd_tiles(const char* name, const on_cuda& exec, const ssd_args<Data, State>& args, status s,
                       const Grads&... grads) {
  s = check_ssd_operands(name, exec, args, s, s.ok() ? workspace_bytes(exec, args, grads...) : 0);
  if (!s.ok()) return s;
  constexpr int bytes = sizeof(Data);
  const std::int64_t N = args.B.extent(3);
  const bool gated = static_cast<bool>(args.z);
  if constexpr (sizeof...(Grads) > 0) {
    const int d_o_bytes = gated ? static_cast<int>(sizeof(float)) : bytes;  // of the gate's, float
    return check_backward_fits<ssd_form>(name, "B", "N", N, bytes, d_o_bytes, limits_of(exec));
  } else {
    return check_forward_fits<ssd_form>(name, "B", "N", N, bytes, gated, limits_of(exec));
  }
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Data, class State>
backward_call<ssd_form> make_backward_call(const ssd_args<Data, State>& args, const ssd_grads<Data, State>& grads) {
  const auto in = operands_of(args);
  backward_call<ssd_form> call;
  call.in = make_shared_operands(in, tensor_view<Data, 4>());
  call.in.out = any_element_view<4>(grads.d_y);
  call.in.whole_out = vectorisable(grads.d_y, 3);
  call.form = make_form(in);
  call.all = sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens);
  call.batch = args.x.extent(0);
  call.time = args.x.extent(1);
  call.initial_state = any_element_view<4>(args.initial_state);
  call.d_final_state = any_element_view<4>(grads.d_final_state);
  call.d_initial_state = any_element_view<4>(grads.d_initial_state);
  call.d_query = any_element_view<4>(grads.d_C);
  call.d_key = any_element_view<4>(grads.d_B);
  call.d_value = any_element_view<4>(grads.d_x);
  call.d_z = any_element_view<4>(grads.d_z);
  call.gates = {.d_dt = any_element_view<3>(grads.d_dt)};
  call.wants_head_sums = grads.d_A || grads.d_dt_bias;
  call.wants_gates = grads.d_dt || call.wants_head_sums;
  call.wants_skip = static_cast<bool>(grads.d_D);
  return call;
}

/// The whole backward pass in scratch memory of the plan's size.
template <class Shapes, class Data, class State>
POLYSTATE_HIDDEN status run_backward(const char* name, const on_cuda& exec, const backward_call<ssd_form>& call,
                                     const backward_plan& plan, void* memory, const ssd_grads<Data, State>& grads) {
  workspace_carver hand_out(memory);
  const backward_scratch scratch = carve(hand_out, plan);
  const status s = launch_backward<Shapes>(name, exec, call, plan, scratch);
  if (!s.ok() || (!plan.wants_head_sums && !plan.wants_skip)) return s;
  const head_gradient_params heads = {.head_sums = scratch.head_sums,
                                      .d_skip = scratch.d_skip,
                                      .batch = plan.batch,
                                      .skip_sums = plan.skip_sums(),
                                      .heads = plan.heads,
                                      .dv = plan.dv,
                                      .d_A = grads.d_A,
                                      .d_dt_bias = grads.d_dt_bias,
                                      .d_D = grads.d_D};
  return launch(name, exec, grid{.blocks = plan.heads, .threads = split::threads},
                ssd_head_gradient_kernel<split::threads>, heads);
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence

/// For the operands of a valid call; 0 for one that check() refuses.
template <class Data, class State>
std::size_t workspace_bytes(const on_cuda& exec, const ssd_args<Data, State>& args,
                            const ssd_grads<Data, State>& grads) {
  namespace rec = polystate_detail::cuda::recurrence;
  if (!check(args, grads).ok() || !ssd_limits::cuda_N.contains(args.B.extent(3))) return 0;
  return rec::scratch_bytes(
      rec::make_plan(rec::make_backward_call(args, grads), polystate_detail::cuda::limits_of(exec)));
}

/// What on_cuda asks of the operands: check(), P and N up to 512, a stream of the current device, and a workspace, if
/// given, that is aligned and large enough. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const ssd_args<Data, State>& args) {
  return polystate_detail::cuda::recurrence::check_ssd_operands("ssd", exec, args, check<Dims>(args),
                                                                workspace_bytes(exec, args));
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const ssd_step_args<Data, State>& args) {
  return polystate_detail::cuda::recurrence::check_ssd_operands("ssd_step", exec, args, check<Dims>(args),
                                                                workspace_bytes(exec, args));
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const ssd_args<Data, State>& args,
                           const ssd_grads<Data, State>& grads) {
  return polystate_detail::cuda::recurrence::check_ssd_tiles("ssd_backward", exec, args, check<Dims>(args, grads),
                                                             grads);
}

/// check(), and the contents of the index operands. Copies them to the host and waits for exec.stream, so it cannot run
/// under graph capture.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const ssd_args<Data, State>& args) {
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read("ssd", exec, "cu_seqlens", args.cu_seqlens);
  if (!s.ok()) return s;
  ssd_args<Data, State> here = args;
  here.cu_seqlens = cu_seqlens.view();
  return check_contents(here);
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const ssd_args<Data, State>& args,
                              const ssd_grads<Data, State>& grads) {
  constexpr const char* name = "ssd_backward";
  status s = check<Dims>(exec, args, grads);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read(name, exec, "cu_seqlens", args.cu_seqlens);
  return s.ok() ? check_cu_seqlens(name, cu_seqlens.view(), args.x.extent(1)) : s;
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const ssd_step_args<Data, State>& args) {
  constexpr const char* name = "ssd_step";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices read;
  polystate_detail::cuda::host_indices write;
  if (s.ok()) s = read.read(name, exec, "read_indices", args.read_indices);
  if (s.ok()) s = write.read(name, exec, "write_indices", args.write_indices);
  if (!s.ok()) return s;
  ssd_step_args<Data, State> here = args;
  here.read_indices = read.view();
  here.write_indices = write.view();
  return check_contents(here);
}

template <class Dims, class Data, class State>
status try_ssd(const on_cuda& exec, const ssd_args<Data, State>& args) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>, "ssd on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>, "ssd on_cuda takes float, half and bfloat16 states");
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const auto in = operands_of(args);
  const rec::forward_params<rec::ssd_form> params = {
      .in = rec::make_shared_operands(in, args.y),
      .form = rec::make_form(in),
      .items = rec::work_items(sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens), args.x.extent(1)),
      .initial_state = polystate_detail::cuda::any_element_view<4>(args.initial_state),
      .final_state = polystate_detail::cuda::any_element_view<4>(args.final_state),
      .carry_in = {},
      .carry_out = {},
      .record = {}};
  const status run = rec::launch_forward<rec::shapes_of<Dims, 1, 0>>("ssd", exec, params);
  const sequences all(args.x.extent(0), args.x.extent(1), args.cu_seqlens);
  return run.ok() ? polystate_detail::cuda::launch_clear_tail("ssd", exec, all, args.y) : run;
}

template <class Dims, class Data, class State>
status try_ssd_step(const on_cuda& exec, const ssd_step_args<Data, State>& args) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>, "ssd_step on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>, "ssd_step on_cuda takes float, half and bfloat16 states");
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const auto in = operands_of(args);
  return rec::launch_step<rec::shapes_of<Dims, 1, 0>>(
      "ssd_step", exec,
      rec::make_step_params<Data>(rec::make_shared_operands(in, args.y), rec::make_form(in),
                                  state_pool(args.state.extent(0), args.read_indices, args.write_indices), args.state,
                                  args.intermediate_states));
}

template <class Dims, class Data, class State>
status try_ssd_backward(const on_cuda& exec, const ssd_args<Data, State>& args, const ssd_grads<Data, State>& grads) {
  namespace rec = polystate_detail::cuda::recurrence;
  static_assert(polystate_detail::cuda::is_element<Data>, "ssd on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>, "ssd on_cuda takes float, half and bfloat16 states");
  constexpr const char* name = "ssd_backward";
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  const auto call = rec::make_backward_call(args, grads);
  const rec::backward_plan plan = rec::make_plan(call, polystate_detail::cuda::limits_of(exec));
  const polystate_detail::cuda::scratch memory(name, exec, rec::scratch_bytes(plan));
  if (!memory.result().ok()) return memory.result();
  const status run = rec::run_backward<rec::shapes_of<Dims, 1, 0>>(name, exec, call, plan, memory.data(), grads);
  if (!run.ok()) return run;
  return polystate_detail::cuda::launch_clear_tail(name, exec, call.all, grads.d_x, grads.d_dt, grads.d_B, grads.d_C,
                                                   grads.d_z);
}

}  // namespace polystate::inline POLYSTATE_ABI
