// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// mamba_block on CUDA: the operators there, and products by cuBLAS between them. float, half and bfloat16;
/// intermediate results are of the data's type. Link CUDA::cublas.

#include <polystate/adapters/compose_mamba_block.hpp>
#include <polystate/adapters/mamba_block.hpp>
#include <polystate/cuda/adapters/cublas.cuh>
#include <polystate/cuda/adapters/products.cuh>
#include <polystate/cuda/causal_conv1d.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/selective_scan.cuh>
#include <polystate/cuda/workspace.cuh>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::adapters {

/// The intermediate results of a block, or their gradients.
template <class Data>
polystate_detail::adapters::mamba_block_tensors<Data> carve_block(
    workspace_carver& from, const polystate_detail::adapters::mamba_block_sizes& n) {
  const auto tokens = [&](std::int64_t width) {
    return tensor_view<Data, 3>(from.take<Data>(n.B * n.T * width), {n.B, n.T, width});
  };
  polystate_detail::adapters::mamba_block_tensors<Data> t;
  t.xz = tokens(2 * n.di);
  t.c = tokens(n.di);
  t.dt_B_C = tokens(n.R + 2 * n.N);
  t.delta = tokens(n.di);
  t.A = {from.take<float>(n.di * n.N), {n.di, n.N}};
  t.s = tokens(n.di);
  return t;
}

/// Scratch memory of a call: `carve` makes its views from a carver, run once to count and once to hand out.
template <class Carve, class Run>
status with_scratch(const char* op, const on_cublas& exec, const Carve& carve, const Run& run) {
  workspace_carver count;
  static_cast<void>(carve(count));
  const scratch memory(op, exec.cuda, count.bytes());
  if (!memory.result().ok()) return memory.result();
  workspace_carver hand_out(memory.data());
  return run(carve(hand_out));
}

/// The policy of the operators within: scratch memory of their own comes in the order of the stream.
inline on_cuda inner(const on_cublas& exec) {
  return {.stream = exec.cuda.stream, .batch_invariant = exec.cuda.batch_invariant};
}

inline status check_device(const char* op, const on_cublas& exec, std::size_t bytes) {
  status s = check_stream(op, exec.cuda);
  if (s.ok()) s = check_workspace(op, exec.cuda, bytes);
  return s.ok() && exec.handle == nullptr
             ? status{error_code::missing, op, "exec.handle", "not given; a cublasHandle_t"}
             : s;
}

/// An upstream gradient, or the zeros that its absence means, written to `zeros`.
template <class Data>
status upstream_or_zeros(const char* op, const on_cublas& exec, const tensor_view<const Data, 3>& given,
                         const tensor_view<Data, 3>& zeros, tensor_view<const Data, 3>& upstream) {
  upstream = given ? given : tensor_view<const Data, 3>(zeros);
  if (given || zeros.size() == 0) return {};
  const auto bytes = static_cast<std::size_t>(zeros.size()) * sizeof(Data);
  return runtime_status(op, "scratch memory", cudaMemsetAsync(zeros.data(), 0, bytes, exec.cuda.stream));
}

template <class Data>
void check_block_grad_storage(argument_checks& c, const mamba_block_weight_grads<Data>& g) {
  blas::check_storage(c, "d_in_proj", g.d_in_proj);
  blas::check_storage(c, "d_x_proj", g.d_x_proj);
  blas::check_storage(c, "d_dt_proj_w", g.d_dt_proj_w);
  blas::check_storage(c, "d_out_proj", g.d_out_proj);
}

template <class Data>
void check_block_storage(argument_checks& c, const mamba_block_weights<Data>& w) {
  blas::check_storage(c, "in_proj", w.in_proj);
  blas::check_storage(c, "x_proj", w.x_proj);
  blas::check_storage(c, "dt_proj_w", w.dt_proj_w);
  blas::check_storage(c, "out_proj", w.out_proj);
  c.bind("N", w.A_log.extent(1), "A_log").range("N", selective_scan_limits::cuda_N);
}

/// Beyond the contract: storage that cuBLAS takes, N up to 256.
template <class Args>
status check_block(const char* op, const on_cublas& exec, const Args& args, std::size_t bytes) {
  status s = polystate::check(args);
  if (s.ok()) s = check_device(op, exec, bytes);
  if (!s.ok()) return s;
  argument_checks c(op);
  blas::check_storage(c, "x", args.x);
  check_block_storage(c, args.weights);
  blas::check_storage(c, "y", args.y);
  return c.result();
}

