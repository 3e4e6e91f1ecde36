// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/multi_state.hpp>

#include <cstdint>

namespace replay {

/// multi_state with one state a level of the Fenwick partition.
template <class Exec, class Data>
void run_log_linear(operands<Exec, Data>& io) {
  using polystate::separation::fenwick;
  using router = polystate::router::position<Data>;
  visit_rule(io.file(), delta_family{}, [&]<class Rule>(std::type_identity<Rule>) {
    const auto cu_seqlens = io.optional_indices("in.cu_seqlens");
    // The file has (sequence, head, level, dv, dk), the operator the levels of all sequences in one row when
    // they are packed: no strides say that, so the operator gets (sequence, level, head, dv, dk).
    polystate::tensor_view<polystate::acc_t<Data>, 5> S;
    if (io.file().find("out.level_states") != nullptr) {
      const auto levels = io.template reordered_output<acc, 5>("out.level_states", {0, 2, 1, 3, 4});
      S = levels;
      if (cu_seqlens) {
        S = {levels.data(),
             {1, levels.extent(0) * levels.extent(1), levels.extent(2), levels.extent(3), levels.extent(4)}};
      }
    }
    const polystate::multi_state_args<Data, Rule, fenwick, router> args{
        .in = recurrence_operands<Rule>(io),
        .router = {.weights = io.template input<acc, 4>("in.lam"),
                   .position_index = polystate::position_index::absolute,
                   .position_norm = polystate::position_norm::none},
        .cu_seqlens = cu_seqlens,
        .o = io.template output<data, 4>("out.o"),
        .S = S};
    io.run([&] { polystate::multi_state(io.exec(), args); });
  });
}

}  // namespace replay
