// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// malora and toplora as they are defined: docs/token_modulation.md.

#include <polystate/adapters/compose_token_modulation.hpp>
#include <polystate/adapters/token_modulation.hpp>
#include <polystate/reference/adapters/mamba_block.hpp>
#include <polystate/reference/adapters/modulation.hpp>
#include <polystate/reference/adapters/modulation_tensors.hpp>

namespace polystate::inline POLYSTATE_ABI {

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Data>
[[nodiscard]] status check(const on_reference&, const malora_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const malora_args<Data>& args, const malora_grads<Data>& grads) {
  const status s = check(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const malora_step_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const toplora_args<Data>& args) {
  return check(args);
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
  return check(args, grads);
}

template <class Data>
status try_malora(const on_reference& exec, const malora_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  ref::owned_low_rank<Scalar> low_rank(args);
  ref::owned_malora_modulator<Scalar> modulator(args);
  ref::owned_mamba_states<Scalar> states(args);
  auto results = ref::owned_modulation_tensors<Scalar>::of_malora(args);
  malora_args<Scalar> in_scalar{};
  in_scalar.cu_seqlens = args.cu_seqlens;
  low_rank.show_in(in_scalar);
  modulator.show_in(in_scalar);
  states.show_in(in_scalar);
  status s =
      polystate_detail::adapters::run_malora(exec, ref::modulated_products<Scalar>{}, in_scalar, results.views());
  if (!s.ok()) return s;
  low_rank.store(args);
  results.store_lam(args.lam);
  states.store(args);
  return s;
}

template <class Data>
status try_malora_backward(const on_reference& exec, const malora_args<Data>& args, const malora_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args, grads); !s.ok()) return s;

  // The forward but for h.
  const ref::modulated_products<Scalar> products;
  ref::owned_low_rank<Scalar> low_rank(args);
  ref::owned_malora_modulator<Scalar> modulator(args);
  ref::owned_mamba_states<Scalar> states(args);
  auto results = ref::owned_modulation_tensors<Scalar>::of_malora(args);
  malora_args<Scalar> in_scalar{};
  in_scalar.cu_seqlens = args.cu_seqlens;
  low_rank.show_in(in_scalar);
  modulator.show_in(in_scalar);
  states.show_in(in_scalar);
  status s = polystate_detail::adapters::modulate_malora(exec, products, in_scalar, results.views());
  if (!s.ok()) return s;

  ref::owned_low_rank_grads<Scalar> d_low_rank(args, grads);
  ref::owned_mamba_weight_grads<Scalar> d_mamba(grads.d_mamba);
  ref::owned_mamba_state_grads<Scalar> d_states(grads);
  auto d_phi_w = ref::owned_tensor<Scalar, 2>::shaped_as(grads.d_phi_w);
  auto d_phi_b = ref::owned_tensor<Scalar, 1>::shaped_as(grads.d_phi_b);
  auto d_results = ref::owned_modulation_tensors<Scalar>::of_malora(args);
  malora_grads<Scalar> grads_in_scalar{
      .d_mamba = d_mamba.views(), .d_phi_w = d_phi_w.view(), .d_phi_b = d_phi_b.view()};
  d_low_rank.show_in(grads_in_scalar);
  d_states.show_in(grads_in_scalar);
  s = polystate_detail::adapters::run_malora_backward(exec, products, in_scalar, results.views(), d_results.views(),
                                                      grads_in_scalar);
  if (!s.ok()) return s;
  d_low_rank.store(grads);
  d_mamba.store(grads.d_mamba);
  d_states.store(grads);
  d_phi_w.store(grads.d_phi_w);
  d_phi_b.store(grads.d_phi_b);
  return s;
}

template <class Data>
status try_malora_step(const on_reference& exec, const malora_step_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  ref::owned_low_rank<Scalar> low_rank(args);
  ref::owned_malora_modulator<Scalar> modulator(args);
  ref::owned_mamba_rows<Scalar> rows(
      args, polystate_detail::adapters::mamba_block_sizes::of(args.x.extent(0), args.x.extent(1), args.mamba));
  auto results = ref::owned_modulation_tensors<Scalar>::of_malora(args);
  malora_step_args<Scalar> in_scalar{};
  low_rank.show_in(in_scalar);
  modulator.show_in(in_scalar);
  rows.show_in(in_scalar);
  status s =
      polystate_detail::adapters::run_malora_step(exec, ref::modulated_products<Scalar>{}, in_scalar, results.views());
  if (!s.ok()) return s;
  low_rank.store(args);
  results.store_lam(args.lam);
  rows.clear_padding(args.h);
  rows.clear_padding(args.lam);
  rows.store(args);
  return s;
}

template <class Data>
status try_toplora(const on_reference& exec, const toplora_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  ref::owned_low_rank<Scalar> low_rank(args);
  auto rms_w = ref::owned_tensor<Scalar, 1>::copy_of(args.rms_w);
  auto results = ref::owned_modulation_tensors<Scalar>::of_toplora(args);
  toplora_args<Scalar> in_scalar{};
  in_scalar.rms_w = rms_w.view();
  in_scalar.rms_eps = args.rms_eps;
  low_rank.show_in(in_scalar);
  status s = polystate_detail::adapters::run_toplora(ref::modulated_products<Scalar>{}, in_scalar, results.views());
  if (!s.ok()) return s;
  low_rank.store(args);
  results.store_lam(args.lam);
  return s;
}

template <class Data>
status try_toplora_backward(const on_reference& exec, const toplora_args<Data>& args,
                            const toplora_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args, grads); !s.ok()) return s;

  const ref::modulated_products<Scalar> products;
  ref::owned_low_rank<Scalar> low_rank(args);
  auto rms_w = ref::owned_tensor<Scalar, 1>::copy_of(args.rms_w);
  auto results = ref::owned_modulation_tensors<Scalar>::of_toplora(args);
  toplora_args<Scalar> in_scalar{};
  in_scalar.rms_w = rms_w.view();
  in_scalar.rms_eps = args.rms_eps;
  low_rank.show_in(in_scalar);
  status s = polystate_detail::adapters::modulate_toplora(products, in_scalar, results.views());
  if (!s.ok()) return s;

  ref::owned_low_rank_grads<Scalar> d_low_rank(args, grads);
  auto d_rms_w = ref::owned_tensor<Scalar, 1>::shaped_as(grads.d_rms_w);
  auto d_results = ref::owned_modulation_tensors<Scalar>::of_toplora(args);
  toplora_grads<Scalar> grads_in_scalar{.d_rms_w = d_rms_w.view()};
  d_low_rank.show_in(grads_in_scalar);
  s = polystate_detail::adapters::run_toplora_backward(products, in_scalar, results.views(), d_results.views(),
                                                       grads_in_scalar);
  if (!s.ok()) return s;
  d_low_rank.store(grads);
  d_rms_w.store(grads.d_rms_w);
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI
