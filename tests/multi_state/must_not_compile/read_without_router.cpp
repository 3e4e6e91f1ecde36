// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
using args = ps::multi_state_read_args<float, ps::rule::linear, ps::router::none>;
#else
using args = ps::multi_state_read_args<float, ps::rule::linear, ps::router::uniform>;
#endif

// Asking its size completes the type.
static_assert(sizeof(args) > 0);
