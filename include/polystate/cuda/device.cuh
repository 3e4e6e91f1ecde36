// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a call asks of its stream and device, and reading index operands back for validation.

#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// Element types of the CUDA kernels.
template <class Data>
inline constexpr bool is_element =
    std::is_same_v<Data, float> || std::is_same_v<Data, half> || std::is_same_v<Data, bfloat16>;

/// The stream must belong to the current device. The default streams (null, cudaStreamLegacy,
/// cudaStreamPerThread) are always the current device's. A stream that is being captured cannot be asked: the
/// runtime refuses, and the capture would be lost.
inline status check_stream(const char* op, const on_cuda& exec) {
  int current = 0;
  status s = runtime_status(op, "exec", cudaGetDevice(&current));
  const bool is_default =
      exec.stream == nullptr || exec.stream == cudaStreamLegacy || exec.stream == cudaStreamPerThread;
  if (!s.ok() || is_default) return s;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  s = runtime_status(op, "exec.stream", cudaStreamIsCapturing(exec.stream, &capture));
  if (!s.ok() || capture != cudaStreamCaptureStatusNone) return s;
  int of_stream = 0;
  s = runtime_status(op, "exec.stream", cudaStreamGetDevice(exec.stream, &of_stream));
  if (!s.ok() || of_stream == current) return s;
  return {
      error_code::device, op, "exec.stream",
      "belongs to device " + std::to_string(of_stream) + ", supported: the current device, " + std::to_string(current)};
}

/// The current device's limits, as far as the caller lets kernels use them; the least of any device where they are not
/// known.
inline device_limits limits_of(const on_cuda& exec) {
  device_limits limits;
  int device = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess) {
    limits = {multiprocessors, sane_shared_bytes(shared_bytes)};
  }
  const std::size_t asked = exec.shared_memory_limit;
  if (asked > 0 && asked < limits.shared_bytes) limits.shared_bytes = asked;
  return limits;
}

/// Refuses a stream under capture, which validation cannot wait for.
inline status check_not_captured(const char* op, const on_cuda& exec) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  status s = runtime_status(op, "exec.stream", cudaStreamIsCapturing(exec.stream, &capture));
  if (!s.ok() || capture == cudaStreamCaptureStatusNone) return s;
  return {error_code::unsupported, op, "exec.stream", "is being captured, and validation synchronises"};
}

/// Copies an index operand to the host in stream order and waits for it, so `host` is what a kernel launched
/// now would read. Cannot run while the stream is captured. An operand with gaps is copied entry by entry.
inline status read_indices(const char* op, const on_cuda& exec, const char* name, const index_view& indices,
                           std::vector<std::int32_t>& host) {
  status s = check_not_captured(op, exec);
  if (!s.ok()) return s;
  host.resize(static_cast<std::size_t>(indices.size()));
  const bool contiguous = indices.size() < 2 || indices.stride(0) == 1;
  const std::size_t entries_per_copy = contiguous ? host.size() : 1;
  for (std::size_t i = 0; i < host.size() && s.ok(); i += entries_per_copy) {
    s = runtime_status(op, name,
                       cudaMemcpyAsync(&host[i], &indices(i), entries_per_copy * sizeof(std::int32_t),
                                       cudaMemcpyDefault, exec.stream));
  }
  return s.ok() ? runtime_status(op, name, cudaStreamSynchronize(exec.stream)) : s;
}

/// The view of an index operand's copy on the host; absent where the operand is.
inline index_view host_view(const index_view& indices, const std::vector<std::int32_t>& host) {
  if (!indices) return {};
  return {host.data(), {indices.extent(0)}};
}

/// An index operand's contents on the host, for validation.
class host_indices {
 public:
  /// As read_indices(); nothing to do where the operand is absent.
  status read(const char* op, const on_cuda& exec, const char* name, const index_view& indices) {
    operand_ = indices;
    return indices ? read_indices(op, exec, name, indices, contents_) : status{};
  }
  [[nodiscard]] index_view view() const { return host_view(operand_, contents_); }

 private:
  index_view operand_;
  std::vector<std::int32_t> contents_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
