// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// malora and toplora on CUDA: the operators there, and products by cuBLAS between them. float, half
/// and bfloat16; intermediate results are of the data's type, the factors float. Link CUDA::cublas.

#include <polystate/adapters/compose_token_modulation.hpp>
#include <polystate/adapters/token_modulation.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/adapters/cublas.cuh>
#include <polystate/cuda/adapters/mamba_block.cuh>
#include <polystate/cuda/adapters/modulation.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/workspace.cuh>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::adapters {

/// The intermediate results that both adapters have. The factors go to the caller's lam, if there is one.
template <class Data, class Args>
polystate_detail::adapters::modulation_tensors<Data> carve_low_rank(workspace_carver& from, const Args& args,
                                                                    std::int64_t q) {
  const std::int64_t B = args.x.extent(0), T = args.x.extent(1), dp = args.P.extent(0), r = args.A.extent(0);
  const auto tokens = [&](std::int64_t width) {
    return tensor_view<Data, 3>(from.take<Data>(B * T * width), {B, T, width});
  };
  polystate_detail::adapters::modulation_tensors<Data> t;
  t.p = tokens(dp);
  t.a = tokens(r);
  t.m = tokens(r);
  const tensor_view<float, 3> lam(from.take<float>(B * T * q), {B, T, q});
  t.lam = args.lam ? args.lam : lam;
  return t;
}
template <class Args>
auto carve_malora(workspace_carver& from, const Args& args) {
  using Data = typename decltype(args.h)::value_type;
  const std::int64_t B = args.x.extent(0), T = args.x.extent(1), dp = args.P.extent(0), q = args.phi_w.extent(0);
  auto t = carve_low_rank<Data>(from, args, q);
  t.o = {from.take<Data>(B * T * dp), {B, T, dp}};
  t.u = {from.take<Data>(B * T * q), {B, T, q}};
  t.block = carve_block<Data>(from, polystate_detail::adapters::mamba_block_sizes::of(B, T, args.mamba));
  return t;
}
template <class Data>
auto carve_toplora(workspace_carver& from, const toplora_args<Data>& args) {
  return carve_low_rank<Data>(from, args, args.A.extent(0));
}

/// The scratch memory of a backward. The forward within writes no output.
template <class Data>
struct adapter_backward_tensors {
  polystate_detail::adapters::modulation_tensors<Data> results, gradients;
  tensor_view<Data, 3> d_h;                ///< zeros where the upstream gradient is absent
  tensor_view<float, 3> parts_of_d_rms_w;  ///< toplora's
};
template <class Args>
Args without_outputs(Args args) {
  args.h = {};
  args.lam = {};
  if constexpr (requires { args.final_conv_state; }) {
    args.final_conv_state = {};
    args.final_scan_state = {};
  }
  return args;
}
template <class Data, class Args, class Grads>
void carve_upstream(workspace_carver& from, const Args& args, const Grads& grads, tensor_view<Data, 3>& d_h) {
  const std::int64_t B = args.x.extent(0), T = args.x.extent(1), dout = args.B.extent(0);
  if (!grads.d_h) d_h = {from.take<Data>(B * T * dout), {B, T, dout}};
}
template <class Data>
adapter_backward_tensors<Data> carve_backward(workspace_carver& from, const malora_args<Data>& args,
                                              const malora_grads<Data>& grads) {
  adapter_backward_tensors<Data> t;
  t.results = carve_malora(from, without_outputs(args));
  t.gradients = carve_malora(from, without_outputs(args));
  carve_upstream(from, args, grads, t.d_h);
  return t;
}
template <class Data>
adapter_backward_tensors<Data> carve_backward(workspace_carver& from, const toplora_args<Data>& args,
                                              const toplora_grads<Data>& grads) {
  const std::int64_t B = args.x.extent(0), T = args.x.extent(1), r = args.A.extent(0);
  adapter_backward_tensors<Data> t;
  t.results = carve_toplora(from, without_outputs(args));
  t.gradients = carve_toplora(from, without_outputs(args));
  carve_upstream(from, args, grads, t.d_h);
  if (grads.d_rms_w) t.parts_of_d_rms_w = {from.take<float>(B * T * r), {B, T, r}};
  return t;
}

