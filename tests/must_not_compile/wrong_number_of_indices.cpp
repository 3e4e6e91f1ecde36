// SPDX-License-Identifier: Apache-2.0
#include <polystate/core/tensor_view.hpp>

float first(const polystate::tensor_view<const float, 3>& x) {
#if defined(MUST_NOT_COMPILE)
  return x(0, 0);
#else
  return x(0, 0, 0);
#endif
}
