// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// State-space duality, the recurrence of Mamba-2: a scalar decay a head, matrix states. This header states
/// and checks the operator; include polystate/reference/ssd.hpp for the definition.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/recurrence.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// What the operator supports: P and N on the reference, cuda_P and cuda_N on CUDA.
struct ssd_limits {
  static constexpr size_range P{1};
  static constexpr size_range N{1};
  static constexpr size_range cuda_P{1, 512};
  static constexpr size_range cuda_N{1, 512};
  static constexpr size_range step_tokens{0, 8};  ///< T of one step
};

/// Operands of ssd(). B batch entries, T tokens, H heads of P channels, G groups, N state columns; S
/// sequences (B, or those packed).
///
///     d   = dt + dt_bias;  d = softplus(d) if dt_softplus;  d = clamp(d, dt_min, dt_max)
///     S_t = exp(d A) S_{t-1} + d x_t B_t^T        y_t = (S_t C_t + D x_t) * silu(z_t)
///
/// States are (P, N). softplus is log(1 + e^x) without a linear cut-off.
/// Source: Dao & Gu 2024 (arXiv:2405.21060), section 3 and the Mamba-2 block.
template <class Data, class State = acc_t<Data>>
struct ssd_args {
  tensor_view<const Data, 4> x;           ///< (B, T, H, P)
  tensor_view<const Data, 3> dt;          ///< (B, T, H)
  tensor_view<const acc_t<Data>, 1> A;    ///< (H), used as given (already negative)
  tensor_view<const Data, 4> B;           ///< (B, T, G, N), H a multiple of G
  tensor_view<const Data, 4> C;           ///< (B, T, G, N)
  tensor_view<const acc_t<Data>, 2> D{};  ///< (H, P), optional: absent means 0; one number a head: stride 0 along P
  tensor_view<const Data, 4> z{};         ///< (B, T, H, P), optional: absent means no gate
  tensor_view<const acc_t<Data>, 1> dt_bias{};  ///< (H), optional: absent means 0
  tensor_view<const State, 4> initial_state{};  ///< (S, H, P, N), optional: absent means 0
  index_view cu_seqlens{};                      ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 4> y;                       ///< (B, T, H, P), out; overlaps no other operand
  tensor_view<State, 4> final_state{};          ///< (S, H, P, N), optional, out; may be initial_state itself
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();
  double dt_max = std::numeric_limits<double>::infinity();
};

/// Operands of ssd_step(): T further tokens of B sequences, whose states live in a pool of slots.
template <class Data, class State = acc_t<Data>>
struct ssd_step_args {
  tensor_view<const Data, 4> x;                 ///< (B, T, H, P), T at most 8
  tensor_view<const Data, 3> dt;                ///< (B, T, H)
  tensor_view<const acc_t<Data>, 1> A;          ///< (H)
  tensor_view<const Data, 4> B;                 ///< (B, T, G, N)
  tensor_view<const Data, 4> C;                 ///< (B, T, G, N)
  tensor_view<const acc_t<Data>, 2> D{};        ///< (H, P), optional
  tensor_view<const Data, 4> z{};               ///< (B, T, H, P), optional
  tensor_view<const acc_t<Data>, 1> dt_bias{};  ///< (H), optional
  index_view read_indices{};                    ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                   ///< (B), optional: slots written; absent: the slots read
  tensor_view<State, 4> state;                  ///< (slots, H, P, N), updated in place
  tensor_view<Data, 4> y;                       ///< (B, T, H, P), out; zero for padding rows
  tensor_view<State, 5> intermediate_states{};  ///< (B, T, H, P, N), optional, out: the state after each token
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();
  double dt_max = std::numeric_limits<double>::infinity();
};

/// Gradients of ssd(). The upstream ones may be absent, which means zero; the others may be absent, which
/// means not wanted and costs nothing; they are overwritten, never added to, and share memory with no other operand.
/// Those of A, D and dt_bias are summed over batch, time and sequences. The clamp passes a gradient where dt_min <= d
/// <= dt_max.
template <class Data, class State = acc_t<Data>>
struct ssd_grads {
  tensor_view<const Data, 4> d_y{};             ///< (B, T, H, P), upstream
  tensor_view<const State, 4> d_final_state{};  ///< (S, H, P, N), upstream
  tensor_view<Data, 4> d_x{};                   ///< (B, T, H, P), out
  tensor_view<Data, 3> d_dt{};                  ///< (B, T, H), out
  tensor_view<acc_t<Data>, 1> d_A{};            ///< (H), out
  tensor_view<Data, 4> d_B{};                   ///< (B, T, G, N), out
  tensor_view<Data, 4> d_C{};                   ///< (B, T, G, N), out
  tensor_view<acc_t<Data>, 2> d_D{};            ///< (H, P), or (H, 1): summed over P, for one D a head; out; D given
  tensor_view<Data, 4> d_z{};                   ///< (B, T, H, P), out; z given
  tensor_view<acc_t<Data>, 1> d_dt_bias{};      ///< (H), out; dt_bias given
  tensor_view<State, 4> d_initial_state{};      ///< (S, H, P, N), out; also where args.initial_state is absent
};

