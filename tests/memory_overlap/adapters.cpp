// SPDX-License-Identifier: Apache-2.0

// The adapters. bugs B181.

#include "memory_overlap/operand_table.hpp"

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/adapters/mara_chain.hpp>
#include <polystate/adapters/mara_loss.hpp>
#include <polystate/adapters/segment_retrieval.hpp>
#include <polystate/adapters/token_modulation.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

// S = 2 packed sequences of T = 5 tokens, d = 2, di = 3, W = 4, R = 1, N = 2.

const std::vector<std::pair<std::string, std::string>> states_in_place = {{"final_conv_state", "initial_conv_state"},
                                                                          {"final_scan_state", "initial_scan_state"}};

template <class Data>
void add_block(operand_table& table, const std::string& list, mamba_block_weights<Data>& w) {
  table.add(list + "in_proj", w.in_proj, {6, 2})
      .add(list + "conv_w", w.conv_w, {3, 4})
      .add(list + "conv_b", w.conv_b, {3})
      .add(list + "x_proj", w.x_proj, {5, 3})
      .add(list + "dt_proj_w", w.dt_proj_w, {3, 1})
      .add(list + "dt_proj_b", w.dt_proj_b, {3})
      .add(list + "A_log", w.A_log, {3, 2})
      .add(list + "D", w.D, {3})
      .add(list + "out_proj", w.out_proj, {2, 3});
}
template <class Data>
void add_block_grads(operand_table& table, const std::string& list, mamba_block_weight_grads<Data>& g) {
  table.add(list + "d_in_proj", g.d_in_proj, {6, 2})
      .add(list + "d_conv_w", g.d_conv_w, {3, 4})
      .add(list + "d_conv_b", g.d_conv_b, {3})
      .add(list + "d_x_proj", g.d_x_proj, {5, 3})
      .add(list + "d_dt_proj_w", g.d_dt_proj_w, {3, 1})
      .add(list + "d_dt_proj_b", g.d_dt_proj_b, {3})
      .add(list + "d_A_log", g.d_A_log, {3, 2})
      .add(list + "d_D", g.d_D, {3})
      .add(list + "d_out_proj", g.d_out_proj, {2, 3});
}

template <class Args>
void add_initial_states(operand_table& table, Args& args) {
  table.add("initial_conv_state", args.initial_conv_state, {2, 3, 3})
      .add("initial_scan_state", args.initial_scan_state, {2, 3, 2})
      .add("cu_seqlens", args.cu_seqlens, {3});
}
template <class Args>
void add_final_states(operand_table& table, Args& args) {
  table.add("final_conv_state", args.final_conv_state, {2, 3, 3})
      .add("final_scan_state", args.final_scan_state, {2, 3, 2});
}
template <class Args>
void add_pool(operand_table& table, Args& args) {
  table.add("read_indices", args.read_indices, {1})
      .add("write_indices", args.write_indices, {1})
      .add("conv_state", args.conv_state, {2, 3, 3})
      .add("scan_state", args.scan_state, {2, 3, 2})
      .add("intermediate_conv_states", args.intermediate_conv_states, {1, 5, 3, 3})
      .add("intermediate_scan_states", args.intermediate_scan_states, {1, 5, 3, 2});
}
template <class Grads>
void add_state_grads(operand_table& table, Grads& grads) {
  table.add("d_final_conv_state", grads.d_final_conv_state, {2, 3, 3})
      .add("d_final_scan_state", grads.d_final_scan_state, {2, 3, 2})
      .add("d_initial_conv_state", grads.d_initial_conv_state, {2, 3, 3})
      .add("d_initial_scan_state", grads.d_initial_scan_state, {2, 3, 2});
}

TEST(MemoryOverlap, MambaBlock) {
  mamba_block_args<half> args{.x = {}, .weights = {}, .y = {}};
  operand_table table;
  table.add("x", args.x, {1, 5, 2});
  add_block(table, "", args.weights);
  add_initial_states(table, args);
  auto forward = table;
  forward.add("y", args.y, {1, 5, 2});
  add_final_states(forward, args);
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  mamba_block_grads<half> grads;
  table.add("d_y", grads.d_y, {1, 5, 2}).add("d_x", grads.d_x, {1, 5, 2});
  add_block_grads(table, "", grads.d_weights);
  add_state_grads(table, grads);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, MambaBlockStep) {
  mamba_block_step_args<half> args{.x = {}, .weights = {}, .conv_state = {}, .scan_state = {}, .y = {}};
  operand_table table;
  table.add("x", args.x, {1, 5, 2}).add("y", args.y, {1, 5, 2});
  add_block(table, "", args.weights);
  add_pool(table, args);
  table.expect_overlaps_refused([&] { return check(args); });
}

template <class Args>
operand_table low_rank(Args& args, std::int64_t dp) {
  return operand_table()
      .add("x", args.x, {1, 5, 3})
      .add("W0", args.W0, {4, 3})
      .add("A", args.A, {3, 3})
      .add("B", args.B, {4, 3})
      .add("P", args.P, {dp, 3});
}
template <class Grads>
void add_low_rank_grads(operand_table& table, Grads& grads, std::int64_t dp) {
  table.add("d_h", grads.d_h, {1, 5, 4})
      .add("d_lam", grads.d_lam, {1, 5, 3})
      .add("d_x", grads.d_x, {1, 5, 3})
      .add("d_W0", grads.d_W0, {4, 3})
      .add("d_A", grads.d_A, {3, 3})
      .add("d_B", grads.d_B, {4, 3})
      .add("d_P", grads.d_P, {dp, 3});
}
template <class Args>
operand_table malora_inputs(Args& args) {
  operand_table table = low_rank(args, 2);
  add_block(table, "", args.mamba);
  return table.add("phi_w", args.phi_w, {3, 2}).add("phi_b", args.phi_b, {3});
}

