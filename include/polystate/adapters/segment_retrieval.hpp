// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MaRA, retrieval over the segments of a context: each segment's hidden states are pooled by attention, Mamba layers
/// run over the segments, and two heads score them. This header states and checks the operator; include
/// polystate/reference/adapters/segment_retrieval.hpp for the definition. With it come the loss and the chained
/// selection.

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/adapters/mara_chain.hpp>
#include <polystate/adapters/mara_loss.hpp>
#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// What the operator supports.
struct mara_limits {
  static constexpr size_range layers{0, 4};  ///< the paper has 2; 0: the heads read the pooled segments
  static constexpr size_range width{1};      ///< each of N, d, da, D
};

/// Operands of mara(). N segments of one context, T hidden states of d numbers in all, da attention dims, D model dims
/// of the layers, NG global slots.
///
///     p_i = sum_j softmax_j( q_a . tanh(W_k H_ij) ) H_ij      j over the states of segment i; p_i = 0 where it is
///     empty s = W_in p, a sequence over i;  for each layer: s <- mamba_block(s), or s + mamba_block(s) with residual
///     r_i = w_l . s_i          g = s_{N-1}          r_global = W_g g
///
/// Every output is optional. r needs the local head w_l, r_global the global head W_g.
/// Source: MaRA (segment retrieval by attention pooling and a Mamba over segments).
template <class Data>
struct mara_args {
  tensor_view<const Data, 2> H;     ///< (T, d), the segments' states one after the other
  index_view cu_segments;           ///< (N+1): segment i has the states cu_segments[i] .. cu_segments[i+1]-1
  tensor_view<const Data, 2> W_k;   ///< (da, d)
  tensor_view<const Data, 1> q_a;   ///< (da)
  tensor_view<const Data, 2> W_in;  ///< (D, d)
  std::array<mamba_block_weights<Data>, static_cast<std::size_t>(mara_limits::layers.max)>
      blocks{};                      ///< the first `layers`; d of each is D
  tensor_view<const Data, 1> w_l{};  ///< (D), optional
  tensor_view<const Data, 2> W_g{};  ///< (NG, D), optional
  tensor_view<Data, 2> p{};          ///< (N, d), out
  tensor_view<Data, 2> s{};          ///< (N, D), out
  tensor_view<Data, 1> r{};          ///< (N), out; w_l given
  tensor_view<Data, 1> g{};          ///< (D), out
  tensor_view<Data, 1> r_global{};   ///< (NG), out; W_g given
  std::int64_t layers = 2;
  bool residual = false;
};

/// Gradients of mara(). The upstream ones may be absent, which means zero; the others may be absent, which means not
/// wanted; they are overwritten, never added to, and share memory with no other operand.
template <class Data>
struct mara_grads {
  tensor_view<const Data, 2> d_p{};         ///< (N, d), upstream
  tensor_view<const Data, 2> d_s{};         ///< (N, D), upstream
  tensor_view<const Data, 1> d_r{};         ///< (N), upstream; w_l given
  tensor_view<const Data, 1> d_g{};         ///< (D), upstream
  tensor_view<const Data, 1> d_r_global{};  ///< (NG), upstream; W_g given
  tensor_view<Data, 2> d_H{};               ///< (T, d), out
  tensor_view<Data, 2> d_W_k{};             ///< (da, d), out
  tensor_view<Data, 1> d_q_a{};             ///< (da), out
  tensor_view<Data, 2> d_W_in{};            ///< (D, d), out
  std::array<mamba_block_weight_grads<Data>, static_cast<std::size_t>(mara_limits::layers.max)>
      d_blocks{};                ///< out; the first `layers`
  tensor_view<Data, 1> d_w_l{};  ///< (D), out; w_l given
  tensor_view<Data, 2> d_W_g{};  ///< (NG, D), out; W_g given
};

/// Checks the inputs and binds "T", "d", "N", "da", "D" and, with a global head, "NG".
template <class Data>
void check_inputs(argument_checks& c, const mara_args<Data>& args) {
  c.required("H", args.H, {"T", "d"})
      .range("d", mara_limits::width)
      .required("cu_segments", args.cu_segments, {"N+1"})
      .expect(c.size("N+1") >= 2, error_code::unsupported, "cu_segments",
              "N+1 = " + std::to_string(c.size("N+1")) + ", supported: at least one segment, N+1 = 2")
      .bind("N", c.size("N+1") - 1, "cu_segments")
      .required("W_k", args.W_k, {"da", "d"})
      .range("da", mara_limits::width)
      .required("q_a", args.q_a, {"da"})
      .required("W_in", args.W_in, {"D", "d"})
      .range("D", mara_limits::width)
      .expect(mara_limits::layers.contains(args.layers), error_code::unsupported, "layers",
              std::to_string(args.layers) + ", supported: " + mara_limits::layers.text())
      .optional("w_l", args.w_l, {"D"})
      .optional("W_g", args.W_g, {"NG", "D"});
  // Layers may differ in their inner sizes: each is checked by itself.
  for (std::size_t l = 0; !c.failed() && l < static_cast<std::size_t>(args.layers); ++l) {
    argument_checks block("");
    block.bind("D", c.size("D"));
    check_mamba_weights(block, args.blocks[l], "D");
    c.include(block, "blocks", l);
  }
}

