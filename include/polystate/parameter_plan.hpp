// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How many parameters a router adds to a layer, before any of it exists.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/error.hpp>
#include <polystate/routing.hpp>
#include <polystate/state_bank.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// Parameters of one layer.
struct parameter_plan {
  std::int64_t queries = 0;  ///< d_model -> HR dr: q', or the u of meanpool
  std::int64_t keys = 0;     ///< d_model -> HR dr: k'
  std::int64_t mixing = 0;   ///< d_model -> H: gamma, before its sigmoid
  std::int64_t scales = 0;   ///< one number a head: tau_mu and tau_sigma, or delta

  [[nodiscard]] std::int64_t total() const { return queries + keys + mixing + scales; }
};

inline namespace POLYSTATE_BUILD {

/// Plans the parameters of a router whose token-dependent operands are linear projections, without biases, of a layer's
/// input of d_model entries; with top_k those of the router inside. shape.H, HR and dr are those of the layer.
///
///     merlin    q', k': 2 d_model HR dr     gamma: d_model H     tau_mu, tau_sigma: 2 H
///     cumulant  q', k': 2 d_model HR dr                          delta: H
///     meanpool  u, k':  2 d_model HR dr
///     uniform, none     nothing
///
/// With shared_kq queries and keys are those of the recurrence: shape.HR = 0 then leaves both out. router::position is
/// refused: where its weights come from is the model's own affair. Throws argument_error for that and a negative size.
/// Source: MERLIN (multi-state linear attention with second-order routing), Algorithm 1: the router's operands; how
/// they are projected is a reading, the least that can be done.
template <class Router>
[[nodiscard]] parameter_plan plan_parameters(const bank_shape& shape, const Router& router, std::int64_t d_model) {
  if constexpr (is_top_k<Router>) {
    return plan_parameters(shape, router.of, d_model);
  } else {
    argument_checks c("plan_parameters");
    const auto at_least_0 = [&](const char* name, std::int64_t n) {
      c.expect(n >= 0, error_code::value, name, std::to_string(n) + ", supported: at least 0");
    };
    at_least_0("H", shape.H);
    at_least_0("HR", shape.HR);
    at_least_0("dr", shape.dr);
    at_least_0("d_model", d_model);
    const std::string name = Router::name;
    c.expect(name != "position", error_code::unsupported, "router",
             "position, supported: merlin, cumulant, meanpool, uniform, none and top_k around one of them");
    raise_on_error(c.result());

    parameter_plan plan;
    if (Router::reads_moments) {
      plan.queries = d_model * shape.HR * shape.dr;
      plan.keys = plan.queries;
    }
    if (name == "merlin") {
      plan.mixing = d_model * shape.H;
      plan.scales = 2 * shape.H;
    } else if (name == "cumulant") {
      plan.scales = shape.H;
    }
    return plan;
  }
}

}  // namespace POLYSTATE_BUILD
}  // namespace polystate::inline POLYSTATE_ABI
