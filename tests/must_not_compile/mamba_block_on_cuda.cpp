// SPDX-License-Identifier: Apache-2.0
#include <polystate/adapters/mamba_block.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
void step(const ps::mamba_block_step_args<float>& args) { ps::mamba_block_step(ps::on_cuda{}, args); }
#else
ps::status step(const ps::mamba_block_step_args<float>& args) { return ps::check(args); }
#endif
