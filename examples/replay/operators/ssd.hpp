// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/ssd.hpp>

namespace replay {

/// The operands without the outputs.
template <class Exec, class Data>
polystate::ssd_args<Data> ssd_inputs(operands<Exec, Data>& io) {
  const auto in = recurrence_operands<polystate::rule::ssd>(io);
  return {.x = in.x,
          .dt = in.dt,
          .A = in.A,
          .B = in.B,
          .C = in.C,
          .D = in.D,
          .z = in.z,
          .dt_bias = in.dt_bias,
          .initial_state = io.template optional_input<acc, 4>("in.initial_state"),
          .cu_seqlens = io.optional_indices("in.cu_seqlens"),
          .y = {},
          .dt_softplus = in.dt_softplus,
          .dt_min = in.dt_min,
          .dt_max = in.dt_max};
}

template <class Exec, class Data>
void run_ssd(operands<Exec, Data>& io) {
  auto args = ssd_inputs(io);
  args.y = io.template output<data, 4>("out.y");
  args.final_state = io.template optional_output<acc, 4>("out.final_state");
  io.run([&] { polystate::ssd(io.exec(), args); });
}

template <class Exec, class Data>
void run_ssd_backward(operands<Exec, Data>& io) {
  const auto args = ssd_inputs(io);
  const auto of_operands = recurrence_grads<polystate::rule::ssd>(io);
  const polystate::ssd_grads<Data> grads{.d_y = io.template upstream<data, 4>("y"),
                                         .d_final_state = io.template upstream<acc, 4>("final_state"),
                                         .d_x = of_operands.d_x,
                                         .d_dt = of_operands.d_dt,
                                         .d_A = of_operands.d_A,
                                         .d_B = of_operands.d_B,
                                         .d_C = of_operands.d_C,
                                         .d_D = of_operands.d_D,
                                         .d_z = of_operands.d_z,
                                         .d_dt_bias = of_operands.d_dt_bias,
                                         .d_initial_state = io.template gradient<acc, 4>("initial_state")};
  io.run([&] { polystate::ssd_backward(io.exec(), args, grads); });
}

}  // namespace replay
