// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// segment_moments on CUDA: docs/segment_moments.md says how. For other operators: segment_moments/segments.cuh has the
/// table of segments, segment_moments/moments.cuh the launchers and their params.

#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/moments_backward.cuh>
#include <polystate/cuda/segment_moments/transfer.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/segment_moments.hpp>

#include <cstddef>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

template <class Data, class Separation>
moment_problem make_moment_problem(const segment_moments_args<Data, Separation>& args) {
  return make_moment_problem(args.moments, args.separation, args.cu_seqlens, static_cast<bool>(args.Sigma));
}
template <class Data, class Separation>
moment_problem make_moment_problem(const segment_moments_args<Data, Separation>& args,
                                   const segment_moments_grads<Data>& grads) {
  return make_moment_problem(args.moments, args.separation, args.cu_seqlens, static_cast<bool>(grads.d_Sigma));
}

/// Scratch memory of the backward pass.
struct backward_memory {
  moment_memory moments;
  moment_gradients d;
  recurrence::backward_scratch scratch;
};
inline backward_memory carve_backward(workspace_carver& from, const moment_problem& p, const device_limits& limits) {
  backward_memory b;
  b.moments = carve(from, p, false);
  b.d = carve_gradients(from, p, false);
  b.scratch = recurrence::carve(from, plan_moments_backward(p, false, limits));
  return b;
}

/// What CUDA asks beside the contract; `s` is the contract's answer.
template <class Data>
status check_moment_operands(const char* name, const on_cuda& exec, const key_moments<Data>& in,
                             const moment_problem& problem, std::size_t scratch_bytes) {
  status s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, scratch_bytes);
  if (!s.ok()) return s;
  argument_checks c(name);
  c.bind("dr", in.k.extent(3), "moments.k").range("dr", segment_moments_limits::cuda_dr);
  return c.include(check_segmentation(name, problem.segments)).result();
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::moments

/// For the operands of a valid call; 0 for one that check() refuses.
template <class Data, class Separation>
std::size_t workspace_bytes(const on_cuda&, const segment_moments_args<Data, Separation>& args) {
  namespace mom = polystate_detail::cuda::moments;
  if (!check(args).ok() || !segment_moments_limits::cuda_dr.contains(args.moments.k.extent(3))) return 0;
  polystate_detail::cuda::workspace_carver count;
  mom::carve(count, mom::make_moment_problem(args));
  return count.bytes();
}
template <class Data, class Separation>
std::size_t workspace_bytes(const on_cuda& exec, const segment_moments_args<Data, Separation>& args,
                            const segment_moments_grads<Data>& grads) {
  namespace mom = polystate_detail::cuda::moments;
  if (!check(args, grads).ok() || !segment_moments_limits::cuda_dr.contains(args.moments.k.extent(3))) return 0;
  polystate_detail::cuda::workspace_carver count;
  mom::carve_backward(count, mom::make_moment_problem(args, grads), polystate_detail::cuda::limits_of(exec));
  return count.bytes();
}

/// What on_cuda asks of the operands: check(), dr up to 512 and as far as the device's shared memory has room, tokens
/// and segments within 32 bits, a stream of the current device, and a workspace, if given, that is aligned and large
/// enough. Reads no elements.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const on_cuda& exec, const segment_moments_args<Data, Separation>& args) {
  namespace mom = polystate_detail::cuda::moments;
  constexpr const char* name = "segment_moments";
  status s = check<Dims>(args);
  if (!s.ok()) return s;
  const mom::moment_problem problem = mom::make_moment_problem(args);
  s = mom::check_moment_operands(name, exec, args.moments, problem, workspace_bytes(exec, args));
  return s.ok() ? mom::check_moments_fit(name, problem, polystate_detail::cuda::limits_of(exec)) : s;
}
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const on_cuda& exec, const segment_moments_args<Data, Separation>& args,
                           const segment_moments_grads<Data>& grads) {
  namespace mom = polystate_detail::cuda::moments;
  constexpr const char* name = "segment_moments_backward";
  status s = check<Dims>(args, grads);
  if (!s.ok()) return s;
  const mom::moment_problem problem = mom::make_moment_problem(args, grads);
  s = mom::check_moment_operands(name, exec, args.moments, problem, workspace_bytes(exec, args, grads));
  return s.ok() ? mom::check_moments_backward_fit(name, problem, polystate_detail::cuda::limits_of(exec)) : s;
}

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// Calls f with the operands whose index operands are copies on the host.
template <class Data, class Separation, class F>
status with_host_indices(const char* name, const on_cuda& exec, segment_moments_args<Data, Separation> args, F&& f) {
  host_indices cu_seqlens;
  host_indices boundaries;
  status s = cu_seqlens.read(name, exec, "cu_seqlens", args.cu_seqlens);
  args.cu_seqlens = cu_seqlens.view();
  if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    if (s.ok()) s = boundaries.read(name, exec, "separation.boundaries", args.separation.boundaries);
    args.separation.boundaries = boundaries.view();
  }
  return s.ok() ? f(args) : s;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::moments

