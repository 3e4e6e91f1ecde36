// SPDX-License-Identifier: Apache-2.0

// selective_scan on CUDA, with skip, gate, bias and softplus. The special-function units bound it, one exponential a
// state and token: read exp2_%, and for steps copy_%, against the first two rows. Operands rotate over sets larger than
// the cache; times are of one call inside a graph of several.

#include "support/cuda_ceilings.cuh"
#include "support/cuda_timing.cuh"

#include <polystate/cuda/selective_scan.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

constexpr std::size_t cache_bytes = std::size_t{256} << 20;  // several times any L2

struct shape {
  std::int64_t B, T, D, N;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/D" + std::to_string(D) + "/N" + std::to_string(N);
  }
  [[nodiscard]] double states() const { return static_cast<double>(B * T) * static_cast<double>(D * N); }
  [[nodiscard]] std::size_t channels() const { return static_cast<std::size_t>(B * T * D); }
  [[nodiscard]] std::size_t groups() const { return static_cast<std::size_t>(B * T * N); }
  [[nodiscard]] std::size_t pool() const { return static_cast<std::size_t>(B * D * N); }
  [[nodiscard]] std::size_t parameters() const { return static_cast<std::size_t>(D * (N + 2)); }  // A, D, delta_bias

  // a state: dt A, exp, the decay, dt u B with its addition, C with its addition
  [[nodiscard]] double forward_flops() const { return 7 * states(); }
  /// Calls of a graph that runs for milliseconds.
  [[nodiscard]] int calls() const { return static_cast<int>(std::clamp(2e10 / states(), 2.0, 20.0)); }
};

enum class order { channel_last, channel_first };
const char* name_of(order o) { return o == order::channel_last ? "channel_last" : "channel_first"; }

/// Views in one of the two memory orders that models have; time is last in B and C where it is in u.
template <class Data>
tensor_view<Data, 3> channels(Data* data, const shape& n, order o) {
  if (o == order::channel_last) return {data, {n.B, n.T, n.D}};
  return {data, {n.B, n.T, n.D}, {n.T * n.D, 1, n.T}};
}
template <class Data>
tensor_view<Data, 4> groups(Data* data, const shape& n, order o) {
  if (o == order::channel_last) return {data, {n.B, n.T, 1, n.N}};
  return {data, {n.B, n.T, 1, n.N}, {n.T * n.N, 1, n.T * n.N, n.T}};
}

/// Memory of operands of one size, a block for each.
template <class Data>
class blocks {
 public:
  blocks(std::size_t count, std::size_t elements) {
    for (std::size_t i = 0; i < count; ++i) memory_.emplace_back(std::max<std::size_t>(elements * sizeof(Data), 1));
  }
  void randomise(std::size_t i, std::size_t elements, float low, float high) {
    bench::randomise<Data>(memory_.at(i), elements, low, high);
  }
  [[nodiscard]] Data* operator[](std::size_t i) const { return memory_.at(i).template as<Data>(); }

 private:
  std::vector<device_buffer> memory_;
};

/// What all calls share: A in [-16, -1], D and delta_bias.
struct parameters {
  explicit parameters(const shape& n)
      : A(static_cast<std::size_t>(n.D * n.N) * sizeof(float)),
        D(static_cast<std::size_t>(n.D) * sizeof(float)),
        delta_bias(static_cast<std::size_t>(n.D) * sizeof(float)) {
    randomise<float>(A, static_cast<std::size_t>(n.D * n.N), -16, -1);
    randomise<float>(D, static_cast<std::size_t>(n.D));
    randomise<float>(delta_bias, static_cast<std::size_t>(n.D), -0.5f, 0.5f);
  }
  device_buffer A, D, delta_bias;
};

/// Operands of one call, and its gradients where they are wanted.
template <class Data>
struct operands {
  enum : std::size_t { u, delta, z, y, d_y, d_u, d_delta, d_z };
  enum : std::size_t { B, C, d_B, d_C };
  shape n;
  blocks<Data> wide, narrow;

  operands(const shape& s, bool gradients)
      : n(s), wide(gradients ? 8 : 4, s.channels()), narrow(gradients ? 4 : 2, s.groups()) {
    wide.randomise(u, n.channels(), -1, 1);
    wide.randomise(delta, n.channels(), -4, 0);
    wide.randomise(z, n.channels(), -1, 1);
    if (gradients) wide.randomise(d_y, n.channels(), -1, 1);
    narrow.randomise(B, n.groups(), -1, 1);
    narrow.randomise(C, n.groups(), -1, 1);
  }
  [[nodiscard]] selective_scan_args<Data> args(const parameters& p, order o) const {
    return {.u = channels<const Data>(wide[u], n, o),
            .delta = channels<const Data>(wide[delta], n, o),
            .A = {p.A.as<float>(), {n.D, n.N}},
            .B = groups<const Data>(narrow[B], n, o),
            .C = groups<const Data>(narrow[C], n, o),
            .D = {p.D.as<float>(), {n.D}},
            .z = channels<const Data>(wide[z], n, o),
            .delta_bias = {p.delta_bias.as<float>(), {n.D}},
            .y = channels(wide[y], n, o),
            .delta_softplus = true};
  }
  [[nodiscard]] selective_scan_grads<Data> grads(float* sums, order o) const {
    return {.d_y = channels<const Data>(wide[d_y], n, o),
            .d_u = channels(wide[d_u], n, o),
            .d_delta = channels(wide[d_delta], n, o),
            .d_A = {sums, {n.D, n.N}},
            .d_B = groups(narrow[d_B], n, o),
            .d_C = groups(narrow[d_C], n, o),
            .d_D = {sums + n.D * n.N, {n.D}},
            .d_z = channels(wide[d_z], n, o),
            .d_delta_bias = {sums + n.D * (n.N + 1), {n.D}}};
  }
};

