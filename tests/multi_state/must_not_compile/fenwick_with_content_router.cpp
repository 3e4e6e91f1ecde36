// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
using args = ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::fenwick, ps::router::merlin<float>>;
#else
using args = ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::fenwick, ps::router::position<float>>;
#endif

// Asking its size completes the type.
static_assert(sizeof(args) > 0);
