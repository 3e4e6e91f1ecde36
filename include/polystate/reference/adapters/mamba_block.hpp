// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// mamba_block as it is defined: the operators of the reference, and matrix products between them.

#include <polystate/adapters/compose_mamba_block.hpp>
#include <polystate/adapters/mamba_block.hpp>
#include <polystate/reference/adapters/mamba_tensors.hpp>
#include <polystate/reference/adapters/owned_tensor.hpp>
#include <polystate/reference/adapters/products.hpp>
#include <polystate/reference/causal_conv1d.hpp>
#include <polystate/reference/selective_scan.hpp>

namespace polystate::inline POLYSTATE_ABI {

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Data>
[[nodiscard]] status check(const on_reference&, const mamba_block_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const mamba_block_args<Data>& args,
                           const mamba_block_grads<Data>& grads) {
  const status s = check(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const mamba_block_step_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Data>
status try_mamba_block(const on_reference& exec, const mamba_block_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  namespace adapters = polystate_detail::adapters;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  ref::owned_mamba_weights<Scalar> weights(args.weights);
  auto x = ref::owned_tensor<Scalar, 3>::copy_of(args.x);
  auto y = ref::owned_tensor<Scalar, 3>::shaped_as(args.y);
  ref::owned_mamba_states<Scalar> states(args);
  ref::owned_mamba_tensors<Scalar> results(adapters::mamba_block_sizes::of(args));
  mamba_block_args<Scalar> in_scalar{
      .x = x.view(), .weights = weights.views(), .cu_seqlens = args.cu_seqlens, .y = y.view()};
  states.show_in(in_scalar);
  status s = adapters::run_mamba_block(exec, ref::eigen_products<Scalar>{}, in_scalar, results.views());
  if (!s.ok()) return s;
  y.store(args.y);
  states.store(args);
  return s;
}

template <class Data>
status try_mamba_block_backward(const on_reference& exec, const mamba_block_args<Data>& args,
                                const mamba_block_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  namespace adapters = polystate_detail::adapters;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args, grads); !s.ok()) return s;

  // The forward, whose outputs nobody reads.
  const auto sizes = adapters::mamba_block_sizes::of(args);
  const ref::eigen_products<Scalar> products;
  ref::owned_mamba_weights<Scalar> weights(args.weights);
  auto x = ref::owned_tensor<Scalar, 3>::copy_of(args.x);
  auto y = ref::owned_tensor<Scalar, 3>::shaped_as(args.x);
  ref::owned_mamba_states<Scalar> states(args);
  ref::owned_mamba_tensors<Scalar> results(sizes);
  mamba_block_args<Scalar> in_scalar{
      .x = x.view(), .weights = weights.views(), .cu_seqlens = args.cu_seqlens, .y = y.view()};
  states.show_in(in_scalar);
  status s = adapters::run_mamba_block(exec, products, in_scalar, results.views());
  if (!s.ok()) return s;

  auto d_y =
      grads.d_y ? ref::owned_tensor<Scalar, 3>::copy_of(grads.d_y) : ref::owned_tensor<Scalar, 3>::shaped_as(args.x);
  auto d_x = ref::owned_tensor<Scalar, 3>::shaped_as(grads.d_x);
  ref::owned_mamba_weight_grads<Scalar> d_weights(grads.d_weights);
  ref::owned_mamba_state_grads<Scalar> d_states(grads);
  ref::owned_mamba_tensors<Scalar> d_results(sizes);
  mamba_block_grads<Scalar> grads_in_scalar{.d_y = d_y.view(), .d_x = d_x.view(), .d_weights = d_weights.views()};
  d_states.show_in(grads_in_scalar);
  s = adapters::run_mamba_block_backward(exec, products, in_scalar, results.views(), d_results.views(),
                                         grads_in_scalar);
  if (!s.ok()) return s;
  d_x.store(grads.d_x);
  d_weights.store(grads.d_weights);
  d_states.store(grads);
  return s;
}

template <class Data>
status try_mamba_block_step(const on_reference& exec, const mamba_block_step_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  namespace adapters = polystate_detail::adapters;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  const auto sizes = adapters::mamba_block_sizes::of(args);
  ref::owned_mamba_weights<Scalar> weights(args.weights);
  auto x = ref::owned_tensor<Scalar, 3>::copy_of(args.x);
  auto y = ref::owned_tensor<Scalar, 3>::shaped_as(args.y);
  ref::owned_mamba_rows<Scalar> rows(args, sizes);
  ref::owned_mamba_tensors<Scalar> results(sizes);
  mamba_block_step_args<Scalar> in_scalar{
      .x = x.view(), .weights = weights.views(), .conv_state = {}, .scan_state = {}, .y = y.view()};
  rows.show_in(in_scalar);
  status s = adapters::run_mamba_block_step(exec, ref::eigen_products<Scalar>{}, in_scalar, results.views());
  if (!s.ok()) return s;
  y.store(args.y);
  rows.clear_padding(args.y);
  rows.store(args);
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI
