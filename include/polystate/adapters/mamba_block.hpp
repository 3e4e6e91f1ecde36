// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One Mamba-1 block without residual or norm: the recurrent part of the adapters. This header states and checks the
/// operator; include polystate/reference/adapters/mamba_block.hpp for a backend.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/selective_scan.hpp>

#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// What the operator supports on every backend; a backend's own limits are those of causal_conv1d and selective_scan.
struct mamba_block_limits {
  static constexpr size_range width{1};  ///< each of d, di, R
  static constexpr size_range step_tokens = selective_scan_limits::step_tokens;
};

/// Parameters of a block: d inputs and outputs, di channels (often 2 d), W taps, R the rank of the step lengths,
/// N states a channel. A matrix has one row an output.
template <class Data>
struct mamba_block_weights {
  tensor_view<const Data, 2> in_proj;           ///< (2di, d): di rows of the convolution's input, then di of z
  tensor_view<const acc_t<Data>, 2> conv_w;     ///< (di, W); tap W-1 multiplies the current token
  tensor_view<const acc_t<Data>, 1> conv_b;     ///< (di)
  tensor_view<const Data, 2> x_proj;            ///< (R+2N, di): R rows of dt, then N of B, N of C
  tensor_view<const Data, 2> dt_proj_w;         ///< (di, R)
  tensor_view<const acc_t<Data>, 1> dt_proj_b;  ///< (di)
  tensor_view<const acc_t<Data>, 2> A_log;      ///< (di, N); A = -exp(A_log)
  tensor_view<const acc_t<Data>, 1> D;          ///< (di)
  tensor_view<const Data, 2> out_proj;          ///< (d, di)
};

/// Operands of mamba_block(). B batch entries, T tokens; S sequences (B, or those packed).
///
///     (x, z) = in_proj x;  c = silu(causal_conv1d(x));  (dt, B, C) = x_proj c;  delta = dt_proj_w dt
///     s = selective_scan(u = c, delta, A = -exp(A_log), B, C, D, z, delta_bias = dt_proj_b, delta_softplus)
///     y = out_proj s
///
/// No residual, no norm, no other biases.
/// Source: Gu & Dao 2023 (arXiv:2312.00752), section 3.4 and algorithm 2.
template <class Data>
struct mamba_block_args {
  tensor_view<const Data, 3> x;  ///< (B, T, d)
  mamba_block_weights<Data> weights;
  tensor_view<const Data, 3> initial_conv_state{};         ///< (S, W-1, di), optional: absent means 0; oldest first
  tensor_view<const acc_t<Data>, 3> initial_scan_state{};  ///< (S, di, N), optional: absent means 0
  index_view cu_seqlens{};                                 ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 3> y;                                  ///< (B, T, d), out; overlaps no other operand
  tensor_view<Data, 3> final_conv_state{};                 ///< (S, W-1, di), optional, out; may be the initial one
  tensor_view<acc_t<Data>, 3> final_scan_state{};          ///< (S, di, N), optional, out; may be the initial one
};

/// Operands of mamba_block_step(): T further tokens of B sequences, whose states live in two pools of the same slots.
template <class Data>
struct mamba_block_step_args {
  tensor_view<const Data, 3> x;  ///< (B, T, d), T at most 8
  mamba_block_weights<Data> weights;
  index_view read_indices{};                               ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                              ///< (B), optional: slots written; absent: the slots read
  tensor_view<Data, 3> conv_state;                         ///< (slots, W-1, di), updated in place; oldest token first
  tensor_view<acc_t<Data>, 3> scan_state;                  ///< (slots, di, N), updated in place
  tensor_view<Data, 3> y;                                  ///< (B, T, d), out; zero for padding rows
  tensor_view<Data, 4> intermediate_conv_states{};         ///< (B, T, W-1, di), optional, out: after each token
  tensor_view<acc_t<Data>, 4> intermediate_scan_states{};  ///< (B, T, di, N), optional, out: after each token
};

/// Gradients of a block's parameters, summed over batch, time and sequences. An absent one is not wanted and costs
/// nothing; they are overwritten, never added to, and share memory with no other operand.
template <class Data>
struct mamba_block_weight_grads {
  tensor_view<Data, 2> d_in_proj{};           ///< (2di, d), out
  tensor_view<acc_t<Data>, 2> d_conv_w{};     ///< (di, W), out
  tensor_view<acc_t<Data>, 1> d_conv_b{};     ///< (di), out
  tensor_view<Data, 2> d_x_proj{};            ///< (R+2N, di), out
  tensor_view<Data, 2> d_dt_proj_w{};         ///< (di, R), out
  tensor_view<acc_t<Data>, 1> d_dt_proj_b{};  ///< (di), out
  tensor_view<acc_t<Data>, 2> d_A_log{};      ///< (di, N), out
  tensor_view<acc_t<Data>, 1> d_D{};          ///< (di), out
  tensor_view<Data, 2> d_out_proj{};          ///< (d, di), out
};

