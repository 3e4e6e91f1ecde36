// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/adapters/segment_retrieval.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace replay {

/// The parameters of one block, whose names have a prefix: "mamba0.in_proj".
template <class Exec, class Data>
polystate::mamba_block_weights<Data> mara_block(operands<Exec, Data>& io, const std::string& prefix) {
  return {.in_proj = io.template input<data, 2>(prefix + "in_proj"),
          .conv_w = io.template input<acc, 2>(prefix + "conv_w"),
          .conv_b = io.template input<acc, 1>(prefix + "conv_b"),
          .x_proj = io.template input<data, 2>(prefix + "x_proj"),
          .dt_proj_w = io.template input<data, 2>(prefix + "dt_proj_w"),
          .dt_proj_b = io.template input<acc, 1>(prefix + "dt_proj_b"),
          .A_log = io.template input<acc, 2>(prefix + "A_log"),
          .D = io.template input<acc, 1>(prefix + "D"),
          .out_proj = io.template input<data, 2>(prefix + "out_proj")};
}

template <class Exec, class Data>
void run_mara(operands<Exec, Data>& io) {
  polystate::mara_args<Data> args{.H = io.template input<data, 2>("in.H"),
                                  .cu_segments = io.indices("in.cu_segments"),
                                  .W_k = io.template input<data, 2>("in.W_k"),
                                  .q_a = io.template input<data, 1>("in.q_a"),
                                  .W_in = io.template input<data, 2>("in.W_in"),
                                  .w_l = io.template input<data, 1>("in.w_l"),
                                  .W_g = io.template input<data, 2>("in.W_g"),
                                  .p = io.template optional_output<data, 2>("out.p"),
                                  .s = io.template optional_output<data, 2>("out.s"),
                                  .r = io.template optional_output<data, 1>("out.r"),
                                  .g = io.template optional_output<data, 1>("out.g"),
                                  .r_global = io.template optional_output<data, 1>("out.r_global"),
                                  .layers = io.file().integer("layers", 2),
                                  .residual = io.file().flag("residual", false)};
  // An unsupported number of layers is the operator's to refuse.
  for (std::size_t l = 0; l < args.blocks.size() && static_cast<std::int64_t>(l) < args.layers; ++l) {
    args.blocks[l] = mara_block(io, "in.mamba" + std::to_string(l) + ".");
  }
  io.run([&] { polystate::mara(io.exec(), args); });
}

/// The scoring hook of a case is its rows of scores.
template <class Exec, class Data>
void run_mara_chain(operands<Exec, Data>& io) {
  const auto scores = io.template input<data, 2>("in.scores");
  const polystate::mara_chain_args args{.candidates = scores.extent(1),
                                        .passes = scores.extent(0),
                                        .anchors = io.template optional_output<std::int64_t, 1>("out.anchors"),
                                        .topk = io.template output<std::int64_t, 1>("out.topk")};
  if (args.topk.extent(0) != io.file().integer("k")) {
    throw io.file().fault("out.topk", "its length is not the parameter k");
  }
  io.run([&] { polystate::mara_chain([&](std::int64_t pass, const auto&) { return scores.select(0, pass); }, args); });
}

}  // namespace replay
