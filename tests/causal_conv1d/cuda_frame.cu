// SPDX-License-Identifier: Apache-2.0

// What a call on CUDA promises beside its numbers: streams, graphs, threads, workspaces, errors. In bfloat16.

#include "causal_conv1d/cuda_problem.cuh"
#include "support/refusal.hpp"

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace polystate::testing {
namespace {

using Data = bfloat16;

conv_problem<Data> packed_problem(std::mt19937& rng) {
  return {conv_shape{.B = 1, .T = 64, .D = 32, .W = 4, .lengths = {20, 0, 3, 41}, .memory = channel_last}, rng};
}

// bugs B010, B116, B127: captured once, replayed on contents that change between replays, cu_seqlens among them.
TEST(CausalConv1dCudaFrame, GraphReplaysReadCurrentContents) {
  std::mt19937 rng(1);
  const device_stream stream;
  conv_problem<Data> p = packed_problem(rng);
  device_conv<Data> device(p);
  const captured_graph graph(stream, [&] { causal_conv1d(stream.exec(), device.args()); });
  p.y.poison();
  device.y.upload(p.y);
  for (int replay = 0; replay < 2; ++replay) {
    conv_problem<Data> now = packed_problem(rng);
    now.weight = p.weight;
    now.bias = p.bias;
    now.initial_state = p.initial_state;
    if (replay == 1) now.cu_seqlens.assign({0, 1, 32, 33, 64});
    device.x.upload(now.x);
    device.cu_seqlens.upload(now.cu_seqlens);
    graph.replay(stream);
    device.download(now);
    EXPECT_TRUE(bitwise_equal(now.y, on_device(now).y)) << "replay " << replay;
    EXPECT_TRUE(bitwise_equal(now.final_state, on_device(now).final_state)) << "replay " << replay;
  }
}

TEST(CausalConv1dCudaFrame, StepsUnderCaptureAdvanceTheState) {
  std::mt19937 rng(2);
  const device_stream stream;
  conv_problem<Data> p(conv_shape{.B = 3, .T = 4, .D = 16, .W = 4}, rng);
  const device_conv<Data> whole(p);
  causal_conv1d(on_cuda{}, whole.args());
  const device_conv<Data> stepped(p);
  const captured_graph graph(stream, [&] {
    for (std::int64_t t = 0; t < 4; ++t) {
      const auto a = stepped.args();
      causal_conv1d_step(stream.exec(), causal_conv1d_step_args<Data>{.x = a.x.slice(1, t, t + 1),
                                                                      .weight = a.weight,
                                                                      .bias = a.bias,
                                                                      .state = stepped.initial_state.view(),
                                                                      .y = a.y.slice(1, t, t + 1),
                                                                      .act = a.act});
    }
  });
  graph.replay(stream);
  conv_problem<Data> a = p;
  conv_problem<Data> b = p;
  whole.download(a);
  stepped.y.download(b.y);
  EXPECT_TRUE(bitwise_equal(a.y, b.y));
}

// Nothing is launched on a stream that the caller did not name, and nothing waits.
TEST(CausalConv1dCudaFrame, TwoStreamsAndTwoThreads) {
  std::mt19937 rng(3);
  constexpr int callers = 2;
  std::vector<conv_problem<Data>> problems;
  for (int i = 0; i < callers; ++i) {
    problems.emplace_back(conv_shape{.B = 4, .T = 512, .D = 256, .W = 4, .memory = channel_last}, rng);
  }
  const device_stream streams[callers];
  std::vector<device_conv<Data>> devices;
  devices.reserve(callers);
  for (const auto& p : problems) devices.emplace_back(p);
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.emplace_back([&, i] {
      const auto n = static_cast<std::size_t>(i);
      for (int repeat = 0; repeat < 20; ++repeat) causal_conv1d(streams[i].exec(), devices[n].args());
    });
  }
  for (auto& t : threads) t.join();
  for (int i = 0; i < callers; ++i) {
    const auto n = static_cast<std::size_t>(i);
    streams[i].synchronize();
    devices[n].download(problems[n]);
    EXPECT_TRUE(bitwise_equal(problems[n].y, on_device(problems[n]).y));
  }
}

TEST(CausalConv1dCudaFrame, RunsOnTheStreamGiven) {  // bugs B118
  std::mt19937 rng(4);
  const conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  for (const cudaStream_t stream : {cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
    EXPECT_TRUE(try_causal_conv1d(on_cuda{.stream = stream}, device.args()).ok());
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  // A call on one stream while another is captured in global mode must not reach the other.
  const device_stream captured;
  const device_stream other;
  POLYSTATE_CUDA_REQUIRE(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  EXPECT_TRUE(try_causal_conv1d(other.exec(), device.args()).ok());
  cudaGraph_t graph = nullptr;
  POLYSTATE_CUDA_REQUIRE(cudaStreamEndCapture(captured, &graph));
  std::size_t nodes = 1;
  POLYSTATE_CUDA_REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 0u);
  POLYSTATE_CUDA_REQUIRE(cudaGraphDestroy(graph));
  other.synchronize();
}

TEST(CausalConv1dCudaFrame, WorkspaceIsLeftAlone) {  // bugs B134
  std::mt19937 rng(5);
  conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  EXPECT_EQ(workspace_bytes(on_cuda{}, device.args()), 0u);
  tensor<std::int32_t, 1> pattern({1024});
  pattern.uniform(rng, 0, 1e9);
  const device_tensor<std::int32_t, 1> memory(pattern);
  auto* aligned = reinterpret_cast<std::byte*>(memory.view().data());  // a guard of 64 ints: 256 bytes
  const auto exec = [&](std::ptrdiff_t offset) {
    return on_cuda{.workspace = {.data = aligned + offset, .bytes = 1024}};
  };
  expect_reference(p, device, exec(0));
  EXPECT_TRUE(memory.unchanged());
  EXPECT_TRUE(
      refuses(try_causal_conv1d(exec(8), device.args()), error_code::workspace, "exec.workspace", "misaligned"));
  EXPECT_TRUE(refuses(try_causal_conv1d(on_cuda{.workspace = {.data = nullptr, .bytes = 16}}, device.args()),
                      error_code::workspace, "exec.workspace", "null"));
  EXPECT_THROW(causal_conv1d(exec(8), device.args()), argument_error);
}

// A refused call writes nothing.
TEST(CausalConv1dCudaFrame, RefusedCallsWriteNothing) {
  std::mt19937 rng(6);
  const conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  auto args = device.args();
  args.weight = args.weight.slice(0, 0, 31);
  EXPECT_TRUE(refuses(try_causal_conv1d(on_cuda{}, args), error_code::shape, "weight", "supported: (D, W)"));
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  EXPECT_TRUE(device.y.unchanged());
  EXPECT_TRUE(device.final_state.unchanged());
}

TEST(CausalConv1dCudaFrame, StreamOfAnotherDevice) {  // bugs B119
  int devices = 0;
  POLYSTATE_CUDA_REQUIRE(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "one device";
  std::mt19937 rng(7);
  const conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  POLYSTATE_CUDA_REQUIRE(cudaSetDevice(1));
  {
    const device_stream elsewhere;
    POLYSTATE_CUDA_REQUIRE(cudaSetDevice(0));
    EXPECT_TRUE(
        refuses(try_causal_conv1d(elsewhere.exec(), device.args()), error_code::device, "exec.stream", "device 1"));
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// bugs B013: a refused launch is a status, once; neither it nor an earlier error of the user's gets lost or
// stays.
TEST(CausalConv1dCudaFrame, LaunchFailureIsAStatus) {
  std::mt19937 rng(8);
  const conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  const auto params = polystate_detail::cuda::conv1d::make_params(device.args(), 1);
  const polystate_detail::cuda::grid impossible{.blocks = 1, .threads = 128, .shared_bytes = std::size_t{1} << 24};
  const auto kernel = polystate_detail::cuda::conv1d::causal_conv1d_general_fwd_kernel<Data>;
  const status s = polystate_detail::cuda::launch("causal_conv1d", on_cuda{}, impossible, kernel, params);
  EXPECT_TRUE(refuses(s, error_code::cuda, "launch", cudaGetErrorString(cudaErrorInvalidValue)));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(raise_on_error(s), cuda_error);

  const polystate_detail::cuda::grid no_such_block{.blocks = 1, .threads = 4096};
  EXPECT_TRUE(refuses(polystate_detail::cuda::launch("causal_conv1d", on_cuda{}, no_such_block, kernel, params),
                      error_code::cuda, "launch", "invalid"));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);

  const polystate_detail::cuda::grid too_many{.blocks = std::int64_t{1} << 31, .threads = 128};
  EXPECT_TRUE(refuses(polystate_detail::cuda::launch("causal_conv1d", on_cuda{}, too_many, kernel, params),
                      error_code::unsupported, "grid", "2147483648 blocks"));

  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);  // the user's error, not yet asked for
  EXPECT_TRUE(try_causal_conv1d(on_cuda{}, device.args()).ok());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// Contents that validate() refuses stay inside the operands: under a memory checker too.
TEST(CausalConv1dCudaFrame, SanitizerInvalidContentsStayInside) {
  std::mt19937 rng(9);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const auto& cu : std::vector<std::vector<std::int32_t>>{
             {5, 9, 20, 30, 64}, {-7, 900, 3, 70, 64}, {64, 64, 64, 64, 64}, {0, 40, 20, 50, 10}, {0, 0, 0, 0, 0}}) {
      conv_problem<Data> p(conv_shape{.B = 1, .T = 64, .D = 32, .W = 4, .lengths = {20, 0, 3, 41}, .memory = memory},
                           rng);
      p.cu_seqlens.assign(cu);
      const device_conv<Data> device(p);
      EXPECT_TRUE(refuses(validate(on_cuda{}, device.args()), error_code::value, "cu_seqlens", "entry"));
      EXPECT_TRUE(try_causal_conv1d(on_cuda{}, device.args()).ok());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      device.download(p);
      EXPECT_TRUE(p.y.untouched_outside());
      EXPECT_TRUE(p.final_state.untouched_outside());
    }
  }
}

TEST(CausalConv1dCudaFrame, ValidateReadsTheContents) {
  std::mt19937 rng(10);
  const device_stream stream;
  conv_problem<Data> p = packed_problem(rng);
  const device_conv<Data> device(p);
  EXPECT_TRUE(validate(stream.exec(), device.args()).ok());
  // Every other entry of an operand twice as long.
  const device_tensor<std::int32_t, 1> sparse([] {
    tensor<std::int32_t, 1> t({9});
    t.assign({0, -1, 20, -1, 20, -1, 23, -1, 64});
    return t;
  }());
  auto args = device.args();
  args.cu_seqlens = {sparse.view().data(), {5}, {2}};
  EXPECT_TRUE(validate(stream.exec(), args).ok());
  causal_conv1d(stream.exec(), args);
  stream.synchronize();
  device.download(p);
  EXPECT_TRUE(bitwise_equal(p.y, on_device(p).y));
  args.cu_seqlens = {sparse.view().data(), {5}};
  EXPECT_TRUE(refuses(validate(stream.exec(), args), error_code::value, "cu_seqlens", "entry 1 is -1"));

  status during;
  const captured_graph graph(stream, [&] { during = validate(stream.exec(), device.args()); });
  EXPECT_TRUE(refuses(during, error_code::unsupported, "exec.stream", "captured"));
}

TEST(CausalConv1dCudaFrame, ValidateReadsPoolIndices) {
  conv_step_problem<Data> p;
  p.x = tensor<Data, 3>({3, 1, 8});
  p.y = tensor<Data, 3>({3, 1, 8});
  p.weight = tensor<float, 2>({8, 4});
  p.state = tensor<Data, 3>({6, 3, 8});
  p.read_indices = tensor<std::int32_t, 1>({3});
  p.write_indices = tensor<std::int32_t, 1>({3});
  const auto judge = [&](const std::vector<std::int32_t>& read, const std::vector<std::int32_t>& write) {
    p.read_indices.assign(read);
    p.write_indices.assign(write);
    return validate(on_cuda{}, device_conv_step<Data>(p).args());
  };
  EXPECT_TRUE(judge({0, -1, 2}, {3, 4, -1}).ok());
  EXPECT_TRUE(refuses(judge({0, 6, 2}, {3, 4, 5}), error_code::value, "read_indices", "entry 1 is 6"));
  EXPECT_TRUE(refuses(judge({0, 1, 2}, {3, 4, 3}), error_code::value, "write_indices", "slot 3"));
  EXPECT_TRUE(refuses(judge({0, 1, 2}, {3, 0, 5}), error_code::value, "read_indices", "slot 0"));
}

// An index outside the pool is padding to the kernels: no access leaves the pool.
TEST(CausalConv1dCudaFrame, SanitizerIndicesOutsideThePool) {
  std::mt19937 rng(11);
  for (const std::int64_t D : {3, 16}) {
    conv_step_problem<Data> p;
    p.x = tensor<Data, 3>({3, 2, D}).uniform(rng, -1, 1);
    p.y = tensor<Data, 3>({3, 2, D});
    p.weight = tensor<float, 2>({D, 4}).uniform(rng, -1, 1);
    p.state = tensor<Data, 3>({3, 3, D}).uniform(rng, -1, 1);
    p.read_indices = tensor<std::int32_t, 1>({3});
    p.read_indices.assign({1, 1000000, -2000000});
    const device_conv_step<Data> device(p);
    causal_conv1d_step(on_cuda{}, device.args());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    conv_step_problem<Data> got = p;
    device.download(got);
    p.read_indices.assign({1, -1, -1});
    const device_conv_step<Data> as_padding(p);
    causal_conv1d_step(on_cuda{}, as_padding.args());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    as_padding.download(p);
    EXPECT_TRUE(bitwise_equal(got.y, p.y));
    EXPECT_TRUE(bitwise_equal(got.state, p.state));
  }
}

// bugs B037: x as the transpose of [D, T] memory, y split over three outputs.
TEST(CausalConv1dCudaFrame, TransposedInputSplitOutputs) {
  std::mt19937 rng(12);
  conv_problem<Data> p(conv_shape{.B = 1, .T = 5, .D = 6, .W = 4, .memory = channel_first}, rng);
  const device_conv<Data> device(p);
  std::vector<device_tensor<Data, 3>> parts;
  parts.reserve(3);
  for (std::int64_t i = 0; i < 3; ++i) {
    parts.emplace_back(tensor<Data, 3>({1, 5, 2}));
    auto args = device.args();
    args.x = args.x.slice(2, 2 * i, 2 * i + 2);
    args.weight = args.weight.slice(0, 2 * i, 2 * i + 2);
    args.bias = args.bias.slice(0, 2 * i, 2 * i + 2);
    args.initial_state = args.initial_state.slice(2, 2 * i, 2 * i + 2);
    args.final_state = {};
    args.y = parts.back().view();
    causal_conv1d(on_cuda{}, args);
  }
  const auto want = on_device(p);
  for (std::int64_t i = 0; i < 3; ++i) {
    tensor<Data, 3> got({1, 5, 2});
    parts[static_cast<std::size_t>(i)].download(got);
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t d = 0; d < 2; ++d) {
        EXPECT_EQ(got.view()(0, t, d).bits, want.y.view()(0, t, 2 * i + d).bits);
      }
    }
  }
}

// bugs B032: columns of a projection whose row length divides by nothing.
TEST(CausalConv1dCudaFrame, SliceOfAWideProjection) {
  std::mt19937 rng(13);
  conv_problem<Data> p(conv_shape{.B = 2, .T = 33, .D = 256, .W = 4}, rng);
  const tensor<Data, 3> projection = tensor<Data, 3>({2, 33, 385}).uniform(rng, -2, 2);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 33; ++t) {
      for (std::int64_t d = 0; d < 256; ++d) p.x.view()(b, t, d) = projection.view()(b, t, 64 + d);
    }
  }
  const device_conv<Data> device(p);
  const device_tensor<Data, 3> wide(projection);
  auto args = device.args();
  args.x = wide.view().slice(2, 64, 320);
  causal_conv1d(on_cuda{}, args);
  conv_problem<Data> got = p;
  device.download(got);
  EXPECT_TRUE(bitwise_equal(got.y, on_device(p).y));
}

