// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Execution policies: which backend runs a call, and what it may use.

#include <polystate/core/macros.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

struct CUstream_st;  // cudaStream_t without the toolkit

namespace polystate::inline POLYSTATE_ABI {

/// Scratch memory of the caller, 256-byte aligned, on the backend's device. Its size comes from an operator's
/// workspace_bytes(). Default: none, and the operator allocates in the order of its stream.
struct workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Alignment of a workspace and of everything carved from it.
inline constexpr std::size_t workspace_alignment = 256;

// The policies carry the build's tag and not only the version's: an operator's overload is named by its
// policy, so builds that compile it differently never share it.
inline namespace POLYSTATE_BUILD {

/// The definition: serial, in double (or in the data's own type where that is no float, half or bfloat16).
struct on_reference {};

/// CUDA. Calls are asynchronous on `stream` (null is CUDA's default stream), never synchronise, are safe
/// under graph capture, and must be made with the stream's device current.
struct on_cuda {
  CUstream_st* stream = nullptr;
  polystate::workspace workspace = {};
  bool batch_invariant = false;  ///< choose the schedule from one sequence's shape alone
  /// The most shared memory that a block may take, in bytes, where that is less than the device offers; 0: as much as
  /// the device offers. Kernels then run with the tiles that a smaller device gets.
  std::size_t shared_memory_limit = 0;
};

/// Calls f with the policy of that name ("reference", "cuda"); false if there is none.
template <class F>
[[nodiscard]] bool visit_exec(std::string_view name, F&& f) {
  if (name == "reference") return std::forward<F>(f)(on_reference{}), true;
  if (name == "cuda") return std::forward<F>(f)(on_cuda{}), true;
  return false;
}

}  // namespace POLYSTATE_BUILD

namespace polystate_detail::inline POLYSTATE_BUILD {

/// For the static_assert of a pass that a backend lacks: false, but only once somebody calls the pass.
template <class...>
inline constexpr bool has_this_pass = false;

}  // namespace polystate_detail::inline POLYSTATE_BUILD

}  // namespace polystate::inline POLYSTATE_ABI
