// SPDX-License-Identifier: Apache-2.0

// The frame that every CUDA operator stands in: scratch memory, vectors, elementary functions.

#include "support/device.cuh"
#include "support/refusal.hpp"

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/vector.cuh>
#include <polystate/cuda/workspace.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace polystate::testing {

namespace cuda = polystate_detail::cuda;

template <class T>
struct copy_params {
  const T* from;
  T* strided;
  T* back;
};

// memory to vector to strided memory to vector to memory, and through float.
template <class T>
__global__ void copy_kernel(const __grid_constant__ copy_params<T> p) {
  constexpr int V = cuda::vector_elements<T>;
  const auto v = cuda::load_vector_read_only(p.from);
  cuda::scatter_vector(p.strided, 3, v);
  const auto w = cuda::gather_vector<T>(p.strided, 3);
  float x[V];
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = static_cast<float>(cuda::element_of(w, i));
  cuda::store_vector(p.back, cuda::round_to_vector<T>(x));
}

struct silu_params {
  const float* x;
  float* accurate;
  float* approximate;
  int n;
};
__global__ void silu_kernel(const __grid_constant__ silu_params p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.n; i += static_cast<int>(blockDim.x)) {
    p.accurate[i] = cuda::silu<float>(p.x[i]);
    p.approximate[i] = cuda::silu<bfloat16>(p.x[i]);
  }
}

