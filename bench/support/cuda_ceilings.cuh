// SPDX-License-Identifier: Apache-2.0
#pragma once

// What this device reaches at most, measured: bytes a second of a copy, exponentials a second of the special-function
// units. Rows say which percentage of either they reach.

#include "support/cuda_timing.cuh"

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::bench {

/// What one call has to move and to compute, whatever the kernels do beyond that. A multiplication with an addition is
/// two operations, an exponential one.
struct device_work {
  double bytes;
  double flops;
  double exp2;
};

constexpr std::size_t copied_bytes = std::size_t{134217728};
constexpr int exp2_chains = 8;  // of one thread, so that latency does not count
constexpr int exp2_steps = 1024;
constexpr int exp2_blocks = 4096;
constexpr int exp2_threads = 256;
constexpr double exp2_count = static_cast<double>(exp2_chains) * exp2_steps * exp2_blocks * exp2_threads;

static __global__ void exp2_kernel(float* out) {
  float x[exp2_chains];
#pragma unroll
  for (int i = 0; i < exp2_chains; ++i) x[i] = static_cast<float>(threadIdx.x + i) * 1e-3f;
#pragma unroll 4
  for (int step = 0; step < exp2_steps; ++step) {
#pragma unroll
    for (int i = 0; i < exp2_chains; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < exp2_chains; ++i) sum += x[i];
  if (sum == 1.0f) *out = sum;  // never: the values are infinite by then
}

/// A device-to-device copy that the cache cannot hold; every byte is read and written.
template <class Run>
auto with_copy(Run&& run) {
  const device_buffer from(copied_bytes);
  const device_buffer to(copied_bytes);
  return run([&](const on_cuda& exec, int) {
    require(cudaMemcpyAsync(to.as<void>(), from.as<void>(), copied_bytes, cudaMemcpyDeviceToDevice, exec.stream));
  });
}
template <class Run>
auto with_exp2(Run&& run) {
  const device_buffer out(sizeof(float));
  return run([&](const on_cuda& exec, int) {
    exp2_kernel<<<exp2_blocks, exp2_threads, 0, exec.stream>>>(out.as<float>());
    require(cudaGetLastError());
  });
}

/// The two ceilings as rows.
inline void copy_row(benchmark::State& state) {
  with_copy([&](const auto& call) { return time_on_stream(state, 10, 2.0 * copied_bytes, call); });
}
inline void exp2_row(benchmark::State& state) {
  with_exp2([&](const auto& call) { return time_on_stream(state, 10, 0, call); });
  state.counters["exp2/s"] = benchmark::Counter(exp2_count, benchmark::Counter::kIsIterationInvariantRate);
}

/// Both, measured once in a program.
struct ceilings {
  double bytes_per_second;
  double exp2_per_second;

  static const ceilings& of_device() {
    static const ceilings measured = [] {
      const auto best = [](const auto& call) {
        const timed_calls graph(10, call);
        double seconds = graph.run();
        for (int i = 0; i < 5; ++i) seconds = std::min(seconds, graph.run());
        return seconds;
      };
      return ceilings{2.0 * copied_bytes / with_copy(best), exp2_count / with_exp2(best)};
    }();
    return measured;
  }
};

/// As time_on_stream(), with what the call's work is of the ceilings.
template <class Call>
void time_against_ceilings(benchmark::State& state, int calls, const device_work& work, Call&& call) {
  const ceilings& most = ceilings::of_device();
  const double seconds = time_on_stream(state, calls, work.bytes, call);
  state.counters["flop/s"] = benchmark::Counter(work.flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["exp2"] = work.exp2;
  state.counters["copy_%"] = 100 * work.bytes / seconds / most.bytes_per_second;
  state.counters["exp2_%"] = 100 * work.exp2 / seconds / most.exp2_per_second;
}

/// A row; `run` takes a benchmark::State.
template <class Run>
void add_row(const std::string& name, Run&& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace polystate::bench
