// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/multi_state.hpp>

#include <type_traits>

namespace replay {

/// A file has the level states as (sequence, head, level, dv, dk), the operator as (sequence, level, head, dv, dk), and
/// where sequences are packed the levels of all of them in one row: no strides say that.
inline constexpr int levels_before_heads[] = {0, 2, 1, 3, 4};

template <class T>
polystate::tensor_view<T, 5> in_one_row(const polystate::tensor_view<T, 5>& levels, bool packed) {
  if (!levels || !packed) return levels;
  return {levels.data(),
          {1, levels.extent(0) * levels.extent(1), levels.extent(2), levels.extent(3), levels.extent(4)}};
}

/// multi_state with one state a level of the Fenwick partition; without the outputs.
template <class Rule, class Exec, class Data>
auto log_linear_inputs(operands<Exec, Data>& io) {
  using polystate::separation::fenwick;
  using router = polystate::router::position<Data>;
  return polystate::multi_state_args<Data, Rule, fenwick, router>{
      .in = recurrence_operands<Rule>(io),
      .router = {.weights = io.template input<acc, 4>("in.lam"),
                 .position_index = polystate::position_index::absolute,
                 .position_norm = polystate::position_norm::none},
      .cu_seqlens = io.optional_indices("in.cu_seqlens"),
      .o = {}};
}

template <class Exec, class Data>
void run_log_linear(operands<Exec, Data>& io) {
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    auto args = log_linear_inputs<Rule>(io);
    args.o = io.template output<data, 4>("out.o");
    if (io.file().find("out.level_states") != nullptr) {
      args.S = in_one_row(io.template reordered_output<acc, 5>("out.level_states", levels_before_heads),
                          static_cast<bool>(args.cu_seqlens));
    }
    io.run([&] { polystate::multi_state(io.exec(), args); });
  });
}

template <class Exec, class Data>
void run_log_linear_backward(operands<Exec, Data>& io) {
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    const auto args = log_linear_inputs<Rule>(io);
    const polystate::multi_state_grads<Data, Rule, polystate::router::position<Data>> grads{
        .d_o = io.template upstream<data, 4>("o"),
        .d_S = in_one_row(io.template reordered_upstream<acc, 5>("level_states", levels_before_heads),
                          static_cast<bool>(args.cu_seqlens)),
        .in = recurrence_grads<Rule>(io),
        .router = {.d_weights = io.template gradient<acc, 4>("lam")}};
    io.run([&] { polystate::multi_state_backward(io.exec(), args, grads); });
  });
}

}  // namespace replay
