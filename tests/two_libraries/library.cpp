// SPDX-License-Identifier: Apache-2.0
// One of the two libraries, LIBRARY: first or second; on the GPU with ON_CUDA.

#include "library.hpp"

#if defined(ON_CUDA)
#  include <polystate/cuda/causal_conv1d.cuh>
using backend = polystate::on_cuda;
#else
#  include <polystate/reference/causal_conv1d.hpp>
using backend = polystate::on_reference;
#endif

namespace LIBRARY {

using args_type = polystate::causal_conv1d_args<float>;

polystate::status check(const args_type& args) { return polystate::check(args); }

void convolve(const args_type& args) { polystate::causal_conv1d(backend{}, args); }

const void* operator_address() {
  polystate::status (*code)(const backend&, const args_type&) = &polystate::try_causal_conv1d<polystate::dims<>, float>;
  return reinterpret_cast<const void*>(code);
}

}  // namespace LIBRARY
