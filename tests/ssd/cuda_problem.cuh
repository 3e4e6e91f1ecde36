// SPDX-License-Identifier: Apache-2.0
#pragma once

// A problem of ssd on the device, and how the CUDA tests judge it.

#include "ssd/oracle.hpp"
#include "support/device.cuh"
#include "support/random.hpp"
#include "support/relative_blocks.hpp"

#include <polystate/cuda/ssd.cuh>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Relative error of results that are summed in float and rounded to T once; of states in State too.
template <class T>
inline constexpr double ssd_bound = std::is_same_v<T, float> ? 1e-5 : 1.1 * roundoff<T>::unit;

template <class Data, class State = float>
struct device_ssd {
  device_tensor<Data, 4> x, B, C, z, y;
  device_tensor<Data, 3> dt;
  device_tensor<float, 1> A, dt_bias;
  device_tensor<float, 2> D;
  device_tensor<State, 4> initial_state, final_state;
  device_tensor<std::int32_t, 1> cu_seqlens;
  ssd_problem<Data, State> options;
  bool in_place = false;  ///< final_state is initial_state itself

  explicit device_ssd(const ssd_problem<Data, State>& p, std::int64_t off = 0)
      : x(p.x, off),
        B(p.B, off),
        C(p.C),
        z(p.z),
        y(p.y),
        dt(p.dt),
        A(p.A),
        dt_bias(p.dt_bias),
        D(p.D),
        initial_state(p.initial_state),
        final_state(p.final_state),
        cu_seqlens(p.cu_seqlens),
        options(p) {}

  [[nodiscard]] tensor_view<const float, 2> skip_view() const {
    const auto on_host = options.skip_view();
    if (!on_host) return {};
    return {D.view().data(), {on_host.extent(0), on_host.extent(1)}, {on_host.stride(0), on_host.stride(1)}};
  }
  [[nodiscard]] ssd_args<Data, State> args() const {
    return {.x = x.view(),
            .dt = dt.view(),
            .A = A.view(),
            .B = B.view(),
            .C = C.view(),
            .D = skip_view(),
            .z = z.view(),
            .dt_bias = dt_bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = in_place ? initial_state.view() : final_state.view(),
            .dt_softplus = options.dt_softplus,
            .dt_min = options.dt_min,
            .dt_max = options.dt_max};
  }
  void download(ssd_problem<Data, State>& p) const {
    y.download(p.y);
    (in_place ? initial_state : final_state).download(p.final_state);
  }
  [[nodiscard]] bool inputs_unchanged() const {
    return x.unchanged() && B.unchanged() && C.unchanged() && z.unchanged() && dt.unchanged() && D.unchanged() &&
           initial_state.unchanged();
  }
};

/// Runs the problem on the device.
template <class Data, class State>
ssd_problem<Data, State> on_device(ssd_problem<Data, State> p, const device_ssd<Data, State>& device,
                                   const on_cuda& exec = {}) {
  ssd(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}
template <class Data, class State>
ssd_problem<Data, State> on_device(const ssd_problem<Data, State>& p) {
  return on_device(p, device_ssd<Data, State>(p));
}

template <class Data, class State>
void judge(const ssd_problem<Data, State>& got, const ssd_problem<Data, State>& p) {
  ssd_problem<double> want = p.in_double();
  run_reference(want);
  EXPECT_TRUE(within_relative_blocks(got.y, want.y, ssd_bound<Data>, 2));
  EXPECT_TRUE(got.y.untouched_outside());
  if (!p.final_state) return;
  EXPECT_TRUE(within_relative_blocks(got.final_state, want.final_state, ssd_bound<State>, 1));
  EXPECT_TRUE(got.final_state.untouched_outside());
}

template <class Data, class State>
void expect_reference(const ssd_problem<Data, State>& p, std::int64_t off = 0) {
  const device_ssd<Data, State> device(p, off);
  judge(on_device(p, device), p);
  EXPECT_TRUE(device.inputs_unchanged());
}

/// Sizes and options of a sweep.
inline ssd_shape random_ssd_shape(std::mt19937& rng, const std::vector<std::int64_t>& lengths,
                                  const std::vector<std::int64_t>& head_dims) {
  const std::vector<layout<4>> layouts = {row_major<4>(),    row_major<4>(),    {{0, 2, 1, 3}, 0}, {{0, 1, 2, 3}, 3},
                                          {{0, 2, 3, 1}, 0}, {{3, 2, 1, 0}, 0}, {{0, 1, 2, 3}, 8}};
  const std::vector<layout<4>> state_layouts = {row_major<4>(), {{0, 1, 3, 2}, 0}, {{0, 1, 2, 3}, 5}};
  const std::int64_t G = pick<std::int64_t>({1, 1, 2, 3}, rng);
  const bool softplus = coin(rng);
  ssd_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
              .T = pick(lengths, rng),
              .H = G * pick<std::int64_t>({1, 1, 2, 3}, rng),
              .G = G,
              .P = pick(head_dims, rng),
              .N = pick(head_dims, rng),
              .initial_state = coin(rng),
              .final_state = coin(rng),
              .z = coin(rng),
              .dt_bias = softplus && coin(rng),  // without softplus it would make steps negative
              .dt_softplus = softplus,
              .D = pick<skip>({skip::none, skip::per_head, skip::per_channel}, rng),
              .memory = pick(layouts, rng),
              .gate_memory = coin(rng) ? row_major<3>() : layout<3>{{0, 2, 1}, 1},
              .state_memory = pick(state_layouts, rng)};
  if (coin(rng)) {
    s.dt_min = 0.01;
    s.dt_max = 0.2;
  }
  if (rng() % 3 == 0) {
    s.B = 1;
    s.lengths = random_lengths(s.T, {0, 1, 3, 4, 5, 16, 40}, rng);
  }
  return s;
}

}  // namespace polystate::testing
