// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
using args = ps::segment_moments_args<float, ps::separation::single>;
#else
using args = ps::segment_moments_args<float, ps::separation::boundaries>;
#endif

// Asking its size completes the type.
static_assert(sizeof(args) > 0);
