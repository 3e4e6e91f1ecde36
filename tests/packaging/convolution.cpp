// SPDX-License-Identifier: Apache-2.0
// A user's program on the host: y[t] = 2 x[t] + 0.5 x[t-1].

#include <polystate/reference/causal_conv1d.hpp>

#include <cstdio>
#include <vector>

namespace ps = polystate;

int main() {
  const std::vector<float> x{1, 2, 3};
  const std::vector<float> weight{0.5F, 2};
  std::vector<float> y(3);
  ps::causal_conv1d(ps::on_reference{},
                    ps::causal_conv1d_args<float>{
                        .x = {x.data(), {1, 3, 1}}, .weight = {weight.data(), {1, 2}}, .y = {y.data(), {1, 3, 1}}});
  std::printf("%g %g %g\n", y[0], y[1], y[2]);
  return y == std::vector<float>{2, 4.5F, 7} ? 0 : 1;
}
