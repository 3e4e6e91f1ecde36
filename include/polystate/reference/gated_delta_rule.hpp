// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The delta family as it is defined: docs/gated_delta_rule.md.

#include <polystate/gated_delta_rule.hpp>
#include <polystate/reference/gated_delta_rule/adjoint.hpp>
#include <polystate/reference/gated_delta_rule/recurrence.hpp>
#include <polystate/reference/recurrence.hpp>

namespace polystate::inline POLYSTATE_ABI {

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_reference&, const gated_delta_rule_args<Data, Rule, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_reference&, const gated_delta_rule_args<Data, Rule, State>& args,
                           const gated_delta_rule_grads<Data, Rule, State>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class Rule, class State>
[[nodiscard]] status check(const on_reference&, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule(const on_reference& exec, const gated_delta_rule_args<Data, Rule, State>& args) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  ref::forward(ref::recurrence(operands_of(args)), sequences(args.q.extent(0), args.q.extent(1), args.cu_seqlens),
               args.initial_state, args.o, args.final_state);
  return {};
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule_backward(const on_reference& exec, const gated_delta_rule_args<Data, Rule, State>& args,
                                     const gated_delta_rule_grads<Data, Rule, State>& grads) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  ref::recurrence_adjoint adjoint(operands_of(args));
  ref::backward(ref::recurrence(operands_of(args)), adjoint,
                sequences(args.q.extent(0), args.q.extent(1), args.cu_seqlens), args.initial_state, grads.d_o,
                grads.d_final_state, grads.d_initial_state);
  adjoint.store(operand_grads_of(grads));
  return {};
}

template <class Dims, class Data, class Rule, class State>
status try_gated_delta_rule_step(const on_reference& exec, const gated_delta_rule_step_args<Data, Rule, State>& args) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  ref::step(ref::recurrence(operands_of(args)), state_pool(args.state.extent(0), args.read_indices, args.write_indices),
            args.state, args.o, args.intermediate_states);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