/// As many sets of operands as outgrow the cache, no more than there are calls.
template <class Data>
std::vector<operands<Data>> rotating_operands(const shape& n, bool gradients) {
  const std::size_t bytes = (gradients ? 8 : 4) * n.channels() * sizeof(Data);
  const std::size_t count = std::min(cache_bytes / bytes + 1, static_cast<std::size_t>(n.calls()));
  std::vector<operands<Data>> sets;
  sets.reserve(count);
  for (std::size_t i = 0; i < count; ++i) sets.emplace_back(n, gradients);
  return sets;
}

template <class Data>
void forward(benchmark::State& state, const shape& n, order o) {
  const parameters shared(n);
  const auto sets = rotating_operands<Data>(n, false);
  const std::size_t bytes = workspace_bytes(on_cuda{}, sets[0].args(shared, o));
  const device_buffer scratch(std::max<std::size_t>(1, bytes));
  const device_work work{
      .bytes = static_cast<double>((4 * n.channels() + 2 * n.groups()) * sizeof(Data) + n.parameters() * sizeof(float)),
      .flops = n.forward_flops(),
      .exp2 = n.states()};
  time_against_ceilings(state, n.calls(), work, [&](on_cuda exec, int i) {
    exec.workspace = {scratch.as<void>(), bytes};
    selective_scan(exec, sets[static_cast<std::size_t>(i) % sets.size()].args(shared, o));
  });
}

template <class Data>
void backward(benchmark::State& state, const shape& n, order o) {
  const parameters shared(n);
  const auto sets = rotating_operands<Data>(n, true);
  const device_buffer sums(n.parameters() * sizeof(float));
  const std::size_t bytes = workspace_bytes(on_cuda{}, sets[0].args(shared, o), sets[0].grads(sums.as<float>(), o));
  const device_buffer scratch(std::max<std::size_t>(1, bytes));
  const device_work work{.bytes = static_cast<double>((7 * n.channels() + 4 * n.groups()) * sizeof(Data) +
                                                      2 * n.parameters() * sizeof(float)),
                         .flops = 3 * n.forward_flops(),  // the forward again, and a product toward each factor
                         .exp2 = n.states()};
  time_against_ceilings(state, n.calls(), work, [&](on_cuda exec, int i) {
    exec.workspace = {scratch.as<void>(), bytes};
    const auto& set = sets[static_cast<std::size_t>(i) % sets.size()];
    selective_scan_backward(exec, set.args(shared, o), set.grads(sums.as<float>(), o));
  });
  state.counters["scratch"] = static_cast<double>(bytes);
}

/// States come from memory, as those of a model with many layers do.
template <class Data, class State>
void step(benchmark::State& state, const shape& n) {
  const parameters shared(n);
  const operands<Data> tokens(n, false);
  const std::size_t pools = cache_bytes / (n.pool() * sizeof(State)) + 1;
  blocks<State> pool(pools, n.pool());
  for (std::size_t i = 0; i < pools; ++i) pool.randomise(i, n.pool(), -1, 1);
  const device_work work{.bytes = static_cast<double>((4 * n.channels() + 2 * n.groups()) * sizeof(Data) +
                                                      2 * n.pool() * sizeof(State) + n.parameters() * sizeof(float)),
                         .flops = n.forward_flops(),
                         .exp2 = n.states()};
  time_against_ceilings(state, 50, work, [&](const on_cuda& exec, int i) {
    const auto a = tokens.args(shared, order::channel_last);
    selective_scan_step(exec, selective_scan_step_args<Data, State>{
                                  .u = a.u,
                                  .delta = a.delta,
                                  .A = a.A,
                                  .B = a.B,
                                  .C = a.C,
                                  .D = a.D,
                                  .z = a.z,
                                  .delta_bias = a.delta_bias,
                                  .state = {pool[static_cast<std::size_t>(i) % pools], {n.B, n.D, n.N}},
                                  .y = a.y,
                                  .delta_softplus = true});
  });
}

void add_passes(const shape& n, order o) {  // in one type: each takes a minute to compile
  const std::string tail = std::string("/bf16/") + name_of(o) + "/" + n.text();
  add_row("forward" + tail, [=](benchmark::State& state) { forward<bfloat16>(state, n, o); });
  add_row("backward" + tail, [=](benchmark::State& state) { backward<bfloat16>(state, n, o); });
}

void register_all() {
  add_row("copy", copy_row);
  add_row("exp2", exp2_row);
  for (const shape& n :
       {shape{8, 2048, 4096, 16}, shape{1, 16384, 5120, 16}, shape{1, 131072, 4096, 16}, shape{64, 20, 256, 64}}) {
    for (const order o : {order::channel_last, order::channel_first}) add_passes(n, o);
  }
  for (const std::int64_t T : {1, 4}) {
    const shape n{64, T, 4096, 16};
    add_row("step/bf16/state_f32/" + n.text(), [=](benchmark::State& state) { step<bfloat16, float>(state, n); });
    add_row("step/bf16/state_bf16/" + n.text(), [=](benchmark::State& state) { step<bfloat16, bfloat16>(state, n); });
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
