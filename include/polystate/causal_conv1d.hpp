// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Causal depthwise 1-D convolution with a carried state, as used in front of selective scan and of linear
/// attention. This header states and checks the operator; include polystate/reference/causal_conv1d.hpp or
/// polystate/cuda/causal_conv1d.cuh for a backend.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

/// Pointwise function applied to each output; silu(a) = a * sigmoid(a).
enum class activation { none, silu };

/// What the operator supports, the same on every backend.
struct causal_conv1d_limits {
  static constexpr size_range W{1};
  static constexpr size_range step_tokens{0, 8};  ///< T of one step
};

/// Operands of causal_conv1d(). B batch entries, T tokens, D channels, W taps; S sequences (B, or those
/// packed).
///
///     p = concat(initial_state, x) along time
///     y[b,t,d] = act( bias[d] + sum_{j<W} weight[d,j] * p[b,t+j,d] )
///     final_state = the last W-1 rows of p, never activated
///
/// Sums are kept in acc_t<Data> (reference: compute_t<Data>) and rounded to Data once.
/// Source: Gu & Dao 2023 (arXiv:2312.00752), section 3.4; state convention in docs/causal_conv1d.md.
template <class Data>
struct causal_conv1d_args {
  tensor_view<const Data, 3> x;                ///< (B, T, D)
  tensor_view<const acc_t<Data>, 2> weight;    ///< (D, W); tap W-1 multiplies the current token
  tensor_view<const acc_t<Data>, 1> bias{};    ///< (D), optional: absent means 0
  tensor_view<const Data, 3> initial_state{};  ///< (S, W-1, D), optional: absent means 0; oldest token first
  index_view cu_seqlens{};                     ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 3> y;                      ///< (B, T, D), out; overlaps no other operand
  tensor_view<Data, 3> final_state{};          ///< (S, W-1, D), optional, out; may be initial_state itself
  activation act = activation::none;
};

/// Operands of causal_conv1d_step(): T further tokens of B sequences, whose states live in a pool of slots.
template <class Data>
struct causal_conv1d_step_args {
  tensor_view<const Data, 3> x;                ///< (B, T, D), T at most 8
  tensor_view<const acc_t<Data>, 2> weight;    ///< (D, W)
  tensor_view<const acc_t<Data>, 1> bias{};    ///< (D), optional: absent means 0
  index_view read_indices{};                   ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                  ///< (B), optional: slots written; absent: the slots read
  tensor_view<Data, 3> state;                  ///< (slots, W-1, D), updated in place; oldest token first
  tensor_view<Data, 3> y;                      ///< (B, T, D), out; zero for padding rows
  tensor_view<Data, 4> intermediate_states{};  ///< (B, T, W-1, D), optional, out: the state after each token
  activation act = activation::none;
};

/// Gradients of causal_conv1d(). The upstream ones may be absent, which means zero; the others may be absent,
/// which means not wanted and costs nothing; they are overwritten, never added to, and share memory with no other
/// operand.
template <class Data>
struct causal_conv1d_grads {
  tensor_view<const Data, 3> d_y{};            ///< (B, T, D), upstream
  tensor_view<const Data, 3> d_final_state{};  ///< (S, W-1, D), upstream
  tensor_view<Data, 3> d_x{};                  ///< (B, T, D), out
  tensor_view<acc_t<Data>, 2> d_weight{};      ///< (D, W), out: summed over batch, time and sequences
  tensor_view<acc_t<Data>, 1> d_bias{};        ///< (D), out: summed likewise; args.bias given
  tensor_view<Data, 3> d_initial_state{};      ///< (S, W-1, D), out; also where args.initial_state is absent
};