namespace {

struct arrays {
  float* a;
  double* b;
  std::int8_t* c;
};
arrays carve(cuda::workspace_carver& from, std::int64_t n) {
  return {from.take<float>(n), from.take<double>(3 * n), from.take<std::int8_t>(1)};
}

TEST(CudaWorkspace, CountingAndHandingOutAgree) {
  for (const std::int64_t n : {0, 1, 64, 65, 1000}) {
    cuda::workspace_carver count;
    EXPECT_EQ(carve(count, n).a, nullptr);
    alignas(workspace_alignment) static std::byte memory[64 * 1024];
    cuda::workspace_carver hand_out(memory);
    const arrays got = carve(hand_out, n);
    EXPECT_EQ(count.bytes(), hand_out.bytes());
    const auto address = [](auto* p) { return reinterpret_cast<std::uintptr_t>(p); };
    for (const auto a : {address(got.a), address(got.b), address(got.c)}) EXPECT_EQ(a % workspace_alignment, 0u);
    EXPECT_GE(address(got.b), address(got.a + n));
    EXPECT_GE(address(got.c), address(got.b + 3 * n));
    EXPECT_LE(address(got.c + 1), address(memory) + hand_out.bytes());
  }
}

TEST(CudaWorkspace, CheckedAgainstTheNeed) {
  alignas(workspace_alignment) static std::byte memory[1024];
  const auto with = [](void* data, std::size_t bytes) { return on_cuda{.workspace = {data, bytes}}; };
  EXPECT_TRUE(cuda::check_workspace("op", on_cuda{}, 512).ok());
  EXPECT_TRUE(cuda::check_workspace("op", with(memory, 512), 512).ok());
  EXPECT_TRUE(refuses(cuda::check_workspace("op", with(memory, 511), 512), error_code::workspace, "exec.workspace",
                      "511 bytes, needed: 512"));
  EXPECT_TRUE(refuses(cuda::check_workspace("op", with(memory + 16, 512), 512), error_code::workspace, "exec.workspace",
                      "misaligned"));
  EXPECT_TRUE(
      refuses(cuda::check_workspace("op", with(nullptr, 512), 0), error_code::workspace, "exec.workspace", "null"));
}

TEST(CudaWorkspace, SanitizerScratchIsTheCallersOrAllocated) {
  const device_stream stream;
  const device_memory given(4096);
  const cuda::scratch mine("op", {.stream = stream, .workspace = {given.data(), given.bytes()}}, 4096);
  EXPECT_EQ(mine.data(), given.data());
  const cuda::scratch small("op", {.stream = stream, .workspace = {given.data(), given.bytes()}}, 4097);
  EXPECT_TRUE(refuses(small.result(), error_code::workspace, "exec.workspace", "needed: 4097"));
  EXPECT_EQ(small.data(), nullptr);
  {
    const cuda::scratch allocated("op", stream.exec(), 4096);
    ASSERT_TRUE(allocated.result().ok());
    EXPECT_EQ(cudaMemsetAsync(allocated.data(), 0, 4096, stream), cudaSuccess);
  }
  stream.synchronize();
  const cuda::scratch nothing("op", stream.exec(), 0);
  EXPECT_TRUE(nothing.result().ok());
  EXPECT_EQ(nothing.data(), nullptr);
}

TEST(CudaWorkspace, AllocationFailureIsAStatus) {
  const device_stream stream;
  const cuda::scratch huge("op", stream.exec(), std::size_t{1} << 50);
  EXPECT_TRUE(refuses(huge.result(), error_code::cuda, "scratch memory", "out of memory"));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// Allocation and return are nodes of the graph: it can be replayed.
TEST(CudaWorkspace, ScratchUnderCapture) {
  const device_stream stream;
  const device_memory out(64);
  const captured_graph graph(stream, [&] {
    const cuda::scratch s("op", stream.exec(), 64);
    ASSERT_TRUE(s.result().ok());
    POLYSTATE_CUDA_REQUIRE(cudaMemsetAsync(s.data(), 7, 64, stream));
    POLYSTATE_CUDA_REQUIRE(cudaMemcpyAsync(out.data(), s.data(), 64, cudaMemcpyDefault, stream));
  });
  for (int i = 0; i < 2; ++i) {
    POLYSTATE_CUDA_REQUIRE(cudaMemset(out.data(), 0, 64));
    graph.replay(stream);
    unsigned char got[64] = {};
    POLYSTATE_CUDA_REQUIRE(cudaMemcpy(got, out.data(), 64, cudaMemcpyDefault));
    for (const unsigned char c : got) EXPECT_EQ(c, 7);
  }
}

template <class T>
void expect_copies() {
  constexpr int V = cuda::vector_elements<T>;
  std::mt19937 rng(1);
  tensor<T, 1> values({V});
  values.uniform(rng, -100, 100);
  const device_tensor<T, 1> from(values);
  const device_tensor<T, 1> strided(tensor<T, 1>({3 * V}));
  const device_tensor<T, 1> back(tensor<T, 1>({V}));
  const copy_params<T> params{from.view().data(), strided.view().data(), back.view().data()};
  ASSERT_TRUE(cuda::launch("test", on_cuda{}, {.blocks = 1, .threads = 1}, copy_kernel<T>, params).ok());
  tensor<T, 1> got({V});
  back.download(got);
  tensor<T, 1> spread({3 * V});
  strided.download(spread);
  for (int i = 0; i < V; ++i) {
    EXPECT_EQ(static_cast<float>(got.view()(i)), static_cast<float>(values.view()(i))) << i;
    EXPECT_EQ(static_cast<float>(spread.view()(3 * i)), static_cast<float>(values.view()(i))) << i;
  }
  EXPECT_TRUE(got.untouched_outside());
}
TEST(CudaVector, SanitizerElementsKeepTheirPlaces) {
  expect_copies<float>();
  expect_copies<half>();
  expect_copies<bfloat16>();
}

// A few ulp for float, wherever the result is a normal number; enough for any rounding to 16 bits otherwise.
TEST(CudaMath, Silu) {
  std::vector<float> x;
  for (float a = -86; a < 86; a += 0.0137f) x.push_back(a);
  for (float a = 1e-30f; a < 1e30f; a *= 7) x.insert(x.end(), {a, -a});
  tensor<float, 1> host({static_cast<std::int64_t>(x.size())});
  host.assign(x);
  const device_tensor<float, 1> in(host);
  const device_tensor<float, 1> accurate(host);
  const device_tensor<float, 1> approximate(host);
  const silu_params params{in.view().data(), accurate.view().data(), approximate.view().data(),
                           static_cast<int>(x.size())};
  ASSERT_TRUE(cuda::launch("test", on_cuda{}, {.blocks = 1, .threads = 256}, silu_kernel, params).ok());
  tensor<float, 1> a = host;
  tensor<float, 1> b = host;
  accurate.download(a);
  approximate.download(b);
  double worst_accurate = 0;
  double worst_approximate = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    const double want = static_cast<double>(x[i]) / (1 + std::exp(-static_cast<double>(x[i])));
    const double scale = std::max(std::abs(want), 0x1p-100);
    const double magnitude = std::max(std::abs(static_cast<double>(x[i])), 0x1p-100);
    ASSERT_TRUE(std::isfinite(a.view()(n)) && std::isfinite(b.view()(n))) << x[i];
    worst_accurate = std::max(worst_accurate, std::abs(static_cast<double>(a.view()(n)) - want) / scale);
    worst_approximate = std::max(worst_approximate, std::abs(static_cast<double>(b.view()(n)) - want) / magnitude);
  }
  EXPECT_LT(worst_accurate, 4 * 0x1p-23);
  EXPECT_LT(worst_approximate, 4 * 0x1p-23);
  std::printf("silu: %.2f ulp for float; for 16 bits %.2f ulp of x\n", worst_accurate * 0x1p23,
              worst_approximate * 0x1p23);
}

}  // namespace
}  // namespace polystate::testing
