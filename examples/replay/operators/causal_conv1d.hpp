// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/causal_conv1d.hpp>

#include <utility>

namespace replay {

template <class Exec, class Data>
void run_causal_conv1d(operands<Exec, Data>& io) {
  using polystate::activation;
  constexpr std::pair<const char*, activation> activations[] = {{"none", activation::none}, {"silu", activation::silu}};
  const int channel_last[] = {0, 2, 1};
  const polystate::causal_conv1d_args<Data> args{
      .x = io.template input<data, 3>("in.x", channel_last),
      .weight = io.template input<acc, 2>("in.weight"),
      .bias = io.template optional_input<acc, 1>("in.bias"),
      .initial_state = io.template optional_input<data, 3>("in.initial_state", channel_last),
      .cu_seqlens = io.optional_indices("in.cu_seqlens"),
      .y = io.template output<data, 3>("out.y", channel_last),
      .final_state = io.template optional_output<data, 3>("out.final_state", channel_last),
      .act = io.file().choice("activation", activations)};
  io.run([&] { polystate::causal_conv1d(io.exec(), args); });
}

}  // namespace replay
