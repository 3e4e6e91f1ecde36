// SPDX-License-Identifier: Apache-2.0
#pragma once

// Timing on a stream for Google Benchmark: events around one graph of many calls, so that neither launch gaps
// nor the host's clock are measured.

#include <polystate/core/exec.hpp>

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

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

/// Times call(exec, i) for i = 0 .. calls-1, captured once; the caller rotates its operands by i so that they
/// do not stay in the cache. Reports the time of one call and the bandwidth that `bytes` of one call make.
template <class Call>
void time_on_stream(benchmark::State& state, int calls, double bytes, Call&& call) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  const on_cuda exec{.stream = stream};
  call(exec, 0);  // loads the kernels
  require(cudaStreamSynchronize(stream));
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) call(exec, i);
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) require(cudaGraphLaunch(executable, stream));
  for (auto _ : state) {
    require(cudaEventRecord(begin, stream));
    require(cudaGraphLaunch(executable, stream));
    require(cudaEventRecord(end, stream));
    require(cudaEventSynchronize(end));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    state.SetIterationTime(static_cast<double>(milliseconds) * 1e-3 / calls);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
  state.counters["bytes"] = bytes;
  require(cudaGraphExecDestroy(executable));
  require(cudaGraphDestroy(graph));
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  require(cudaStreamDestroy(stream));
}

}  // namespace polystate::bench
