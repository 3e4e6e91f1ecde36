// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/gated_delta_rule.hpp>

namespace replay {

template <class Exec, class Data>
void run_gated_delta_rule(operands<Exec, Data>& io) {
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    const auto in = recurrence_operands<Rule>(io);
    const polystate::gated_delta_rule_args<Data, Rule> args{
        .q = in.q,
        .k = in.k,
        .v = in.v,
        .g = in.g,
        .beta = in.beta,
        .initial_state = io.template optional_input<acc, 4>("in.initial_state"),
        .cu_seqlens = io.optional_indices("in.cu_seqlens"),
        .o = io.template output<data, 4>("out.o"),
        .final_state = io.template optional_output<acc, 4>("out.final_state"),
        .scale = in.scale,
        .qk_l2norm = in.qk_l2norm,
        .l2norm_eps = in.l2norm_eps};
    io.run([&] { polystate::gated_delta_rule(io.exec(), args); });
  });
}

}  // namespace replay
