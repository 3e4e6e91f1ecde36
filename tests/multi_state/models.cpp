// SPDX-License-Identifier: Apache-2.0

// The snippets of docs/multi_state.md, between the marks of their names, on one small problem: they compile,
// and run.

#include "multi_state/cases.hpp"
#include "support/compare.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

namespace ps = polystate;
constexpr ps::on_reference exec{};

class PublishedModels : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  layer_problem<float, cell<rule::gated_delta, separation::uniform, router::merlin<float>>> p{{}, rng};
  layer_problem<float, cell<rule::ssd, separation::uniform, router::merlin<float>>> mamba{{}, rng};
  layer_problem<float, cell<rule::ssd, separation::fenwick, router::position<float>>> levels{{}, rng};
  tensor<float, 4> out{{2, 11, 4, 3}};

  ps::operands<float, ps::rule::gated_delta> qkv = p.in.view();
  ps::operands<float, ps::rule::ssd> mamba2 = mamba.in.view();
  ps::tensor_view<const float, 4> kp = p.keys.k.view(), qp = p.router.q.view(), weights = p.router.weights.view(),
                                  level_weights = levels.router.weights.view();
  ps::tensor_view<const float, 3> gamma = p.router.gamma.view();
  ps::tensor_view<const float, 1> tau_mu = p.router.tau_mu.view(), tau_sigma = p.router.tau_sigma.view();
  ps::tensor_view<float, 4> o = out.view();

  void expect_written() {
    for (const float x : out.values()) EXPECT_TRUE(std::isfinite(x));
    out.poison();
  }
};

TEST_F(PublishedModels, OneState) {
  // gated_deltanet
  ps::multi_state(exec, ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::single, ps::router::none>{
                            .in = qkv, .o = o});
  expect_written();
  // mamba2
  ps::multi_state(
      exec, ps::multi_state_args<float, ps::rule::ssd, ps::separation::single, ps::router::none>{.in = mamba2, .o = o});
  expect_written();
}

TEST_F(PublishedModels, Merlin) {
  // merlin
  ps::multi_state(
      exec, ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::uniform, ps::router::merlin<float>>{
                .in = qkv,
                .separation = {.m = 256},
                .moments = {.k = kp},
                .router = {.q = qp, .gamma = gamma, .tau_mu = tau_mu, .tau_sigma = tau_sigma},
                .o = o});
  expect_written();
}

TEST_F(PublishedModels, MemoryCaching) {
  // memory_caching
  ps::multi_state(
      exec,
      ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::uniform,
                           ps::router::top_k<ps::router::meanpool<float>>>{
          .in = qkv, .separation = {.m = 256}, .moments = {.k = kp}, .router = {.of = {.u = qp}, .k = 8}, .o = o});
  expect_written();
}

TEST_F(PublishedModels, LogLinear) {
  // log_linear
  ps::multi_state(exec,
                  ps::multi_state_args<float, ps::rule::ssd, ps::separation::fenwick, ps::router::position<float>>{
                      .in = mamba2,
                      .router = {.weights = level_weights,
                                 .position_index = ps::position_index::absolute,
                                 .position_norm = ps::position_norm::none},
                      .o = o});
  expect_written();
}

TEST_F(PublishedModels, PositionWeighted) {
  // position_weighted
  ps::multi_state(
      exec, ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::uniform, ps::router::position<float>>{
                .in = qkv, .separation = {.m = 256}, .router = {.weights = weights}, .o = o});
  expect_written();
}

TEST_F(PublishedModels, PrefillStepRead) {
  using args = ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::uniform, ps::router::merlin<float>>;
  using step_args =
      ps::multi_state_step_args<float, ps::rule::gated_delta, ps::separation::uniform, ps::router::merlin<float>>;
  using read_args = ps::multi_state_read_args<float, ps::rule::gated_delta, ps::router::merlin<float>>;
  const args prompt{.in = qkv,
                    .separation = {.m = 4},
                    .moments = {.k = kp},
                    .router = {.q = qp, .gamma = gamma, .tau_mu = tau_mu, .tau_sigma = tau_sigma},
                    .o = o};
  const auto shape = p.bank_shape(2);
  // bank
  ps::state_bank<float> bank(shape, 64);
  const std::int64_t T = prompt.o.extent(1);
  const std::int64_t L = prompt.separation.count(T);
  args prefill = prompt;
  prefill.S = bank.view().S.slice(1, 0, L);
  prefill.mu = bank.view().mu.slice(1, 0, L);
  prefill.Sigma = bank.view().Sigma.slice(1, 0, L);
  ps::multi_state(exec, prefill);
  for (std::int64_t b = 0; b < shape.B; ++b) bank.resume(b, prompt.separation, T);
  // step
  ps::multi_state_step(exec, step_args{.in = qkv,
                                       .separation = {.m = 4},
                                       .moments = {.k = kp},
                                       .router = prompt.router,
                                       .bank = bank.view(),
                                       .o = o});
  // read
  ps::multi_state_read(
      exec, read_args{.in = {.q = qkv.q, .scale = qkv.scale}, .bank = bank.view(), .router = prompt.router, .o = o});
  // end
  expect_written();
  EXPECT_EQ(bank.counters(0).tokens, 22);
}

}  // namespace
}  // namespace polystate::testing