/// The gradients of the recurrence's operands.
template <class Data, class State>
[[nodiscard]] operand_grads<Data, rule::ssd> operand_grads_of(const ssd_grads<Data, State>& grads) {
  return {.d_x = grads.d_x,
          .d_dt = grads.d_dt,
          .d_A = grads.d_A,
          .d_B = grads.d_B,
          .d_C = grads.d_C,
          .d_D = grads.d_D,
          .d_z = grads.d_z,
          .d_dt_bias = grads.d_dt_bias};
}

/// The operands that the recurrence reads, of either kind of call.
template <template <class, class> class Args, class Data, class State>
[[nodiscard]] operands<Data, rule::ssd> operands_of(const Args<Data, State>& args) {
  return {.x = args.x,
          .dt = args.dt,
          .A = args.A,
          .B = args.B,
          .C = args.C,
          .D = args.D,
          .z = args.z,
          .dt_bias = args.dt_bias,
          .dt_softplus = args.dt_softplus,
          .dt_min = args.dt_min,
          .dt_max = args.dt_max};
}

/// Checks the operands of the recurrence and binds "B", "T", "H", and under the names that recurrences share
/// "dv" (P), "HK" (G) and "dk" (N).
template <class Data>
void check_operands(argument_checks& c, const operands<Data, rule::ssd>& in) {
  c.required("x", in.x, {"B", "T", "H", "P"})
      .range("P", ssd_limits::P)
      .bind("dv", c.size("P"))
      .required("dt", in.dt, {"B", "T", "H"})
      .required("A", in.A, {"H"})
      .required("B", in.B, {"B", "T", "G", "N"})
      .range("N", ssd_limits::N)
      .bind("HK", c.size("G"))
      .bind("dk", c.size("N"))
      .grouped("H", "G")
      .required("C", in.C, {"B", "T", "G", "N"})
      .optional("D", in.D, {"H", "P"})
      .optional("z", in.z, {"B", "T", "H", "P"})
      .optional("dt_bias", in.dt_bias, {"H"})
      .expect(in.dt_min <= in.dt_max, error_code::value, "dt_min",
              std::to_string(in.dt_min) + ", supported: at most dt_max = " + std::to_string(in.dt_max));
}

/// Checks the gradients of operands, whose sizes are bound.
template <class Data>
void check_grads(argument_checks& c, const operands<Data, rule::ssd>& in, const operand_grads<Data, rule::ssd>& grads) {
  const bool summed = grads.d_D && grads.d_D.extent(1) == 1;
  c.optional("d_x", grads.d_x, {"B", "T", "H", "P"})
      .optional("d_dt", grads.d_dt, {"B", "T", "H"})
      .optional("d_A", grads.d_A, {"H"})
      .optional("d_B", grads.d_B, {"B", "T", "G", "N"})
      .optional("d_C", grads.d_C, {"B", "T", "G", "N"})
      .optional_if(static_cast<bool>(in.D), "d_D", grads.d_D, {"H", summed ? size_name(1) : size_name("P")}, "D is not")
      .optional_if(static_cast<bool>(in.z), "d_z", grads.d_z, {"B", "T", "H", "P"}, "z is not")
      .optional_if(static_cast<bool>(in.dt_bias), "d_dt_bias", grads.d_dt_bias, {"H"}, "dt_bias is not");
}

/// Checks the query side alone and binds "B", "T", "HK" (G), "dk" (N).
template <class Data>
void check_query(argument_checks& c, const query_operands<Data, rule::ssd>& in) {
  c.required("C", in.C, {"B", "T", "HK", "dk"}).range("dk", ssd_limits::N);
}

