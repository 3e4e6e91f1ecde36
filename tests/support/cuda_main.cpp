// SPDX-License-Identifier: Apache-2.0

// main() of every CUDA test program. Without a device it exits with 77, which CTest counts as skipped.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if ((error != cudaSuccess || devices == 0) && !::testing::GTEST_FLAG(list_tests)) {
    std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
