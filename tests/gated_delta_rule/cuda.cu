// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of the delta family against the reference.

#include "gated_delta_rule/cuda_problem.cuh"
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
class GatedDeltaRuleCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(GatedDeltaRuleCuda, element_types);

const std::vector<std::int64_t> every_length = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130};

// bugs B014, B017, B026, B028, B046, B079, B083, B085: any length, head dims, layout, grouping, rule and option.
TYPED_TEST(GatedDeltaRuleCuda, RandomProblems) {
  std::mt19937 rng(41);
  const std::vector<std::int64_t> head_dims = {1, 3, 5, 8, 16, 24, 32, 33, 64, 65, 96, 128, 130};
  for (int i = 0; i < 120; ++i) {
    const delta_shape s = random_delta_shape(rng, every_length, head_dims);
    with_any_rule(rng, [&]<class Rule>(Rule) {
      delta_problem<TypeParam, Rule> p(s, rng);
      if (rng() % 4 == 0) forget_at_times(p, rng);
      SCOPED_TRACE(::testing::Message() << "problem " << i << ": " << Rule::name << ", B " << s.B << ", T " << s.T
                                        << ", heads " << s.HK << ' ' << s.HV << ", dk " << s.dk << ", dv " << s.dv
                                        << ", sequences " << s.lengths.size() << ", normalised " << s.qk_l2norm
                                        << ", g_min " << s.g_min << ", order " << s.memory.order[0] << s.memory.order[1]
                                        << s.memory.order[2] << s.memory.order[3] << " + " << s.memory.pad);
      expect_reference(p, rng() % 8 == 0 ? 1 : 0);
    });
    if (this->HasFailure()) return;  // one report is enough
  }
}

// Every padded key dim, and value dims of more than one block.
TYPED_TEST(GatedDeltaRuleCuda, LargeHeadDims) {
  std::mt19937 rng(42);
  for (const auto& [dk, dv] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {129, 40}, {192, 64}, {256, 512}, {257, 20}, {512, 512}, {500, 7}, {32, 512}, {64, 200}, {128, 256}}) {
    SCOPED_TRACE(::testing::Message() << "dk " << dk << ", dv " << dv);
    const delta_shape s{.B = 1, .T = 21, .HK = 1, .HV = 2, .dk = dk, .dv = dv, .qk_l2norm = true};
    expect_reference(delta_problem<TypeParam, rule::gated_delta>(s, rng));
    expect_reference(delta_problem<TypeParam, rule::gated>(s, rng));
  }
}

TYPED_TEST(GatedDeltaRuleCuda, StatesInEveryType) {
  std::mt19937 rng(43);
  const delta_shape s{.B = 2, .T = 30, .HK = 1, .HV = 2, .dk = 32, .dv = 24};
  expect_reference(delta_problem<TypeParam, rule::gated_delta, half>(s, rng));
  expect_reference(delta_problem<TypeParam, rule::gated_delta, bfloat16>(s, rng));
}

// bugs B038, B040, B041, B043, B044, B047, B049: decays of every strength, also beside each other in one chunk.
TYPED_TEST(GatedDeltaRuleCuda, DecayOfAnyStrength) {
  std::mt19937 rng(44);
  const std::vector<std::vector<float>> patterns = {
      {-20}, {-3}, {-1000, -1e-4f}, {-80, -1e-4f, -1e-4f, -1e-4f, -1e-4f}, {0}, {-0.1f}, {-INFINITY, 0, 0, -INFINITY}};
  for (const auto& pattern : patterns) {
    delta_problem<TypeParam, rule::gated_delta> p(
        delta_shape{.B = 1, .T = 100, .HK = 1, .HV = 2, .dk = 16, .dv = 16, .qk_l2norm = true}, rng);
    std::size_t i = 0;
    p.g.for_each([&](float& g) { g = pattern[i++ % pattern.size()]; });
    SCOPED_TRACE(::testing::Message() << "decays from " << pattern.front());
    expect_reference(p);
  }
}