/// The scratch memory of a backward.
template <class Data>
struct block_backward_tensors {
  polystate_detail::adapters::mamba_block_tensors<Data> results, gradients;
  tensor_view<Data, 3> y;    ///< that nobody reads
  tensor_view<Data, 3> d_y;  ///< zeros where the upstream gradient is absent
};
template <class Data>
block_backward_tensors<Data> carve_block_backward(workspace_carver& from, const mamba_block_args<Data>& args,
                                                  const mamba_block_grads<Data>& grads) {
  const auto n = polystate_detail::adapters::mamba_block_sizes::of(args);
  block_backward_tensors<Data> t;
  t.results = carve_block<Data>(from, n);
  t.gradients = carve_block<Data>(from, n);
  t.y = {from.take<Data>(n.B * n.T * n.d), {n.B, n.T, n.d}};
  if (!grads.d_y) t.d_y = {from.take<Data>(n.B * n.T * n.d), {n.B, n.T, n.d}};
  return t;
}

template <class Args>
std::size_t block_bytes(const Args& args) {
  using Data = typename decltype(args.y)::value_type;
  workspace_carver count;
  static_cast<void>(carve_block<Data>(count, polystate_detail::adapters::mamba_block_sizes::of(args)));
  return count.bytes();
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::adapters

/// Scratch for the intermediate results, in bytes; what the scan needs itself comes in the order of the stream.
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const mamba_block_args<Data>& args) {
  return polystate_detail::cuda::adapters::block_bytes(args);
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const mamba_block_step_args<Data>& args) {
  return polystate_detail::cuda::adapters::block_bytes(args);
}

template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const mamba_block_args<Data>& args,
                                          const mamba_block_grads<Data>& grads) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_block_backward(count, args, grads));
  return count.bytes();
}

/// What on_cublas asks of the operands: check(), N up to 256, and of x, y and the matrices a stride of 1 along one of
/// the last two indices. Reads no elements.
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const mamba_block_args<Data>& args) {
  return polystate_detail::cuda::adapters::check_block("mamba_block", exec, args, workspace_bytes(exec, args));
}
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const mamba_block_step_args<Data>& args) {
  return polystate_detail::cuda::adapters::check_block("mamba_block_step", exec, args, workspace_bytes(exec, args));
}

template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const mamba_block_args<Data>& args,
                           const mamba_block_grads<Data>& grads) {
  namespace adapters = polystate_detail::cuda::adapters;
  constexpr const char* name = "mamba_block_backward";
  status s = check(args, grads);
  if (s.ok()) s = adapters::check_device(name, exec, workspace_bytes(exec, args, grads));
  if (!s.ok()) return s;
  argument_checks c(name);
  polystate_detail::cuda::blas::check_storage(c, "x", args.x);
  adapters::check_block_storage(c, args.weights);
  polystate_detail::cuda::blas::check_storage(c, "d_y", grads.d_y);
  polystate_detail::cuda::blas::check_storage(c, "d_x", grads.d_x);
  adapters::check_block_grad_storage(c, grads.d_weights);
  return c.result();
}

/// Contents of cu_seqlens and of pool indices are clamped, as causal_conv1d and selective_scan do.
template <class Data>
status try_mamba_block(const on_cublas& exec, const mamba_block_args<Data>& args) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>, "mamba_block on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "mamba_block";
  status s = check(exec, args);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec,
      [&](auto& from) {
        return adapters::carve_block<Data>(from, polystate_detail::adapters::mamba_block_sizes::of(args));
      },
      [&](const auto& t) {
        return polystate_detail::adapters::run_mamba_block(adapters::inner(exec),
                                                           adapters::cublas_products<Data>(name, exec), args, t);
      });
}

template <class Data>
status try_mamba_block_backward(const on_cublas& exec, const mamba_block_args<Data>& args,
                                const mamba_block_grads<Data>& grads) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "mamba_block_backward on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "mamba_block_backward";
  status s = check(exec, args, grads);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_block_backward(from, args, grads); },
      [&](const auto& t) {
        const adapters::cublas_products<Data> products(name, exec);
        mamba_block_args<Data> forward = args;
        forward.y = t.y;
        forward.final_conv_state = {};
        forward.final_scan_state = {};
        mamba_block_grads<Data> wanted = grads;
        return polystate_detail::adapters::in_order(
            [&] { return adapters::upstream_or_zeros(name, exec, grads.d_y, t.d_y, wanted.d_y); },
            [&] {
              return polystate_detail::adapters::run_mamba_block(adapters::inner(exec), products, forward, t.results);
            },
            [&] {
              return polystate_detail::adapters::run_mamba_block_backward(adapters::inner(exec), products, forward,
                                                                          t.results, t.gradients, wanted);
            });
      });
}

template <class Data>
status try_mamba_block_step(const on_cublas& exec, const mamba_block_step_args<Data>& args) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "mamba_block_step on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "mamba_block_step";
  status s = check(exec, args);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec,
      [&](auto& from) {
        return adapters::carve_block<Data>(from, polystate_detail::adapters::mamba_block_sizes::of(args));
      },
      [&](const auto& t) {
        return polystate_detail::adapters::run_mamba_block_step(adapters::inner(exec),
                                                                adapters::cublas_products<Data>(name, exec), args, t);
      });
}

}  // namespace polystate::inline POLYSTATE_ABI
