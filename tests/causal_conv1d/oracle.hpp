// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected values for the CUDA tests: on_reference in double, compiled apart, since it needs Eigen.

#include "causal_conv1d/cases.hpp"
#include "causal_conv1d/gradients.hpp"
#include "support/tensor.hpp"

#include <polystate/causal_conv1d.hpp>

#include <cstdint>

namespace polystate::testing {

/// Owned operands of one step.
template <class Data>
struct conv_step_problem {
  tensor<Data, 3> x, y, state;
  tensor<acc_t<Data>, 2> weight;
  tensor<acc_t<Data>, 1> bias;
  tensor<std::int32_t, 1> read_indices, write_indices;
  tensor<Data, 4> intermediate_states;
  activation act = activation::none;

  [[nodiscard]] causal_conv1d_step_args<Data> args() {
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

  /// The same numbers in double, outputs poisoned.
  [[nodiscard]] conv_step_problem<double> in_double() const {
    conv_step_problem<double> p;
    p.x = convert<double>(x);
    p.y = tensor<double, 3>(y.extents());
    p.state = convert<double>(state);
    p.weight = convert<double>(weight);
    p.bias = convert<double>(bias);
    p.read_indices = read_indices;
    p.write_indices = write_indices;
    if (intermediate_states) p.intermediate_states = tensor<double, 4>(intermediate_states.extents());
    p.act = act;
    return p;
  }
};

/// Runs the definition: fills y, and the states asked for.
void run_reference(conv_problem<double>& p);
void run_reference(conv_step_problem<double>& p);

/// Sum of the absolute values of the terms of every output before its activation, whose slope is at most 1.1.
tensor<double, 3> magnitudes(conv_problem<double> p);
tensor<double, 3> magnitudes(conv_step_problem<double> p);

/// The gradients that `g` has, for its upstream ones, and beside each the error that float arithmetic may make of it,
/// in units of float's roundoff (support/running_error.hpp).
struct expected_conv_gradients {
  conv_gradients<double> value, error;
};
expected_conv_gradients run_reference(const conv_problem<double>& p, const conv_gradients<double>& g);

}  // namespace polystate::testing
