// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The delta family with one state a head: linear attention, scalar decay, delta rule, gated delta rule. This
/// header states and checks the operator; include polystate/reference/gated_delta_rule.hpp for the
/// definition.

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
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// What the operator supports: dk and dv on the reference, cuda_dk and cuda_dv on CUDA.
struct gated_delta_rule_limits {
  static constexpr size_range dk{1};
  static constexpr size_range dv{1};
  static constexpr size_range cuda_dk{1, 512};
  static constexpr size_range cuda_dv{1, 512};
  static constexpr size_range step_tokens{0, 8};  ///< T of one step
};

/// Operands of gated_delta_rule(). B batch entries, T tokens, HV heads, HK key heads; S sequences (B, or
/// those packed). With alpha_t = exp(g_t):
///
///     gated_delta:  S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
///     delta:        the same with alpha_t = 1        gated:  S_t = alpha_t S_{t-1} + v_t k_t^T
///     linear:       S_t = S_{t-1} + v_t k_t^T
///     o_t = scale * S_t q_t
///
/// States are (dv, dk); (dk, dv) storage is a view with those strides swapped. g > 0 and beta outside [0, 2]
/// are used as given. Source: Yang et al. 2024 (arXiv:2412.06464), equation 10.
template <class Data, class Rule = rule::gated_delta, class State = acc_t<Data>>
struct gated_delta_rule_args {
  tensor_view<const Data, 4> q;                 ///< (B, T, HK, dk)
  tensor_view<const Data, 4> k;                 ///< (B, T, HK, dk)
  tensor_view<const Data, 4> v;                 ///< (B, T, HV, dv), HV a multiple of HK
  tensor_view<const acc_t<Data>, 3> g{};        ///< (B, T, HV), log alpha, -inf allowed; rules with a decay only
  tensor_view<const acc_t<Data>, 3> beta{};     ///< (B, T, HV); rules with beta only
  tensor_view<const State, 4> initial_state{};  ///< (S, HV, dv, dk), optional: absent means 0
  index_view cu_seqlens{};                      ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 4> o;                       ///< (B, T, HV, dv), out; overlaps no other operand
  tensor_view<State, 4> final_state{};          ///< (S, HV, dv, dk), optional, out; may be initial_state itself
  double scale = 1;                             ///< of the read-out, often 1/sqrt(dk)
  bool qk_l2norm = false;  ///< q and k are divided by sqrt(sum of squares + l2norm_eps) first; zero rows stay zero
  double l2norm_eps = 1e-6;
};

/// Operands of gated_delta_rule_step(): T further tokens of B sequences, whose states live in a pool of
/// slots.
template <class Data, class Rule = rule::gated_delta, class State = acc_t<Data>>
struct gated_delta_rule_step_args {
  tensor_view<const Data, 4> q;                 ///< (B, T, HK, dk), T at most 8
  tensor_view<const Data, 4> k;                 ///< (B, T, HK, dk)
  tensor_view<const Data, 4> v;                 ///< (B, T, HV, dv)
  tensor_view<const acc_t<Data>, 3> g{};        ///< (B, T, HV)
  tensor_view<const acc_t<Data>, 3> beta{};     ///< (B, T, HV)
  index_view read_indices{};                    ///< (B), optional: slots read, -1 is padding; absent: slot b
  index_view write_indices{};                   ///< (B), optional: slots written; absent: the slots read
  tensor_view<State, 4> state;                  ///< (slots, HV, dv, dk), updated in place
  tensor_view<Data, 4> o;                       ///< (B, T, HV, dv), out; zero for padding rows
  tensor_view<State, 5> intermediate_states{};  ///< (B, T, HV, dv, dk), optional, out: the state after each token
  double scale = 1;
  bool qk_l2norm = false;
  double l2norm_eps = 1e-6;
};

/// Gradients of gated_delta_rule(). The upstream ones may be absent, which means zero; the others may be
/// absent, which means not wanted and costs nothing; they are overwritten, never added to, and share memory with no
/// other operand.
template <class Data, class Rule = rule::gated_delta, class State = acc_t<Data>>
struct gated_delta_rule_grads {
  tensor_view<const Data, 4> d_o{};             ///< (B, T, HV, dv), upstream
  tensor_view<const State, 4> d_final_state{};  ///< (S, HV, dv, dk), upstream
  tensor_view<Data, 4> d_q{};                   ///< (B, T, HK, dk), out, of the raw q
  tensor_view<Data, 4> d_k{};                   ///< (B, T, HK, dk), out, of the raw k
  tensor_view<Data, 4> d_v{};                   ///< (B, T, HV, dv), out
  tensor_view<acc_t<Data>, 3> d_g{};            ///< (B, T, HV), out; rules with a decay only; 0 where g = -inf
  tensor_view<acc_t<Data>, 3> d_beta{};         ///< (B, T, HV), out; rules with beta only
  tensor_view<State, 4> d_initial_state{};      ///< (S, HV, dv, dk), out; also where args.initial_state is absent
};

