// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/ssd.hpp>

namespace replay {

template <class Exec, class Data>
void run_ssd(operands<Exec, Data>& io) {
  const auto in = recurrence_operands<polystate::rule::ssd>(io);
  const polystate::ssd_args<Data> args{.x = in.x,
                                       .dt = in.dt,
                                       .A = in.A,
                                       .B = in.B,
                                       .C = in.C,
                                       .D = in.D,
                                       .z = in.z,
                                       .dt_bias = in.dt_bias,
                                       .initial_state = io.template optional_input<acc, 4>("in.initial_state"),
                                       .cu_seqlens = io.optional_indices("in.cu_seqlens"),
                                       .y = io.template output<data, 4>("out.y"),
                                       .final_state = io.template optional_output<acc, 4>("out.final_state"),
                                       .dt_softplus = in.dt_softplus,
                                       .dt_min = in.dt_min,
                                       .dt_max = in.dt_max};
  io.run([&] { polystate::ssd(io.exec(), args); });
}

}  // namespace replay
