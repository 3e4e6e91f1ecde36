// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Scratch memory: how an operator lays it out, checks the caller's, and allocates without one.
///
///     struct chunk_scratch { float* states; float* decays; };
///     chunk_scratch carve(workspace_carver& from, problem p) {
///       return {from.take<float>(p.states), from.take<float>(p.chunks)};
///     }
///
/// The same carve() run on a carver without memory counts bytes, so the size cannot disagree with the use:
///
///     workspace_carver count;  carve(count, p);
///     scratch memory(op, exec, count.bytes());
///     if (!memory.result().ok()) return memory.result();
///     workspace_carver hand_out(memory.data());  const chunk_scratch s = carve(hand_out, p);

#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// Hands out arrays one behind the other, each aligned to workspace_alignment; without memory it only counts.
class workspace_carver {
 public:
  workspace_carver() = default;
  explicit workspace_carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  /// The next array of `count` elements; null while counting.
  template <class T>
  T* take(std::int64_t count) {
    static_assert(alignof(T) <= workspace_alignment);
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    bytes_ += (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    return array;
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Whether the caller's workspace, if there is one, is aligned and holds `needed` bytes.
inline status check_workspace(const char* op, const on_cuda& exec, std::size_t needed) {
  const workspace& given = exec.workspace;
  if (given.data == nullptr) {
    if (given.bytes == 0) return {};
    return {error_code::workspace, op, "exec.workspace", std::to_string(given.bytes) + " bytes at a null pointer"};
  }
  if (reinterpret_cast<std::uintptr_t>(given.data) % workspace_alignment != 0) {
    return {error_code::workspace, op, "exec.workspace",
            "misaligned, supported: a multiple of " + std::to_string(workspace_alignment) + " bytes"};
  }
  if (given.bytes < needed) {
    return {error_code::workspace, op, "exec.workspace",
            std::to_string(given.bytes) + " bytes, needed: " + std::to_string(needed)};
  }
  return {};
}

/// The scratch memory of one call: the caller's workspace, or else an allocation in the order of the stream
/// that is returned, in the same order, when this object ends. Under graph capture both become graph nodes.
class scratch {
 public:
  scratch(const char* op, const on_cuda& exec, std::size_t bytes) : stream_(exec.stream) {
    if (bytes == 0) return;
    if (exec.workspace.data != nullptr) {
      result_ = check_workspace(op, exec, bytes);
      if (result_.ok()) data_ = exec.workspace.data;
      return;
    }
    result_ = runtime_status(op, "scratch memory", cudaMallocAsync(&data_, bytes, stream_));
    owned_ = result_.ok();
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    // A failure here is one of the device that the next call on the stream reports.
    if (owned_ && cudaFreeAsync(data_, stream_) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] const status& result() const { return result_; }

 private:
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
  bool owned_ = false;
  status result_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
