// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
using args = ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::single, ps::router::uniform>;
#else
using args = ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::single, ps::router::none>;
#endif

// Asking its size completes the type.
static_assert(sizeof(args) > 0);
