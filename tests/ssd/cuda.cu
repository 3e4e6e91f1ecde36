// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of ssd against the reference.

#include "ssd/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/tail.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace polystate::testing {
namespace {

template <class Data>
class SsdCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(SsdCuda, element_types);

// bugs B017, B026, B064, B076, B077, B079, B083, B085, B089: any length, head dims, layout, grouping and option.
TYPED_TEST(SsdCuda, RandomProblems) {
  std::mt19937 rng(71);
  const std::vector<std::int64_t> head_dims = {1, 3, 5, 8, 16, 24, 32, 33, 64, 65, 96, 128, 130};
  for (int i = 0; i < 120; ++i) {
    const ssd_shape s =
        random_ssd_shape(rng, {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130}, head_dims);
    const ssd_problem<TypeParam> p(s, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", heads " << s.G << ' '
                                      << s.H << ", P " << s.P << ", N " << s.N << ", sequences " << s.lengths.size()
                                      << ", z " << s.z << ", order " << s.memory.order[0] << s.memory.order[1]
                                      << s.memory.order[2] << s.memory.order[3] << " + " << s.memory.pad);
    expect_reference(p, rng() % 8 == 0 ? 1 : 0);
    if (this->HasFailure()) return;  // one report is enough
  }
}

// Every padded N, and P of more than one block.
TYPED_TEST(SsdCuda, LargeHeadDims) {
  std::mt19937 rng(72);
  for (const auto& [P, N] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {64, 128}, {64, 192}, {512, 256}, {20, 257}, {512, 512}, {7, 500}, {512, 32}, {200, 64}}) {
    SCOPED_TRACE(::testing::Message() << "P " << P << ", N " << N);
    expect_reference(ssd_problem<TypeParam>(ssd_shape{.B = 1, .T = 21, .H = 2, .G = 1, .P = P, .N = N}, rng));
  }
}

// bugs B058, B061
TYPED_TEST(SsdCuda, StatesInEveryType) {
  std::mt19937 rng(73);
  const ssd_shape s{.B = 2, .T = 30, .H = 2, .G = 1, .P = 24, .N = 32};
  expect_reference(ssd_problem<TypeParam, half>(s, rng));
  expect_reference(ssd_problem<TypeParam, bfloat16>(s, rng));
}

// bugs B055: steps from 0 to huge, decays from 1 to 0.
TYPED_TEST(SsdCuda, HardSteps) {
  std::mt19937 rng(74);
  for (const bool softplus : {false, true}) {
    ssd_problem<TypeParam> p(
        ssd_shape{
            .B = 1, .T = 48, .H = 2, .G = 1, .P = 8, .N = 8, .z = false, .dt_bias = softplus, .dt_softplus = softplus},
        rng);
    const std::vector<double> hard = softplus ? std::vector<double>{-100, -20, 0, 19.9, 20.1, 100, 1e4}
                                              : std::vector<double>{0, 1e-6, 0.5, 20, 1000};
    std::size_t i = 0;
    p.dt.for_each([&](TypeParam& x) { x = static_cast<TypeParam>(hard[i++ % hard.size()]); });
    expect_reference(p);
  }
}

// bugs B008, B010, B011: long, and more batch entries times heads than a grid has rows.
TYPED_TEST(SsdCuda, LongAndMany) {
  std::mt19937 rng(75);
  expect_reference(ssd_problem<TypeParam>(ssd_shape{.B = 1, .T = 70000, .H = 1, .G = 1, .P = 4, .N = 8}, rng));
  expect_reference(ssd_problem<TypeParam>(ssd_shape{.B = 10923, .T = 2, .H = 6, .G = 2, .P = 2, .N = 4}, rng));
}

