// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"

#include <polystate/gated_delta_rule.hpp>

namespace replay {

template <class Exec, class Data>
void run_gated_delta_rule(operands<Exec, Data>& io) {
  using acc = polystate::acc_t<Data>;
  visit_delta_family(io.file(), [&]<class Rule>(std::type_identity<Rule>) {
    const polystate::gated_delta_rule_args<Data, Rule> args{
        .q = io.template input<Data, 4>("in.q"),
        .k = io.template input<Data, 4>("in.k"),
        .v = io.template input<Data, 4>("in.v"),
        .g = io.template input_if<acc, 3>(Rule::has_decay, "in.g"),
        .beta = io.template input_if<acc, 3>(Rule::has_beta, "in.beta"),
        .initial_state = io.template optional_input<acc, 4>("in.initial_state"),
        .cu_seqlens = io.optional_indices("in.cu_seqlens"),
        .o = io.template output<Data, 4>("out.o"),
        .final_state = io.template optional_output<acc, 4>("out.final_state"),
        .scale = io.file().number("scale"),
        .qk_l2norm = io.file().flag("qk_l2norm", false),
        .l2norm_eps = io.file().number("l2norm_eps", 1e-6)};
    io.run([&] { polystate::gated_delta_rule(io.exec(), args); });
  });
}

}  // namespace replay
