// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of causal_conv1d that every backend's tests share.

#include "support/tensor.hpp"

#include <polystate/causal_conv1d.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// Sizes and options of one problem. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct conv_shape {
  std::int64_t B = 2, T = 17, D = 5, W = 4;
  bool bias = true, initial_state = true, final_state = true;
  activation act = activation::silu;
  std::vector<std::int32_t> lengths = {};
  layout<3> memory = row_major<3>();  ///< of x and y

  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

/// Owned operands of one problem.
template <class Data>
struct conv_problem {
  using data_type = Data;

  tensor<Data, 3> x, y, initial_state, final_state;
  tensor<acc_t<Data>, 2> weight;
  tensor<acc_t<Data>, 1> bias;
  tensor<std::int32_t, 1> cu_seqlens;
  activation act = activation::none;

  conv_problem() = default;
  template <class Rng>
  conv_problem(const conv_shape& s, Rng& rng) : act(s.act) {
    const std::int64_t S = s.sequences();
    x = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    y = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    weight = tensor<acc_t<Data>, 2>({s.D, s.W});
    x.uniform(rng, -2, 2);
    weight.uniform(rng, -1, 1);
    if (s.bias) bias = tensor<acc_t<Data>, 1>({s.D}).uniform(rng, -1, 1);
    if (s.initial_state) initial_state = tensor<Data, 3>({S, s.W - 1, s.D}).uniform(rng, -2, 2);
    if (s.final_state) final_state = tensor<Data, 3>({S, s.W - 1, s.D});
    cu_seqlens = cu_seqlens_of(s.lengths);
  }

  [[nodiscard]] causal_conv1d_args<Data> args() {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = final_state.view(),
            .act = act};
  }

  /// The same numbers in another type, outputs poisoned.
  template <class To>
  [[nodiscard]] conv_problem<To> in() const {
    conv_problem<To> p;
    p.x = convert<To>(x);
    p.weight = convert<acc_t<To>>(weight);
    p.bias = convert<acc_t<To>>(bias);
    p.initial_state = convert<To>(initial_state);
    p.cu_seqlens = cu_seqlens;
    p.y = tensor<To, 3>(y.extents());
    if (final_state) p.final_state = tensor<To, 3>(final_state.extents());
    p.act = act;
    return p;
  }
  [[nodiscard]] conv_problem<double> in_double() const { return in<double>(); }

  template <class Exec>
  static void run(const Exec& exec, const causal_conv1d_args<Data>& args) {
    causal_conv1d(exec, args);
  }
};

}  // namespace polystate::testing