/// The gradients of the recurrence's operands.
template <class Data, class Rule, class State>
[[nodiscard]] operand_grads<Data, Rule> operand_grads_of(const gated_delta_rule_grads<Data, Rule, State>& grads) {
  return {.d_q = grads.d_q, .d_k = grads.d_k, .d_v = grads.d_v, .d_g = grads.d_g, .d_beta = grads.d_beta};
}

/// The operands that the recurrence reads, of either kind of call.
template <template <class, class, class> class Args, class Data, class Rule, class State>
[[nodiscard]] operands<Data, Rule> operands_of(const Args<Data, Rule, State>& args) {
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .g = args.g,
          .beta = args.beta,
          .scale = args.scale,
          .qk_l2norm = args.qk_l2norm,
          .l2norm_eps = args.l2norm_eps};
}

/// Checks the operands of a recurrence and binds "B", "T", "HK", "HV", "dk", "dv", and "H" for HV as all
/// recurrences do.
template <class Data, class Rule>
void check_operands(argument_checks& c, const operands<Data, Rule>& in) {
  const std::string rule_name = Rule::name;
  c.required("q", in.q, {"B", "T", "HK", "dk"})
      .range("dk", gated_delta_rule_limits::dk)
      .required("k", in.k, {"B", "T", "HK", "dk"})
      .required("v", in.v, {"B", "T", "HV", "dv"})
      .bind("H", c.size("HV"), "v")
      .range("dv", gated_delta_rule_limits::dv)
      .grouped("HV", "HK")
      .required_if(Rule::has_decay, "g", in.g, {"B", "T", "HV"}, "rule " + rule_name + " has no decay")
      .required_if(Rule::has_beta, "beta", in.beta, {"B", "T", "HV"}, "rule " + rule_name + " has no beta")
      .expect(in.l2norm_eps >= 0, error_code::value, "l2norm_eps",
              std::to_string(in.l2norm_eps) + ", supported: at least 0");
}

/// Checks the gradients of operands, whose sizes are bound.
template <class Data, class Rule>
void check_grads(argument_checks& c, const operands<Data, Rule>&, const operand_grads<Data, Rule>& grads) {
  const std::string rule_name = Rule::name;
  c.optional("d_q", grads.d_q, {"B", "T", "HK", "dk"})
      .optional("d_k", grads.d_k, {"B", "T", "HK", "dk"})
      .optional("d_v", grads.d_v, {"B", "T", "HV", "dv"})
      .optional_if(Rule::has_decay, "d_g", grads.d_g, {"B", "T", "HV"}, "rule " + rule_name + " has no decay")
      .optional_if(Rule::has_beta, "d_beta", grads.d_beta, {"B", "T", "HV"}, "rule " + rule_name + " has no beta");
}

/// Checks the query side alone and binds "B", "T", "HK", "dk".
template <class Data, class Rule>
void check_query(argument_checks& c, const query_operands<Data, Rule>& in) {
  c.required("q", in.q, {"B", "T", "HK", "dk"})
      .range("dk", gated_delta_rule_limits::dk)
      .expect(in.l2norm_eps >= 0, error_code::value, "l2norm_eps",
              std::to_string(in.l2norm_eps) + ", supported: at least 0");
}

