// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Low-rank adapters whose inner product is modulated by the token: MaLoRA, by a Mamba block over the tokens so far,
/// and TopLoRA, by the token alone. This header states and checks the operators; include
/// polystate/reference/adapters/token_modulation.hpp or polystate/cuda/adapters/token_modulation.cuh for a backend.

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/is_finite.hpp>
#include <polystate/core/tensor_view.hpp>

#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// What the operators support on every backend.
struct token_modulation_limits {
  static constexpr size_range width{1};  ///< each of din, dout, r, dp
  static constexpr size_range step_tokens = mamba_block_limits::step_tokens;
};

/// Operands of malora(). B batch entries, T tokens; din inputs, dout outputs, rank r, a block over dp channels; S
/// sequences (B, or those packed).
///
///     o = mamba_block(P x);  lam_t = softplus(phi_w o_t + phi_b)
///     h_t = W0 x_t + B (lam_t * (A x_t))
///
/// phi_w has q rows: one (the scalar form: a factor for the whole product) or r (the diagonal form: a factor for each
/// of its entries). No further scale: where a model has one (LoRA's alpha / r), B holds it.
/// Source: MaLoRA, scalar and diagonal modulators; LoRA: Hu et al. 2021 (arXiv:2106.09685).
template <class Data>
struct malora_args {
  tensor_view<const Data, 3> x;      ///< (B, T, din)
  tensor_view<const Data, 2> W0{};   ///< (dout, din), optional, the frozen layer: absent means 0, h is the update alone
  tensor_view<const Data, 2> A;      ///< (r, din)
  tensor_view<const Data, 2> B;      ///< (dout, r)
  tensor_view<const Data, 2> P;      ///< (dp, din)
  mamba_block_weights<Data> mamba;   ///< of width dp
  tensor_view<const Data, 2> phi_w;  ///< (q, dp), q = 1 or r
  tensor_view<const acc_t<Data>, 1> phi_b;                 ///< (q)
  tensor_view<const Data, 3> initial_conv_state{};         ///< (S, W-1, di), optional: absent means 0; oldest first
  tensor_view<const acc_t<Data>, 3> initial_scan_state{};  ///< (S, di, N), optional: absent means 0
  index_view cu_seqlens{};                                 ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 3> h;                                  ///< (B, T, dout), out; overlaps no other operand
  tensor_view<acc_t<Data>, 3> lam{};                       ///< (B, T, q), optional, out
  tensor_view<Data, 3> final_conv_state{};                 ///< (S, W-1, di), optional, out; may be the initial one
  tensor_view<acc_t<Data>, 3> final_scan_state{};          ///< (S, di, N), optional, out; may be the initial one
};

/// Operands of malora_step(): T further tokens of B sequences, whose states live in two pools of the same slots.
template <class Data>
struct malora_step_args {
  tensor_view<const Data, 3> x;                            ///< (B, T, din), T at most 8
  tensor_view<const Data, 2> W0{};                         ///< (dout, din), optional
  tensor_view<const Data, 2> A;                            ///< (r, din)
  tensor_view<const Data, 2> B;                            ///< (dout, r)
  tensor_view<const Data, 2> P;                            ///< (dp, din)
  mamba_block_weights<Data> mamba;                         ///< of width dp
  tensor_view<const Data, 2> phi_w;                        ///< (q, dp), q = 1 or r
  tensor_view<const acc_t<Data>, 1> phi_b;                 ///< (q)
  index_view read_indices{};                               ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                              ///< (B), optional: slots written; absent: the slots read
  tensor_view<Data, 3> conv_state;                         ///< (slots, W-1, di), updated in place; oldest token first
  tensor_view<acc_t<Data>, 3> scan_state;                  ///< (slots, di, N), updated in place
  tensor_view<Data, 3> h;                                  ///< (B, T, dout), out; zero for padding rows
  tensor_view<acc_t<Data>, 3> lam{};                       ///< (B, T, q), optional, out; zero for padding rows
  tensor_view<Data, 4> intermediate_conv_states{};         ///< (B, T, W-1, di), optional, out: after each token
  tensor_view<acc_t<Data>, 4> intermediate_scan_states{};  ///< (B, T, di, N), optional, out: after each token
};

