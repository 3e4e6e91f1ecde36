// SPDX-License-Identifier: Apache-2.0
// A user's CUDA program. It must compile and link; without an argument it needs no GPU.

#include <polystate/causal_conv1d.hpp>

#if __has_include(<polystate/cuda/causal_conv1d.cuh>)
#  include <polystate/cuda/causal_conv1d.cuh>
#endif

#include <cstdio>

namespace ps = polystate;

int runtime_version();

__global__ void user_kernel(ps::tensor_view<const ps::bfloat16, 1> x, ps::tensor_view<float, 1> y) {
  y(threadIdx.x) = static_cast<float>(x(threadIdx.x));
}

int main(int argc, char**) {
  const ps::causal_conv1d_args<ps::bfloat16> args{};
  const ps::status answer = ps::check(args);
  std::printf("runtime %d; %s\n", runtime_version(), answer.message().c_str());
  if (argc > 1) {
    user_kernel<<<1, 1>>>({}, {});
#if __has_include(<polystate/cuda/causal_conv1d.cuh>)
    ps::causal_conv1d(ps::on_cuda{}, args);
#endif
  }
  return runtime_version() >= 13000 && answer.code == ps::error_code::missing ? 0 : 1;
}
