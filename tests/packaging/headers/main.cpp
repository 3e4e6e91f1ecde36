// SPDX-License-Identifier: Apache-2.0
// A user's program that only asks whether a problem is supported.

#include <polystate/causal_conv1d.hpp>

#include <cstdio>

int main() {
  const polystate::status answer = polystate::check(polystate::causal_conv1d_args<float>{});
  std::puts(answer.message().c_str());
  return answer.code == polystate::error_code::missing ? 0 : 1;
}
