// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Selective scan, the recurrence of Mamba-1 (S6): a diagonal state a channel. This header states and checks
/// the operator; include polystate/reference/selective_scan.hpp for the definition.

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

/// What the operator supports: N on the reference, cuda_N on CUDA.
struct selective_scan_limits {
  static constexpr size_range N{1};
  static constexpr size_range cuda_N{1, 256};
  static constexpr size_range step_tokens{0, 8};  ///< T of one step
};

/// Operands of selective_scan(). B batch entries, T tokens, D channels, N states a channel, G groups that
/// share B and C (D a multiple of G, consecutive channels share one); S sequences (B, or those packed).
///
///     dt = delta[t,d] + delta_bias[d];  dt = softplus(dt) if delta_softplus
///     h_t[d,n] = exp(dt A[d,n]) h_{t-1}[d,n] + dt B[t,g,n] u[t,d]
///     y[t,d] = ( sum_n C[t,g,n] h_t[d,n] + D[d] u[t,d] ) * silu(z[t,d])
///
/// softplus is log(1 + e^x) without a linear cut-off.
/// Source: Gu & Dao 2023 (arXiv:2312.00752), algorithm 2.
template <class Data, class State = acc_t<Data>>
struct selective_scan_args {
  tensor_view<const Data, 3> u;                    ///< (B, T, D)
  tensor_view<const Data, 3> delta;                ///< (B, T, D)
  tensor_view<const acc_t<Data>, 2> A;             ///< (D, N), used as given (already negative)
  tensor_view<const Data, 4> B;                    ///< (B, T, G, N)
  tensor_view<const Data, 4> C;                    ///< (B, T, G, N)
  tensor_view<const acc_t<Data>, 1> D{};           ///< (D), optional: absent means 0
  tensor_view<const Data, 3> z{};                  ///< (B, T, D), optional: absent means no gate
  tensor_view<const acc_t<Data>, 1> delta_bias{};  ///< (D), optional: absent means 0
  tensor_view<const State, 3> initial_state{};     ///< (S, D, N), optional: absent means 0
  index_view cu_seqlens{};                         ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 3> y;                          ///< (B, T, D), out; overlaps no other operand
  tensor_view<State, 3> final_state{};             ///< (S, D, N), optional, out; may be initial_state itself
  bool delta_softplus = false;
};

/// Operands of selective_scan_step(): T further tokens of B sequences, whose states live in a pool of slots.
template <class Data, class State = acc_t<Data>>
struct selective_scan_step_args {
  tensor_view<const Data, 3> u;                    ///< (B, T, D), T at most 8
  tensor_view<const Data, 3> delta;                ///< (B, T, D)
  tensor_view<const acc_t<Data>, 2> A;             ///< (D, N)
  tensor_view<const Data, 4> B;                    ///< (B, T, G, N)
  tensor_view<const Data, 4> C;                    ///< (B, T, G, N)
  tensor_view<const acc_t<Data>, 1> D{};           ///< (D), optional
  tensor_view<const Data, 3> z{};                  ///< (B, T, D), optional
  tensor_view<const acc_t<Data>, 1> delta_bias{};  ///< (D), optional
  index_view read_indices{};                       ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                      ///< (B), optional: slots written; absent: the slots read
  tensor_view<State, 3> state;                     ///< (slots, D, N), updated in place
  tensor_view<Data, 3> y;                          ///< (B, T, D), out; zero for padding rows
  tensor_view<State, 4> intermediate_states{};     ///< (B, T, D, N), optional, out: the state after each token
  bool delta_softplus = false;
};

/// Gradients of selective_scan(). The upstream ones may be absent, which means zero; the others may be
/// absent, which means not wanted and costs nothing; they are overwritten, never added to, and share memory with no
/// other operand. Those of A, D and delta_bias are summed over batch, time and sequences.
template <class Data, class State = acc_t<Data>>
struct selective_scan_grads {
  tensor_view<const Data, 3> d_y{};             ///< (B, T, D), upstream
  tensor_view<const State, 3> d_final_state{};  ///< (S, D, N), upstream
  tensor_view<Data, 3> d_u{};                   ///< (B, T, D), out
  tensor_view<Data, 3> d_delta{};               ///< (B, T, D), out
  tensor_view<acc_t<Data>, 2> d_A{};            ///< (D, N), out
  tensor_view<Data, 4> d_B{};                   ///< (B, T, G, N), out
  tensor_view<Data, 4> d_C{};                   ///< (B, T, G, N), out
  tensor_view<acc_t<Data>, 1> d_D{};            ///< (D), out; args.D given
  tensor_view<Data, 3> d_z{};                   ///< (B, T, D), out; args.z given
  tensor_view<acc_t<Data>, 1> d_delta_bias{};   ///< (D), out; args.delta_bias given
  tensor_view<State, 3> d_initial_state{};      ///< (S, D, N), out; also where args.initial_state is absent
};

