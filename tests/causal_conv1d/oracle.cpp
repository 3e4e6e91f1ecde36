// SPDX-License-Identifier: Apache-2.0

#include "causal_conv1d/oracle.hpp"
#include "support/running_error.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <cmath>
#include <vector>

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

expected_conv_gradients run_reference(const conv_problem<double>& p, const conv_gradients<double>& g) {
  auto tracked = p.in<running_error>();
  auto gradients = g.in<running_error>();
  causal_conv1d_backward(on_reference{}, tracked.args(), gradients.views());
  expected_conv_gradients e{g, g};
  for_each_gradient([](const char*, const auto& results, auto& value, auto& error) { split(results, value, error); },
                    gradients, e.value, e.error);
  return e;
}

}  // namespace polystate::testing