// bugs B094, B101 by hand: separate slots, the shared one intact; rollback is a copy of an intermediate
// state.
TEST(CausalConv1dCudaFrame, SlotsAndRollbackByHand) {
  conv_step_problem<float> p;
  p.weight = tensor<float, 2>({1, 4});
  p.weight.assign({1, 10, 100, 1000});
  p.state = tensor<float, 3>({8, 3, 1});
  for (std::int64_t r = 0; r < 3; ++r) p.state.view()(5, r, 0) = static_cast<float>(r + 1);
  p.read_indices = tensor<std::int32_t, 1>({1});
  p.read_indices.assign({5});
  p.write_indices = tensor<std::int32_t, 1>({1});
  p.write_indices.assign({7});
  const auto step = [&](const std::vector<float>& x) {
    const auto T = static_cast<std::int64_t>(x.size());
    auto now = p;
    now.x = tensor<float, 3>({1, T, 1});
    now.x.assign(x);
    now.y = tensor<float, 3>({1, T, 1});
    now.intermediate_states = tensor<float, 4>({1, T, 3, 1});
    const device_conv_step<float> device(now);
    causal_conv1d_step(on_cuda{}, device.args());
    device.download(now);
    return now;
  };
  const auto slot = [](const conv_step_problem<float>& of, std::int64_t s) {
    const auto v = of.state.view();
    return std::vector<float>{v(s, 0, 0), v(s, 1, 0), v(s, 2, 0)};
  };
  using values = std::vector<float>;
  const auto none = step({});
  EXPECT_EQ(slot(none, 7), (values{1, 2, 3}));
  const auto one = step({4});
  EXPECT_EQ(one.y.values(), (values{4321}));
  EXPECT_EQ(slot(one, 7), (values{2, 3, 4}));
  const auto two = step({4, 5});
  EXPECT_EQ(two.y.values(), (values{4321, 5432}));
  EXPECT_EQ(slot(two, 7), (values{3, 4, 5}));
  for (const auto* p_after : {&none, &one, &two}) EXPECT_EQ(slot(*p_after, 5), (values{1, 2, 3}));

  const auto drafts = step({4, 8, 8, 8});  // one accepted
  const auto kept = drafts.intermediate_states.view();
  for (std::int64_t r = 0; r < 3; ++r) p.state.view()(5, r, 0) = kept(0, 0, r, 0);
  EXPECT_EQ(step({5}).y.values(), (values{5432}));
}

}  // namespace
}  // namespace polystate::testing
