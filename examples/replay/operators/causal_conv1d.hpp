// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/causal_conv1d.hpp>

#include <utility>

namespace replay {

/// Files store convolution tensors as (batch, channel, time).
inline constexpr int channel_last[] = {0, 2, 1};

/// The operands without the outputs.
template <class Exec, class Data>
polystate::causal_conv1d_args<Data> causal_conv1d_inputs(operands<Exec, Data>& io) {
  using polystate::activation;
  constexpr std::pair<const char*, activation> activations[] = {{"none", activation::none}, {"silu", activation::silu}};
  return {.x = io.template input<data, 3>("in.x", channel_last),
          .weight = io.template input<acc, 2>("in.weight"),
          .bias = io.template optional_input<acc, 1>("in.bias"),
          .initial_state = io.template optional_input<data, 3>("in.initial_state", channel_last),
          .cu_seqlens = io.optional_indices("in.cu_seqlens"),
          .y = {},
          .act = io.file().choice("activation", activations)};
}

template <class Exec, class Data>
void run_causal_conv1d(operands<Exec, Data>& io) {
  auto args = causal_conv1d_inputs(io);
  args.y = io.template output<data, 3>("out.y", channel_last);
  args.final_state = io.template optional_output<data, 3>("out.final_state", channel_last);
  io.run([&] { polystate::causal_conv1d(io.exec(), args); });
}

template <class Exec, class Data>
void run_causal_conv1d_backward(operands<Exec, Data>& io) {
  const auto args = causal_conv1d_inputs(io);
  const polystate::causal_conv1d_grads<Data> grads{
      .d_y = io.template upstream<data, 3>("y", channel_last),
      .d_final_state = io.template upstream<data, 3>("final_state", channel_last),
      .d_x = io.template gradient<data, 3>("x", channel_last),
      .d_weight = io.template gradient<acc, 2>("weight"),
      .d_bias = io.template gradient<acc, 1>("bias"),
      .d_initial_state = io.template gradient<data, 3>("initial_state", channel_last)};
  io.run([&] { polystate::causal_conv1d_backward(io.exec(), args, grads); });
}

}  // namespace replay