/// Gradients of malora(). The upstream ones may be absent, which means zero; the others may be absent, which means not
/// wanted and costs nothing; they are overwritten, never added to, and share memory with no other operand. Those of
/// parameters are summed over batch, time and sequences. W0 is frozen in LoRA: d_W0 is there for whoever trains it too.
template <class Data>
struct malora_grads {
  tensor_view<const Data, 3> d_h{};                        ///< (B, T, dout), upstream
  tensor_view<const acc_t<Data>, 3> d_lam{};               ///< (B, T, q), upstream
  tensor_view<const Data, 3> d_final_conv_state{};         ///< (S, W-1, di), upstream
  tensor_view<const acc_t<Data>, 3> d_final_scan_state{};  ///< (S, di, N), upstream
  tensor_view<Data, 3> d_x{};                              ///< (B, T, din), out
  tensor_view<Data, 2> d_W0{};                             ///< (dout, din), out; args.W0 given
  tensor_view<Data, 2> d_A{};                              ///< (r, din), out
  tensor_view<Data, 2> d_B{};                              ///< (dout, r), out
  tensor_view<Data, 2> d_P{};                              ///< (dp, din), out
  mamba_block_weight_grads<Data> d_mamba{};
  tensor_view<Data, 2> d_phi_w{};                      ///< (q, dp), out
  tensor_view<acc_t<Data>, 1> d_phi_b{};               ///< (q), out
  tensor_view<Data, 3> d_initial_conv_state{};         ///< (S, W-1, di), out; also where that state is absent
  tensor_view<acc_t<Data>, 3> d_initial_scan_state{};  ///< (S, di, N), out; also where that state is absent
};

/// Operands of toplora(): no state, so a token's h depends on that token alone, and decoding is this very call.
///
///     lam_t = exp(n_t),  n = y / sqrt(mean(y^2) + rms_eps) * rms_w,  y = P x_t
///     h_t = W0 x_t + B (lam_t * (A x_t))
///
/// Source: Li et al. 2025 (arXiv:2510.23123).
template <class Data>
struct toplora_args {
  tensor_view<const Data, 3> x;               ///< (B, T, din)
  tensor_view<const Data, 2> W0{};            ///< (dout, din), optional: absent means 0
  tensor_view<const Data, 2> A;               ///< (r, din)
  tensor_view<const Data, 2> B;               ///< (dout, r)
  tensor_view<const Data, 2> P;               ///< (r, din)
  tensor_view<const acc_t<Data>, 1> rms_w{};  ///< (r), optional: absent means 1
  tensor_view<Data, 3> h;                     ///< (B, T, dout), out; overlaps no other operand
  tensor_view<acc_t<Data>, 3> lam{};          ///< (B, T, r), optional, out
  double rms_eps = 1e-6;                      ///< above 0
};

/// Gradients of toplora(), as those of malora().
template <class Data>
struct toplora_grads {
  tensor_view<const Data, 3> d_h{};           ///< (B, T, dout), upstream
  tensor_view<const acc_t<Data>, 3> d_lam{};  ///< (B, T, r), upstream
  tensor_view<Data, 3> d_x{};                 ///< (B, T, din), out
  tensor_view<Data, 2> d_W0{};                ///< (dout, din), out; args.W0 given
  tensor_view<Data, 2> d_A{};                 ///< (r, din), out
  tensor_view<Data, 2> d_B{};                 ///< (dout, r), out
  tensor_view<Data, 2> d_P{};                 ///< (r, din), out
  tensor_view<acc_t<Data>, 1> d_rms_w{};      ///< (r), out; args.rms_w given
};

