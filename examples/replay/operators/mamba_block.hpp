// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/adapters/mamba_block.hpp>

#include <string>

namespace replay {

/// The parameters of a block; `prefix` is that of their names in the file, "mamba.".
template <class Exec, class Data>
polystate::mamba_block_weights<Data> mamba_block_weights(operands<Exec, Data>& io, const std::string& prefix) {
  const std::string in = "in." + prefix;
  return {.in_proj = io.template input<data, 2>(in + "in_proj"),
          .conv_w = io.template input<acc, 2>(in + "conv_w"),
          .conv_b = io.template input<acc, 1>(in + "conv_b"),
          .x_proj = io.template input<data, 2>(in + "x_proj"),
          .dt_proj_w = io.template input<data, 2>(in + "dt_proj_w"),
          .dt_proj_b = io.template input<acc, 1>(in + "dt_proj_b"),
          .A_log = io.template input<acc, 2>(in + "A_log"),
          .D = io.template input<acc, 1>(in + "D"),
          .out_proj = io.template input<data, 2>(in + "out_proj")};
}

}  // namespace replay
