// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/gated_delta_rule.hpp>

namespace replay {

/// The operands without the outputs.
template <class Rule, class Exec, class Data>
polystate::gated_delta_rule_args<Data, Rule> gated_delta_rule_inputs(operands<Exec, Data>& io) {
  const auto in = recurrence_operands<Rule>(io);
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .g = in.g,
          .beta = in.beta,
          .initial_state = io.template optional_input<acc, 4>("in.initial_state"),
          .cu_seqlens = io.optional_indices("in.cu_seqlens"),
          .o = {},
          .scale = in.scale,
          .qk_l2norm = in.qk_l2norm,
          .l2norm_eps = in.l2norm_eps};
}

template <class Exec, class Data>
void run_gated_delta_rule(operands<Exec, Data>& io) {
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    auto args = gated_delta_rule_inputs<Rule>(io);
    args.o = io.template output<data, 4>("out.o");
    args.final_state = io.template optional_output<acc, 4>("out.final_state");
    io.run([&] { polystate::gated_delta_rule(io.exec(), args); });
  });
}

template <class Exec, class Data>
void run_gated_delta_rule_backward(operands<Exec, Data>& io) {
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    const auto args = gated_delta_rule_inputs<Rule>(io);
    const auto of_operands = recurrence_grads<Rule>(io);
    const polystate::gated_delta_rule_grads<Data, Rule> grads{
        .d_o = io.template upstream<data, 4>("o"),
        .d_final_state = io.template upstream<acc, 4>("final_state"),
        .d_q = of_operands.d_q,
        .d_k = of_operands.d_k,
        .d_v = of_operands.d_v,
        .d_g = of_operands.d_g,
        .d_beta = of_operands.d_beta,
        .d_initial_state = io.template gradient<acc, 4>("initial_state")};
    io.run([&] { polystate::gated_delta_rule_backward(io.exec(), args, grads); });
  });
}

}  // namespace replay