/// Storage that cuBLAS takes.
template <class Args>
void check_low_rank_storage(argument_checks& c, const Args& args) {
  blas::check_storage(c, "x", args.x);
  blas::check_storage(c, "W0", args.W0);
  blas::check_storage(c, "A", args.A);
  blas::check_storage(c, "B", args.B);
  blas::check_storage(c, "P", args.P);
  blas::check_storage(c, "h", args.h);
}
template <class Args, class Grads>
void check_low_rank_storage(argument_checks& c, const Args& args, const Grads& grads) {
  check_low_rank_storage(c, without_outputs(args));
  blas::check_storage(c, "d_h", grads.d_h);
  blas::check_storage(c, "d_x", grads.d_x);
  blas::check_storage(c, "d_W0", grads.d_W0);
  blas::check_storage(c, "d_A", grads.d_A);
  blas::check_storage(c, "d_B", grads.d_B);
  blas::check_storage(c, "d_P", grads.d_P);
}
template <class Args>
status check_malora(const char* op, const on_cublas& exec, const Args& args, std::size_t bytes) {
  status s = polystate::check(args);
  if (s.ok()) s = check_device(op, exec, bytes);
  if (!s.ok()) return s;
  argument_checks c(op);
  check_low_rank_storage(c, args);
  check_block_storage(c, args.mamba);
  blas::check_storage(c, "phi_w", args.phi_w);
  return c.result();
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::adapters

/// Scratch for the intermediate results, in bytes; what the scan needs itself comes in the order of the stream.
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const malora_args<Data>& args) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_malora(count, args));
  return count.bytes();
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const malora_step_args<Data>& args) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_malora(count, args));
  return count.bytes();
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const toplora_args<Data>& args) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_toplora(count, args));
  return count.bytes();
}

template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const malora_args<Data>& args,
                                          const malora_grads<Data>& grads) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_backward(count, args, grads));
  return count.bytes();
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cublas&, const toplora_args<Data>& args,
                                          const toplora_grads<Data>& grads) {
  polystate_detail::cuda::workspace_carver count;
  static_cast<void>(polystate_detail::cuda::adapters::carve_backward(count, args, grads));
  return count.bytes();
}

/// What on_cublas asks of the operands: check(), N up to 256, and of x, h and the matrices a stride of 1 along one of
/// the last two indices. Reads no elements.
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const malora_args<Data>& args) {
  return polystate_detail::cuda::adapters::check_malora("malora", exec, args, workspace_bytes(exec, args));
}
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const malora_step_args<Data>& args) {
  return polystate_detail::cuda::adapters::check_malora("malora_step", exec, args, workspace_bytes(exec, args));
}
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const toplora_args<Data>& args) {
  constexpr const char* name = "toplora";
  status s = check(args);
  if (s.ok()) s = polystate_detail::cuda::adapters::check_device(name, exec, workspace_bytes(exec, args));
  if (!s.ok()) return s;
  argument_checks c(name);
  polystate_detail::cuda::adapters::check_low_rank_storage(c, args);
  return c.result();
}

template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const malora_args<Data>& args, const malora_grads<Data>& grads) {
  namespace adapters = polystate_detail::cuda::adapters;
  constexpr const char* name = "malora_backward";
  status s = check(args, grads);
  if (s.ok()) s = adapters::check_device(name, exec, workspace_bytes(exec, args, grads));
  if (!s.ok()) return s;
  argument_checks c(name);
  adapters::check_low_rank_storage(c, args, grads);
  adapters::check_block_storage(c, args.mamba);
  polystate_detail::cuda::blas::check_storage(c, "phi_w", args.phi_w);
  adapters::check_block_grad_storage(c, grads.d_mamba);
  polystate_detail::cuda::blas::check_storage(c, "d_phi_w", grads.d_phi_w);
  return c.result();
}
template <class Data>
[[nodiscard]] status check(const on_cublas& exec, const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
  constexpr const char* name = "toplora_backward";
  status s = check(args, grads);
  if (s.ok()) s = polystate_detail::cuda::adapters::check_device(name, exec, workspace_bytes(exec, args, grads));
  if (!s.ok()) return s;
  argument_checks c(name);
  polystate_detail::cuda::adapters::check_low_rank_storage(c, args, grads);
  return c.result();
}

