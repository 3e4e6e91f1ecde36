// SPDX-License-Identifier: Apache-2.0
#pragma once

// A problem of the delta family on the device, and how the CUDA tests judge it.

#include "gated_delta_rule/oracle.hpp"
#include "support/device.cuh"
#include "support/random.hpp"
#include "support/relative_blocks.hpp"

#include <polystate/cuda/gated_delta_rule.cuh>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Relative error of results that are summed in float and rounded to T once; of states in State too.
template <class T>
inline constexpr double delta_bound = std::is_same_v<T, float> ? 1e-5 : 1.1 * roundoff<T>::unit;

template <class Data, class Rule, class State = float>
struct device_delta {
  device_tensor<Data, 4> q, k, v, o;
  device_tensor<float, 3> g, beta;
  device_tensor<State, 4> initial_state, final_state;
  device_tensor<std::int32_t, 1> cu_seqlens;
  double scale;
  bool qk_l2norm;
  bool in_place = false;  ///< final_state is initial_state itself

  explicit device_delta(const delta_problem<Data, Rule, State>& p, std::int64_t off = 0)
      : q(p.q, off),
        k(p.k),
        v(p.v, off),
        o(p.o),
        g(p.g),
        beta(p.beta),
        initial_state(p.initial_state),
        final_state(p.final_state),
        cu_seqlens(p.cu_seqlens),
        scale(p.scale),
        qk_l2norm(p.qk_l2norm) {}

  [[nodiscard]] gated_delta_rule_args<Data, Rule, State> args() const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .o = o.view(),
            .final_state = in_place ? initial_state.view() : final_state.view(),
            .scale = scale,
            .qk_l2norm = qk_l2norm};
  }
  void download(delta_problem<Data, Rule, State>& p) const {
    o.download(p.o);
    (in_place ? initial_state : final_state).download(p.final_state);
  }
  [[nodiscard]] bool inputs_unchanged() const {
    return q.unchanged() && k.unchanged() && v.unchanged() && g.unchanged() && beta.unchanged() &&
           initial_state.unchanged();
  }
};

/// Runs the problem on the device.
template <class Data, class Rule, class State>
delta_problem<Data, Rule, State> on_device(delta_problem<Data, Rule, State> p,
                                           const device_delta<Data, Rule, State>& device, const on_cuda& exec = {}) {
  gated_delta_rule(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}
template <class Data, class Rule, class State>
delta_problem<Data, Rule, State> on_device(const delta_problem<Data, Rule, State>& p) {
  return on_device(p, device_delta<Data, Rule, State>(p));
}

template <class Data, class Rule, class State>
void judge(const delta_problem<Data, Rule, State>& got, const delta_problem<Data, Rule, State>& p) {
  delta_problem<double, Rule> want = p.in_double();
  run_reference(want);
  EXPECT_TRUE(within_relative_blocks(got.o, want.o, delta_bound<Data>, 2));
  EXPECT_TRUE(got.o.untouched_outside());
  if (!p.final_state) return;
  EXPECT_TRUE(within_relative_blocks(got.final_state, want.final_state, delta_bound<State>, 1));
  EXPECT_TRUE(got.final_state.untouched_outside());
}

template <class Data, class Rule, class State>
void expect_reference(const delta_problem<Data, Rule, State>& p, std::int64_t off = 0) {
  const device_delta<Data, Rule, State> device(p, off);
  judge(on_device(p, device), p);
  EXPECT_TRUE(device.inputs_unchanged());
}

/// Calls f(rule) with one of the four.
template <class F>
void with_any_rule(std::mt19937& rng, F&& f) {
  switch (rng() % 4) {
    case 0:
      return f(rule::linear{});
    case 1:
      return f(rule::gated{});
    case 2:
      return f(rule::delta{});
    default:
      return f(rule::gated_delta{});
  }
}

/// Sizes and options of a sweep.
inline delta_shape random_delta_shape(std::mt19937& rng, const std::vector<std::int64_t>& lengths,
                                      const std::vector<std::int64_t>& head_dims) {
  const std::vector<layout<4>> layouts = {row_major<4>(),    row_major<4>(),    {{0, 2, 1, 3}, 0}, {{0, 1, 2, 3}, 3},
                                          {{0, 2, 3, 1}, 0}, {{3, 2, 1, 0}, 0}, {{0, 1, 2, 3}, 8}};
  const std::vector<layout<4>> state_layouts = {row_major<4>(), {{0, 1, 3, 2}, 0}, {{0, 1, 2, 3}, 5}};
  const std::int64_t HK = pick<std::int64_t>({1, 1, 2, 3}, rng);
  delta_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
                .T = pick(lengths, rng),
                .HK = HK,
                .HV = HK * pick<std::int64_t>({1, 1, 2, 3}, rng),
                .dk = pick(head_dims, rng),
                .dv = pick(head_dims, rng),
                .initial_state = coin(rng),
                .final_state = coin(rng),
                .qk_l2norm = coin(rng),
                .scale = pick<double>({1, 0.125, -2}, rng),
                .g_min = pick<double>({-0.01, -0.5, -5, -50}, rng),
                .memory = pick(layouts, rng),
                .gate_memory = coin(rng) ? row_major<3>() : layout<3>{{0, 2, 1}, 1},
                .state_memory = pick(state_layouts, rng)};
  if (rng() % 3 == 0) {
    s.B = 1;
    s.lengths = random_lengths(s.T, {0, 1, 3, 4, 5, 16, 40}, rng);
  }
  return s;
}

/// Some decays become 0.
template <class Data, class Rule, class State>
void forget_at_times(delta_problem<Data, Rule, State>& p, std::mt19937& rng) {
  if constexpr (Rule::has_decay) {
    p.g.for_each([&](float& g) {
      if (rng() % 16 == 0) g = -std::numeric_limits<float>::infinity();
    });
  }
}

}  // namespace polystate::testing
