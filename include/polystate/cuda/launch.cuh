// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Launching a kernel.

#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/error.cuh>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// One-dimensional, since the other two dimensions of a grid end at 65,535 blocks.
struct grid {
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
};

/// The type of a launcher's `exec`. A launcher is a template even where its kernel has no parameter of the caller's: a
/// plain function would instantiate the kernel in every unit that includes its header.
template <class Exec>
concept cuda_policy = std::same_as<Exec, on_cuda>;

/// Lets a kernel's blocks have all the dynamic shared memory that the current device offers: the limit is the kernel's,
/// and a launch that set it to its own need could lower another thread's. cudaFuncSetAttribute would do the same, but
/// clears the last error, which may be the user's.
inline status allow_shared_memory(const char* op, const void* kernel) {
  int device = 0;
  int bytes = 0;
  cudaKernel_t of_device = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) error = cudaGetKernel(&of_device, kernel);
  if (error == cudaSuccess) {
    error = cudaKernelSetAttributeForDevice(of_device, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(sane_shared_bytes(bytes)), device);
  }
  return runtime_status(op, "launch", error);
}

/// Launches kernel(params) on exec.stream. A grid of 0 blocks is an empty problem: nothing is launched.
template <class Params>
POLYSTATE_HIDDEN status launch(const char* op, const on_cuda& exec, const grid& g, void (*kernel)(Params),
                               const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "kernel parameters are copied byte by byte");
  constexpr std::int64_t most_blocks = (std::numeric_limits<std::int32_t>::max)();
  if (g.blocks == 0) return {};
  if (g.blocks > most_blocks) {
    return {error_code::unsupported, op, "grid",
            std::to_string(g.blocks) + " blocks, supported: up to " + std::to_string(most_blocks)};
  }
  if (g.shared_bytes > shared_bytes_without_asking) {
    if (status s = allow_shared_memory(op, reinterpret_cast<const void*>(kernel)); !s.ok()) return s;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(g.blocks));
  config.blockDim = dim3(static_cast<unsigned>(g.threads));
  config.dynamicSmemBytes = g.shared_bytes;
  config.stream = exec.stream;
  return runtime_status(op, "launch", cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
