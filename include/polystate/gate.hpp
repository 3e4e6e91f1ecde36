// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The gate of Mamba-2 and Gated DeltaNet: how far back a head remembers, and how to move that without training.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/is_finite.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD {

/// log(1 + e^x), which neither overflows nor loses the small values.
inline double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

}  // namespace polystate_detail::inline POLYSTATE_BUILD

inline namespace POLYSTATE_BUILD {

/// Log decay of a token, at most 0:
///
///     g = -exp(A_log) softplus(a + dt_bias)        alpha = exp(g)
///
/// a is the token's gate input. Mamba-2 calls a + dt_bias the step before its softplus and -exp(A_log) A, so its decay
/// exp(dt A) is this one. Source: Dao & Gu 2024 (arXiv:2405.21060), section 7; Yang et al. 2024 (arXiv:2412.06464),
/// section 3.4.
[[nodiscard]] inline double log_decay(double a, double A_log, double dt_bias) {
  return -std::exp(A_log) * polystate_detail::softplus(a + dt_bias);
}

/// Effective context length tau, in tokens, of a constant log decay g: a token Delta back keeps exp(g Delta) =
/// exp(-Delta / tau). Infinite for g = 0, 0 for g = -inf. With g = -e^lambda it is e^-lambda. Source: On the importance
/// of gating, the definition of tau.
[[nodiscard]] inline double effective_length(double g) {
  return g == 0 ? std::numeric_limits<double>::infinity() : -1 / g;
}

/// Of a head whose gate input stays at a; 0 is where it is before training.
[[nodiscard]] inline double effective_length(double A_log, double dt_bias, double a) {
  return effective_length(log_decay(a, A_log, dt_bias));
}

/// The A_log with which a head at gate input a has the effective context length tau: the initialisation that aims at a
/// given reach. Throws argument_error unless tau is above 0 and finite.
[[nodiscard]] inline double A_log_of(double tau, double dt_bias, double a = 0) {
  argument_checks c("A_log_of");
  c.expect(tau > 0 && polystate_detail::is_finite(tau), error_code::value, "tau",
           std::to_string(tau) + ", supported: above 0 and finite");
  raise_on_error(c.result());
  return -std::log(tau * polystate_detail::softplus(a + dt_bias));
}

}  // namespace POLYSTATE_BUILD

/// Operands of effective_lengths(): log decays as gated_delta_rule() takes them.
///
///     tau[h] = -1 / mean_{b,t} g[b,t,h]
///
/// the length over which the head, on average, loses a factor e: the mean is of g, as decays multiply. One token of
/// g = -inf makes it 0; without tokens it is NaN.
template <class T>
struct effective_lengths_args {
  tensor_view<const T, 3> g;  ///< (B, T, H), log decay
  tensor_view<T, 1> tau;      ///< (H), out, tokens; overlaps no other operand
};

inline namespace POLYSTATE_BUILD {

/// Effective context length of each head, measured on its log decays. On host memory, sums in double. Throws
/// argument_error for operands that do not fit, before anything is written.
template <class T>
void effective_lengths(const effective_lengths_args<T>& args) {
  argument_checks c("effective_lengths");
  c.required("g", args.g, {"B", "T", "H"}).required("tau", args.tau, {"H"}).no_overlap();
  raise_on_error(c.result());
  const std::int64_t B = args.g.extent(0), tokens = args.g.extent(1);
  for (std::int64_t h = 0; h < args.g.extent(2); ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) sum += static_cast<double>(args.g(b, t, h));
    }
    args.tau(h) = static_cast<T>(effective_length(sum / static_cast<double>(B * tokens)));
  }
}

}  // namespace POLYSTATE_BUILD

/// How a trained gate is moved:
///
///     A_log' = A_log_scale A_log + A_log_offset        g' = g_scale g + g_offset, at most 0
///
/// An A_log_offset of -log s and a g_scale of 1/s are the same: both multiply every effective context length by s. A
/// g_offset adds to 1/tau instead, so it bounds the longest lengths and hardly moves the short ones.
struct gate_adjustment {
  double A_log_scale = 1;
  double A_log_offset = 0;
  double g_scale = 1;   ///< at least 0; 0: nothing is forgotten
  double g_offset = 0;  ///< where it is above 0, what would exceed 0 becomes 0
};

inline namespace POLYSTATE_BUILD {

/// The adjustment that multiplies every effective context length by `factor`. Throws argument_error unless it is above
/// 0 and finite.
[[nodiscard]] inline gate_adjustment stretched_by(double factor) {
  argument_checks c("stretched_by");
  c.expect(factor > 0 && polystate_detail::is_finite(factor), error_code::value, "factor",
           std::to_string(factor) + ", supported: above 0 and finite");
  raise_on_error(c.result());
  return {.A_log_offset = -std::log(factor)};
}

[[nodiscard]] inline double adjusted_A_log(const gate_adjustment& by, double A_log) {
  return by.A_log_scale * A_log + by.A_log_offset;
}
/// g = -inf stays so, unless g_scale is 0. NaN stays NaN.
[[nodiscard]] inline double adjusted_g(const gate_adjustment& by, double g) {
  const double scaled = by.g_scale == 0 && !polystate_detail::is_nan(g) ? 0 : by.g_scale * g;
  const double moved = scaled + by.g_offset;
  return moved > 0 ? 0 : moved;
}

/// Checks an adjustment on its own.
[[nodiscard]] inline status check(const gate_adjustment& by) {
  argument_checks c("gate_adjustment");
  const auto finite = [&](const char* name, double x, bool at_least_0) {
    c.expect(polystate_detail::is_finite(x) && (!at_least_0 || x >= 0), error_code::value, name,
             std::to_string(x) + ", supported: finite" + (at_least_0 ? ", at least 0" : ""));
  };
  finite("A_log_scale", by.A_log_scale, false);
  finite("A_log_offset", by.A_log_offset, false);
  finite("g_scale", by.g_scale, true);
  finite("g_offset", by.g_offset, false);
  return c.result();
}

/// Moves the A_log of each head, (H), in place. On host memory. Throws argument_error for an adjustment out of its
/// range, before anything is written.
template <class T>
void adjust_A_log(const gate_adjustment& by, const tensor_view<T, 1>& A_log) {
  raise_on_error(check(by));
  for (std::int64_t h = 0; h < A_log.extent(0); ++h) {
    A_log(h) = static_cast<T>(adjusted_A_log(by, static_cast<double>(A_log(h))));
  }
}

/// Moves log decays, (B, T, H), in place. On host memory. Throws argument_error for an adjustment out of its range,
/// before anything is written.
template <class T>
void adjust_g(const gate_adjustment& by, const tensor_view<T, 3>& g) {
  raise_on_error(check(by));
  for (std::int64_t b = 0; b < g.extent(0); ++b) {
    for (std::int64_t t = 0; t < g.extent(1); ++t) {
      for (std::int64_t h = 0; h < g.extent(2); ++h) {
        g(b, t, h) = static_cast<T>(adjusted_g(by, static_cast<double>(g(b, t, h))));
      }
    }
  }
}

}  // namespace POLYSTATE_BUILD
}  // namespace polystate::inline POLYSTATE_ABI
