// SPDX-License-Identifier: Apache-2.0
#include <polystate/core/tensor_view.hpp>

float middle(const polystate::tensor_view<const float, 1>& x) {
#if defined(MUST_NOT_COMPILE)
  return x(0.5);
#else
  return x(0);
#endif
}