/// Whether `args` is a supported problem. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mara_args<Data>& args) {
  argument_checks c("mara");
  check_inputs(c, args);
  c.optional("p", args.p, {"N", "d"})
      .optional("s", args.s, {"N", "D"})
      .optional_if(static_cast<bool>(args.w_l), "r", args.r, {"N"}, "w_l is not")
      .optional("g", args.g, {"D"})
      .optional_if(static_cast<bool>(args.W_g), "r_global", args.r_global, {"NG"}, "W_g is not")
      .no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mara_args<Data>& args, const mara_grads<Data>& grads) {
  argument_checks c("mara_backward");
  check_inputs(c, args);
  const auto local = static_cast<bool>(args.w_l);
  const auto global = static_cast<bool>(args.W_g);
  c.optional("d_p", grads.d_p, {"N", "d"})
      .optional("d_s", grads.d_s, {"N", "D"})
      .optional_if(local, "d_r", grads.d_r, {"N"}, "w_l is not")
      .optional("d_g", grads.d_g, {"D"})
      .optional_if(global, "d_r_global", grads.d_r_global, {"NG"}, "W_g is not")
      .optional("d_H", grads.d_H, {"T", "d"})
      .optional("d_W_k", grads.d_W_k, {"da", "d"})
      .optional("d_q_a", grads.d_q_a, {"da"})
      .optional("d_W_in", grads.d_W_in, {"D", "d"})
      .optional_if(local, "d_w_l", grads.d_w_l, {"D"}, "w_l is not")
      .optional_if(global, "d_W_g", grads.d_W_g, {"NG", "D"}, "W_g is not");
  for (std::size_t l = 0; !c.failed() && l < static_cast<std::size_t>(args.layers); ++l) {
    argument_checks block("");
    block.bind("D", c.size("D"));
    check_mamba_weights(block, args.blocks[l], "D");
    argument_checks gradients = block.sizes();
    check_mamba_weight_grads(gradients, grads.d_blocks[l], "D");
    c.include(gradients, "d_blocks", l);
  }
  c.no_overlap();
  return c.result();
}

/// Whether the segments, readable here, are valid; call it after check().
template <class Data>
[[nodiscard]] status check_contents(const char* op, const mara_args<Data>& args) {
  status s = check_cu_seqlens(op, args.cu_segments, args.H.extent(0));
  if (!s.ok()) s.argument = "cu_segments";
  return s;
}

/// What mara() does, with a status for an exception; defined in polystate/reference/adapters/segment_retrieval.hpp.
template <class Data>
[[nodiscard]] status try_mara(const on_reference& exec, const mara_args<Data>& args);
template <class Data>
[[nodiscard]] status try_mara_backward(const on_reference& exec, const mara_args<Data>& args,
                                       const mara_grads<Data>& grads);

/// Not on CUDA yet: calling them is a compile error that says so.
template <class Data>
[[nodiscard]] status try_mara(const on_cuda&, const mara_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>, "mara is not on CUDA yet, supported: on_reference");
  return {};
}
template <class Data>
[[nodiscard]] status try_mara_backward(const on_cuda&, const mara_args<Data>&, const mara_grads<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>, "mara_backward is not on CUDA yet, supported: on_reference");
  return {};
}

/// Computes the outputs that are given.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type. Copies of the operands, and
/// the intermediate results of all segments.
///
/// Throws argument_error when check() fails or cu_segments does not run from 0 to T without decreasing, before any
/// write. Deterministic. Thread-safe.
template <class Exec, class Data>
void mara(const Exec& exec, const mara_args<Data>& args) {
  raise_on_error(try_mara(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither read nor
/// written. Throws and guarantees as mara().
template <class Exec, class Data>
void mara_backward(const Exec& exec, const mara_args<Data>& args, const mara_grads<Data>& grads) {
  raise_on_error(try_mara_backward(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