/// check(), and the contents of the index operands. Copies them to the host and waits for exec.stream, so it cannot run
/// under graph capture.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status validate(const on_cuda& exec, const segment_moments_args<Data, Separation>& args) {
  status s = check<Dims>(exec, args);
  if (s.ok()) s = polystate_detail::cuda::moments::check_key_rows("segment_moments", exec, args.moments);
  if (!s.ok()) return s;
  return polystate_detail::cuda::moments::with_host_indices("segment_moments", exec, args,
                                                            [](const auto& here) { return check_contents(here); });
}
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status validate(const on_cuda& exec, const segment_moments_args<Data, Separation>& args,
                              const segment_moments_grads<Data>& grads) {
  status s = check<Dims>(exec, args, grads);
  if (s.ok()) s = polystate_detail::cuda::moments::check_key_rows("segment_moments_backward", exec, args.moments);
  if (!s.ok()) return s;
  return polystate_detail::cuda::moments::with_host_indices(
      "segment_moments_backward", exec, args, [&](const auto& here) { return check_contents(here, grads); });
}

template <class Dims, class Data, class Separation>
status try_segment_moments(const on_cuda& exec, const segment_moments_args<Data, Separation>& args) {
  namespace mom = polystate_detail::cuda::moments;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "segment_moments on_cuda takes float, half and bfloat16 data");
  constexpr const char* name = "segment_moments";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const mom::moment_problem problem = mom::make_moment_problem(args);
  const polystate_detail::cuda::scratch memory(name, exec, workspace_bytes(exec, args));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  const mom::moment_memory moments = mom::carve(hand_out, problem);
  const status s = mom::launch_moments<polystate_detail::cuda::recurrence::moment_shapes_of<Dims, 0>>(
      name, exec, problem, moments, 0, {});
  if (!s.ok()) return s;
  return mom::launch_moment_output(name, exec, problem, moments, args.mu, args.Sigma);
}

template <class Dims, class Data, class Separation>
status try_segment_moments_backward(const on_cuda& exec, const segment_moments_args<Data, Separation>& args,
                                    const segment_moments_grads<Data>& grads) {
  namespace mom = polystate_detail::cuda::moments;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "segment_moments_backward on_cuda takes float, half and bfloat16 data");
  constexpr const char* name = "segment_moments_backward";
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  const mom::moment_problem problem = mom::make_moment_problem(args, grads);
  const polystate_detail::cuda::scratch memory(name, exec, workspace_bytes(exec, args, grads));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  const mom::backward_memory b = mom::carve_backward(hand_out, problem, polystate_detail::cuda::limits_of(exec));
  status s = mom::launch_staged_keys(name, exec, problem, b.moments, 0);
  if (s.ok()) {
    s = mom::launch_state_gradient(name, exec, problem, b.moments.table, b.d.d_states, grads.d_mu, grads.d_Sigma);
  }
  if (s.ok())
    s = mom::launch_moments_backward<polystate_detail::cuda::recurrence::moment_shapes_of<Dims, 0>>(
        name, exec, problem, b.moments, nullptr, b.d, b.scratch);
  if (!s.ok()) return s;
  s = mom::launch_key_gradients(name, exec, problem, b.d,
                                polystate_detail::cuda::any_element_view<4>(grads.moments.d_k), grads.moments.d_g,
                                grads.moments.d_beta);
  if (!s.ok()) return s;
  return polystate_detail::cuda::launch_clear_tail(name, exec, problem.segments.all, grads.moments.d_k,
                                                   grads.moments.d_g, grads.moments.d_beta);
}

}  // namespace polystate::inline POLYSTATE_ABI
