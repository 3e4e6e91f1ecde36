// SPDX-License-Identifier: Apache-2.0
#include <polystate/multi_state.hpp>

namespace ps = polystate;

using args = ps::multi_state_args<float, ps::rule::delta, ps::separation::uniform, ps::router::uniform>;
using grads = ps::multi_state_grads<float, ps::rule::delta, ps::router::uniform>;

#if defined(MUST_NOT_COMPILE)
void backward(const args& of, const grads& into) { ps::multi_state_backward(ps::on_cuda{}, of, into); }
#else
ps::status backward(const args& of, const grads& into) { return ps::check(of, into); }
#endif