/// Checks the gradients of the query side, whose sizes are bound.
template <class Data>
void check_query_grads(argument_checks& c, const query_grads<Data, rule::ssd>& grads) {
  c.optional("d_C", grads.d_C, {"B", "T", "HK", "dk"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const ssd_args<Data, State>& args) {
  argument_checks c("ssd");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("x", "P", "N");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "H", "P", "N"})
      .required("y", args.y, {"B", "T", "H", "P"})
      .optional("final_state", args.final_state, {"S", "H", "P", "N"})
      .no_overlap({{"final_state", "initial_state"}});
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const ssd_args<Data, State>& args, const ssd_grads<Data, State>& grads) {
  argument_checks c("ssd_backward");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("x", "P", "N");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "H", "P", "N"})
      .optional("d_y", grads.d_y, {"B", "T", "H", "P"})
      .optional("d_final_state", grads.d_final_state, {"S", "H", "P", "N"});
  check_grads(c, operands_of(args), operand_grads_of(grads));
  c.optional("d_initial_state", grads.d_initial_state, {"S", "H", "P", "N"}).no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const ssd_step_args<Data, State>& args) {
  argument_checks c("ssd_step");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("x", "P", "N");
  c.range("T", ssd_limits::step_tokens).required("state", args.state, {"slots", "H", "P", "N"});
  check_pool_shape(c, "state", args.read_indices, args.write_indices);
  c.required("y", args.y, {"B", "T", "H", "P"})
      .optional("intermediate_states", args.intermediate_states, {"B", "T", "H", "P", "N"})
      .no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data, class State>
[[nodiscard]] status check_contents(const ssd_args<Data, State>& args) {
  return check_cu_seqlens("ssd", args.cu_seqlens, args.x.extent(1));
}
template <class Data, class State>
[[nodiscard]] status check_contents(const ssd_step_args<Data, State>& args) {
  return check_pool_indices("ssd_step", args.x.extent(0), args.state.extent(0), args.read_indices, args.write_indices);
}

/// Scratch that the CUDA path needs on the current device, in bytes; its backend's header defines the second.
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const ssd_args<Data, State>&) {
  return 0;
}
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const ssd_args<Data, State>& args,
                                          const ssd_grads<Data, State>& grads);
template <class Data, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const ssd_step_args<Data, State>&) {
  return 0;
}

/// What ssd() does, with a status for an exception. Each overload is defined in polystate/reference/ssd.hpp or
/// polystate/cuda/ssd.cuh: include it, or the linker will miss it.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd(const on_cuda& exec, const ssd_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd_backward(const on_cuda& exec, const ssd_args<Data, State>& args,
                                      const ssd_grads<Data, State>& grads);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd_step(const on_cuda& exec, const ssd_step_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd(const on_reference& exec, const ssd_args<Data, State>& args);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd_backward(const on_reference& exec, const ssd_args<Data, State>& args,
                                      const ssd_grads<Data, State>& grads);
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status try_ssd_step(const on_reference& exec, const ssd_step_args<Data, State>& args);

/// Computes y and, if given, final_state. T = 0 copies initial_state, or zero, to final_state.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
/// cuda:      asynchronous on exec.stream, float sums; float, half and bfloat16 data and states, P and N up to 512.
///
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// ssd<dims<64, 128>>(exec, args) compiles that shape (P, N) alone and refuses others.
///
/// Throws argument_error when check() fails, before any write; cuda_error when a launch fails. Deterministic.
/// Thread-safe. A NaN stays in its sequence and in the heads that read it.
template <class Dims = dims<>, class Exec, class Data, class State>
void ssd(const Exec& exec, const ssd_args<Data, State>& args) {
  raise_on_error(try_ssd<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/ssd.md derives it, in compute_t<Data>; states are recomputed from checkpoints, about 2
/// sqrt(T) states of one head at a time, beside the gradients themselves.
/// cuda:      asynchronous on exec.stream, float sums, no atomics; states are recomputed in exec.workspace, or in
/// memory allocated in the order of the stream: workspace_bytes(exec, args, grads).
///
/// Throws and guarantees as ssd().
template <class Dims = dims<>, class Exec, class Data, class State>
void ssd_backward(const Exec& exec, const ssd_args<Data, State>& args, const ssd_grads<Data, State>& grads) {
  raise_on_error(try_ssd_backward<Dims>(exec, args, grads));
}

/// Computes y for T tokens and moves the states on: equal to ssd() over those tokens with the slot's state as
/// initial state. Backends, errors and guarantees as there.
template <class Dims = dims<>, class Exec, class Data, class State>
void ssd_step(const Exec& exec, const ssd_step_args<Data, State>& args) {
  raise_on_error(try_ssd_step<Dims>(exec, args));
}

}  // namespace polystate::inline POLYSTATE_ABI