/// Checks the low-rank update and the layer that it is added to; binds "B", "T", "din", "r", "dout".
template <class Args>
void check_low_rank(argument_checks& c, const Args& args) {
  c.required("x", args.x, {"B", "T", "din"})
      .range("din", token_modulation_limits::width)
      .required("A", args.A, {"r", "din"})
      .range("r", token_modulation_limits::width)
      .required("B", args.B, {"dout", "r"})
      .range("dout", token_modulation_limits::width)
      .optional("W0", args.W0, {"dout", "din"});
}

/// Checks the modulator of malora; binds "dp", "q" and the sizes of the block.
template <class Args>
void check_malora_modulator(argument_checks& c, const Args& args) {
  c.required("P", args.P, {"dp", "din"}).range("dp", token_modulation_limits::width);
  check_mamba_weights(c, args.mamba, "dp");
  c.required("phi_w", args.phi_w, {"q", "dp"})
      .expect(c.size("q") == 1 || c.size("q") == c.size("r"), error_code::unsupported, "phi_w",
              "q = " + std::to_string(c.size("q")) + ", supported: 1 or r = " + std::to_string(c.size("r")))
      .required("phi_b", args.phi_b, {"q"});
}

/// Checks the modulator of toplora.
template <class Data>
void check_toplora_modulator(argument_checks& c, const toplora_args<Data>& args) {
  c.required("P", args.P, {"r", "din"})
      .optional("rms_w", args.rms_w, {"r"})
      .expect(polystate_detail::is_finite(args.rms_eps) && args.rms_eps > 0, error_code::value, "rms_eps",
              std::to_string(args.rms_eps) + ", supported: above 0");
}

/// Checks the outputs; `q` names the number of factors.
template <class Args>
void check_modulated_outputs(argument_checks& c, const Args& args, const char* q) {
  c.required("h", args.h, {"B", "T", "dout"}).optional("lam", args.lam, {"B", "T", q});
}

