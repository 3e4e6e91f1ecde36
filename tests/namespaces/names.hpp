// SPDX-License-Identifier: Apache-2.0
#pragma once

// A user's own helper namespaces, beside `using namespace polystate`.

namespace detail {
inline int thing() { return 1; }
}  // namespace detail
namespace impl {
inline int thing() { return 2; }
}  // namespace impl
namespace internal {
inline int thing() { return 3; }
}  // namespace internal
namespace reference {
inline int thing() { return 4; }
}  // namespace reference
namespace core {
inline int thing() { return 5; }
}  // namespace core
namespace scan {
inline int thing() { return 6; }
}  // namespace scan
namespace math {
inline int thing() { return 7; }
}  // namespace math
namespace cuda {
inline int thing() { return 8; }
}  // namespace cuda
namespace rounding {
inline int thing() { return 9; }
}  // namespace rounding
namespace adapters {
inline int thing() { return 10; }
}  // namespace adapters

using namespace polystate;  // NOLINT: what a user's source file may say

inline int sum_of_things() {
  return detail::thing() + impl::thing() + internal::thing() + reference::thing() + core::thing() + scan::thing() +
         math::thing() + cuda::thing() + rounding::thing() + adapters::thing();
}
