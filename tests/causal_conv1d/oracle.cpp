// SPDX-License-Identifier: Apache-2.0

#include "causal_conv1d/oracle.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <cmath>

namespace polystate::testing {
namespace {

const auto absolute = [](double& x) { x = std::abs(x); };

}  // namespace

void run_reference(conv_problem<double>& p) { causal_conv1d(on_reference{}, p.args()); }
void run_reference(conv_step_problem<double>& p) { causal_conv1d_step(on_reference{}, p.args()); }

tensor<double, 3> magnitudes(conv_problem<double> p) {
  p.x.for_each(absolute);
  p.weight.for_each(absolute);
  p.bias.for_each(absolute);
  p.initial_state.for_each(absolute);
  p.act = activation::none;
  run_reference(p);
  return p.y;
}

tensor<double, 3> magnitudes(conv_step_problem<double> p) {
  p.x.for_each(absolute);
  p.weight.for_each(absolute);
  p.bias.for_each(absolute);
  p.state.for_each(absolute);
  p.act = activation::none;
  run_reference(p);
  return p.y;
}

}  // namespace polystate::testing
