// SPDX-License-Identifier: Apache-2.0

// A gated delta rule on the GPU, called from a unit of g++: a prompt and then one token, each beside the reference. The
// kernels are compiled by polystate_add_kernels() in CMakeLists.txt.

#include <compiled_kernels/gated_delta_rule.hpp>
#include <polystate/reference/gated_delta_rule.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

namespace {

namespace ps = polystate;
using bf16 = ps::bfloat16;

enum exit_status { right = 0, wrong = 1, failed = 2, no_gpu = 77 };

constexpr std::int64_t B = 2, T = 200, H = 4, D = 64;

void require(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

/// Memory that the host and the GPU both read: a real program keeps its tensors on the GPU.
template <class E>
class buffer {
 public:
  explicit buffer(std::int64_t size) : size_(size) {
    void* data = nullptr;
    require(cudaMallocManaged(&data, static_cast<std::size_t>(size) * sizeof(E)), "cudaMallocManaged");
    data_.reset(static_cast<E*>(data));
    for (std::int64_t i = 0; i < size; ++i) data_.get()[i] = E(0.0F);
  }

  buffer& uniform(std::mt19937& random, float low, float high) {
    std::uniform_real_distribution<float> number(low, high);
    for (std::int64_t i = 0; i < size_; ++i) data_.get()[i] = E(number(random));
    return *this;
  }

  [[nodiscard]] E* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  struct release {
    void operator()(E* data) const { cudaFree(data); }
  };
  std::int64_t size_;
  std::unique_ptr<E, release> data_;
};

/// The distance of what was computed from what is right, as a part of the latter.
template <class E>
double relative_error(const buffer<E>& computed, const buffer<E>& expected) {
  double distance = 0, length = 0;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const double a = static_cast<float>(computed.data()[i]), b = static_cast<float>(expected.data()[i]);
    distance += (a - b) * (a - b);
    length += b * b;
  }
  return std::sqrt(distance / length);
}

/// Operands of `tokens` tokens.
struct tokens {
  tokens(std::int64_t count, std::mt19937& random)
      : T(count), q(B * T * H * D), k(B * T * H * D), v(B * T * H * D), g(B * T * H), beta(B * T * H) {
    q.uniform(random, -1, 1);
    k.uniform(random, -1, 1);
    v.uniform(random, -1, 1);
    g.uniform(random, -0.1F, 0);
    beta.uniform(random, 0, 1);
  }
  std::int64_t T;
  buffer<bf16> q, k, v;
  buffer<float> g, beta;
};

struct results {
  buffer<bf16> o{B * T * H * D}, next_o{B * H * D};
  buffer<float> state{B * H * D * D};
};

ps::gated_delta_rule_args<bf16> prompt_args(const tokens& in, const results& out) {
  return {.q = {in.q.data(), {B, in.T, H, D}},
          .k = {in.k.data(), {B, in.T, H, D}},
          .v = {in.v.data(), {B, in.T, H, D}},
          .g = {in.g.data(), {B, in.T, H}},
          .beta = {in.beta.data(), {B, in.T, H}},
          .o = {out.o.data(), {B, in.T, H, D}},
          .final_state = {out.state.data(), {B, H, D, D}},
          .scale = 1 / std::sqrt(static_cast<double>(D)),
          .qk_l2norm = true};
}

ps::gated_delta_rule_step_args<bf16> step_args(const tokens& in, const results& out) {
  return {.q = {in.q.data(), {B, in.T, H, D}},
          .k = {in.k.data(), {B, in.T, H, D}},
          .v = {in.v.data(), {B, in.T, H, D}},
          .g = {in.g.data(), {B, in.T, H}},
          .beta = {in.beta.data(), {B, in.T, H}},
          .state = {out.state.data(), {B, H, D, D}},
          .o = {out.next_o.data(), {B, in.T, H, D}},
          .scale = 1 / std::sqrt(static_cast<double>(D)),
          .qk_l2norm = true};
}

exit_status run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return no_gpu;
  }
  std::mt19937 random(1);
  const tokens prompt(T, random), next(1, random);
  const results expected, computed;
  ps::gated_delta_rule(ps::on_reference{}, prompt_args(prompt, expected));
  ps::gated_delta_rule_step(ps::on_reference{}, step_args(next, expected));

  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream), "cudaStreamCreate");
  compiled_kernels::gated_delta_rule(stream, prompt_args(prompt, computed));
  compiled_kernels::gated_delta_rule_step(stream, step_args(next, computed));
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");

  // bfloat16 rounds each output to within 0.0039 of itself; the state is float.
  const double of_prompt = relative_error(computed.o, expected.o);
  const double of_step = relative_error(computed.next_o, expected.next_o);
  const double of_state = relative_error(computed.state, expected.state);
  std::printf("relative error of the prompt's outputs %.1e, of the step's %.1e, of the state %.1e\n", of_prompt,
              of_step, of_state);
  return of_prompt < 4e-3 && of_step < 4e-3 && of_state < 1e-4 ? right : wrong;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "compiled_kernels: %s\n", e.what());
    return failed;
  }
}
