// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Memory and time of CUDA.

#include "buffer.hpp"
#include "case_file.hpp"

#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>

#include <cuda_runtime.h>

#include <memory>
#include <string>

namespace replay {

inline void require_success(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  polystate::raise_on_error({polystate::error_code::cuda, "replay", call, std::string(cudaGetErrorString(result))});
}

/// Throws skipped where there is nothing to run on.
inline void require_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) throw skipped("no CUDA device");
}

template <>
class buffer<polystate::on_cuda> {
 public:
  explicit buffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    require_success(cudaMalloc(&data, bytes), "cudaMalloc");
    data_.reset(data);
  }

  [[nodiscard]] void* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  void write(const void* from) {
    if (bytes_ != 0) require_success(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void read(void* to) const {
    if (bytes_ != 0) require_success(cudaMemcpy(to, data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  void poison() {
    if (bytes_ != 0) require_success(cudaMemset(data(), 0xff, bytes_), "cudaMemset");
  }

 private:
  struct release {
    void operator()(void* data) const { cudaFree(data); }
  };
  std::size_t bytes_;
  std::unique_ptr<void, release> data_;
};

inline void wait_for(const polystate::on_cuda& exec) {
  require_success(cudaStreamSynchronize(exec.stream), "cudaStreamSynchronize");
}

/// Time on the device.
template <class F>
double milliseconds(const polystate::on_cuda& exec, F&& call) {
  struct event {
    cudaEvent_t handle{};
    event() { require_success(cudaEventCreate(&handle), "cudaEventCreate"); }
    event(const event&) = delete;
    event& operator=(const event&) = delete;
    ~event() { cudaEventDestroy(handle); }
  };
  const event begin;
  const event end;
  require_success(cudaEventRecord(begin.handle, exec.stream), "cudaEventRecord");
  call();
  require_success(cudaEventRecord(end.handle, exec.stream), "cudaEventRecord");
  require_success(cudaEventSynchronize(end.handle), "cudaEventSynchronize");
  float elapsed = 0;
  require_success(cudaEventElapsedTime(&elapsed, begin.handle, end.handle), "cudaEventElapsedTime");
  return elapsed;
}

}  // namespace replay
