// SPDX-License-Identifier: Apache-2.0
// Each unit launches on the stream 0 that it was built for. While the thread's stream is captured, work on it is
// recorded, and work on the stream of the whole process is an error that ends the capture. bugs B178.

#include "stream_unit.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ps = polystate;

namespace {

struct BuildTags : testing::Test {
  void SetUp() override { ASSERT_EQ(cudaMalloc(&memory, 8 * sizeof(float)), cudaSuccess); }
  void TearDown() override { EXPECT_EQ(cudaFree(memory), cudaSuccess); }

  [[nodiscard]] ps::causal_conv1d_args<float> args() const {
    auto* values = static_cast<float*>(memory);
    return {.x = {values, {1, 3, 1}}, .weight = {values + 3, {1, 2}}, .y = {values + 5, {1, 3, 1}}};
  }

  void* memory = nullptr;
};

}  // namespace

TEST_F(BuildTags, TheStreamOfTheThreadIsCaptured) {
  ASSERT_EQ(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const ps::status said = second::convolve(args());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(cudaStreamPerThread, &graph), cudaSuccess);
  EXPECT_TRUE(said.ok()) << said.message();
  std::size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_GE(nodes, 1U);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(BuildTags, TheStreamOfTheProcessIsNot) {
  ASSERT_EQ(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const ps::status said = first::convolve(args());
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(cudaStreamPerThread, &graph), cudaSuccess);
  EXPECT_EQ(said.code, ps::error_code::cuda) << said.message();
  (void)cudaGetLastError();
}
