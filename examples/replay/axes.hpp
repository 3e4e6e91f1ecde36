// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From a case's parameters to the structs of the three axes: the one place where names in a file become
/// types.

#include "case_file.hpp"
#include "operands.hpp"

#include <polystate/recurrence.hpp>
#include <polystate/routing.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/separation.hpp>

#include <string>
#include <type_traits>
#include <utility>

namespace replay {

/// A set of types to choose from.
template <class... Types>
struct type_list {};

/// Calls f(std::type_identity<T>{}) for the T whose T::name is the parameter's text; throws skipped if none
/// is.
template <class... Types, class F>
void visit_named(const case_file& file, const std::string& parameter, type_list<Types...>, F&& f) {
  const std::string& name = file.text(parameter);
  const bool found = ((name == Types::name && (f(std::type_identity<Types>{}), true)) || ...);
  if (!found) throw file.no_such_choice(parameter);
}

using delta_family =
    type_list<polystate::rule::linear, polystate::rule::gated, polystate::rule::delta, polystate::rule::gated_delta>;

using every_rule = type_list<polystate::rule::linear, polystate::rule::gated, polystate::rule::delta,
                             polystate::rule::gated_delta, polystate::rule::ssd>;

/// Calls f with the type of the case's rule, one of `rules`.
template <class Rules, class F>
void visit_rule(const case_file& file, Rules rules, F&& f) {
  visit_named(file, "rule", rules, f);
}

/// Calls f with the case's separation: uniform, where it names none, or boundaries.
template <class Exec, class Data, class F>
void visit_segments(operands<Exec, Data>& io, F&& f) {
  using polystate::separation::boundaries;
  using polystate::separation::uniform;
  const case_file& file = io.file();
  if (!file.has_parameter("separation")) return f(uniform{.m = file.integer("m")});
  visit_named(file, "separation", type_list<uniform, boundaries>{}, [&]<class S>(std::type_identity<S>) {
    if constexpr (std::is_same_v<S, uniform>) {
      f(uniform{.m = file.integer("m")});
    } else {
      f(boundaries{.boundaries = io.indices("in.boundaries")});
    }
  });
}

/// The case's keys of the moments and how they enter, without the keys where nothing reads them.
template <class Exec, class Data>
polystate::key_moments<Data> moments_of(operands<Exec, Data>& io, bool with_keys) {
  using polystate::divide_by;
  using polystate::moment_rule;
  constexpr std::pair<const char*, moment_rule> rules[] = {
      {"plain", moment_rule::plain}, {"decay_write", moment_rule::decay_write}, {"delta", moment_rule::delta}};
  constexpr std::pair<const char*, divide_by> divisors[] = {{"m", divide_by::m}, {"count", divide_by::count}};
  const case_file& file = io.file();
  const moment_rule rule = file.choice("moment_rule", rules, moment_rule::plain);
  const bool gated = with_keys && rule != moment_rule::plain;
  return {.k = io.template input_if<data, 4>(with_keys, "in.kp"),
          .g = io.template input_if<acc, 3>(gated, "in.mg"),
          .beta = io.template input_if<acc, 3>(gated, "in.mbeta"),
          .moment_rule = rule,
          .divide_by = file.choice("divide_by", divisors, divide_by::m),
          .qkp_l2norm = file.flag("qkp_l2norm", false),
          .l2norm_eps = file.number("l2norm_eps", 1e-6)};
}

/// The gradients of the keys of the moments that the file has expected values for.
template <class Exec, class Data>
polystate::key_moment_grads<Data> moment_grads(operands<Exec, Data>& io, const polystate::key_moments<Data>& moments) {
  return {.d_k = io.template gradient_if<data, 4>(static_cast<bool>(moments.k), "kp"),
          .d_g = io.template gradient_if<acc, 3>(static_cast<bool>(moments.g), "mg"),
          .d_beta = io.template gradient_if<acc, 3>(static_cast<bool>(moments.beta), "mbeta")};
}

/// A router with its operands. With shared_kq the recurrence's query serves as q' and u.
template <class Router, class Exec, class Data>
Router router_of(operands<Exec, Data>& io, bool shared_kq) {
  namespace router = polystate::router;
  const auto query = [&](const char* name) { return io.template input_if<data, 4>(!shared_kq, name); };
  if constexpr (std::is_same_v<Router, router::merlin<Data>>) {
    return {.q = query("in.qp"),
            .gamma = io.template input<acc, 3>("in.gamma"),
            .tau_mu = io.template input<acc, 1>("in.tau_mu"),
            .tau_sigma = io.template input<acc, 1>("in.tau_sigma")};
  } else if constexpr (std::is_same_v<Router, router::cumulant<Data>>) {
    return {.q = query("in.qp"), .delta = io.template input<acc, 1>("in.delta")};
  } else if constexpr (std::is_same_v<Router, router::meanpool<Data>>) {
    return {.u = query("in.u")};
  } else if constexpr (std::is_same_v<Router, router::position<Data>>) {
    using polystate::position_index;
    using polystate::position_norm;
    constexpr std::pair<const char*, position_index> indices[] = {{"age", position_index::age},
                                                                  {"absolute", position_index::absolute}};
    constexpr std::pair<const char*, position_norm> norms[] = {{"softmax", position_norm::softmax},
                                                               {"none", position_norm::none}};
    return {.weights = io.template input<acc, 4>("in.weights"),
            .position_index = io.file().choice("position_index", indices),
            .position_norm = io.file().choice("position_norm", norms)};
  } else {
    static_assert(std::is_same_v<Router, router::uniform>);
    return {};
  }
}

/// The gradients of a router's operands that the file has expected values for. With shared_kq what reaches q' and u is
/// in the gradients of the recurrence's query.
template <class Router, class Exec, class Data>
polystate::router_grads<Router> router_grads_of(operands<Exec, Data>& io, bool shared_kq) {
  namespace router = polystate::router;
  if constexpr (polystate::is_top_k<Router>) {
    return {.of = router_grads_of<decltype(Router::of)>(io, shared_kq)};
  } else if constexpr (std::is_same_v<Router, router::merlin<Data>>) {
    return {.d_q = io.template gradient_if<data, 4>(!shared_kq, "qp"),
            .d_gamma = io.template gradient<acc, 3>("gamma"),
            .d_tau_mu = io.template gradient<acc, 1>("tau_mu"),
            .d_tau_sigma = io.template gradient<acc, 1>("tau_sigma")};
  } else if constexpr (std::is_same_v<Router, router::cumulant<Data>>) {
    return {.d_q = io.template gradient_if<data, 4>(!shared_kq, "qp"),
            .d_delta = io.template gradient<acc, 1>("delta")};
  } else if constexpr (std::is_same_v<Router, router::meanpool<Data>>) {
    return {.d_u = io.template gradient_if<data, 4>(!shared_kq, "u")};
  } else if constexpr (std::is_same_v<Router, router::position<Data>>) {
    return {.d_weights = io.template gradient<acc, 4>("weights")};
  } else {
    static_assert(std::is_same_v<Router, router::uniform>);
    return {};
  }
}

/// Calls f with the case's router, inside top_k where the case has topk > 0.
template <class Exec, class Data, class F>
void visit_router(operands<Exec, Data>& io, bool shared_kq, F&& f) {
  namespace router = polystate::router;
  const case_file& file = io.file();
  const std::int64_t k = file.integer("topk", 0);
  using routers = type_list<router::merlin<Data>, router::cumulant<Data>, router::meanpool<Data>,
                            router::position<Data>, router::uniform>;
  visit_named(file, "routing", routers{}, [&]<class Router>(std::type_identity<Router>) {
    const auto plain = router_of<Router>(io, shared_kq);
    if (k == 0) return f(plain);
    f(router::top_k<Router>{.of = plain, .k = k, .keep_current = file.flag("topk_keep_current", false)});
  });
}

}  // namespace replay