/// Checks the inputs, which forward and backward share, and binds "B", "T", "D", "W", "S".
template <class Data>
void check_inputs(argument_checks& c, const causal_conv1d_args<Data>& args) {
  c.required("x", args.x, {"B", "T", "D"})
      .required("weight", args.weight, {"D", "W"})
      .range("W", causal_conv1d_limits::W)
      .optional("bias", args.bias, {"D"})
      .sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", {"W", -1}, "D"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const causal_conv1d_args<Data>& args) {
  argument_checks c("causal_conv1d");
  check_inputs(c, args);
  c.fixed<Dims>("weight", "W");
  c.required("y", args.y, {"B", "T", "D"})
      .optional("final_state", args.final_state, {"S", {"W", -1}, "D"})
      .no_overlap({{"final_state", "initial_state"}});
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const causal_conv1d_args<Data>& args, const causal_conv1d_grads<Data>& grads) {
  argument_checks c("causal_conv1d_backward");
  check_inputs(c, args);
  c.fixed<Dims>("weight", "W");
  c.optional("d_y", grads.d_y, {"B", "T", "D"})
      .optional("d_final_state", grads.d_final_state, {"S", {"W", -1}, "D"})
      .optional("d_x", grads.d_x, {"B", "T", "D"})
      .optional("d_weight", grads.d_weight, {"D", "W"})
      .optional_if(static_cast<bool>(args.bias), "d_bias", grads.d_bias, {"D"}, "bias is not")
      .optional("d_initial_state", grads.d_initial_state, {"S", {"W", -1}, "D"})
      .no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const causal_conv1d_step_args<Data>& args) {
  argument_checks c("causal_conv1d_step");
  c.required("x", args.x, {"B", "T", "D"})
      .range("T", causal_conv1d_limits::step_tokens)
      .required("weight", args.weight, {"D", "W"})
      .range("W", causal_conv1d_limits::W)
      .template fixed<Dims>("weight", "W")
      .optional("bias", args.bias, {"D"})
      .required("state", args.state, {"slots", {"W", -1}, "D"});
  check_pool_shape(c, "state", args.read_indices, args.write_indices);
  c.required("y", args.y, {"B", "T", "D"})
      .optional("intermediate_states", args.intermediate_states, {"B", "T", {"W", -1}, "D"})
      .no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data>
[[nodiscard]] status check_contents(const causal_conv1d_args<Data>& args) {
  return check_cu_seqlens("causal_conv1d", args.cu_seqlens, args.x.extent(1));
}
template <class Data>
[[nodiscard]] status check_contents(const causal_conv1d_step_args<Data>& args) {
  return check_pool_indices("causal_conv1d_step", args.x.extent(0), args.state.extent(0), args.read_indices,
                            args.write_indices);
}

/// Scratch that the CUDA path needs, in bytes: none, but for the backward, whose need its backend's header tells.
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const causal_conv1d_args<Data>&) {
  return 0;
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const causal_conv1d_step_args<Data>&) {
  return 0;
}
template <class Data>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const causal_conv1d_args<Data>& args,
                                          const causal_conv1d_grads<Data>& grads);

/// What causal_conv1d() does, with a status for an exception. Each overload is defined in
/// polystate/reference/causal_conv1d.hpp or polystate/cuda/causal_conv1d.cuh: include it, or the linker will
/// miss it.
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d(const on_reference& exec, const causal_conv1d_args<Data>& args);
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d(const on_cuda& exec, const causal_conv1d_args<Data>& args);
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d_backward(const on_reference& exec, const causal_conv1d_args<Data>& args,
                                                const causal_conv1d_grads<Data>& grads);
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d_backward(const on_cuda& exec, const causal_conv1d_args<Data>& args,
                                                const causal_conv1d_grads<Data>& grads);
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d_step(const on_reference& exec, const causal_conv1d_step_args<Data>& args);
template <class Dims = dims<>, class Data>
[[nodiscard]] status try_causal_conv1d_step(const on_cuda& exec, const causal_conv1d_step_args<Data>& args);

/// Computes y and, if given, final_state. T = 0 copies initial_state, or zero, to final_state. A NaN in x
/// reaches the W outputs that its taps touch and no other sequence or channel.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type. Reads cu_seqlens first.
/// cuda:      float, half, bfloat16; asynchronous on exec.stream. Contents of cu_seqlens are clamped into 0 .. T;
///            validate() reports them.
///
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// causal_conv1d<dims<4>>(exec, args) compiles that W alone and refuses others.
///
/// Throws argument_error when check() fails, before any write; cuda_error when a launch fails. Deterministic.
/// Thread-safe.
template <class Dims = dims<>, class Exec, class Data>
void causal_conv1d(const Exec& exec, const causal_conv1d_args<Data>& args) {
  raise_on_error(try_causal_conv1d<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/causal_conv1d.md derives it, in compute_t<Data>; memory for one sequence's input and
/// its gradient.
///
/// Throws and guarantees as causal_conv1d().
template <class Dims = dims<>, class Exec, class Data>
void causal_conv1d_backward(const Exec& exec, const causal_conv1d_args<Data>& args,
                            const causal_conv1d_grads<Data>& grads) {
  raise_on_error(try_causal_conv1d_backward<Dims>(exec, args, grads));
}

/// Computes y for T tokens and moves the states on: equal to causal_conv1d() over those tokens with the
/// slot's state as initial state. Backends, errors and guarantees as there.
template <class Dims = dims<>, class Exec, class Data>
void causal_conv1d_step(const Exec& exec, const causal_conv1d_step_args<Data>& args) {
  raise_on_error(try_causal_conv1d_step<Dims>(exec, args));
}

}  // namespace polystate::inline POLYSTATE_ABI
