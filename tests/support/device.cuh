// SPDX-License-Identifier: Apache-2.0
#pragma once

// What CUDA tests own: device memory, streams, captured graphs.

#include "support/tensor.hpp"

#include <polystate/core/exec.hpp>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace polystate::testing {

inline void cuda_require(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
#define POLYSTATE_CUDA_REQUIRE(call) ::polystate::testing::cuda_require((call), #call)

/// Bytes on the device.
class device_memory {
 public:
  device_memory() = default;
  explicit device_memory(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) POLYSTATE_CUDA_REQUIRE(cudaMalloc(&data_, bytes));
  }
  device_memory(device_memory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  device_memory& operator=(device_memory&&) = delete;
  ~device_memory() { static_cast<void>(cudaFree(data_)); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A copy of a test's tensor, guard bands included, on the device. `misalignment` elements before it take its
/// first element off the 16-byte boundary.
template <class T, int Rank>
class device_tensor {
 public:
  explicit device_tensor(const tensor<T, Rank>& host, std::int64_t misalignment = 0)
      : shape_(host),
        misalignment_(misalignment),
        memory_((host.storage().size() + static_cast<std::size_t>(misalignment)) * sizeof(T)) {
    upload(host);
  }

  void upload(const tensor<T, Rank>& host) {
    POLYSTATE_CUDA_REQUIRE(
        cudaMemcpy(storage(), host.storage().data(), host.storage().size() * sizeof(T), cudaMemcpyDefault));
    // The copy may return once the host's memory is read, and a stream of its own would not wait for the rest.
    POLYSTATE_CUDA_REQUIRE(cudaStreamSynchronize(cudaStreamLegacy));
  }
  void download(tensor<T, Rank>& host) const {
    POLYSTATE_CUDA_REQUIRE(
        cudaMemcpy(host.storage().data(), storage(), host.storage().size() * sizeof(T), cudaMemcpyDefault));
  }
  /// Whether the device still holds what was uploaded first.
  [[nodiscard]] bool unchanged() const {
    tensor<T, Rank> now = shape_;
    download(now);
    const std::size_t bytes = now.storage().size() * sizeof(T);
    return bytes == 0 || std::memcmp(now.storage().data(), shape_.storage().data(), bytes) == 0;
  }

  [[nodiscard]] tensor_view<T, Rank> view() const { return shape_.view_at(storage()); }

 private:
  [[nodiscard]] T* storage() const { return static_cast<T*>(memory_.data()) + misalignment_; }

  tensor<T, Rank> shape_;
  std::int64_t misalignment_;
  device_memory memory_;
};

/// A test's tensor on the device at strides of its own, far apart say, and 0xff between the elements.
template <class T, int Rank>
class spread_tensor {
 public:
  /// Bytes that it takes.
  static std::size_t bytes(const tensor<T, Rank>& host, const std::int64_t (&strides)[Rank]) {
    std::int64_t last = 0;
    for (int i = 0; i < Rank; ++i) last += (host.view().extent(i) - 1) * strides[i];
    return static_cast<std::size_t>(last + 1) * sizeof(T);
  }

  spread_tensor(const tensor<T, Rank>& host, const std::int64_t (&strides)[Rank]) : memory_(bytes(host, strides)) {
    POLYSTATE_CUDA_REQUIRE(cudaMemset(memory_.data(), 0xff, memory_.bytes()));
    std::int64_t extents[Rank];
    for (int i = 0; i < Rank; ++i) extents[i] = host.view().extent(i);
    view_ = {static_cast<T*>(memory_.data()), extents, strides};
    copy(view_, host.view(), cudaMemcpyHostToDevice);
    POLYSTATE_CUDA_REQUIRE(cudaStreamSynchronize(cudaStreamLegacy));
  }
  void download(tensor<T, Rank>& host) const { copy(host.view(), view_, cudaMemcpyDeviceToHost); }
  [[nodiscard]] const tensor_view<T, Rank>& view() const { return view_; }

 private:
  template <class From>
  static void copy(const tensor_view<T, Rank>& to, const tensor_view<From, Rank>& from, cudaMemcpyKind kind) {
    std::vector<T*> targets;
    for_each_address(to, [&](T* x) { targets.push_back(x); });
    std::size_t i = 0;
    for_each_address(from, [&](From* x) { POLYSTATE_CUDA_REQUIRE(cudaMemcpy(targets[i++], x, sizeof(T), kind)); });
  }
  template <class U, class F>
  static void for_each_address(const tensor_view<U, Rank>& view, F&& f) {
    for_each(view, [&](U& x) { f(&x); });
  }

  device_memory memory_;
  tensor_view<T, Rank> view_;
};

/// A stream of the current device that does not wait for the default one.
class device_stream {
 public:
  device_stream() { POLYSTATE_CUDA_REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;
  ~device_stream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  operator cudaStream_t() const { return stream_; }
  [[nodiscard]] on_cuda exec() const { return {.stream = stream_}; }
  void synchronize() const { POLYSTATE_CUDA_REQUIRE(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The work that f enqueues on a stream, captured and not run.
class captured_graph {
 public:
  template <class F>
  captured_graph(const device_stream& stream, F&& enqueue) {
    POLYSTATE_CUDA_REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    enqueue();
    POLYSTATE_CUDA_REQUIRE(cudaStreamEndCapture(stream, &graph_));
    POLYSTATE_CUDA_REQUIRE(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  ~captured_graph() {
    static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }

  void replay(const device_stream& stream) const {
    POLYSTATE_CUDA_REQUIRE(cudaGraphLaunch(executable_, stream));
    stream.synchronize();
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Whether the device has this much free memory.
inline bool device_has_free(std::size_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  POLYSTATE_CUDA_REQUIRE(cudaMemGetInfo(&free_bytes, &total));
  return free_bytes >= bytes;
}

}  // namespace polystate::testing
