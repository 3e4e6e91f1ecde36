// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The loss that a segment retriever is trained with: local, global and margin terms over the scores of one query.
/// This header states and checks it; include polystate/reference/adapters/mara_loss.hpp for the definition.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/is_finite.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// Operands of mara_loss(): the scores of one query's N segments, and of NG global slots, against what is relevant.
///
///     t = relevance / sum(relevance)                   t' = global_relevance / sum(global_relevance)
///     local  = - sum_i t_i log softmax(r)_i
///     global = - sum_c t'_c log softmax(r_global)_c    (0 without r_global)
///     margin = mean over pairs (i, j), relevance[i] > 0, relevance[j] = 0, of max(0, margin - r_i + r_j)
///              (0 where there is no such pair)
///     loss   = local_weight local + global_weight global + margin_weight margin
///
/// MaRA trains with a loss of three parts on the local and the global scores; its exact terms were not available to us,
/// and these three are this library's choice: a ranking by each head, and a distance between relevant and other
/// segments that chained selection can rely on. At a pair exactly on the margin the gradient is 0.
template <class Data>
struct mara_loss_args {
  tensor_view<const Data, 1> r;                          ///< (N)
  tensor_view<const acc_t<Data>, 1> relevance;           ///< (N), finite, at least 0, not all 0
  tensor_view<const Data, 1> r_global{};                 ///< (NG), optional
  tensor_view<const acc_t<Data>, 1> global_relevance{};  ///< (NG), with r_global alone; as relevance
  tensor_view<acc_t<Data>, 1> loss;                      ///< (1), out
  tensor_view<acc_t<Data>, 1> parts{};                   ///< (3), optional, out: local, global, margin, unweighted
  double local_weight = 1;                               ///< at least 0, as the other weights
  double global_weight = 1;
  double margin_weight = 1;
  double margin = 1;  ///< at least 0
};

/// Gradients of mara_loss(). The upstream one may be absent, which means zero; the others may be absent, which means
/// not wanted; they are overwritten, never added to, and share memory with no other operand.
template <class Data>
struct mara_loss_grads {
  tensor_view<const acc_t<Data>, 1> d_loss{};  ///< (1), upstream
  tensor_view<Data, 1> d_r{};                  ///< (N), out
  tensor_view<Data, 1> d_r_global{};           ///< (NG), out; args.r_global given
};

/// Checks the inputs and binds "N" and "NG".
template <class Data>
void check_inputs(argument_checks& c, const mara_loss_args<Data>& args) {
  const auto finite = [&](const char* name, double value) {
    c.expect(polystate_detail::is_finite(value) && value >= 0, error_code::value, name,
             std::to_string(value) + ", supported: finite, at least 0");
  };
  c.required("r", args.r, {"N"})
      .required("relevance", args.relevance, {"N"})
      .optional("r_global", args.r_global, {"NG"})
      .required_if(static_cast<bool>(args.r_global), "global_relevance", args.global_relevance, {"NG"},
                   "r_global is not");
  finite("local_weight", args.local_weight);
  finite("global_weight", args.global_weight);
  finite("margin_weight", args.margin_weight);
  finite("margin", args.margin);
}

/// Whether `args` is a supported problem. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mara_loss_args<Data>& args) {
  argument_checks c("mara_loss");
  check_inputs(c, args);
  c.required("loss", args.loss, {1}).optional("parts", args.parts, {3}).no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Data>
[[nodiscard]] status check(const mara_loss_args<Data>& args, const mara_loss_grads<Data>& grads) {
  argument_checks c("mara_loss_backward");
  check_inputs(c, args);
  c.optional("d_loss", grads.d_loss, {1})
      .optional("d_r", grads.d_r, {"N"})
      .optional_if(static_cast<bool>(args.r_global), "d_r_global", grads.d_r_global, {"NG"}, "r_global is not")
      .no_overlap();
  return c.result();
}

/// Whether what is called relevant, readable here, is: call it after check().
template <class Data>
[[nodiscard]] status check_contents(const char* op, const mara_loss_args<Data>& args) {
  argument_checks c(op);
  const auto check_relevance = [&](const char* name, const auto& relevance) {
    bool any = false;
    for (std::int64_t i = 0; i < relevance.extent(0); ++i) {
      const auto value = relevance(i);
      const bool finite = value - value == decltype(value - value)(0);
      c.expect(finite && value >= decltype(value + value)(0), error_code::value, name,
               "entry " + std::to_string(i) + " is " + (finite ? "negative" : "not finite") +
                   ", supported: finite, at least 0");
      any = any || value > decltype(value + value)(0);
    }
    c.expect(any, error_code::value, name, "no entry above 0, supported: at least one");
  };
  check_relevance("relevance", args.relevance);
  if (args.r_global) check_relevance("global_relevance", args.global_relevance);
  return c.result();
}

/// What mara_loss() does, with a status for an exception; defined in polystate/reference/adapters/mara_loss.hpp.
template <class Data>
[[nodiscard]] status try_mara_loss(const on_reference& exec, const mara_loss_args<Data>& args);
template <class Data>
[[nodiscard]] status try_mara_loss_backward(const on_reference& exec, const mara_loss_args<Data>& args,
                                            const mara_loss_grads<Data>& grads);

/// Not on CUDA yet: calling them is a compile error that says so.
template <class Data>
[[nodiscard]] status try_mara_loss(const on_cuda&, const mara_loss_args<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>, "mara_loss is not on CUDA yet, supported: on_reference");
  return {};
}
template <class Data>
[[nodiscard]] status try_mara_loss_backward(const on_cuda&, const mara_loss_args<Data>&, const mara_loss_grads<Data>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "mara_loss_backward is not on CUDA yet, supported: on_reference");
  return {};
}

/// Computes the loss and, if given, its parts.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
///
/// Throws argument_error when check() or check_contents() fails, before any write. Deterministic. Thread-safe.
template <class Exec, class Data>
void mara_loss(const Exec& exec, const mara_loss_args<Data>& args) {
  raise_on_error(try_mara_loss(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone. Throws and guarantees as mara_loss().
template <class Exec, class Data>
void mara_loss_backward(const Exec& exec, const mara_loss_args<Data>& args, const mara_loss_grads<Data>& grads) {
  raise_on_error(try_mara_loss_backward(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
