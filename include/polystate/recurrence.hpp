// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// First axis of a layer: how a token changes a state, and how a state is read. Every rule has the form
///
///     S <- transition_t(S) + write_t        o_t = scale * S q_t
///
/// with a state S of (dv, dk). The types stand for the rule; their operands are in `operands`.

#include <polystate/core/element.hpp>
#include <polystate/core/tensor_view.hpp>

#include <limits>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

namespace rule {

/// S <- S + v k^T. Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236).
struct linear {
  static constexpr const char* name = "linear";
  static constexpr bool has_decay = false;
  static constexpr bool has_beta = false;
};

/// S <- alpha S + v k^T, alpha = exp(g): simple GLA, RetNet, SSD (Dao & Gu 2024, arXiv:2405.21060).
struct gated {
  static constexpr const char* name = "gated";
  static constexpr bool has_decay = true;
  static constexpr bool has_beta = false;
};

/// S <- S (I - beta k k^T) + beta v k^T. DeltaNet (Yang et al. 2024, arXiv:2406.06484).
struct delta {
  static constexpr const char* name = "delta";
  static constexpr bool has_decay = false;
  static constexpr bool has_beta = true;
};

/// S <- alpha S (I - beta k k^T) + beta v k^T. Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464). The decay
/// comes first: the prediction error is taken from the decayed state.
struct gated_delta {
  static constexpr const char* name = "gated_delta";
  static constexpr bool has_decay = true;
  static constexpr bool has_beta = true;
};

/// `gated` in Mamba-2's parametrisation: key B_t, query C_t, value d_t x_t, decay exp(d_t A), with skip D and
/// gate z. For multi_state; the single-state operator is ssd().
struct ssd {
  static constexpr const char* name = "ssd";
};

}  // namespace rule

/// The rules of gated_delta_rule(): those with q, k, v.
template <class Rule>
inline constexpr bool is_delta_family = std::is_same_v<Rule, rule::linear> || std::is_same_v<Rule, rule::gated> ||
                                        std::is_same_v<Rule, rule::delta> || std::is_same_v<Rule, rule::gated_delta>;

/// What a recurrence reads from each token. B batch entries, T tokens, HV heads, HK key heads (HV a multiple
/// of HK, consecutive heads share a key head).
template <class Data, class Rule>
struct operands {
  static_assert(is_delta_family<Rule>, "the rule is one of rule::linear, gated, delta, gated_delta, ssd");

  tensor_view<const Data, 4> q;              ///< (B, T, HK, dk)
  tensor_view<const Data, 4> k;              ///< (B, T, HK, dk)
  tensor_view<const Data, 4> v;              ///< (B, T, HV, dv)
  tensor_view<const acc_t<Data>, 3> g{};     ///< (B, T, HV), log alpha, -inf allowed; rules with a decay only
  tensor_view<const acc_t<Data>, 3> beta{};  ///< (B, T, HV), meant to be in [0, 2]; rules with beta only
  double scale = 1;                          ///< of the read-out, often 1/sqrt(dk)
  bool qk_l2norm = false;                    ///< q and k are divided by sqrt(sum of squares + l2norm_eps) first
  double l2norm_eps = 1e-6;
};

/// Mamba-2's operands. H heads, G groups that share B and C (H a multiple of G), P channels, N state columns.
/// The step length is d = clamp(softplus(dt + dt_bias), dt_min, dt_max), softplus only with dt_softplus.
template <class Data>
struct operands<Data, rule::ssd> {
  tensor_view<const Data, 4> x;           ///< (B, T, H, P)
  tensor_view<const Data, 3> dt;          ///< (B, T, H)
  tensor_view<const acc_t<Data>, 1> A;    ///< (H), used as given (already negative)
  tensor_view<const Data, 4> B;           ///< (B, T, G, N)
  tensor_view<const Data, 4> C;           ///< (B, T, G, N)
  tensor_view<const acc_t<Data>, 2> D{};  ///< (H, P), optional: absent means 0; one number a head: stride 0 along P
  tensor_view<const Data, 4> z{};         ///< (B, T, H, P), optional: absent means no gate
  tensor_view<const acc_t<Data>, 1> dt_bias{};  ///< (H), optional: absent means 0
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();
  double dt_max = std::numeric_limits<double>::infinity();
};

/// The part of the operands that reads and does not write: a query against states that exist already.
template <class Data, class Rule>
struct query_operands {
  static_assert(is_delta_family<Rule>, "the rule is one of rule::linear, gated, delta, gated_delta, ssd");

  tensor_view<const Data, 4> q;  ///< (B, T, HK, dk)
  double scale = 1;
  bool qk_l2norm = false;
  double l2norm_eps = 1e-6;
};

template <class Data>
struct query_operands<Data, rule::ssd> {
  tensor_view<const Data, 4> C;  ///< (B, T, G, N)
};

/// Gradients of the operands. All may be absent, which means not wanted; they are overwritten, never
/// added to, and share memory with no other operand.
template <class Data, class Rule>
struct operand_grads {
  static_assert(is_delta_family<Rule>, "the rule is one of rule::linear, gated, delta, gated_delta, ssd");

  tensor_view<Data, 4> d_q{};            ///< (B, T, HK, dk), of the raw q
  tensor_view<Data, 4> d_k{};            ///< (B, T, HK, dk), of the raw k
  tensor_view<Data, 4> d_v{};            ///< (B, T, HV, dv)
  tensor_view<acc_t<Data>, 3> d_g{};     ///< (B, T, HV), 0 where g = -inf
  tensor_view<acc_t<Data>, 3> d_beta{};  ///< (B, T, HV)
};

template <class Data>
struct operand_grads<Data, rule::ssd> {
  tensor_view<Data, 4> d_x{};               ///< (B, T, H, P)
  tensor_view<Data, 3> d_dt{};              ///< (B, T, H)
  tensor_view<acc_t<Data>, 1> d_A{};        ///< (H), summed over batch, time and sequences
  tensor_view<Data, 4> d_B{};               ///< (B, T, G, N)
  tensor_view<Data, 4> d_C{};               ///< (B, T, G, N)
  tensor_view<acc_t<Data>, 2> d_D{};        ///< (H, P), or (H, 1): summed over P, for one D a head; D given
  tensor_view<Data, 4> d_z{};               ///< (B, T, H, P); z given
  tensor_view<acc_t<Data>, 1> d_dt_bias{};  ///< (H), summed likewise; dt_bias given
};

/// Gradients of the query side alone.
template <class Data, class Rule>
struct query_grads {
  tensor_view<Data, 4> d_q{};  ///< (B, T, HK, dk), of the raw q
};
template <class Data>
struct query_grads<Data, rule::ssd> {
  tensor_view<Data, 4> d_C{};  ///< (B, T, G, N)
};

}  // namespace polystate::inline POLYSTATE_ABI