/// Contents of cu_seqlens and of pool indices are clamped, as causal_conv1d and selective_scan do.
template <class Data>
status try_malora(const on_cublas& exec, const malora_args<Data>& args) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>, "malora on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "malora";
  status s = check(exec, args);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_malora(from, args); },
      [&](const auto& t) {
        return polystate_detail::adapters::run_malora(adapters::inner(exec),
                                                      adapters::modulated_products<Data>(name, exec), args, t);
      });
}

template <class Data>
status try_malora_step(const on_cublas& exec, const malora_step_args<Data>& args) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>, "malora_step on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "malora_step";
  status s = check(exec, args);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  const adapters::modulated_products<Data> products(name, exec);
  s = adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_malora(from, args); },
      [&](const auto& t) {
        return polystate_detail::adapters::run_malora_step(adapters::inner(exec), products, args, t);
      });
  const state_pool pool(args.conv_state.extent(0), args.read_indices, args.write_indices);
  const bool indexed = static_cast<bool>(args.read_indices);
  if (s.ok()) s = products.clear_padding(pool, indexed, args.h);
  return s.ok() ? products.clear_padding(pool, indexed, args.lam) : s;
}

template <class Data>
status try_toplora(const on_cublas& exec, const toplora_args<Data>& args) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>, "toplora on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "toplora";
  status s = check(exec, args);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_toplora(from, args); },
      [&](const auto& t) {
        return polystate_detail::adapters::run_toplora(adapters::modulated_products<Data>(name, exec), args, t);
      });
}

template <class Data>
status try_malora_backward(const on_cublas& exec, const malora_args<Data>& args, const malora_grads<Data>& grads) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "malora_backward on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "malora_backward";
  status s = check(exec, args, grads);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_backward(from, args, grads); },
      [&](const auto& t) {
        const adapters::modulated_products<Data> products(name, exec);
        const malora_args<Data> forward = adapters::without_outputs(args);
        malora_grads<Data> wanted = grads;
        return polystate_detail::adapters::in_order(
            [&] { return adapters::upstream_or_zeros(name, exec, grads.d_h, t.d_h, wanted.d_h); },
            [&] {
              return polystate_detail::adapters::modulate_malora(adapters::inner(exec), products, forward, t.results);
            },
            [&] {
              return polystate_detail::adapters::run_malora_backward(adapters::inner(exec), products, forward,
                                                                     t.results, t.gradients, wanted);
            });
      });
}

template <class Data>
status try_toplora_backward(const on_cublas& exec, const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
  namespace adapters = polystate_detail::cuda::adapters;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "toplora_backward on_cublas takes float, half and bfloat16 data");
  constexpr const char* name = "toplora_backward";
  status s = check(exec, args, grads);
  if (s.ok()) s = polystate_detail::cuda::blas::set_stream(name, exec);
  if (!s.ok()) return s;
  return adapters::with_scratch(
      name, exec, [&](auto& from) { return adapters::carve_backward(from, args, grads); },
      [&](const auto& t) {
        adapters::modulated_products<Data> products(name, exec);
        products.set_parts_of_d_rms_w(t.parts_of_d_rms_w);
        const toplora_args<Data> forward = adapters::without_outputs(args);
        toplora_grads<Data> wanted = grads;
        return polystate_detail::adapters::in_order(
            [&] { return adapters::upstream_or_zeros(name, exec, grads.d_h, t.d_h, wanted.d_h); },
            [&] { return polystate_detail::adapters::modulate_toplora(products, forward, t.results); },
            [&] {
              return polystate_detail::adapters::run_toplora_backward(products, forward, t.results, t.gradients,
                                                                      wanted);
            });
      });
}

}  // namespace polystate::inline POLYSTATE_ABI
