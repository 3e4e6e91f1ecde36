// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ssd as it is defined: docs/ssd.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/ssd/adjoint.hpp>
#include <polystate/reference/ssd/recurrence.hpp>
#include <polystate/ssd.hpp>

namespace polystate::inline POLYSTATE_ABI {

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const ssd_args<Data, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const ssd_args<Data, State>& args,
                           const ssd_grads<Data, State>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const ssd_step_args<Data, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Dims, class Data, class State>
status try_ssd(const on_reference& exec, const ssd_args<Data, State>& args) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  ref::forward(ref::recurrence(operands_of(args)), sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens),
               args.initial_state, args.y, args.final_state);
  return {};
}

template <class Dims, class Data, class State>
status try_ssd_backward(const on_reference& exec, const ssd_args<Data, State>& args,
                        const ssd_grads<Data, State>& grads) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  ref::recurrence_adjoint adjoint(operands_of(args));
  ref::backward(ref::recurrence(operands_of(args)), adjoint,
                sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens), args.initial_state, grads.d_y,
                grads.d_final_state, grads.d_initial_state);
  adjoint.store(operand_grads_of(grads));
  return {};
}

template <class Dims, class Data, class State>
status try_ssd_step(const on_reference& exec, const ssd_step_args<Data, State>& args) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  ref::step(ref::recurrence(operands_of(args)), state_pool(args.state.extent(0), args.read_indices, args.write_indices),
            args.state, args.y, args.intermediate_states);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
