// SPDX-License-Identifier: Apache-2.0
#include <polystate/adapters/segment_retrieval.hpp>

namespace ps = polystate;

#if defined(MUST_NOT_COMPILE)
void retrieve(const ps::mara_args<float>& args) { ps::mara(ps::on_cuda{}, args); }
#else
ps::status retrieve(const ps::mara_args<float>& args) { return ps::check(args); }
#endif