// bugs B005, B007: offsets past 2^32.
TYPED_TEST(SsdCuda, StridesPast2To32) {
  std::mt19937 rng(76);
  const std::int64_t far = (std::int64_t{1} << 32) + 8;
  const std::int64_t strides[4] = {0, far, 16, 1};
  const ssd_problem<TypeParam> p(ssd_shape{.B = 1, .T = 2, .H = 1, .G = 1, .P = 16, .N = 16}, rng);
  using spread = spread_tensor<TypeParam, 4>;
  if (!device_has_free(2 * spread::bytes(p.x, strides) + (std::size_t{1} << 28))) {
    GTEST_SKIP() << "needs " << 2 * spread::bytes(p.x, strides) << " bytes";
  }
  const device_ssd<TypeParam> device(p);
  auto args = device.args();
  const spread x(p.x, strides);
  const spread y(p.y, strides);
  args.x = x.view();
  args.y = y.view();
  ssd(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  y.download(got.y);
  judge(got, p);
}

// bugs B017, B095: handed over at any cut, in place.
TYPED_TEST(SsdCuda, SplitAndResumeInPlace) {
  std::mt19937 rng(77);
  using problem = ssd_problem<TypeParam>;
  const problem p(ssd_shape{.B = 2, .T = 70, .H = 2, .G = 1, .P = 20, .N = 24}, rng);
  for (const std::int64_t cut : {0, 1, 3, 4, 16, 63, 64, 70}) {
    device_ssd<TypeParam> device(p);
    device.in_place = true;
    ssd(on_cuda{}, problem::part(device.args(), 1, 0, cut));
    ssd(on_cuda{}, problem::part(device.args(), 1, cut, 70));
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    problem parts = p;
    device.download(parts);
    SCOPED_TRACE(::testing::Message() << "cut at " << cut);
    judge(parts, p);
  }
}

// bugs B113: same bits every time, in any company, in any memory order.
TYPED_TEST(SsdCuda, SameBits) {
  std::mt19937 rng(78);
  using problem = ssd_problem<TypeParam>;
  ssd_shape s{.B = 3, .T = 45, .H = 4, .G = 2, .P = 40, .N = 64};
  const problem p(s, rng);
  const device_ssd<TypeParam> device(p);
  const auto once = on_device(p, device);
  EXPECT_TRUE(bitwise_equal(on_device(p, device).y, once.y));
  auto alone = problem::part(device.args(), 0, 1, 2);
  alone.initial_state = alone.initial_state.slice(0, 1, 2);
  alone.final_state = alone.final_state.slice(0, 1, 2);
  ssd(on_cuda{}, alone);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem again = p;
  device.download(again);
  EXPECT_TRUE(bitwise_equal(again.y, once.y));
  EXPECT_TRUE(bitwise_equal(again.final_state, once.final_state));

  rng.seed(78);
  s.memory = {{0, 2, 3, 1}, 3};
  s.state_memory = {{0, 1, 3, 2}, 0};
  const auto strided = on_device(problem(s, rng));
  EXPECT_TRUE(bitwise_equal(strided.y, once.y));
  EXPECT_TRUE(bitwise_equal(strided.final_state, once.final_state));
}

// bugs B109, B112: a NaN stays in its sequence, in the heads that read it, and in its own and later tokens.
TYPED_TEST(SsdCuda, NanStaysInItsHead) {
  std::mt19937 rng(79);
  ssd_problem<TypeParam> p(ssd_shape{.B = 2, .T = 40, .H = 4, .G = 2, .P = 8, .N = 16}, rng);
  const auto clean = on_device(p);
  p.B.view()(1, 21, 1, 3) = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < 8; ++i) {
          const bool reached = b == 1 && h >= 2 && t >= 21;
          const auto x = static_cast<float>(spoilt.y.view()(b, t, h, i));
          ASSERT_EQ(std::isnan(x), reached) << b << ' ' << t << ' ' << h;
          if (!reached) {
            ASSERT_EQ(x, static_cast<float>(clean.y.view()(b, t, h, i)));
          }
        }
      }
    }
  }
}

// bugs B116, B118: graphs, streams, threads.
TYPED_TEST(SsdCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(80);
  const ssd_problem<TypeParam> p(ssd_shape{.B = 2, .T = 40, .H = 2, .G = 2, .P = 32, .N = 32}, rng);
  const auto want = on_device(p);
  device_ssd<TypeParam> device(p);
  const device_stream stream;
  const captured_graph graph(stream, [&] { ssd(stream.exec(), device.args()); });
  for (int i = 0; i < 2; ++i) {
    device.y.upload(p.y);  // poison again
    graph.replay(stream);
    auto got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.y, want.y));
  }
  const device_stream other;
  device_ssd<TypeParam> second(p);
  device.y.upload(p.y);
  ssd(stream.exec(), device.args());
  std::thread([&] { ssd(other.exec(), second.args()); }).join();
  stream.synchronize();
  other.synchronize();
  for (const auto* d : {&device, &second}) {
    auto got = p;
    d->download(got);
    EXPECT_TRUE(bitwise_equal(got.y, want.y));
  }
}

// bugs B166: tokens behind the last offset are of no sequence: their outputs are 0.
TYPED_TEST(SsdCuda, RowsOfNoSequence) {
  std::mt19937 rng(85);
  const ssd_problem<TypeParam> whole(ssd_shape{.B = 1, .T = 48, .H = 2, .G = 1, .P = 20, .N = 24, .lengths = {20, 28}},
                                     rng);
  auto cut = whole;
  cut.cu_seqlens.assign({0, 20, 31});
  const auto run = [](ssd_problem<TypeParam> p) {
    const device_ssd<TypeParam> device(p);
    ssd(on_cuda{}, device.args());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    device.download(p);
    return p;
  };
  EXPECT_TRUE(cleared_from(31, run(cut).y, run(whole).y));
}