/// Gradients of mamba_block(). The upstream ones may be absent, which means zero; the others as those of the
/// parameters.
template <class Data>
struct mamba_block_grads {
  tensor_view<const Data, 3> d_y{};                        ///< (B, T, d), upstream
  tensor_view<const Data, 3> d_final_conv_state{};         ///< (S, W-1, di), upstream
  tensor_view<const acc_t<Data>, 3> d_final_scan_state{};  ///< (S, di, N), upstream
  tensor_view<Data, 3> d_x{};                              ///< (B, T, d), out
  mamba_block_weight_grads<Data> d_weights{};
  tensor_view<Data, 3> d_initial_conv_state{};         ///< (S, W-1, di), out; also where that state is absent
  tensor_view<acc_t<Data>, 3> d_initial_scan_state{};  ///< (S, di, N), out; also where that state is absent
};

/// Checks the parameters and binds "di", "W", "R", "N"; `d` names the block's width, which may be bound already.
template <class Data>
void check_mamba_weights(argument_checks& c, const mamba_block_weights<Data>& w, const char* d) {
  c.required("conv_w", w.conv_w, {"di", "W"})
      .range("di", mamba_block_limits::width)
      .range("W", causal_conv1d_limits::W)
      .bind("2di", 2 * c.size("di"), "in_proj")
      .required("in_proj", w.in_proj, {"2di", d})
      .range(d, mamba_block_limits::width)
      .required("conv_b", w.conv_b, {"di"})
      .required("dt_proj_w", w.dt_proj_w, {"di", "R"})
      .range("R", mamba_block_limits::width)
      .required("dt_proj_b", w.dt_proj_b, {"di"})
      .required("A_log", w.A_log, {"di", "N"})
      .range("N", selective_scan_limits::N)
      .bind("R+2N", c.size("R") + 2 * c.size("N"), "x_proj")
      .required("x_proj", w.x_proj, {"R+2N", "di"})
      .required("D", w.D, {"di"})
      .required("out_proj", w.out_proj, {d, "di"});
}

/// Checks the wanted gradients of the parameters, whose sizes are bound.
template <class Data>
void check_mamba_weight_grads(argument_checks& c, const mamba_block_weight_grads<Data>& g, const char* d) {
  c.optional("d_in_proj", g.d_in_proj, {"2di", d})
      .optional("d_conv_w", g.d_conv_w, {"di", "W"})
      .optional("d_conv_b", g.d_conv_b, {"di"})
      .optional("d_x_proj", g.d_x_proj, {"R+2N", "di"})
      .optional("d_dt_proj_w", g.d_dt_proj_w, {"di", "R"})
      .optional("d_dt_proj_b", g.d_dt_proj_b, {"di"})
      .optional("d_A_log", g.d_A_log, {"di", "N"})
      .optional("d_D", g.d_D, {"di"})
      .optional("d_out_proj", g.d_out_proj, {d, "di"});
}

/// Checks the sequences and the states before them, which forward and backward share; binds "S".
template <class Args>
void check_mamba_initial_states(argument_checks& c, const Args& args) {
  c.sequences(args.cu_seqlens)
      .optional("initial_conv_state", args.initial_conv_state, {"S", {"W", -1}, "di"})
      .optional("initial_scan_state", args.initial_scan_state, {"S", "di", "N"});
}

/// Checks the states after the sequences, the last of the operands: then none may overlap.
template <class Args>
void check_mamba_final_states(argument_checks& c, const Args& args) {
  c.optional("final_conv_state", args.final_conv_state, {"S", {"W", -1}, "di"})
      .optional("final_scan_state", args.final_scan_state, {"S", "di", "N"})
      .no_overlap({{"final_conv_state", "initial_conv_state"}, {"final_scan_state", "initial_scan_state"}});
}

/// Checks the gradients of the states, the last of the operands: then none may overlap.
template <class Grads>
void check_mamba_state_grads(argument_checks& c, const Grads& grads) {
  c.optional("d_final_conv_state", grads.d_final_conv_state, {"S", {"W", -1}, "di"})
      .optional("d_final_scan_state", grads.d_final_scan_state, {"S", "di", "N"})
      .optional("d_initial_conv_state", grads.d_initial_conv_state, {"S", {"W", -1}, "di"})
      .optional("d_initial_scan_state", grads.d_initial_scan_state, {"S", "di", "N"})
      .no_overlap();
}

