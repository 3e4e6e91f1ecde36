// SPDX-License-Identifier: Apache-2.0

// The single-state operators: convolution, scan, SSD, the delta family. bugs B181.

#include "memory_overlap/operand_table.hpp"

#include <polystate/causal_conv1d.hpp>
#include <polystate/gated_delta_rule.hpp>
#include <polystate/selective_scan.hpp>
#include <polystate/ssd.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

const std::vector<std::pair<std::string, std::string>> states_in_place = {{"final_state", "initial_state"}};

template <class Data>
class MemoryOverlap : public ::testing::Test {};
using data_types = ::testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(MemoryOverlap, data_types);

template <class Args>
operand_table convolution_inputs(Args& args) {
  return operand_table().add("x", args.x, {1, 5, 3}).add("weight", args.weight, {3, 4}).add("bias", args.bias, {3});
}

TYPED_TEST(MemoryOverlap, CausalConv1d) {
  causal_conv1d_args<TypeParam> args{.x = {}, .weight = {}, .y = {}};
  auto table = convolution_inputs(args)
                   .add("initial_state", args.initial_state, {2, 3, 3})
                   .add("cu_seqlens", args.cu_seqlens, {3});
  auto forward = table;
  forward.add("y", args.y, {1, 5, 3}).add("final_state", args.final_state, {2, 3, 3});
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  causal_conv1d_grads<TypeParam> grads;
  table.add("d_y", grads.d_y, {1, 5, 3})
      .add("d_final_state", grads.d_final_state, {2, 3, 3})
      .add("d_x", grads.d_x, {1, 5, 3})
      .add("d_weight", grads.d_weight, {3, 4})
      .add("d_bias", grads.d_bias, {3})
      .add("d_initial_state", grads.d_initial_state, {2, 3, 3});
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TYPED_TEST(MemoryOverlap, CausalConv1dStep) {
  causal_conv1d_step_args<TypeParam> args{.x = {}, .weight = {}, .state = {}, .y = {}};
  convolution_inputs(args)
      .add("read_indices", args.read_indices, {1})
      .add("write_indices", args.write_indices, {1})
      .add("state", args.state, {4, 3, 3})
      .add("y", args.y, {1, 5, 3})
      .add("intermediate_states", args.intermediate_states, {1, 5, 3, 3})
      .expect_overlaps_refused([&] { return check(args); });
}

template <class Args>
operand_table scan_inputs(Args& args) {
  return operand_table()
      .add("u", args.u, {1, 5, 4})
      .add("delta", args.delta, {1, 5, 4})
      .add("A", args.A, {4, 3})
      .add("B", args.B, {1, 5, 2, 3})
      .add("C", args.C, {1, 5, 2, 3})
      .add("D", args.D, {4})
      .add("z", args.z, {1, 5, 4})
      .add("delta_bias", args.delta_bias, {4});
}

TYPED_TEST(MemoryOverlap, SelectiveScan) {
  selective_scan_args<TypeParam> args{.u = {}, .delta = {}, .A = {}, .B = {}, .C = {}, .y = {}};
  auto table =
      scan_inputs(args).add("initial_state", args.initial_state, {2, 4, 3}).add("cu_seqlens", args.cu_seqlens, {3});
  auto forward = table;
  forward.add("y", args.y, {1, 5, 4}).add("final_state", args.final_state, {2, 4, 3});
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  selective_scan_grads<TypeParam> grads;
  table.add("d_y", grads.d_y, {1, 5, 4})
      .add("d_final_state", grads.d_final_state, {2, 4, 3})
      .add("d_u", grads.d_u, {1, 5, 4})
      .add("d_delta", grads.d_delta, {1, 5, 4})
      .add("d_A", grads.d_A, {4, 3})
      .add("d_B", grads.d_B, {1, 5, 2, 3})
      .add("d_C", grads.d_C, {1, 5, 2, 3})
      .add("d_D", grads.d_D, {4})
      .add("d_z", grads.d_z, {1, 5, 4})
      .add("d_delta_bias", grads.d_delta_bias, {4})
      .add("d_initial_state", grads.d_initial_state, {2, 4, 3});
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TYPED_TEST(MemoryOverlap, SelectiveScanStep) {
  selective_scan_step_args<TypeParam> args{.u = {}, .delta = {}, .A = {}, .B = {}, .C = {}, .state = {}, .y = {}};
  scan_inputs(args)
      .add("read_indices", args.read_indices, {1})
      .add("write_indices", args.write_indices, {1})
      .add("state", args.state, {2, 4, 3})
      .add("y", args.y, {1, 5, 4})
      .add("intermediate_states", args.intermediate_states, {1, 5, 4, 3})
      .expect_overlaps_refused([&] { return check(args); });
}

template <class Args>
operand_table ssd_inputs(Args& args) {
  return operand_table()
      .add("x", args.x, {1, 5, 4, 2})
      .add("dt", args.dt, {1, 5, 4})
      .add("A", args.A, {4})
      .add("B", args.B, {1, 5, 2, 3})
      .add("C", args.C, {1, 5, 2, 3})
      .add("D", args.D, {4, 2})
      .add("z", args.z, {1, 5, 4, 2})
      .add("dt_bias", args.dt_bias, {4});
}

TYPED_TEST(MemoryOverlap, Ssd) {
  ssd_args<TypeParam> args{.x = {}, .dt = {}, .A = {}, .B = {}, .C = {}, .y = {}};
  auto table =
      ssd_inputs(args).add("initial_state", args.initial_state, {2, 4, 2, 3}).add("cu_seqlens", args.cu_seqlens, {3});
  auto forward = table;
  forward.add("y", args.y, {1, 5, 4, 2}).add("final_state", args.final_state, {2, 4, 2, 3});
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  ssd_grads<TypeParam> grads;
  table.add("d_y", grads.d_y, {1, 5, 4, 2})
      .add("d_final_state", grads.d_final_state, {2, 4, 2, 3})
      .add("d_x", grads.d_x, {1, 5, 4, 2})
      .add("d_dt", grads.d_dt, {1, 5, 4})
      .add("d_A", grads.d_A, {4})
      .add("d_B", grads.d_B, {1, 5, 2, 3})
      .add("d_C", grads.d_C, {1, 5, 2, 3})
      .add("d_D", grads.d_D, {4, 2})
      .add("d_z", grads.d_z, {1, 5, 4, 2})
      .add("d_dt_bias", grads.d_dt_bias, {4})
      .add("d_initial_state", grads.d_initial_state, {2, 4, 2, 3});
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TYPED_TEST(MemoryOverlap, SsdStep) {
  ssd_step_args<TypeParam> args{.x = {}, .dt = {}, .A = {}, .B = {}, .C = {}, .state = {}, .y = {}};
  ssd_inputs(args)
      .add("read_indices", args.read_indices, {1})
      .add("write_indices", args.write_indices, {1})
      .add("state", args.state, {2, 4, 2, 3})
      .add("y", args.y, {1, 5, 4, 2})
      .add("intermediate_states", args.intermediate_states, {1, 5, 4, 2, 3})
      .expect_overlaps_refused([&] { return check(args); });
}

template <class Args>
operand_table delta_inputs(Args& args) {
  return operand_table()
      .add("q", args.q, {1, 5, 2, 3})
      .add("k", args.k, {1, 5, 2, 3})
      .add("v", args.v, {1, 5, 4, 2})
      .add("g", args.g, {1, 5, 4})
      .add("beta", args.beta, {1, 5, 4});
}

TYPED_TEST(MemoryOverlap, GatedDeltaRule) {
  gated_delta_rule_args<TypeParam> args{.q = {}, .k = {}, .v = {}, .o = {}};
  auto table =
      delta_inputs(args).add("initial_state", args.initial_state, {2, 4, 2, 3}).add("cu_seqlens", args.cu_seqlens, {3});
  auto forward = table;
  forward.add("o", args.o, {1, 5, 4, 2}).add("final_state", args.final_state, {2, 4, 2, 3});
  forward.expect_overlaps_refused([&] { return check(args); }, states_in_place);

  gated_delta_rule_grads<TypeParam> grads;
  table.add("d_o", grads.d_o, {1, 5, 4, 2})
      .add("d_final_state", grads.d_final_state, {2, 4, 2, 3})
      .add("d_q", grads.d_q, {1, 5, 2, 3})
      .add("d_k", grads.d_k, {1, 5, 2, 3})
      .add("d_v", grads.d_v, {1, 5, 4, 2})
      .add("d_g", grads.d_g, {1, 5, 4})
      .add("d_beta", grads.d_beta, {1, 5, 4})
      .add("d_initial_state", grads.d_initial_state, {2, 4, 2, 3});
  table.expect_overlaps_refused([&] { return check(args, grads); });
}

TYPED_TEST(MemoryOverlap, GatedDeltaRuleStep) {
  gated_delta_rule_step_args<TypeParam> args{.q = {}, .k = {}, .v = {}, .state = {}, .o = {}};
  delta_inputs(args)
      .add("read_indices", args.read_indices, {1})
      .add("write_indices", args.write_indices, {1})
      .add("state", args.state, {2, 4, 2, 3})
      .add("o", args.o, {1, 5, 4, 2})
      .add("intermediate_states", args.intermediate_states, {1, 5, 4, 2, 3})
      .expect_overlaps_refused([&] { return check(args); });
}

}  // namespace
}  // namespace polystate::testing
