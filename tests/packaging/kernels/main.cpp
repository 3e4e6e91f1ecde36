// SPDX-License-Identifier: Apache-2.0
// A user's program. Without a GPU it gets as far as the first call of the CUDA runtime.

#include <polystate/causal_conv1d.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace ps = polystate;

ps::status convolve(CUstream_st* stream, const ps::causal_conv1d_step_args<float>& args);

namespace {

ps::status convolve_with_taps(std::int64_t W) {
  std::vector<float> x(1), y(1), weight(16), state(16);
  const ps::status s = convolve(nullptr, {.x = {x.data(), {1, 1, 1}},
                                          .weight = {weight.data(), {1, W}},
                                          .state = {state.data(), {1, W - 1, 1}},
                                          .y = {y.data(), {1, 1, 1}}});
  std::printf("%d taps: %s\n", static_cast<int>(W), s.message().c_str());
  return s;
}

}  // namespace

int main() {
  if (convolve(nullptr, {}).code != ps::error_code::missing) return 1;
  const ps::status five = convolve_with_taps(5);
  if (five.code != ps::error_code::unsupported || five.detail.find("dims<3>, dims<4>") == std::string::npos) return 2;
  // Host memory: a step is refused by the runtime or, with a GPU that cannot read it, fails there. It reaches either.
  return convolve_with_taps(4).code == ps::error_code::unsupported ? 3 : 0;
}
