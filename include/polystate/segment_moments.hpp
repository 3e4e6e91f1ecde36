// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// First and second moments of the keys of each segment: what a content router scores a query against. This
/// header states and checks the operator; include polystate/reference/segment_moments.hpp for the definition.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/separation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// What the operator supports: dr on the reference, cuda_dr on CUDA, where routing() too has that limit.
struct segment_moments_limits {
  static constexpr size_range dr{1};
  static constexpr size_range cuda_dr{1, 512};
};

/// How a key enters the moments; see segment_moments_args.
enum class moment_rule { plain, decay_write, delta };

/// What the moments of a segment are divided by: its configured length, also while it is open or partial, or
/// the number of its tokens seen so far.
enum class divide_by { m, count };

/// Routing keys and how they enter the moments. HR moment heads: heads may share them in groups.
template <class Data>
struct key_moments {
  tensor_view<const Data, 4> k{};            ///< (B, T, HR, dr), k'
  tensor_view<const acc_t<Data>, 3> g{};     ///< (B, T, HR), log decay; decay_write and delta only
  tensor_view<const acc_t<Data>, 3> beta{};  ///< (B, T, HR); decay_write and delta only
  polystate::moment_rule moment_rule = polystate::moment_rule::plain;
  polystate::divide_by divide_by = polystate::divide_by::m;  ///< count: plain only
  bool qkp_l2norm = false;  ///< k', and the router's q', are divided by sqrt(sum of squares + l2norm_eps) first
  double l2norm_eps = 1e-6;
};

/// Operands of segment_moments(). B batch entries, T tokens, L segments; with a = exp(g_t), b = beta_t, and m
/// as `divide_by` says, both start at 0 in every segment and
///
///     plain:        mu += k'/m;                       Sigma += k' k'^T / m
///     decay_write:  mu <- a mu + (b/m) k';            Sigma <- a Sigma + (b/m) k' k'^T
///     delta:        mu <- a (mu - b (mu.k') k') + (b/m) k';
///                   Sigma <- a Sigma (I - b k' k'^T) + (b/m) k' k'^T
///
/// Packed: L counts the segments of all sequences, one sequence after the other.
/// Source: MERLIN (multi-state linear attention with second-order routing), Algorithm 1, line 7; decay_write
/// and delta are readings of its "write-forget" ablation.
template <class Data, class Separation = separation::uniform>
struct segment_moments_args {
  static_assert(std::is_same_v<Separation, separation::uniform> || std::is_same_v<Separation, separation::boundaries>,
                "segment moments need segments: separation::uniform or separation::boundaries");

  key_moments<Data> moments;
  Separation separation;
  index_view cu_seqlens{};              ///< (S+1), optional: packed sequences of one batch entry; uniform only
  tensor_view<acc_t<Data>, 4> mu{};     ///< (B, L, HR, dr), optional, out
  tensor_view<acc_t<Data>, 5> Sigma{};  ///< (B, L, HR, dr, dr), optional, out
};

/// Checks how keys enter the moments, wherever they come from; uses the bound "B", "T", "HR".
template <class Data>
void check_moment_rule(argument_checks& c, const key_moments<Data>& moments) {
  const bool gated = moments.moment_rule != moment_rule::plain;
  c.required_if(gated, "moments.g", moments.g, {"B", "T", "HR"}, "moment_rule plain has no decay")
      .required_if(gated, "moments.beta", moments.beta, {"B", "T", "HR"}, "moment_rule plain has no beta")
      .expect(!gated || moments.divide_by == divide_by::m, error_code::value, "moments.divide_by",
              "count, supported with this moment_rule: m")
      .expect(moments.l2norm_eps >= 0, error_code::value, "moments.l2norm_eps", "negative, supported: at least 0");
}

/// Checks the routing keys, given, and binds "B", "T", "HR", "dr".
template <class Data>
void check_moments(argument_checks& c, const key_moments<Data>& moments) {
  c.required("moments.k", moments.k, {"B", "T", "HR", "dr"}).range("dr", segment_moments_limits::dr);
  check_moment_rule(c, moments);
}

