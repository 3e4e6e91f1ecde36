// SPDX-License-Identifier: Apache-2.0
#include <polystate/core/tensor_view.hpp>

using view = polystate::tensor_view<float, 3>;
using view_of_const = polystate::tensor_view<const float, 3>;

view_of_const restricted(const view& x) { return x; }

#if defined(MUST_NOT_COMPILE)
view loosened(const view_of_const& x) { return x; }
#endif