// bugs B002, B011, B044, B088: long sequences, and one of them among short ones.
TYPED_TEST(GatedDeltaRuleCuda, LongSequences) {
  std::mt19937 rng(45);
  expect_reference(delta_problem<TypeParam, rule::gated_delta>(
      delta_shape{.B = 1, .T = 70000, .HK = 1, .HV = 1, .dk = 8, .dv = 4, .qk_l2norm = true}, rng));
  expect_reference(delta_problem<TypeParam, rule::gated_delta>(
      delta_shape{
          .B = 1, .T = 3010, .HK = 1, .HV = 2, .dk = 16, .dv = 8, .qk_l2norm = true, .lengths = {2, 0, 3000, 1, 7}},
      rng));
}

// bugs B008, B010: more batch entries times heads than a grid has rows.
TYPED_TEST(GatedDeltaRuleCuda, MoreThan65535Heads) {
  std::mt19937 rng(46);
  expect_reference(delta_problem<TypeParam, rule::gated_delta>(
      delta_shape{.B = 10923, .T = 2, .HK = 6, .HV = 6, .dk = 4, .dv = 2}, rng));
}

// bugs B002, B004, B005, B007: offsets past 2^32.
TYPED_TEST(GatedDeltaRuleCuda, StridesPast2To32) {
  std::mt19937 rng(47);
  const std::int64_t far = (std::int64_t{1} << 32) + 8;
  const std::int64_t strides[4] = {0, far, 16, 1};
  const delta_problem<TypeParam, rule::gated_delta> p(delta_shape{.B = 1, .T = 2, .HK = 1, .HV = 1, .dk = 16, .dv = 16},
                                                      rng);
  using spread = spread_tensor<TypeParam, 4>;
  if (!device_has_free(2 * spread::bytes(p.k, strides) + (std::size_t{1} << 28))) {
    GTEST_SKIP() << "needs " << 2 * spread::bytes(p.k, strides) << " bytes";
  }
  const device_delta<TypeParam, rule::gated_delta> device(p);
  auto args = device.args();
  const spread k(p.k, strides);
  const spread o(p.o, strides);
  args.k = k.view();
  args.o = o.view();
  gated_delta_rule(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  o.download(got.o);
  judge(got, p);
}

// bugs B017, B095, B115: handed over at any cut, in place.
TYPED_TEST(GatedDeltaRuleCuda, SplitAndResumeInPlace) {
  std::mt19937 rng(48);
  using problem = delta_problem<TypeParam, rule::gated_delta>;
  const problem p(delta_shape{.B = 2, .T = 70, .HK = 1, .HV = 2, .dk = 24, .dv = 20}, rng);
  for (const std::int64_t cut : {0, 1, 3, 4, 16, 63, 64, 70}) {
    device_delta<TypeParam, rule::gated_delta> device(p);
    device.in_place = true;
    gated_delta_rule(on_cuda{}, problem::part(device.args(), 1, 0, cut));
    gated_delta_rule(on_cuda{}, problem::part(device.args(), 1, cut, 70));
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    problem parts = p;
    device.download(parts);
    SCOPED_TRACE(::testing::Message() << "cut at " << cut);
    judge(parts, p);
  }
}

// bugs B113: how many sequences come together decides how many warps share a state, and no bit.
TYPED_TEST(GatedDeltaRuleCuda, SameBitsWhateverWalks) {
  std::mt19937 rng(50);
  using problem = delta_problem<TypeParam, rule::gated_delta>;
  const problem p(delta_shape{.B = 9, .T = 45, .HK = 4, .HV = 8, .dk = 100, .dv = 130, .qk_l2norm = true}, rng);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  const auto all = on_device(p, device);
  for (const std::int64_t together : {1, 4}) {
    auto some = problem::part(device.args(), 0, 0, together);
    some.initial_state = some.initial_state.slice(0, 0, together);
    some.final_state = some.final_state.slice(0, 0, together);
    gated_delta_rule(on_cuda{}, some);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    problem again = p;
    device.download(again);
    EXPECT_TRUE(bitwise_equal(again.o, all.o)) << together << " together";
    EXPECT_TRUE(bitwise_equal(again.final_state, all.final_state)) << together << " together";
  }
}

// bugs B113: same bits every time, in any company, in any memory order.
TYPED_TEST(GatedDeltaRuleCuda, SameBits) {
  std::mt19937 rng(49);
  using problem = delta_problem<TypeParam, rule::gated_delta>;
  delta_shape s{.B = 3, .T = 45, .HK = 2, .HV = 4, .dk = 64, .dv = 40, .qk_l2norm = true};
  const problem p(s, rng);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  const auto once = on_device(p, device);
  EXPECT_TRUE(bitwise_equal(on_device(p, device).o, once.o));
  auto alone = problem::part(device.args(), 0, 1, 2);
  alone.initial_state = alone.initial_state.slice(0, 1, 2);
  alone.final_state = alone.final_state.slice(0, 1, 2);
  gated_delta_rule(on_cuda{}, alone);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem again = p;
  device.download(again);
  EXPECT_TRUE(bitwise_equal(again.o, once.o));
  EXPECT_TRUE(bitwise_equal(again.final_state, once.final_state));

  rng.seed(49);
  s.memory = {{0, 2, 3, 1}, 3};
  s.state_memory = {{0, 1, 3, 2}, 0};
  const auto strided = on_device(problem(s, rng));
  EXPECT_TRUE(bitwise_equal(strided.o, once.o));
  EXPECT_TRUE(bitwise_equal(strided.final_state, once.final_state));
}

// bugs B109, B112: a NaN stays in its sequence, in the heads that read it, and in its own and later tokens.
TYPED_TEST(GatedDeltaRuleCuda, NanStaysInItsHead) {
  std::mt19937 rng(50);
  delta_problem<TypeParam, rule::gated_delta> p(delta_shape{.B = 2, .T = 40, .HK = 2, .HV = 4, .dk = 16, .dv = 8}, rng);
  const auto clean = on_device(p);
  p.k.view()(1, 21, 1, 3) = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < 8; ++i) {
          const bool reached = b == 1 && h >= 2 && t >= 21;
          const auto x = static_cast<float>(spoilt.o.view()(b, t, h, i));
          ASSERT_EQ(std::isnan(x), reached) << b << ' ' << t << ' ' << h;
          if (!reached) {
            ASSERT_EQ(x, static_cast<float>(clean.o.view()(b, t, h, i)));
          }
        }
      }
    }
  }
}

