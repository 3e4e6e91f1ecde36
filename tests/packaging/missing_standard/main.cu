// SPDX-License-Identifier: Apache-2.0
#include <polystate/causal_conv1d.hpp>

int main() {}