/// Checks the pools of a step; binds "slots".
template <class Args>
void check_mamba_pool(argument_checks& c, const Args& args) {
  c.range("T", mamba_block_limits::step_tokens)
      .required("conv_state", args.conv_state, {"slots", {"W", -1}, "di"})
      .required("scan_state", args.scan_state, {"slots", "di", "N"});
  check_pool_shape(c, "conv_state", args.read_indices, args.write_indices);
  c.optional("intermediate_conv_states", args.intermediate_conv_states, {"B", "T", {"W", -1}, "di"})
      .optional("intermediate_scan_states", args.intermediate_scan_states, {"B", "T", "di", "N"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Data>
[[nodiscard]] status check(const mamba_block_args<Data>& args) {
  argument_checks c("mamba_block");
  c.required("x", args.x, {"B", "T", "d"});
  check_mamba_weights(c, args.weights, "d");
  check_mamba_initial_states(c, args);
  c.required("y", args.y, {"B", "T", "d"});
  check_mamba_final_states(c, args);
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mamba_block_args<Data>& args, const mamba_block_grads<Data>& grads) {
  argument_checks c("mamba_block_backward");
  c.required("x", args.x, {"B", "T", "d"});
  check_mamba_weights(c, args.weights, "d");
  check_mamba_initial_states(c, args);
  c.optional("d_y", grads.d_y, {"B", "T", "d"}).optional("d_x", grads.d_x, {"B", "T", "d"});
  check_mamba_weight_grads(c, grads.d_weights, "d");
  check_mamba_state_grads(c, grads);
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mamba_block_step_args<Data>& args) {
  argument_checks c("mamba_block_step");
  c.required("x", args.x, {"B", "T", "d"});
  check_mamba_weights(c, args.weights, "d");
  check_mamba_pool(c, args);
  c.required("y", args.y, {"B", "T", "d"}).no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data>
[[nodiscard]] status check_contents(const mamba_block_args<Data>& args) {
  return check_cu_seqlens("mamba_block", args.cu_seqlens, args.x.extent(1));
}
template <class Data>
[[nodiscard]] status check_contents(const mamba_block_step_args<Data>& args) {
  return check_pool_indices("mamba_block_step", args.x.extent(0), args.conv_state.extent(0), args.read_indices,
                            args.write_indices);
}

/// What mamba_block() does, with a status for an exception. Each overload is defined in
/// polystate/reference/adapters/mamba_block.hpp: include it, or the linker will miss it.
template <class Data>
[[nodiscard]] status try_mamba_block(const on_reference& exec, const mamba_block_args<Data>& args);
template <class Data>
[[nodiscard]] status try_mamba_block_backward(const on_reference& exec, const mamba_block_args<Data>& args,
                                              const mamba_block_grads<Data>& grads);
template <class Data>
[[nodiscard]] status try_mamba_block_step(const on_reference& exec, const mamba_block_step_args<Data>& args);

/// On CUDA these take on_cublas, which holds the handle for their products: with on_cuda they do not compile, and say
/// so.
template <class Data>
[[nodiscard]] status try_mamba_block(const on_cuda&, const mamba_block_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "mamba_block takes on_cublas on CUDA (polystate/cuda/adapters/mamba_block.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_mamba_block_backward(const on_cuda&, const mamba_block_args<Data>&,
                                              const mamba_block_grads<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "mamba_block_backward takes on_cublas on CUDA (polystate/cuda/adapters/mamba_block.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_mamba_block_step(const on_cuda&, const mamba_block_step_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "mamba_block_step takes on_cublas on CUDA (polystate/cuda/adapters/mamba_block.cuh)");
  return {};
}

/// Computes y and, if given, the final states. T = 0 copies the initial states, or zero, to the final ones.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type. Copies of the operands, and
/// the intermediate results of all tokens.
///
/// Throws argument_error when check() fails, before any write. Deterministic. Thread-safe.
template <class Exec, class Data>
void mamba_block(const Exec& exec, const mamba_block_args<Data>& args) {
  raise_on_error(try_mamba_block(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither read nor
/// written. Throws and guarantees as mamba_block().
template <class Exec, class Data>
void mamba_block_backward(const Exec& exec, const mamba_block_args<Data>& args, const mamba_block_grads<Data>& grads) {
  raise_on_error(try_mamba_block_backward(exec, args, grads));
}

/// Computes y for T tokens and moves the states on: equal to mamba_block() over those tokens with the slot's states as
/// initial ones. Backends, errors and guarantees as there.
template <class Exec, class Data>
void mamba_block_step(const Exec& exec, const mamba_block_step_args<Data>& args) {
  raise_on_error(try_mamba_block_step(exec, args));
}

}  // namespace polystate::inline POLYSTATE_ABI