// bugs B175: an infinite state stays and reads as what the definition makes of it, and reaches no other row.
TYPED_TEST(GatedDeltaRuleCuda, InfiniteState) {
  std::mt19937 rng(51);
  delta_problem<TypeParam, rule::gated> p(delta_shape{.B = 1, .T = 3, .HK = 1, .HV = 1, .dk = 8, .dv = 4}, rng);
  p.initial_state.view()(0, 0, 1, 2) = std::numeric_limits<float>::infinity();
  judge(on_device(p), p);
}

// bugs B175: where nothing is written nothing is added, not even 0 times what has left the range of float.
TYPED_TEST(GatedDeltaRuleCuda, NothingIsAddedWhereNothingIsWritten) {
  std::mt19937 rng(55);
  delta_problem<TypeParam, rule::gated_delta> p(delta_shape{.B = 1, .T = 40, .HK = 1, .HV = 1, .dk = 1, .dv = 1}, rng);
  const auto all = [](auto& tensor, double value) {
    for_each(tensor.view(), [&](auto& x) { x = static_cast<std::remove_reference_t<decltype(x)>>(value); });
  };
  all(p.g, 5);
  all(p.beta, 0);
  all(p.q, 1);
  all(p.k, 1);
  all(p.initial_state, 1);
  const auto got = on_device(p);
  for (std::int64_t t = 0; t < 40; ++t) {
    const auto o = static_cast<double>(got.o.view()(0, t, 0, 0));
    const double state = std::exp(5.0 * static_cast<double>(t + 1));
    if (state > 1e39) EXPECT_TRUE(std::isinf(o) && o > 0) << "token " << t;
    if (state < 1e4) EXPECT_NEAR(o / (p.scale * state), 1.0, 0.01) << "token " << t;
    EXPECT_FALSE(std::isnan(o)) << "token " << t;
  }
  EXPECT_TRUE(std::isinf(got.final_state.view()(0, 0, 0, 0)));
}

