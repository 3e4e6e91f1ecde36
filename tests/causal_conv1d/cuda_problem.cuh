// SPDX-License-Identifier: Apache-2.0
#pragma once

// The convolution's operands on the device, and the judgement of what comes back.

#include "causal_conv1d/oracle.hpp"
#include "support/compare.hpp"
#include "support/device.cuh"

#include <polystate/cuda/causal_conv1d.cuh>

#include <gtest/gtest.h>

#include <cstdint>

namespace polystate::testing {

/// c of the elementwise bound: at most W+1 roundings of sums that the magnitude bounds, and a few ulp of
/// silu.
inline constexpr double conv_bound = 8;

inline constexpr layout<3> channel_last = {{0, 1, 2}, 0};
inline constexpr layout<3> channel_first = {{0, 2, 1}, 0};

template <class Data>
struct device_conv {
  device_tensor<Data, 3> x, y, initial_state, final_state;
  device_tensor<acc_t<Data>, 2> weight;
  device_tensor<acc_t<Data>, 1> bias;
  device_tensor<std::int32_t, 1> cu_seqlens;
  activation act;
  bool in_place = false;  ///< final_state is initial_state itself

  explicit device_conv(const conv_problem<Data>& p, std::int64_t x_off = 0, std::int64_t y_off = 0)
      : x(p.x, x_off),
        y(p.y, y_off),
        initial_state(p.initial_state),
        final_state(p.final_state),
        weight(p.weight),
        bias(p.bias),
        cu_seqlens(p.cu_seqlens),
        act(p.act) {}

  [[nodiscard]] causal_conv1d_args<Data> args() const {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = in_place ? initial_state.view() : final_state.view(),
            .act = act};
  }
  void download(conv_problem<Data>& p) const {
    y.download(p.y);
    (in_place ? initial_state : final_state).download(p.final_state);
  }
};

template <class Data>
struct device_conv_gradients {
  device_tensor<Data, 3> d_y, d_final_state, d_x, d_initial_state;
  device_tensor<acc_t<Data>, 2> d_weight;
  device_tensor<acc_t<Data>, 1> d_bias;

  explicit device_conv_gradients(const conv_gradients<Data>& g, std::int64_t dy_off = 0, std::int64_t dx_off = 0)
      : d_y(g.d_y, dy_off),
        d_final_state(g.d_final_state),
        d_x(g.d_x, dx_off),
        d_initial_state(g.d_initial_state),
        d_weight(g.d_weight),
        d_bias(g.d_bias) {}

  [[nodiscard]] causal_conv1d_grads<Data> views() const {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_x = d_x.view(),
            .d_weight = d_weight.view(),
            .d_bias = d_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  void download(conv_gradients<Data>& g) const {
    for_each_gradient([](const char*, const auto& device, auto& host) { device.download(host); }, *this, g);
  }
};

template <class Data>
struct device_conv_step {
  device_tensor<Data, 3> x, y, state;
  device_tensor<acc_t<Data>, 2> weight;
  device_tensor<acc_t<Data>, 1> bias;
  device_tensor<std::int32_t, 1> read_indices, write_indices;
  device_tensor<Data, 4> intermediate_states;
  activation act;

  explicit device_conv_step(const conv_step_problem<Data>& p, std::int64_t x_off = 0)
      : x(p.x, x_off),
        y(p.y),
        state(p.state),
        weight(p.weight),
        bias(p.bias),
        read_indices(p.read_indices),
        write_indices(p.write_indices),
        intermediate_states(p.intermediate_states),
        act(p.act) {}

  [[nodiscard]] causal_conv1d_step_args<Data> args() const {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = bias.view(),
            .read_indices = read_indices.view(),
            .write_indices = write_indices.view(),
            .state = state.view(),
            .y = y.view(),
            .intermediate_states = intermediate_states.view(),
            .act = act};
  }
  void download(conv_step_problem<Data>& p) const {
    y.download(p.y);
    state.download(p.state);
    intermediate_states.download(p.intermediate_states);
  }
};

/// States are copies of inputs: equal to the last bit.
template <class Data, int Rank>
void expect_copied(const tensor<Data, Rank>& got, const tensor<double, Rank>& want) {
  if (got) EXPECT_TRUE(bitwise_equal(convert<Data>(got), convert<Data>(want)));
  EXPECT_TRUE(got.untouched_outside());
}

/// Runs the problem on the device, and judges every output against the reference.
template <class Data>
void expect_reference(conv_problem<Data>& p, const device_conv<Data>& device, const on_cuda& exec = {}) {
  causal_conv1d(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  conv_problem<double> want = p.in_double();
  run_reference(want);
  EXPECT_TRUE(within_elementwise_bound(p.y, want.y, magnitudes(p.in_double()), conv_bound));
  EXPECT_TRUE(p.y.untouched_outside());
  expect_copied(p.final_state, want.final_state);
  EXPECT_TRUE(device.x.unchanged());
  EXPECT_TRUE(device.weight.unchanged());
  EXPECT_TRUE(device.in_place || device.initial_state.unchanged());
}
template <class Data>
void expect_reference(conv_problem<Data> p) {
  expect_reference(p, device_conv<Data>(p));
}

template <class Data>
void expect_reference(conv_step_problem<Data> p, std::int64_t x_off = 0) {
  conv_step_problem<double> want = p.in_double();
  const tensor<double, 3> magnitude = magnitudes(p.in_double());
  run_reference(want);
  const device_conv_step<Data> device(p, x_off);
  causal_conv1d_step(on_cuda{}, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  EXPECT_TRUE(within_elementwise_bound(p.y, want.y, magnitude, conv_bound));
  EXPECT_TRUE(p.y.untouched_outside());
  expect_copied(p.state, want.state);
  // Padding rows have no intermediate states: neither side writes them, and both start as NaN.
  expect_copied(p.intermediate_states, want.intermediate_states);
  EXPECT_TRUE(device.x.unchanged());
}

/// y, and final_state where asked for, as the device computes them.
template <class Data>
conv_problem<Data> on_device(conv_problem<Data> p, std::int64_t x_off = 0, std::int64_t y_off = 0) {
  const device_conv<Data> device(p, x_off, y_off);
  causal_conv1d(on_cuda{}, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}

}  // namespace polystate::testing