/// Checks the gradients that both adapters have.
template <class Args, class Grads>
void check_low_rank_grads(argument_checks& c, const Args& args, const Grads& grads, const char* q, const char* dp) {
  c.optional("d_h", grads.d_h, {"B", "T", "dout"})
      .optional("d_lam", grads.d_lam, {"B", "T", q})
      .optional("d_x", grads.d_x, {"B", "T", "din"})
      .optional_if(static_cast<bool>(args.W0), "d_W0", grads.d_W0, {"dout", "din"}, "W0 is not")
      .optional("d_A", grads.d_A, {"r", "din"})
      .optional("d_B", grads.d_B, {"dout", "r"})
      .optional("d_P", grads.d_P, {dp, "din"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Data>
[[nodiscard]] status check(const malora_args<Data>& args) {
  argument_checks c("malora");
  check_low_rank(c, args);
  check_malora_modulator(c, args);
  check_mamba_initial_states(c, args);
  check_modulated_outputs(c, args, "q");
  check_mamba_final_states(c, args);
  return c.result();
}
template <class Data>
[[nodiscard]] status check(const toplora_args<Data>& args) {
  argument_checks c("toplora");
  check_low_rank(c, args);
  check_toplora_modulator(c, args);
  check_modulated_outputs(c, args, "r");
  c.no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Data>
[[nodiscard]] status check(const malora_args<Data>& args, const malora_grads<Data>& grads) {
  argument_checks c("malora_backward");
  check_low_rank(c, args);
  check_malora_modulator(c, args);
  check_mamba_initial_states(c, args);
  check_low_rank_grads(c, args, grads, "q", "dp");
  check_mamba_weight_grads(c, grads.d_mamba, "dp");
  c.optional("d_phi_w", grads.d_phi_w, {"q", "dp"}).optional("d_phi_b", grads.d_phi_b, {"q"});
  check_mamba_state_grads(c, grads);
  return c.result();
}
template <class Data>
[[nodiscard]] status check(const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
  argument_checks c("toplora_backward");
  check_low_rank(c, args);
  check_toplora_modulator(c, args);
  check_low_rank_grads(c, args, grads, "r", "r");
  c.optional_if(static_cast<bool>(args.rms_w), "d_rms_w", grads.d_rms_w, {"r"}, "rms_w is not").no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Data>
[[nodiscard]] status check(const malora_step_args<Data>& args) {
  argument_checks c("malora_step");
  check_low_rank(c, args);
  check_malora_modulator(c, args);
  check_mamba_pool(c, args);
  check_modulated_outputs(c, args, "q");
  c.no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data>
[[nodiscard]] status check_contents(const malora_args<Data>& args) {
  return check_cu_seqlens("malora", args.cu_seqlens, args.x.extent(1));
}
template <class Data>
[[nodiscard]] status check_contents(const malora_step_args<Data>& args) {
  return check_pool_indices("malora_step", args.x.extent(0), args.conv_state.extent(0), args.read_indices,
                            args.write_indices);
}

/// What malora() and toplora() do, with a status for an exception. Each overload is defined in
/// polystate/reference/adapters/token_modulation.hpp: include it, or the linker will miss it.
template <class Data>
[[nodiscard]] status try_malora(const on_reference& exec, const malora_args<Data>& args);
template <class Data>
[[nodiscard]] status try_malora_backward(const on_reference& exec, const malora_args<Data>& args,
                                         const malora_grads<Data>& grads);
template <class Data>
[[nodiscard]] status try_malora_step(const on_reference& exec, const malora_step_args<Data>& args);
template <class Data>
[[nodiscard]] status try_toplora(const on_reference& exec, const toplora_args<Data>& args);
template <class Data>
[[nodiscard]] status try_toplora_backward(const on_reference& exec, const toplora_args<Data>& args,
                                          const toplora_grads<Data>& grads);

/// On CUDA these take on_cublas, which holds the handle for their products: with on_cuda they do not compile, and say
/// so.
template <class Data>
[[nodiscard]] status try_malora(const on_cuda&, const malora_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "malora takes on_cublas on CUDA (polystate/cuda/adapters/token_modulation.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_malora_backward(const on_cuda&, const malora_args<Data>&, const malora_grads<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "malora_backward takes on_cublas on CUDA (polystate/cuda/adapters/token_modulation.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_malora_step(const on_cuda&, const malora_step_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "malora_step takes on_cublas on CUDA (polystate/cuda/adapters/token_modulation.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_toplora(const on_cuda&, const toplora_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "toplora takes on_cublas on CUDA (polystate/cuda/adapters/token_modulation.cuh)");
  return {};
}
template <class Data>
[[nodiscard]] status try_toplora_backward(const on_cuda&, const toplora_args<Data>&, const toplora_grads<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "toplora_backward takes on_cublas on CUDA (polystate/cuda/adapters/token_modulation.cuh)");
  return {};
}

/// Computes h and, if given, lam and the final states. T = 0 copies the initial states, or zero, to the final ones.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type. Copies of the operands, and
/// the intermediate results of all tokens.
///
/// Throws argument_error when check() fails, before any write. Deterministic. Thread-safe.
template <class Exec, class Data>
void malora(const Exec& exec, const malora_args<Data>& args) {
  raise_on_error(try_malora(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither read nor
/// written. Throws and guarantees as malora().
template <class Exec, class Data>
void malora_backward(const Exec& exec, const malora_args<Data>& args, const malora_grads<Data>& grads) {
  raise_on_error(try_malora_backward(exec, args, grads));
}

/// Computes h for T tokens and moves the states on: equal to malora() over those tokens with the slot's states as
/// initial ones. Backends, errors and guarantees as there.
template <class Exec, class Data>
void malora_step(const Exec& exec, const malora_step_args<Data>& args) {
  raise_on_error(try_malora_step(exec, args));
}

/// Computes h and, if given, lam. Backends, errors and guarantees as malora().
template <class Exec, class Data>
void toplora(const Exec& exec, const toplora_args<Data>& args) {
  raise_on_error(try_toplora(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone. Backends, errors and guarantees as malora().
template <class Exec, class Data>
void toplora_backward(const Exec& exec, const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
  raise_on_error(try_toplora_backward(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
