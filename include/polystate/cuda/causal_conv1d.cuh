// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// causal_conv1d on CUDA: docs/causal_conv1d.md says which kernel runs when.

#include <polystate/causal_conv1d.hpp>
#include <polystate/cuda/causal_conv1d/backward.cuh>
#include <polystate/cuda/causal_conv1d/forward.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/causal_conv1d/step.cuh>
#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/workspace.cuh>

#include <cstddef>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// The checks that every operand block of the convolution shares, after the contract's own.
template <class Dims, class Args>
status check_operands(const char* name, const on_cuda& exec, const Args& args) {
  status s = polystate::check<Dims>(args);
  if (s.ok()) s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, workspace_bytes(exec, args));
  return s;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d

template <class Data>
std::size_t workspace_bytes(const on_cuda&, const causal_conv1d_args<Data>& args,
                            const causal_conv1d_grads<Data>& grads) {
  namespace conv1d = polystate_detail::cuda::conv1d;
  polystate_detail::cuda::workspace_carver count;
  conv1d::carve(count, args, grads, conv1d::choose_schedule(args, grads));
  return count.bytes();
}

/// What on_cuda asks of the operands: check(), a stream of the current device, and a workspace, if given,
/// that is aligned. Reads no elements.
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_cuda& exec, const causal_conv1d_args<Data>& args) {
  return polystate_detail::cuda::conv1d::check_operands<Dims>("causal_conv1d", exec, args);
}
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_cuda& exec, const causal_conv1d_step_args<Data>& args) {
  return polystate_detail::cuda::conv1d::check_operands<Dims>("causal_conv1d_step", exec, args);
}

template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_cuda& exec, const causal_conv1d_args<Data>& args,
                           const causal_conv1d_grads<Data>& grads) {
  constexpr const char* name = "causal_conv1d_backward";
  status s = check<Dims>(args, grads);
  if (s.ok()) s = polystate_detail::cuda::check_stream(name, exec);
  return s.ok() ? polystate_detail::cuda::check_workspace(name, exec, workspace_bytes(exec, args, grads)) : s;
}

/// check(), and the contents of the index operands. Copies them to the host and waits for exec.stream, so it
/// cannot run under graph capture.
template <class Dims = dims<>, class Data>
[[nodiscard]] status validate(const on_cuda& exec, const causal_conv1d_args<Data>& args) {
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read("causal_conv1d", exec, "cu_seqlens", args.cu_seqlens);
  if (!s.ok()) return s;
  causal_conv1d_args<Data> here = args;
  here.cu_seqlens = cu_seqlens.view();
  return check_contents(here);
}
template <class Dims = dims<>, class Data>
[[nodiscard]] status validate(const on_cuda& exec, const causal_conv1d_step_args<Data>& args) {
  constexpr const char* name = "causal_conv1d_step";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices read;
  polystate_detail::cuda::host_indices write;
  if (s.ok()) s = read.read(name, exec, "read_indices", args.read_indices);
  if (s.ok()) s = write.read(name, exec, "write_indices", args.write_indices);
  if (!s.ok()) return s;
  causal_conv1d_step_args<Data> here = args;
  here.read_indices = read.view();
  here.write_indices = write.view();
  return check_contents(here);
}

template <class Dims, class Data>
status try_causal_conv1d(const on_cuda& exec, const causal_conv1d_args<Data>& args) {
  namespace conv1d = polystate_detail::cuda::conv1d;
  static_assert(polystate_detail::cuda::is_element<Data>, "causal_conv1d on_cuda takes float, half and bfloat16 data");
  constexpr const char* name = "causal_conv1d";
  status s = check<Dims>(exec, args);
  if (!s.ok()) return s;
  const auto params = conv1d::make_params(args, polystate_detail::cuda::limits_of(exec).multiprocessors);
  // cu_seqlens of one entry: no sequence, so no row of any state either.
  if (params.all.size() > 0) s = conv1d::launch_forward<conv1d::widths_of<Dims>>(name, exec, params);
  return s.ok() ? conv1d::launch_forward_ends(name, exec, params) : s;
}

template <class Dims, class Data>
status try_causal_conv1d_backward(const on_cuda& exec, const causal_conv1d_args<Data>& args,
                                  const causal_conv1d_grads<Data>& grads) {
  namespace conv1d = polystate_detail::cuda::conv1d;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "causal_conv1d_backward on_cuda takes float, half and bfloat16 data");
  constexpr const char* name = "causal_conv1d_backward";
  const status s = check<Dims>(exec, args, grads);
  if (!s.ok()) return s;
  const conv1d::backward_schedule schedule = conv1d::choose_schedule(args, grads);
  polystate_detail::cuda::workspace_carver count;
  conv1d::carve(count, args, grads, schedule);
  const polystate_detail::cuda::scratch memory(name, exec, count.bytes());
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  float* partials = conv1d::carve(hand_out, args, grads, schedule);
  const auto params = conv1d::make_params(args, grads, schedule, partials);
  status result = conv1d::launch_backward<conv1d::widths_of<Dims>>(name, exec, params);
  return result.ok() ? polystate_detail::cuda::launch_clear_tail(name, exec, params.all, grads.d_x) : result;
}

template <class Dims, class Data>
status try_causal_conv1d_step(const on_cuda& exec, const causal_conv1d_step_args<Data>& args) {
  namespace conv1d = polystate_detail::cuda::conv1d;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "causal_conv1d_step on_cuda takes float, half and bfloat16 data");
  const status s = check<Dims>(exec, args);
  if (!s.ok()) return s;
  return conv1d::launch_step<conv1d::widths_of<Dims>>("causal_conv1d_step", exec, conv1d::make_params(args));
}

}  // namespace polystate::inline POLYSTATE_ABI