// Squares that leave the range of float: the contract's limit on CUDA, which validate() finds.
TYPED_TEST(GatedDeltaRuleCuda, RowsThatFloatCannotSquare) {
  if (std::is_same_v<TypeParam, half>) return;  // of half every square fits
  std::mt19937 rng(56);
  delta_problem<TypeParam, rule::gated_delta> p(
      delta_shape{.B = 2, .T = 5, .HK = 2, .HV = 2, .dk = 3, .dv = 2, .qk_l2norm = true}, rng);
  EXPECT_TRUE(validate(on_cuda{}, device_delta<TypeParam, rule::gated_delta>(p).args()).ok());
  auto large = p;
  large.q.view()(1, 3, 0, 1) = static_cast<TypeParam>(2e19f);
  EXPECT_TRUE(refuses(validate(on_cuda{}, device_delta<TypeParam, rule::gated_delta>(large).args()), error_code::value,
                      "q", "row (1, 3, 0) is inf, supported on_cuda: 0, or 1e-30 to 1e+38"));
  auto small = p;
  const auto validated = [&] {
    const device_delta<TypeParam, rule::gated_delta> device(small);
    auto args = device.args();
    args.l2norm_eps = 0;
    return validate(on_cuda{}, args);
  };
  for (std::int64_t i = 0; i < 3; ++i) small.k.view()(0, 4, 1, i) = static_cast<TypeParam>(1e-25f);
  EXPECT_TRUE(refuses(validated(), error_code::value, "k", "row (0, 4, 1)"));
  for (std::int64_t i = 0; i < 3; ++i) small.k.view()(0, 4, 1, i) = static_cast<TypeParam>(0.0f);
  EXPECT_TRUE(validated().ok());
}

