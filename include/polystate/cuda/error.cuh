// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From the CUDA runtime's errors to a status.

#include <polystate/core/error.hpp>
#include <polystate/cuda/compiler.cuh>

#include <cuda_runtime_api.h>

#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// The status of a runtime call that returned `error`; `what` names the call's purpose ("launch"). Callers
/// pass what the call itself returned and never ask for the "last error": an earlier error of the user's is
/// not ours to report or to clear. Only after a failure of our own is the last error, by then ours, cleared,
/// so that the user's next check does not find it.
inline status runtime_status(const char* op, const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {error_code::cuda, op, what, std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error)};
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
