// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/selective_scan.hpp>

namespace replay {

/// Files store (batch, channel, time), and of B and C (batch, group, N, time).
struct scan_orders {
  static constexpr int channels[] = {0, 2, 1};
  static constexpr int groups[] = {0, 3, 1, 2};
};

/// The operands without the outputs.
template <class Exec, class Data>
polystate::selective_scan_args<Data> selective_scan_inputs(operands<Exec, Data>& io) {
  return {.u = io.template input<data, 3>("in.u", scan_orders::channels),
          .delta = io.template input<data, 3>("in.delta", scan_orders::channels),
          .A = io.template input<acc, 2>("in.A"),
          .B = io.template input<data, 4>("in.B", scan_orders::groups),
          .C = io.template input<data, 4>("in.C", scan_orders::groups),
          .D = io.template optional_input<acc, 1>("in.D"),
          .z = io.template optional_input<data, 3>("in.z", scan_orders::channels),
          .delta_bias = io.template optional_input<acc, 1>("in.delta_bias"),
          .initial_state = io.template optional_input<acc, 3>("in.initial_state"),
          .cu_seqlens = io.optional_indices("in.cu_seqlens"),
          .y = {},
          .delta_softplus = io.file().flag("delta_softplus")};
}

template <class Exec, class Data>
void run_selective_scan(operands<Exec, Data>& io) {
  auto args = selective_scan_inputs(io);
  args.y = io.template output<data, 3>("out.y", scan_orders::channels);
  args.final_state = io.template optional_output<acc, 3>("out.final_state");
  io.run([&] { polystate::selective_scan(io.exec(), args); });
}

template <class Exec, class Data>
void run_selective_scan_backward(operands<Exec, Data>& io) {
  const auto args = selective_scan_inputs(io);
  const polystate::selective_scan_grads<Data> grads{
      .d_y = io.template upstream<data, 3>("y", scan_orders::channels),
      .d_final_state = io.template upstream<acc, 3>("final_state"),
      .d_u = io.template gradient<data, 3>("u", scan_orders::channels),
      .d_delta = io.template gradient<data, 3>("delta", scan_orders::channels),
      .d_A = io.template gradient<acc, 2>("A"),
      .d_B = io.template gradient<data, 4>("B", scan_orders::groups),
      .d_C = io.template gradient<data, 4>("C", scan_orders::groups),
      .d_D = io.template gradient<acc, 1>("D"),
      .d_z = io.template gradient<data, 3>("z", scan_orders::channels),
      .d_delta_bias = io.template gradient<acc, 1>("delta_bias"),
      .d_initial_state = io.template gradient<acc, 3>("initial_state")};
  io.run([&] { polystate::selective_scan_backward(io.exec(), args, grads); });
}

}  // namespace replay