/// Checks that no operand of the moments is given where none are kept.
template <class Data>
void check_no_moments(argument_checks& c, const key_moments<Data>& moments, const std::string& why) {
  c.absent("moments.k", moments.k, why).absent("moments.g", moments.g, why).absent("moments.beta", moments.beta, why);
}

/// Gradients of the routing keys and their gates. All may be absent, which means not wanted; they are
/// overwritten, never added to, and share memory with no other operand.
template <class Data>
struct key_moment_grads {
  tensor_view<Data, 4> d_k{};            ///< (B, T, HR, dr), of the raw k'
  tensor_view<acc_t<Data>, 3> d_g{};     ///< (B, T, HR); 0 where g = -inf
  tensor_view<acc_t<Data>, 3> d_beta{};  ///< (B, T, HR)
};

/// Checks the gradients of routing keys, whose sizes are bound where the keys are given.
template <class Data>
void check_moment_grads(argument_checks& c, const key_moments<Data>& moments, const key_moment_grads<Data>& grads) {
  c.optional_if(static_cast<bool>(moments.k), "moments.d_k", grads.d_k, {"B", "T", "HR", "dr"}, "moments.k is not")
      .optional_if(static_cast<bool>(moments.g), "moments.d_g", grads.d_g, {"B", "T", "HR"}, "moments.g is not")
      .optional_if(static_cast<bool>(moments.beta), "moments.d_beta", grads.d_beta, {"B", "T", "HR"},
                   "moments.beta is not");
}

/// Gradients of segment_moments(). The upstream ones may be absent, which means zero.
template <class Data>
struct segment_moments_grads {
  tensor_view<const acc_t<Data>, 4> d_mu{};     ///< (B, L, HR, dr), upstream
  tensor_view<const acc_t<Data>, 5> d_Sigma{};  ///< (B, L, HR, dr, dr), upstream
  key_moment_grads<Data> moments{};             ///< out
};

/// Segments of all sequences together. Reads the contents of cu_seqlens.
template <class Separation>
[[nodiscard]] std::int64_t total_segments(const Separation& separation, const sequences& all) {
  std::int64_t L = 0;
  for (std::int64_t s = 0; s < all.size(); ++s) L += separation.count(all[s].size());
  return L;
}

/// Binds "L", the segments of one batch entry: known from T, or with packed sequences taken from the outputs
/// and left to check_contents().
template <class Separation>
void bind_segments(argument_checks& c, const Separation& separation, const index_view& cu_seqlens) {
  if (!c.failed() && !cu_seqlens) c.bind("L", separation.count(c.size("T")));
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const segment_moments_args<Data, Separation>& args) {
  argument_checks c("segment_moments");
  check_moments(c, args.moments);
  check_separation(c, args.separation, args.cu_seqlens);
  bind_segments(c, args.separation, args.cu_seqlens);
  c.fixed<Dims>("moments.k", "dr");
  c.sequences(args.cu_seqlens)
      .optional("mu", args.mu, {"B", "L", "HR", "dr"})
      .optional("Sigma", args.Sigma, {"B", "L", "HR", "dr", "dr"})
      .expect(args.mu || args.Sigma, error_code::missing, "mu", "neither mu nor Sigma is given")
      .no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const segment_moments_args<Data, Separation>& args,
                           const segment_moments_grads<Data>& grads) {
  argument_checks c("segment_moments_backward");
  check_moments(c, args.moments);
  check_separation(c, args.separation, args.cu_seqlens);
  bind_segments(c, args.separation, args.cu_seqlens);
  c.fixed<Dims>("moments.k", "dr");
  c.sequences(args.cu_seqlens)
      .optional("d_mu", grads.d_mu, {"B", "L", "HR", "dr"})
      .optional("d_Sigma", grads.d_Sigma, {"B", "L", "HR", "dr", "dr"});
  check_moment_grads(c, args.moments, grads.moments);
  c.no_overlap();
  return c.result();
}