// bugs B179: a launch that asks for more shared memory than a kernel has without asking leaves the user's last error
// alone.
TYPED_TEST(GatedDeltaRuleCuda, LastErrorOfTheUser) {
  std::mt19937 rng(57);
  const delta_problem<TypeParam, rule::gated_delta> p(
      delta_shape{.B = 1, .T = 20, .HK = 1, .HV = 1, .dk = 128, .dv = 128}, rng);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
    EXPECT_TRUE(try_gated_delta_rule(on_cuda{}, device.args()).ok());
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// bugs B166: tokens behind the last offset are of no sequence: their outputs are 0.
TYPED_TEST(GatedDeltaRuleCuda, RowsOfNoSequence) {
  std::mt19937 rng(58);
  const delta_problem<TypeParam, rule::gated_delta> whole(
      delta_shape{.B = 1, .T = 48, .HK = 1, .HV = 2, .dk = 24, .dv = 20, .lengths = {20, 28}}, rng);
  auto cut = whole;
  cut.cu_seqlens.assign({0, 20, 31});
  EXPECT_TRUE(cleared_from(31, on_device(cut).o, on_device(whole).o));
}

// Devices with less shared memory run other tiles, to the same values, or refuse what has no room.
TYPED_TEST(GatedDeltaRuleCuda, LessSharedMemory) {
  std::mt19937 rng(59);
  for (const std::size_t kib : {99, 163}) {
    const on_cuda exec{.shared_memory_limit = kib * 1024};
    for (const std::int64_t dk : {64, 128, 200, 256, 512}) {
      const delta_problem<TypeParam, rule::gated_delta> p(
          delta_shape{.B = 2, .T = 37, .HK = 10, .HV = 20, .dk = dk, .dv = 70, .qk_l2norm = true}, rng);
      const device_delta<TypeParam, rule::gated_delta> device(p);
      SCOPED_TRACE(::testing::Message() << kib << " KiB, dk " << dk);
      if (kib == 99 && dk == 512) {
        EXPECT_TRUE(refuses(check(exec, device.args()), error_code::unsupported, "q", "up to 101376"));
        continue;
      }
      gated_delta_rule(exec, device.args());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      auto got = p;
      device.download(got);
      judge(got, p);
    }
  }
}
TYPED_TEST(GatedDeltaRuleCuda, SanitizerLessSharedMemory) {
  std::mt19937 rng(60);
  const delta_problem<TypeParam, rule::gated_delta> p(
      delta_shape{.B = 1, .T = 21, .HK = 1, .HV = 1, .dk = 256, .dv = 20}, rng);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  gated_delta_rule(on_cuda{.shared_memory_limit = std::size_t{99} * 1024}, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  judge(got, p);
}

TYPED_TEST(GatedDeltaRuleCuda, FixedDims) {
  std::mt19937 rng(52);
  const delta_problem<TypeParam, rule::gated_delta> p(
      delta_shape{.B = 1, .T = 20, .HK = 1, .HV = 1, .dk = 64, .dv = 32}, rng);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  gated_delta_rule<dims<64, 32>>(on_cuda{}, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  judge(got, p);
  EXPECT_TRUE(refuses(try_gated_delta_rule<dims<64, 64>>(on_cuda{}, device.args()), error_code::unsupported, "q",
                      "dk, dv = 64, 32"));
}

// bugs B116, B118: graphs, streams, threads.
TYPED_TEST(GatedDeltaRuleCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(53);
  const delta_problem<TypeParam, rule::gated_delta> p(
      delta_shape{.B = 2, .T = 40, .HK = 2, .HV = 2, .dk = 32, .dv = 32}, rng);
  const auto want = on_device(p);
  device_delta<TypeParam, rule::gated_delta> device(p);
  const device_stream stream;
  const captured_graph graph(stream, [&] { gated_delta_rule(stream.exec(), device.args()); });
  for (int i = 0; i < 2; ++i) {
    device.o.upload(p.o);  // poison again
    graph.replay(stream);
    auto got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.o, want.o));
  }
  const device_stream other;
  device_delta<TypeParam, rule::gated_delta> second(p);
  device.o.upload(p.o);
  gated_delta_rule(stream.exec(), device.args());
  std::thread([&] { gated_delta_rule(other.exec(), second.args()); }).join();
  stream.synchronize();
  other.synchronize();
  for (const auto* d : {&device, &second}) {
    auto got = p;
    d->download(got);
    EXPECT_TRUE(bitwise_equal(got.o, want.o));
  }
}

TEST(GatedDeltaRuleCudaFrame, Refusals) {
  std::mt19937 rng(54);
  using problem = delta_problem<float, rule::gated_delta>;
  const problem p(delta_shape{.B = 1, .T = 9, .HK = 1, .HV = 1, .dk = 8, .dv = 4, .lengths = {4, 5}}, rng);
  const device_delta<float, rule::gated_delta> device(p);
  auto args = device.args();
  args.q = {args.q.data(), {1, 9, 1, 513}, {0, 0, 0, 0}};
  args.k = args.q;
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "q", "dk = 513, supported: 1 to 512"));
  args = device.args();
  args.v = {args.v.data(), {1, 9, 1, 513}, {0, 0, 0, 0}};
  tensor<float, 4> wide({1, 9, 1, 513});
  args.o = wide.view();
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "v", "dv = 513, supported: 1 to 512"));
  alignas(256) static char scratch[512];
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = {scratch + 8, 64}}, device.args()), error_code::workspace,
                      "exec.workspace", "misaligned"));
  EXPECT_TRUE(validate(on_cuda{}, device.args()).ok());
  auto spoilt = p;
  spoilt.cu_seqlens.assign({0, 12, 9});
  const device_delta<float, rule::gated_delta> bad(spoilt);
  EXPECT_TRUE(check(on_cuda{}, bad.args()).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, bad.args()), error_code::value, "cu_seqlens", "entry 2 is 9"));
  gated_delta_rule(on_cuda{}, bad.args());  // clamped: no access leaves the operands
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// Small ones for the sanitizers.
TYPED_TEST(GatedDeltaRuleCuda, SanitizerForward) {
  std::mt19937 rng(55);
  for (const auto& memory : {row_major<4>(), layout<4>{{0, 2, 3, 1}, 3}}) {
    expect_reference(delta_problem<TypeParam, rule::gated_delta>(
        delta_shape{.B = 1, .T = 21, .HK = 1, .HV = 2, .dk = 40, .dv = 24, .qk_l2norm = true, .memory = memory}, rng));
    expect_reference(delta_problem<TypeParam, rule::linear>(
        delta_shape{.B = 1, .T = 11, .HK = 1, .HV = 1, .dk = 130, .dv = 40, .lengths = {3, 0, 8}, .memory = memory},
        rng));
  }
}

}  // namespace
}  // namespace polystate::testing