/// Checks the inputs that every kind of call shares and binds "B", "T", "D", "N", "G".
template <class Args>
void check_scan_operands(argument_checks& c, const Args& args) {
  c.required("u", args.u, {"B", "T", "D"})
      .required("delta", args.delta, {"B", "T", "D"})
      .required("A", args.A, {"D", "N"})
      .range("N", selective_scan_limits::N)
      .required("B", args.B, {"B", "T", "G", "N"})
      .grouped("D", "G")
      .required("C", args.C, {"B", "T", "G", "N"})
      .optional("D", args.D, {"D"})
      .optional("z", args.z, {"B", "T", "D"})
      .optional("delta_bias", args.delta_bias, {"D"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const selective_scan_args<Data, State>& args) {
  argument_checks c("selective_scan");
  check_scan_operands(c, args);
  c.fixed<Dims>("A", "N");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "D", "N"})
      .required("y", args.y, {"B", "T", "D"})
      .optional("final_state", args.final_state, {"S", "D", "N"})
      .no_overlap({{"final_state", "initial_state"}});
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const selective_scan_args<Data, State>& args,
                           const selective_scan_grads<Data, State>& grads) {
  argument_checks c("selective_scan_backward");
  check_scan_operands(c, args);
  c.fixed<Dims>("A", "N");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "D", "N"})
      .optional("d_y", grads.d_y, {"B", "T", "D"})
      .optional("d_final_state", grads.d_final_state, {"S", "D", "N"})
      .optional("d_u", grads.d_u, {"B", "T", "D"})
      .optional("d_delta", grads.d_delta, {"B", "T", "D"})
      .optional("d_A", grads.d_A, {"D", "N"})
      .optional("d_B", grads.d_B, {"B", "T", "G", "N"})
      .optional("d_C", grads.d_C, {"B", "T", "G", "N"})
      .optional_if(static_cast<bool>(args.D), "d_D", grads.d_D, {"D"}, "D is not")
      .optional_if(static_cast<bool>(args.z), "d_z", grads.d_z, {"B", "T", "D"}, "z is not")
      .optional_if(static_cast<bool>(args.delta_bias), "d_delta_bias", grads.d_delta_bias, {"D"}, "delta_bias is not")
      .optional("d_initial_state", grads.d_initial_state, {"S", "D", "N"})
      .no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const selective_scan_step_args<Data, State>& args) {
  argument_checks c("selective_scan_step");
  check_scan_operands(c, args);
  c.fixed<Dims>("A", "N");
  c.range("T", selective_scan_limits::step_tokens).required("state", args.state, {"slots", "D", "N"});
  check_pool_shape(c, "state", args.read_indices, args.write_indices);
  c.required("y", args.y, {"B", "T", "D"})
      .optional("intermediate_states", args.intermediate_states, {"B", "T", "D", "N"})
      .no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data, class State>
[[nodiscard]] status check_contents(const selective_scan_args<Data, State>& args) {
  return check_cu_seqlens("selective_scan", args.cu_seqlens, args.u.extent(1));
}
template <class Data, class State>
[[nodiscard]] status check_contents(const selective_scan_step_args<Data, State>& args) {
  return check_pool_indices("selective_scan_step", args.u.extent(0), args.state.extent(0), args.read_indices,
                            args.write_indices);
}

/// Scratch that the CUDA path needs on the current device, in bytes; its backend's header defines the first two.
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args);
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                                          const selective_scan_grads<Data, State>& grads);
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const selective_scan_step_args<Data, State>&) {
  return 0;
}

/// What selective_scan() does, with a status for an exception. Each overload is defined in
/// polystate/reference/selective_scan.hpp or polystate/cuda/selective_scan.cuh: include it, or the linker will miss it.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan(const on_reference& exec, const selective_scan_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan(const on_cuda& exec, const selective_scan_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan_step(const on_cuda& exec, const selective_scan_step_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan_backward(const on_reference& exec, const selective_scan_args<Data, State>& args,
                                                 const selective_scan_grads<Data, State>& grads);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan_backward(const on_cuda& exec, const selective_scan_args<Data, State>& args,
                                                 const selective_scan_grads<Data, State>& grads);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_selective_scan_step(const on_reference& exec,
                                             const selective_scan_step_args<Data, State>& args);

/// Computes y and, if given, final_state. T = 0 copies initial_state, or zero, to final_state.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
///
/// cuda: N up to 256, sums in float; scratch memory, if time is cut over blocks, as workspace_bytes() tells.
///
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// selective_scan<dims<16>>(exec, args) compiles that N alone and refuses others.
///
/// Throws argument_error when check() fails, before any write. Deterministic. Thread-safe. A NaN in u, delta
/// or z stays in its sequence and channel.
template <class Dims = dims<>, class Exec, class Data, class State>
void selective_scan(const Exec& exec, const selective_scan_args<Data, State>& args) {
  raise_on_error(try_selective_scan<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/selective_scan.md derives it, in compute_t<Data>; states are recomputed from
/// checkpoints, about 2 sqrt(T) N numbers of one channel at a time, beside the gradients themselves.
///
/// cuda: N up to 256; states are recomputed from checkpoints, one every 16 to 128 tokens. Sums are in float, without
/// atomics: over the chunks of a sequence from the last to the first, then over sequences, and those of d_B and d_C
/// over channels. Scratch memory, workspace_bytes(exec, args, grads): the checkpoints, and for d_B and d_C partial sums
/// of at most 256 MiB; more only where sequences are packed, or where one chunk of them takes more.
///
/// Throws and guarantees as selective_scan().
template <class Dims = dims<>, class Exec, class Data, class State>
void selective_scan_backward(const Exec& exec, const selective_scan_args<Data, State>& args,
                             const selective_scan_grads<Data, State>& grads) {
  raise_on_error(try_selective_scan_backward<Dims>(exec, args, grads));
}

/// Computes y for T tokens and moves the states on: equal to selective_scan() over those tokens with the
/// slot's state as initial state. Backends, errors and guarantees as there.
template <class Dims = dims<>, class Exec, class Data, class State>
void selective_scan_step(const Exec& exec, const selective_scan_step_args<Data, State>& args) {
  raise_on_error(try_selective_scan_step<Dims>(exec, args));
}

}  // namespace polystate::inline POLYSTATE_ABI