// Devices with less shared memory run other tiles, to the same values.
TYPED_TEST(SsdCuda, LessSharedMemory) {
  std::mt19937 rng(86);
  for (const std::size_t kib : {99, 163}) {
    const on_cuda exec{.shared_memory_limit = kib * 1024};
    for (const std::int64_t N : {64, 128, 200, 512}) {
      const ssd_problem<TypeParam> p(ssd_shape{.B = 2, .T = 37, .H = 40, .G = 1, .P = 70, .N = N}, rng);
      const device_ssd<TypeParam> device(p);
      SCOPED_TRACE(::testing::Message() << kib << " KiB, N " << N);
      ssd(exec, device.args());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      auto got = p;
      device.download(got);
      judge(got, p);
    }
  }
}

// dims<P, N> runs what dims<> chooses, and refuses other shapes.
TYPED_TEST(SsdCuda, FixedDims) {
  std::mt19937 rng(84);
  const auto same = [&]<int P, int N>(dims<P, N>) {
    for (const std::int64_t H : {1, 80}) {  // few blocks, and more than a GPU has multiprocessors
      const ssd_problem<TypeParam> p(ssd_shape{.B = 2, .T = 30, .H = H, .G = 1, .P = P, .N = N}, rng);
      const device_ssd<TypeParam> device(p);
      const device_ssd<TypeParam> fixed(p);
      ssd(on_cuda{}, device.args());
      ssd<dims<P, N>>(on_cuda{}, fixed.args());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      auto want = p;
      auto got = p;
      device.download(want);
      fixed.download(got);
      EXPECT_TRUE(bitwise_equal(got.y, want.y)) << "P " << P << ", N " << N << ", H " << H;
      EXPECT_TRUE(
          refuses(try_ssd<dims<P, N + 1>>(on_cuda{}, device.args()), error_code::unsupported, "x", "supported: dims<"));
    }
  };
  same(dims<64, 128>{});
  same(dims<20, 40>{});
}

// bugs B121: two threads whose launches of one kernel ask for different amounts of shared memory.
TEST(SsdCudaFrame, SharedMemoryOfTwoThreads) {
  std::mt19937 rng(81);
  const ssd_shape small{.B = 1, .T = 9, .H = 1, .G = 1, .P = 16, .N = 512, .z = false};
  const ssd_shape large{.B = 1, .T = 9, .H = 1, .G = 1, .P = 16, .N = 512};
  const ssd_problem<half> p(small, rng);
  const ssd_problem<float> q(large, rng);
  const device_ssd<half> device_p(p);
  const device_ssd<float> device_q(q);
  const auto repeat = [](const auto& device) {
    const device_stream stream;
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(try_ssd(stream.exec(), device.args()).ok());
    stream.synchronize();
  };
  std::thread other([&] { repeat(device_p); });
  repeat(device_q);
  other.join();
}

TEST(SsdCudaFrame, Refusals) {
  std::mt19937 rng(82);
  const ssd_problem<float> p(ssd_shape{.B = 1, .T = 9, .H = 1, .G = 1, .P = 4, .N = 8, .lengths = {4, 5}}, rng);
  const device_ssd<float> device(p);
  auto args = device.args();
  args.B = {args.B.data(), {1, 9, 1, 513}, {0, 0, 0, 0}};
  args.C = args.B;
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "B", "N = 513, supported: 1 to 512"));
  alignas(256) static char scratch[512];
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = {scratch + 8, 64}}, device.args()), error_code::workspace,
                      "exec.workspace", "misaligned"));
  EXPECT_TRUE(validate(on_cuda{}, device.args()).ok());
  auto spoilt = p;
  spoilt.cu_seqlens.assign({0, 12, 9});
  const device_ssd<float> bad(spoilt);
  EXPECT_TRUE(check(on_cuda{}, bad.args()).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, bad.args()), error_code::value, "cu_seqlens", "entry 2 is 9"));
  ssd(on_cuda{}, bad.args());  // clamped: no access leaves the operands
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// Small ones for the sanitizers.
TYPED_TEST(SsdCuda, SanitizerForward) {
  std::mt19937 rng(83);
  for (const auto& memory : {row_major<4>(), layout<4>{{0, 2, 3, 1}, 3}}) {
    expect_reference(
        ssd_problem<TypeParam>(ssd_shape{.B = 1, .T = 21, .H = 2, .G = 1, .P = 24, .N = 40, .memory = memory}, rng));
    expect_reference(ssd_problem<TypeParam>(
        ssd_shape{
            .B = 1, .T = 11, .H = 1, .G = 1, .P = 40, .N = 130, .z = false, .lengths = {3, 0, 8}, .memory = memory},
        rng));
  }
}

}  // namespace
}  // namespace polystate::testing
