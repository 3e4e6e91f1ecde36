// SPDX-License-Identifier: Apache-2.0
#pragma once

// Timing on a stream for Google Benchmark: events around one graph of many calls, so that neither launch gaps
// nor the host's clock are measured.

#include <polystate/core/exec.hpp>

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace polystate::bench {

inline void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// Bytes on the device, filled with a pattern that is a small number in float, half and bfloat16.
class device_buffer {
 public:
  explicit device_buffer(std::size_t bytes) {
    require(cudaMalloc(&data_, bytes));
    require(cudaMemset(data_, 0x3c, bytes));
  }
  device_buffer(device_buffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  device_buffer& operator=(device_buffer&&) = delete;
  ~device_buffer() { static_cast<void>(cudaFree(data_)); }

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Numbers in [low, high] with random mantissas: random bits would hold NaN, and even patterns draw less power.
template <class Data>
void randomise(const device_buffer& buffer, std::size_t elements, float low = -1.0f, float high = 1.0f) {
  std::vector<Data> host(std::min<std::size_t>(elements, std::size_t{1} << 22));
  std::uint32_t seed = 1;
  for (auto& x : host) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<Data>(low + (high - low) * static_cast<float>(seed >> 8) * 0x1p-24f);
  }
  for (std::size_t i = 0; i < elements; i += host.size()) {
    const std::size_t n = std::min(host.size(), elements - i);
    require(cudaMemcpy(buffer.as<Data>() + i, host.data(), n * sizeof(Data), cudaMemcpyHostToDevice));
  }
}

/// call(exec, i) for i = 0 .. calls-1, captured once; the caller rotates its operands by i so that they do not stay in
/// the cache.
class timed_calls {
 public:
  template <class Call>
  timed_calls(int calls, Call&& call) : calls_(calls) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    require(cudaEventCreate(&begin_));
    require(cudaEventCreate(&end_));
    const on_cuda exec{.stream = stream_};
    call(exec, 0);  // loads the kernels
    require(cudaStreamSynchronize(stream_));
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < calls; ++i) call(exec, i);
    require(cudaStreamEndCapture(stream_, &graph_));
    require(cudaGraphInstantiate(&executable_, graph_, 0));
    for (int i = 0; i < 3; ++i) require(cudaGraphLaunch(executable_, stream_));
  }
  timed_calls(const timed_calls&) = delete;
  timed_calls& operator=(const timed_calls&) = delete;
  ~timed_calls() {
    static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGraphDestroy(graph_));
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  /// Runs them all; seconds of one.
  [[nodiscard]] double run() const {
    require(cudaEventRecord(begin_, stream_));
    require(cudaGraphLaunch(executable_, stream_));
    require(cudaEventRecord(end_, stream_));
    require(cudaEventSynchronize(end_));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e-3 / calls_;
  }

 private:
  int calls_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Times `calls` calls as above. Reports the time of one call and the bandwidth that `bytes` of one call make; returns
/// its seconds, the mean.
template <class Call>
double time_on_stream(benchmark::State& state, int calls, double bytes, Call&& call) {
  const timed_calls graph(calls, call);
  double seconds = 0;
  for (auto _ : state) {
    const double once = graph.run();
    state.SetIterationTime(once);
    seconds += once;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
  state.counters["bytes"] = bytes;
  return seconds / static_cast<double>(state.iterations());
}

}  // namespace polystate::bench