/// The contents of the index operands, and that moments over packed sequences have an entry for each segment.
template <class Data, class Separation, class Moment>
[[nodiscard]] status check_contents(const char* op, const segment_moments_args<Data, Separation>& args,
                                    const char* mu_name, const tensor_view<Moment, 4>& mu, const char* Sigma_name,
                                    const tensor_view<Moment, 5>& Sigma) {
  const std::int64_t T = args.moments.k.extent(1);
  if (status s = check_cu_seqlens(op, args.cu_seqlens, T); !s.ok()) return s;
  if (status s = check_contents(op, args.separation, T); !s.ok()) return s;
  argument_checks c(op);
  if (args.cu_seqlens) {
    c.bind("L", total_segments(args.separation, sequences(1, T, args.cu_seqlens)))
        .optional(mu_name, mu, {"B", "L", "HR", "dr"})
        .optional(Sigma_name, Sigma, {"B", "L", "HR", "dr", "dr"});
  }
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data, class Separation>
[[nodiscard]] status check_contents(const segment_moments_args<Data, Separation>& args) {
  return check_contents("segment_moments", args, "mu", args.mu, "Sigma", args.Sigma);
}
template <class Data, class Separation>
[[nodiscard]] status check_contents(const segment_moments_args<Data, Separation>& args,
                                    const segment_moments_grads<Data>& grads) {
  return check_contents("segment_moments_backward", args, "d_mu", grads.d_mu, "d_Sigma", grads.d_Sigma);
}

/// Scratch that the CUDA path needs, in bytes; its backend's header defines both.
template <class Data, class Separation>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const segment_moments_args<Data, Separation>& args);
template <class Data, class Separation>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const segment_moments_args<Data, Separation>& args,
                                          const segment_moments_grads<Data>& grads);

/// What segment_moments() does, with a status for an exception. Each overload is defined in
/// polystate/reference/segment_moments.hpp or polystate/cuda/segment_moments.cuh: include it, or the linker will miss
/// it.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status try_segment_moments(const on_cuda& exec, const segment_moments_args<Data, Separation>& args);
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status try_segment_moments_backward(const on_cuda& exec,
                                                  const segment_moments_args<Data, Separation>& args,
                                                  const segment_moments_grads<Data>& grads);
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status try_segment_moments(const on_reference& exec, const segment_moments_args<Data, Separation>& args);

template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status try_segment_moments_backward(const on_reference& exec,
                                                  const segment_moments_args<Data, Separation>& args,
                                                  const segment_moments_grads<Data>& grads);

/// Computes mu and Sigma at the end of each segment. T = 0: no segment, nothing is written.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
/// cuda:      asynchronous on exec.stream, float sums; float, half and bfloat16 data, dr up to 512; scratch from
/// exec.workspace, or allocated in the order of the stream: workspace_bytes(exec, args).
///
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// segment_moments<dims<128>>(exec, args) compiles that dr alone and refuses others.
///
/// Throws argument_error when check() fails, before any write; cuda_error when a launch fails. Deterministic.
/// Thread-safe.
template <class Dims = dims<>, class Exec, class Data, class Separation>
void segment_moments(const Exec& exec, const segment_moments_args<Data, Separation>& args) {
  raise_on_error(try_segment_moments<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/segment_moments.md derives it, in compute_t<Data>; moments are recomputed from
/// checkpoints, about 2 sqrt(m) of one segment at a time, beside those of all segments and the gradients
/// themselves.
/// cuda:      as segment_moments(), no atomics: workspace_bytes(exec, args, grads).
///
/// Throws and guarantees as segment_moments().
template <class Dims = dims<>, class Exec, class Data, class Separation>
void segment_moments_backward(const Exec& exec, const segment_moments_args<Data, Separation>& args,
                              const segment_moments_grads<Data>& grads) {
  raise_on_error(try_segment_moments_backward<Dims>(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
