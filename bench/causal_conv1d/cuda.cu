// SPDX-License-Identifier: Apache-2.0

// causal_conv1d on CUDA: memory bound, so read bytes per second against what a device-to-device copy reaches
// (first row). Operands rotate over sets larger than the L2 cache; times are of one call inside a graph of
// many.

#include "support/cuda_timing.cuh"

#include <polystate/cuda/causal_conv1d.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace polystate::bench {
namespace {

constexpr std::size_t cache_bytes = std::size_t{256} << 20;  // several times any L2

enum class order { channel_last, channel_first, channel_last_odd };

template <class Data>
tensor_view<Data, 3> ordered(Data* data, std::int64_t B, std::int64_t T, std::int64_t D, order o) {
  switch (o) {
    case order::channel_last:
      return {data, {B, T, D}};
    case order::channel_first:
      return {data, {B, T, D}, {T * D, 1, T}};
    case order::channel_last_odd:
      break;
  }
  return {data, {B, T, D}, {T * (D + 1), D + 1, 1}};  // no 16-byte accesses: the general kernel
}

void copy(benchmark::State& state) {
  constexpr std::size_t bytes = std::size_t{134217728};
  const device_buffer from(bytes);
  const device_buffer to(bytes);
  time_on_stream(state, 10, 2.0 * static_cast<double>(bytes), [&](const on_cuda& exec, int) {
    require(cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDeviceToDevice, exec.stream));
  });
}

// Random bits would hold NaN; the pattern of device_buffer keeps the chip's power as even as random data does
// not, so the operands get random mantissas.
template <class Data>
void randomise(const device_buffer& buffer, std::size_t elements) {
  std::vector<Data> host(std::min<std::size_t>(elements, std::size_t{1} << 22));
  std::uint32_t seed = 1;
  for (auto& x : host) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<Data>(static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
  }
  for (std::size_t i = 0; i < elements; i += host.size()) {
    const std::size_t n = std::min(host.size(), elements - i);
    require(cudaMemcpy(buffer.as<Data>() + i, host.data(), n * sizeof(Data), cudaMemcpyHostToDevice));
  }
}

template <class Data>
void forward(benchmark::State& state, order o, std::int64_t B, std::int64_t T, std::int64_t D, std::int64_t W) {
  const auto elements = static_cast<std::size_t>(B * T * (D + 1));
  const std::size_t sets = std::max<std::size_t>(2, cache_bytes / (2 * elements * sizeof(Data)) + 1);
  std::vector<device_buffer> x;
  std::vector<device_buffer> y;
  for (std::size_t i = 0; i < sets; ++i) {
    x.emplace_back(elements * sizeof(Data));
    y.emplace_back(elements * sizeof(Data));
    randomise<Data>(x.back(), elements);
  }
  const device_buffer weight(static_cast<std::size_t>(D * W) * sizeof(float));
  const device_buffer bias(static_cast<std::size_t>(D) * sizeof(float));
  randomise<float>(weight, static_cast<std::size_t>(D * W));
  const double bytes = 2.0 * static_cast<double>(B * T * D) * sizeof(Data) + static_cast<double>(D * (W + 1)) * 4;
  time_on_stream(state, 20, bytes, [&](const on_cuda& exec, int i) {
    const auto set = static_cast<std::size_t>(i) % sets;
    causal_conv1d(exec, causal_conv1d_args<Data>{.x = ordered<const Data>(x[set].as<Data>(), B, T, D, o),
                                                 .weight = {weight.as<float>(), {D, W}},
                                                 .bias = {bias.as<float>(), {D}},
                                                 .y = ordered(y[set].as<Data>(), B, T, D, o),
                                                 .act = activation::silu});
  });
}

template <class Data>
void step(benchmark::State& state, std::int64_t B, std::int64_t T, std::int64_t D, std::int64_t W) {
  const auto tokens = static_cast<std::size_t>(B * T * D);
  const auto states = static_cast<std::size_t>(B * (W - 1) * D);
  const device_buffer x(tokens * sizeof(Data));
  const device_buffer y(tokens * sizeof(Data));
  const device_buffer pool(states * sizeof(Data));
  const device_buffer weight(static_cast<std::size_t>(D * W) * sizeof(float));
  const double bytes =
      2.0 * static_cast<double>(tokens + states) * sizeof(Data) + static_cast<double>(D * W) * sizeof(float);
  time_on_stream(state, 50, bytes, [&](const on_cuda& exec, int) {
    causal_conv1d_step(exec, causal_conv1d_step_args<Data>{.x = {x.as<Data>(), {B, T, D}},
                                                           .weight = {weight.as<float>(), {D, W}},
                                                           .state = {pool.as<Data>(), {B, W - 1, D}},
                                                           .y = {y.as<Data>(), {B, T, D}},
                                                           .act = activation::silu});
  });
}

void register_all() {
  const auto add = [](const std::string& name, auto&& run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
  };
  add("copy", copy);
  const auto add_forward = [&](const char* name, auto run, order o, std::int64_t B, std::int64_t T) {
    constexpr std::int64_t D = 4096;
    constexpr std::int64_t W = 4;
    add("forward/" + std::string(name) + "/B" + std::to_string(B) + "/T" + std::to_string(T) + "/D4096/W4",
        [=](benchmark::State& state) { run(state, o, B, T, D, W); });
  };
  add_forward("bf16/channel_last", forward<bfloat16>, order::channel_last, 8, 2048);
  add_forward("bf16/channel_first", forward<bfloat16>, order::channel_first, 8, 2048);
  add_forward("bf16/channel_last_odd", forward<bfloat16>, order::channel_last_odd, 8, 2048);
  add_forward("f32/channel_last", forward<float>, order::channel_last, 8, 2048);
  add_forward("f32/channel_first", forward<float>, order::channel_first, 8, 2048);
  add_forward("bf16/channel_last", forward<bfloat16>, order::channel_last, 1, 8192);
  add_forward("bf16/channel_first", forward<bfloat16>, order::channel_first, 1, 8192);
  add_forward("bf16/channel_last", forward<bfloat16>, order::channel_last, 1, 256);
  // State and operands in the cache, as between the layers of a decoder.
  for (const auto& [B, T] : std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 1}, {64, 4}, {1, 1}}) {
    add("step/bf16/B" + std::to_string(B) + "/T" + std::to_string(T) + "/D4096/W4",
        [B = B, T = T](benchmark::State& state) { step<bfloat16>(state, B, T, 4096, 4); });
  }
}

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  polystate::bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
