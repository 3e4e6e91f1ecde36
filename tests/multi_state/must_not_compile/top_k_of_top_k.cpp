// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
using router = ps::router::top_k<ps::router::top_k<ps::router::uniform>>;
#else
using router = ps::router::top_k<ps::router::uniform>;
#endif

ps::status checked(const ps::multi_state_args<float, ps::rule::gated_delta, ps::separation::uniform, router>& args) {
  return check(args);
}
