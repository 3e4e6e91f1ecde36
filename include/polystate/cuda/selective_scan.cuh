// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// selective_scan on CUDA: docs/selective_scan.md says which kernel runs when.

#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/selective_scan/backward_launch.cuh>
#include <polystate/cuda/selective_scan/forward_launch.cuh>
#include <polystate/cuda/selective_scan/step.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/selective_scan.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

template <class Dims, class Args, class... Grads>
status check_operands(const char* name, const on_cuda& exec, const Args& args, const Grads&... grads) {
  status s = polystate::check<Dims>(args, grads...);
  if (s.ok()) s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, workspace_bytes(exec, args, grads...));
  if (!s.ok()) return s;
  argument_checks c(name);
  c.bind("N", args.A.extent(1), "A").range("N", selective_scan_limits::cuda_N);
  if constexpr (sizeof...(Grads) > 0) {
    using Data = std::remove_const_t<std::remove_pointer_t<decltype(args.u.data())>>;
    c.include(check_backward_fits<Data>(name, c.size("N"), limits_of(exec)));
  }
  return c.result();
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::scan

template <class Data, class State>
std::size_t workspace_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args) {
  return polystate_detail::cuda::scan::forward_bytes(exec, args);
}
template <class Data, class State>
std::size_t workspace_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                            const selective_scan_grads<Data, State>& grads) {
  return polystate_detail::cuda::scan::backward_bytes(exec, args, grads);
}

/// What on_cuda asks of the operands: check(), N up to 256, a stream of the current device, and a workspace, if given,
/// that is aligned. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const selective_scan_args<Data, State>& args) {
  return polystate_detail::cuda::scan::check_operands<Dims>("selective_scan", exec, args);
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                           const selective_scan_grads<Data, State>& grads) {
  return polystate_detail::cuda::scan::check_operands<Dims>("selective_scan_backward", exec, args, grads);
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_cuda& exec, const selective_scan_step_args<Data, State>& args) {
  return polystate_detail::cuda::scan::check_operands<Dims>("selective_scan_step", exec, args);
}

/// check(), and the contents of the index operands. Copies them to the host and waits for exec.stream, so it cannot run
/// under graph capture.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const selective_scan_args<Data, State>& args) {
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices cu_seqlens;
  if (s.ok()) s = cu_seqlens.read("selective_scan", exec, "cu_seqlens", args.cu_seqlens);
  if (!s.ok()) return s;
  selective_scan_args<Data, State> here = args;
  here.cu_seqlens = cu_seqlens.view();
  return check_contents(here);
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                              const selective_scan_grads<Data, State>& grads) {
  const status s = check<Dims>(exec, args, grads);
  polystate_detail::cuda::host_indices cu_seqlens;
  status read = cu_seqlens.read("selective_scan_backward", exec, "cu_seqlens", args.cu_seqlens);
  if (!s.ok()) return s;
  if (!read.ok()) return read;
  return check_cu_seqlens("selective_scan_backward", cu_seqlens.view(), args.u.extent(1));
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status validate(const on_cuda& exec, const selective_scan_step_args<Data, State>& args) {
  constexpr const char* name = "selective_scan_step";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices read;
  polystate_detail::cuda::host_indices write;
  if (s.ok()) s = read.read(name, exec, "read_indices", args.read_indices);
  if (s.ok()) s = write.read(name, exec, "write_indices", args.write_indices);
  if (!s.ok()) return s;
  selective_scan_step_args<Data, State> here = args;
  here.read_indices = read.view();
  here.write_indices = write.view();
  return check_contents(here);
}

template <class Dims, class Data, class State>
status try_selective_scan(const on_cuda& exec, const selective_scan_args<Data, State>& args) {
  static_assert(polystate_detail::cuda::is_element<Data>, "selective_scan on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "selective_scan on_cuda takes float, half and bfloat16 states");
  constexpr const char* name = "selective_scan";
  const status s = check<Dims>(exec, args);
  if (!s.ok()) return s;
  const status run = polystate_detail::cuda::scan::run_forward<Dims>(name, exec, args);
  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  return run.ok() ? polystate_detail::cuda::launch_clear_tail(name, exec, all, args.y) : run;
}

template <class Dims, class Data, class State>
status try_selective_scan_backward(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                                   const selective_scan_grads<Data, State>& grads) {
  static_assert(polystate_detail::cuda::is_element<Data>,
                "selective_scan_backward on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "selective_scan_backward on_cuda takes float, half and bfloat16 states");
  const status s = check<Dims>(exec, args, grads);
  if (!s.ok()) return s;
  constexpr const char* name = "selective_scan_backward";
  const status run = polystate_detail::cuda::scan::run_backward(name, exec, args, grads);
  if (!run.ok()) return run;
  return polystate_detail::cuda::launch_clear_tail(name, exec,
                                                   sequences(args.u.extent(0), args.u.extent(1), args.cu_seqlens),
                                                   grads.d_u, grads.d_delta, grads.d_z, grads.d_B, grads.d_C);
}

template <class Dims, class Data, class State>
status try_selective_scan_step(const on_cuda& exec, const selective_scan_step_args<Data, State>& args) {
  static_assert(polystate_detail::cuda::is_element<Data>,
                "selective_scan_step on_cuda takes float, half and bfloat16 data");
  static_assert(polystate_detail::cuda::is_element<State>,
                "selective_scan_step on_cuda takes float, half and bfloat16 states");
  const status s = check<Dims>(exec, args);
  if (!s.ok()) return s;
  return polystate_detail::cuda::scan::launch_step("selective_scan_step", exec,
                                                   polystate_detail::cuda::scan::make_params(args));
}

}  // namespace polystate::inline POLYSTATE_ABI
