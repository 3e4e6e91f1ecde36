// SPDX-License-Identifier: Apache-2.0
// A host unit of the same program: polystate::cuda brings the runtime's headers too.

#include <cuda_runtime_api.h>

int runtime_version();

int runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}
