// SPDX-License-Identifier: Apache-2.0
#include <polystate/cuda/causal_conv1d.cuh>

int main() { return polystate::check(polystate::causal_conv1d_args<float>{}).ok() ? 1 : 0; }