/// Checks the gradients of the query side, whose sizes are bound.
template <class Data, class Rule>
void check_query_grads(argument_checks& c, const query_grads<Data, Rule>& grads) {
  c.optional("d_q", grads.d_q, {"B", "T", "HK", "dk"});
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const gated_delta_rule_args<Data, Rule, State>& args) {
  argument_checks c("gated_delta_rule");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("q", "dk", "dv");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "HV", "dv", "dk"})
      .required("o", args.o, {"B", "T", "HV", "dv"})
      .optional("final_state", args.final_state, {"S", "HV", "dv", "dk"})
      .no_overlap({{"final_state", "initial_state"}});
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const gated_delta_rule_args<Data, Rule, State>& args,
                           const gated_delta_rule_grads<Data, Rule, State>& grads) {
  argument_checks c("gated_delta_rule_backward");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("q", "dk", "dv");
  c.sequences(args.cu_seqlens)
      .optional("initial_state", args.initial_state, {"S", "HV", "dv", "dk"})
      .optional("d_o", grads.d_o, {"B", "T", "HV", "dv"})
      .optional("d_final_state", grads.d_final_state, {"S", "HV", "dv", "dk"});
  check_grads(c, operands_of(args), operand_grads_of(grads));
  c.optional("d_initial_state", grads.d_initial_state, {"S", "HV", "dv", "dk"}).no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const gated_delta_rule_step_args<Data, Rule, State>& args) {
  argument_checks c("gated_delta_rule_step");
  check_operands(c, operands_of(args));
  c.fixed<Dims>("q", "dk", "dv");
  c.range("T", gated_delta_rule_limits::step_tokens).required("state", args.state, {"slots", "HV", "dv", "dk"});
  check_pool_shape(c, "state", args.read_indices, args.write_indices);
  c.required("o", args.o, {"B", "T", "HV", "dv"})
      .optional("intermediate_states", args.intermediate_states, {"B", "T", "HV", "dv", "dk"})
      .no_overlap();
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data, class Rule, class State>
[[nodiscard]] status check_contents(const gated_delta_rule_args<Data, Rule, State>& args) {
  return check_cu_seqlens("gated_delta_rule", args.cu_seqlens, args.q.extent(1));
}
template <class Data, class Rule, class State>
[[nodiscard]] status check_contents(const gated_delta_rule_step_args<Data, Rule, State>& args) {
  return check_pool_indices("gated_delta_rule_step", args.q.extent(0), args.state.extent(0), args.read_indices,
                            args.write_indices);
}

/// Scratch that the CUDA path needs on the current device, in bytes; its backend's header defines the second.
template <class Data, class Rule, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const gated_delta_rule_args<Data, Rule, State>&) {
  return 0;
}
template <class Data, class Rule, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                                          const gated_delta_rule_grads<Data, Rule, State>& grads);
template <class Data, class Rule, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda&, const gated_delta_rule_step_args<Data, Rule, State>&) {
  return 0;
}

/// What gated_delta_rule() does, with a status for an exception. Each overload is defined in
/// polystate/reference/gated_delta_rule.hpp or polystate/cuda/gated_delta_rule.cuh: include it, or the linker will miss
/// it.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule(const on_reference& exec,
                                          const gated_delta_rule_args<Data, Rule, State>& args);
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule(const on_cuda& exec, const gated_delta_rule_args<Data, Rule, State>& args);
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule_backward(const on_cuda& exec,
                                                   const gated_delta_rule_args<Data, Rule, State>& args,
                                                   const gated_delta_rule_grads<Data, Rule, State>& grads);
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule_step(const on_cuda& exec,
                                               const gated_delta_rule_step_args<Data, Rule, State>& args);
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule_backward(const on_reference& exec,
                                                   const gated_delta_rule_args<Data, Rule, State>& args,
                                                   const gated_delta_rule_grads<Data, Rule, State>& grads);
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status try_gated_delta_rule_step(const on_reference& exec,
                                               const gated_delta_rule_step_args<Data, Rule, State>& args);

/// Computes o and, if given, final_state. T = 0 copies initial_state, or zero, to final_state.
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// With qk_l2norm CUDA sums a row's squares in float. Supported: rows of zeros, and rows whose sum of squares plus
/// l2norm_eps is at least 1e-30 and at most 1e38. validate(exec, args) finds other rows.
///
/// gated_delta_rule<dims<128, 128>>(exec, args) compiles that shape (dk, dv) alone and refuses others.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
/// cuda:      asynchronous on exec.stream, float sums; float, half and bfloat16 data and states, dk and dv up to 512.
///
/// Throws argument_error when check() fails, before any write; cuda_error when a launch fails. Deterministic.
/// Thread-safe. A NaN stays in its sequence and in the heads that read it.
template <class Dims = dims<>, class Exec, class Data, class Rule, class State>
void gated_delta_rule(const Exec& exec, const gated_delta_rule_args<Data, Rule, State>& args) {
  raise_on_error(try_gated_delta_rule<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/gated_delta_rule.md derives it, in compute_t<Data>; states are recomputed from
/// checkpoints, about 2 sqrt(T) states of one head at a time, beside the gradients themselves.
/// cuda:      asynchronous on exec.stream, float sums, no atomics; states are recomputed in exec.workspace, or in
/// memory allocated in the order of the stream: workspace_bytes(exec, args, grads).
///
/// Throws and guarantees as gated_delta_rule().
template <class Dims = dims<>, class Exec, class Data, class Rule, class State>
void gated_delta_rule_backward(const Exec& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                               const gated_delta_rule_grads<Data, Rule, State>& grads) {
  raise_on_error(try_gated_delta_rule_backward<Dims>(exec, args, grads));
}

/// Computes o for T tokens and moves the states on: equal to gated_delta_rule() over those tokens with the
/// slot's state as initial state. Backends, errors and guarantees as there.
template <class Dims = dims<>, class Exec, class Data, class Rule, class State>
void gated_delta_rule_step(const Exec& exec, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  raise_on_error(try_gated_delta_rule_step<Dims>(exec, args));
}

}  // namespace polystate::inline POLYSTATE_ABI
