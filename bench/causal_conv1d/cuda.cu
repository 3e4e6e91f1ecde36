// SPDX-License-Identifier: Apache-2.0

// causal_conv1d on CUDA: memory bound, so read bytes per second against what a device-to-device copy reaches
// (first row). Operands rotate over sets larger than the L2 cache; times are of one call inside a graph of
// many.

#include "support/cuda_ceilings.cuh"
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

/// All gradients but the states'.
template <class Data>
void backward(benchmark::State& state, order o, std::int64_t B, std::int64_t T, std::int64_t D, std::int64_t W) {
  const auto elements = static_cast<std::size_t>(B * T * (D + 1));
  const std::size_t sets = std::max<std::size_t>(2, cache_bytes / (3 * elements * sizeof(Data)) + 1);
  std::vector<device_buffer> x;
  std::vector<device_buffer> d_y;
  std::vector<device_buffer> d_x;
  for (std::size_t i = 0; i < sets; ++i) {
    for (auto* v : {&x, &d_y, &d_x}) v->emplace_back(elements * sizeof(Data));
    randomise<Data>(x.back(), elements);
    randomise<Data>(d_y.back(), elements);
  }
  const auto taps = static_cast<std::size_t>(D * W) * sizeof(float);
  const auto channels = static_cast<std::size_t>(D) * sizeof(float);
  const device_buffer weight(taps);
  const device_buffer bias(channels);
  const device_buffer d_weight(taps);
  const device_buffer d_bias(channels);
  randomise<float>(weight, static_cast<std::size_t>(D * W));
  const auto args = [&](std::size_t set) {
    return causal_conv1d_args<Data>{.x = ordered<const Data>(x[set].as<Data>(), B, T, D, o),
                                    .weight = {weight.as<float>(), {D, W}},
                                    .bias = {bias.as<float>(), {D}},
                                    .y = {},
                                    .act = activation::silu};
  };
  const auto grads = [&](std::size_t set) {
    return causal_conv1d_grads<Data>{.d_y = ordered<const Data>(d_y[set].as<Data>(), B, T, D, o),
                                     .d_x = ordered(d_x[set].as<Data>(), B, T, D, o),
                                     .d_weight = {d_weight.as<float>(), {D, W}},
                                     .d_bias = {d_bias.as<float>(), {D}}};
  };
  const device_buffer scratch(workspace_bytes(on_cuda{}, args(0), grads(0)));
  const double bytes = 3.0 * static_cast<double>(B * T * D) * sizeof(Data) + 2.0 * static_cast<double>(D * (W + 1)) * 4;
  time_on_stream(state, 20, bytes, [&](const on_cuda& exec, int i) {
    const auto set = static_cast<std::size_t>(i) % sets;
    const on_cuda with_scratch{.stream = exec.stream,
                               .workspace = {scratch.as<void>(), workspace_bytes(exec, args(set), grads(set))}};
    causal_conv1d_backward(with_scratch, args(set), grads(set));
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
  add_row("copy", copy_row);
  const auto add_pass = [&](const char* name, auto run, order o, std::int64_t B, std::int64_t T) {
    constexpr std::int64_t D = 4096;
    constexpr std::int64_t W = 4;
    add_row(std::string(name) + "/B" + std::to_string(B) + "/T" + std::to_string(T) + "/D4096/W4",
            [=](benchmark::State& state) { run(state, o, B, T, D, W); });
  };
  add_pass("forward/bf16/channel_last", forward<bfloat16>, order::channel_last, 8, 2048);
  add_pass("forward/bf16/channel_first", forward<bfloat16>, order::channel_first, 8, 2048);
  add_pass("forward/bf16/channel_last_odd", forward<bfloat16>, order::channel_last_odd, 8, 2048);
  add_pass("forward/f32/channel_last", forward<float>, order::channel_last, 8, 2048);
  add_pass("forward/f32/channel_first", forward<float>, order::channel_first, 8, 2048);
  add_pass("forward/bf16/channel_last", forward<bfloat16>, order::channel_last, 1, 8192);
  add_pass("forward/bf16/channel_first", forward<bfloat16>, order::channel_first, 1, 8192);
  add_pass("forward/bf16/channel_last", forward<bfloat16>, order::channel_last, 1, 256);
  add_pass("backward/bf16/channel_last", backward<bfloat16>, order::channel_last, 8, 2048);
  add_pass("backward/bf16/channel_first", backward<bfloat16>, order::channel_first, 8, 2048);
  add_pass("backward/bf16/channel_last_odd", backward<bfloat16>, order::channel_last_odd, 8, 2048);
  add_pass("backward/f32/channel_last", backward<float>, order::channel_last, 8, 2048);
  add_pass("backward/f32/channel_first", backward<float>, order::channel_first, 8, 2048);
  add_pass("backward/bf16/channel_last", backward<bfloat16>, order::channel_last, 1, 8192);
  add_pass("backward/bf16/channel_first", backward<bfloat16>, order::channel_first, 1, 8192);
  // State and operands in the cache, as between the layers of a decoder.
  for (const auto& [B, T] : std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 1}, {64, 4}, {1, 1}}) {
    add_row("step/bf16/B" + std::to_string(B) + "/T" + std::to_string(T) + "/D4096/W4",
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