TEST(MemoryOverlap, Malora) {
  malora_args<half> args{.x = {}, .A = {}, .B = {}, .P = {}, .mamba = {}, .phi_w = {}, .phi_b = {}, .h = {}};
  operand_table table = malora_inputs(args);
  add_initial_states(table, args);
  auto forward = table;
  forward.add("h", args.h, {1, 5, 4}).add("lam", args.lam, {1, 5, 3});
  add_final_states(forward, args);
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  malora_grads<half> grads;
  add_low_rank_grads(table, grads, 2);
  add_block_grads(table, "", grads.d_mamba);
  table.add("d_phi_w", grads.d_phi_w, {3, 2}).add("d_phi_b", grads.d_phi_b, {3});
  add_state_grads(table, grads);
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, MaloraStep) {
  malora_step_args<half> args{.x = {},
                              .A = {},
                              .B = {},
                              .P = {},
                              .mamba = {},
                              .phi_w = {},
                              .phi_b = {},
                              .conv_state = {},
                              .scan_state = {},
                              .h = {}};
  operand_table table = malora_inputs(args);
  add_pool(table, args);
  table.add("h", args.h, {1, 5, 4}).add("lam", args.lam, {1, 5, 3}).expect_overlaps_refused([&] {
    return check(args);
  });
}

TEST(MemoryOverlap, Toplora) {
  toplora_args<half> args{.x = {}, .A = {}, .B = {}, .P = {}, .h = {}};
  operand_table table = low_rank(args, 3).add("rms_w", args.rms_w, {3});
  auto forward = table;
  forward.add("h", args.h, {1, 5, 4}).add("lam", args.lam, {1, 5, 3});
  forward.expect_overlaps_refused([&] { return check(args); });

  toplora_grads<half> grads;
  add_low_rank_grads(table, grads, 3);
  table.add("d_rms_w", grads.d_rms_w, {3}).expect_overlaps_refused([&] { return check(args, grads); });
}

// With as many layers as there may be: the largest number of operands that a call has.
TEST(MemoryOverlap, Mara) {
  mara_args<half> args{.H = {}, .cu_segments = {}, .W_k = {}, .q_a = {}, .W_in = {}, .layers = mara_limits::layers.max};
  operand_table table;
  table.add("H", args.H, {5, 3})
      .add("cu_segments", args.cu_segments, {3})
      .add("W_k", args.W_k, {4, 3})
      .add("q_a", args.q_a, {4})
      .add("W_in", args.W_in, {2, 3})
      .add("w_l", args.w_l, {2})
      .add("W_g", args.W_g, {6, 2});
  for (std::size_t l = 0; l < args.blocks.size(); ++l) {
    add_block(table, "blocks[" + std::to_string(l) + "].", args.blocks[l]);
  }
  auto forward = table;
  forward.add("p", args.p, {2, 3})
      .add("s", args.s, {2, 2})
      .add("r", args.r, {2})
      .add("g", args.g, {2})
      .add("r_global", args.r_global, {6})
      .expect_overlaps_refused([&] { return check(args); });

  mara_grads<half> grads;
  table.add("d_p", grads.d_p, {2, 3})
      .add("d_s", grads.d_s, {2, 2})
      .add("d_r", grads.d_r, {2})
      .add("d_g", grads.d_g, {2})
      .add("d_r_global", grads.d_r_global, {6})
      .add("d_H", grads.d_H, {5, 3})
      .add("d_W_k", grads.d_W_k, {4, 3})
      .add("d_q_a", grads.d_q_a, {4})
      .add("d_W_in", grads.d_W_in, {2, 3})
      .add("d_w_l", grads.d_w_l, {2})
      .add("d_W_g", grads.d_W_g, {6, 2});
  for (std::size_t l = 0; l < args.blocks.size(); ++l) {
    add_block_grads(table, "d_blocks[" + std::to_string(l) + "].", grads.d_blocks[l]);
  }
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, MaraLoss) {
  mara_loss_args<half> args{.r = {}, .relevance = {}, .loss = {}};
  operand_table table;
  table.add("r", args.r, {4})
      .add("relevance", args.relevance, {4})
      .add("r_global", args.r_global, {3})
      .add("global_relevance", args.global_relevance, {3});
  auto forward = table;
  forward.add("loss", args.loss, {1}).add("parts", args.parts, {3});
  forward.expect_overlaps_refused([&] { return check(args); });

  mara_loss_grads<half> grads;
  table.add("d_loss", grads.d_loss, {1})
      .add("d_r", grads.d_r, {4})
      .add("d_r_global", grads.d_r_global, {3})
      .expect_overlaps_refused([&] { return check(args, grads); });
}

TEST(MemoryOverlap, MaraChain) {
  mara_chain_args args{.candidates = 4, .passes = 2, .topk = {}};
  operand_table().add("anchors", args.anchors, {2}).add("topk", args.topk, {3}).expect_overlaps_refused([&] {
    return check(args);
  });
}

}  // namespace
}  // namespace polystate::testing
