// SPDX-License-Identifier: Apache-2.0

// The CUDA scan against the reference, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "selective_scan/oracle.hpp"
#include "support/compare.hpp"
#include "support/device.cuh"
#include "support/refusal.hpp"

#include <polystate/cuda/selective_scan.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;
using detail::cuda::scan::access;

/// c of the elementwise bound. A decay is exp2 of a rounded product, 2 ulp, and errors of dt reach every later token
/// through the states, which the magnitude follows.
constexpr double scan_bound = 64;

constexpr layout<3> channel_last = {{0, 1, 2}, 0};
constexpr layout<3> channel_first = {{0, 2, 1}, 0};
constexpr layout<4> group_last = {{0, 1, 2, 3}, 0};
constexpr layout<4> time_last = {{0, 2, 3, 1}, 0};

template <class State>
struct device_scan {
  device_tensor<Data, 3> u, delta, z, y;
  device_tensor<Data, 4> B, C;
  device_tensor<float, 2> A;
  device_tensor<float, 1> D, delta_bias;
  device_tensor<State, 3> initial_state, final_state;
  device_tensor<std::int32_t, 1> cu_seqlens;
  bool delta_softplus;
  bool in_place = false;  ///< final_state is initial_state itself

  explicit device_scan(const scan_problem<Data, State>& p, std::int64_t u_off = 0)
      : u(p.u, u_off),
        delta(p.delta),
        z(p.z),
        y(p.y),
        B(p.B),
        C(p.C),
        A(p.A),
        D(p.D),
        delta_bias(p.delta_bias),
        initial_state(p.initial_state),
        final_state(p.final_state),
        cu_seqlens(p.cu_seqlens),
        delta_softplus(p.delta_softplus) {}

  [[nodiscard]] selective_scan_args<Data, State> args() const {
    return {.u = u.view(),
            .delta = delta.view(),
            .A = A.view(),
            .B = B.view(),
            .C = C.view(),
            .D = D.view(),
            .z = z.view(),
            .delta_bias = delta_bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = in_place ? initial_state.view() : final_state.view(),
            .delta_softplus = delta_softplus};
  }
  void download(scan_problem<Data, State>& p) const {
    y.download(p.y);
    (in_place ? initial_state : final_state).download(p.final_state);
  }
};

/// Runs the problem on the device.
template <class State>
scan_problem<Data, State> on_device(scan_problem<Data, State> p, const device_scan<State>& device,
                                    const on_cuda& exec = {}) {
  selective_scan(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}
template <class State>
scan_problem<Data, State> on_device(const scan_problem<Data, State>& p) {
  return on_device(p, device_scan<State>(p));
}

template <class State>
void judge(const scan_problem<Data, State>& got, const scan_problem<Data, State>& p) {
  scan_problem<double> want = p.in_double();
  run_reference(want);
  const scan_problem<double> m = magnitudes(p.in_double());
  EXPECT_TRUE(within_elementwise_bound(got.y, want.y, m.y, scan_bound));
  EXPECT_TRUE(got.y.untouched_outside());
  if (!p.final_state) return;
  EXPECT_TRUE(within_elementwise_bound(got.final_state, want.final_state, m.final_state, scan_bound));
  EXPECT_TRUE(got.final_state.untouched_outside());
}

template <class State = float>
void expect_reference(const scan_problem<Data, State>& p, std::int64_t u_off = 0, const on_cuda& exec = {}) {
  const device_scan<State> device(p, u_off);
  judge(on_device(p, device, exec), p);
  EXPECT_TRUE(device.u.unchanged() && device.B.unchanged() && device.initial_state.unchanged());
}

template <class T>
const T& pick(const std::vector<T>& from, std::mt19937& rng) {
  return from[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(rng)];
}
bool coin(std::mt19937& rng) { return (rng() & 1u) != 0; }

// bugs B025, B026, B064, B070, B079, B083, B085: any length, N, layout, grouping, option; every access and split.
TEST(SelectiveScanCuda, RandomProblems) {
  std::mt19937 rng(21);
  std::set<access> accesses;
  std::set<std::pair<int, int>> splits;
  const std::vector<layout<3>> layouts = {channel_last, channel_first, {{0, 1, 2}, 3}, {{0, 2, 1}, 8}, {{2, 1, 0}, 0}};
  const std::vector<layout<4>> group_layouts = {group_last, time_last, {{0, 1, 2, 3}, 1}, {{3, 2, 1, 0}, 0}};
  for (int i = 0; i < 150; ++i) {
    const bool softplus = coin(rng);
    const std::int64_t G = pick<std::int64_t>({1, 1, 2, 3}, rng);
    scan_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
                 .T = pick<std::int64_t>({0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 64, 100, 129}, rng),
                 .D = G * pick<std::int64_t>({1, 5, 8, 16, 64, 72}, rng),
                 .G = G,
                 .N = pick<std::int64_t>({1, 3, 8, 16, 16, 20, 32, 64, 100, 128, 200, 256}, rng),
                 .initial_state = coin(rng),
                 .final_state = coin(rng),
                 .skip = coin(rng),
                 .z = coin(rng),
                 .delta_bias = softplus && coin(rng),  // without softplus it would make steps negative
                 .delta_softplus = softplus,
                 .memory = pick(layouts, rng),
                 .group_memory = pick(group_layouts, rng)};
    if (rng() % 3 == 0) {
      s.B = 1;
      for (auto rest = static_cast<std::int32_t>(s.T); rest > 0;) {
        s.lengths.push_back(std::min(rest, pick<std::int32_t>({0, 1, 5, 8, 40}, rng)));
        rest -= s.lengths.back();
      }
      s.lengths.push_back(0);
    }
    const scan_problem<Data> p(s, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", D " << s.D << ", G "
                                      << s.G << ", N " << s.N << ", sequences " << s.lengths.size() << ", order "
                                      << s.memory.order[0] << s.memory.order[1] << s.memory.order[2]);
    const auto schedule = detail::cuda::scan::choose_schedule(device_scan<float>(p).args(), s.sequences(), 132, false);
    accesses.insert(schedule.access);
    splits.insert({schedule.lanes.lanes, schedule.lanes.states});
    expect_reference(p, rng() % 8 == 0 ? 1 : 0);
    if (HasFailure()) return;  // one report is enough
  }
  EXPECT_EQ(accesses.size(), 4u) << "the sweep must reach every access";
  EXPECT_GE(splits.size(), 5u);
}

// The splits that only many channels choose.
TEST(SelectiveScanCuda, EverySplit) {
  std::mt19937 rng(22);
  for (const auto& split : detail::cuda::scan::splits) {
    for (const auto& memory : {channel_last, channel_first}) {
      const scan_problem<Data> p(scan_shape{.B = 1, .T = 72, .D = 136, .G = 1, .N = split.capacity(), .memory = memory},
                                 rng);
      const device_scan<float> device(p);
      auto params = detail::cuda::scan::make_params(device.args(), on_cuda{}, 132);
      params.schedule.lanes = split;
      params.schedule.group_tiles = detail::cuda::tiles_of(136, detail::cuda::scan::channels_of(split));
      params.schedule.blocks = params.schedule.group_tiles;
      ASSERT_TRUE(detail::cuda::scan::launch_forward("test", on_cuda{}, params).ok());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      scan_problem<Data> got = p;
      device.download(got);
      SCOPED_TRACE(::testing::Message() << split.lanes << " lanes of " << split.states);
      judge(got, p);
    }
  }
}

TEST(SelectiveScanCuda, ManyChannelsAndLongTime) {
  std::mt19937 rng(23);
  expect_reference(scan_problem<Data>(scan_shape{.B = 2, .T = 40, .D = 8200, .G = 1, .N = 16}, rng));
  expect_reference(scan_problem<Data>(scan_shape{.B = 1, .T = 20000, .D = 8, .G = 1, .N = 16}, rng));
  // bugs B008, B010: more batch entries and channels than a grid has rows
  expect_reference(scan_problem<Data>(scan_shape{.B = 70000, .T = 1, .D = 1, .G = 1, .N = 2}, rng));
}

// bugs B058: states in any type.
TEST(SelectiveScanCuda, StatesInEveryType) {
  std::mt19937 rng(24);
  const scan_shape s{.B = 2, .T = 50, .D = 24, .G = 1, .N = 16};
  expect_reference(scan_problem<Data, half>(s, rng));
  expect_reference(scan_problem<Data, bfloat16>(s, rng));
}

TEST(SelectiveScanCuda, StatesInPlaceSplitAndResume) {
  std::mt19937 rng(25);
  const scan_problem<Data> p(scan_shape{.B = 2, .T = 70, .D = 16, .G = 2, .N = 16}, rng);
  const scan_problem<Data> whole = on_device(p);
  device_scan<float> device(p);
  device.in_place = true;
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 33}, {33, 33}, {33, 70}}) {
    selective_scan(on_cuda{}, scan_problem<Data>::part(device.args(), 1, begin, end));
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  scan_problem<Data> parts = p;
  device.download(parts);
  judge(parts, p);
  EXPECT_TRUE(bitwise_equal(parts.final_state, whole.final_state));  // a token's sums do not depend on its tile
  EXPECT_TRUE(bitwise_equal(parts.y, whole.y));
}

// bugs B113, B115: same bits every time; with batch_invariant also in any company.
TEST(SelectiveScanCuda, RepeatableAndBatchInvariant) {
  std::mt19937 rng(26);
  const scan_problem<Data> p(scan_shape{.B = 3, .T = 45, .D = 64, .G = 1, .N = 16}, rng);
  const device_scan<float> device(p);
  const on_cuda exec{.batch_invariant = true};
  const auto once = on_device(p, device, exec);
  EXPECT_TRUE(bitwise_equal(on_device(p, device, exec).y, once.y));
  auto alone = device.args();
  alone = scan_problem<Data>::part(alone, 0, 1, 2);
  alone.initial_state = alone.initial_state.slice(0, 1, 2);
  alone.final_state = alone.final_state.slice(0, 1, 2);
  selective_scan(exec, alone);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  scan_problem<Data> again = p;
  device.download(again);
  EXPECT_TRUE(bitwise_equal(again.y, once.y));
}

// bugs B109, B112: a NaN stays in its sequence and channel.
TEST(SelectiveScanCuda, NanStaysInItsChannel) {
  std::mt19937 rng(27);
  scan_problem<Data> p(scan_shape{.B = 2, .T = 40, .D = 16, .G = 1, .N = 16}, rng);
  const auto clean = on_device(p);
  p.u.view()(1, 5, 3) = static_cast<Data>(std::numeric_limits<float>::quiet_NaN());
  const auto spoilt = on_device(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t d = 0; d < 16; ++d) {
        const bool reached = b == 1 && d == 3 && t >= 5;
        EXPECT_EQ(std::isnan(static_cast<float>(spoilt.y.view()(b, t, d))), reached);
        if (!reached) {
          EXPECT_EQ(static_cast<float>(spoilt.y.view()(b, t, d)), static_cast<float>(clean.y.view()(b, t, d)));
        }
      }
    }
  }
}

// bugs B055: steps from 0 to huge, decays from 1 to 0.
TEST(SelectiveScanCuda, HardSteps) {
  std::mt19937 rng(28);
  for (const bool softplus : {false, true}) {
    scan_problem<Data> p(
        scan_shape{
            .B = 1, .T = 48, .D = 8, .G = 1, .N = 8, .z = false, .delta_bias = softplus, .delta_softplus = softplus},
        rng);
    const std::vector<double> hard = softplus ? std::vector<double>{-100, -20, 0, 19.9, 20.1, 100, 1e4}
                                              : std::vector<double>{0, 1e-6, 0.5, 20, 1000};
    std::size_t i = 0;
    p.delta.for_each([&](Data& x) { x = static_cast<Data>(hard[i++ % hard.size()]); });
    expect_reference(p);
  }
}

// The step is the forward, token for token: 1 to 8 tokens a call, a pool of slots, a padding row, intermediate states.
template <class State>
void step_equals_forward(std::int64_t N, std::int64_t tokens) {
  std::mt19937 rng(29);
  const scan_problem<Data, State> p(scan_shape{.B = 3, .T = 8, .D = 20, .G = 2, .N = N}, rng);
  scan_problem<double> want = p.in_double();
  run_reference(want);
  const scan_problem<double> m = magnitudes(p.in_double());

  tensor<State, 3> pool({6, 20, N});
  const std::vector<std::int32_t> slots = {4, 0, 3};
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t d = 0; d < 20; ++d) {
      for (std::int64_t n = 0; n < N; ++n)
        pool.view()(slots[static_cast<std::size_t>(b)], d, n) = p.initial_state.view()(b, d, n);
    }
  }
  tensor<std::int32_t, 1> read({3}), padded({3});
  read.assign(slots);
  padded.assign({4, -1, 3});
  const device_scan<State> device(p);
  const device_tensor<State, 3> device_pool(pool);
  const device_tensor<std::int32_t, 1> device_read(read), device_padded(padded);
  tensor<State, 4> between({3, 8, 20, N});
  const device_tensor<State, 4> device_between(between);
  for (std::int64_t t = 0; t < 8; t += tokens) {
    auto step = scan_problem<Data, State>::step_of(scan_problem<Data, State>::part(device.args(), 1, t, t + tokens));
    step.state = device_pool.view();
    step.read_indices = device_read.view();
    step.intermediate_states = device_between.view().slice(1, t, t + tokens);
    selective_scan_step(on_cuda{}, step);
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  scan_problem<Data, State> got = p;
  device.download(got);
  device_pool.download(pool);
  device_between.download(between);
  EXPECT_TRUE(pool.untouched_outside() && between.untouched_outside());
  // A 16-bit pool rounds the state after every call.
  const double rounding = std::is_same_v<State, float> ? scan_bound : 8 * roundoff<State>::unit / roundoff<float>::unit;
  EXPECT_TRUE(within_elementwise_bound(got.y, want.y, m.y, rounding));
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t d = 0; d < 20; ++d) {
      for (std::int64_t n = 0; n < N; ++n) {
        const auto last = static_cast<float>(pool.view()(slots[static_cast<std::size_t>(b)], d, n));
        EXPECT_NEAR(last, want.final_state.view()(b, d, n),
                    rounding * roundoff<float>::unit * m.final_state.view()(b, d, n) +
                        roundoff<State>::unit * std::abs(want.final_state.view()(b, d, n)));
        EXPECT_EQ(static_cast<float>(between.view()(b, 7, d, n)), last);
        EXPECT_TRUE(std::isnan(static_cast<float>(pool.view()(1, d, n)))) << "an unused slot was written";
      }
    }
  }

  // bugs B106: a padding row writes zeros and nothing else.
  auto step = scan_problem<Data, State>::step_of(scan_problem<Data, State>::part(device.args(), 1, 0, tokens));
  step.state = device_pool.view();
  step.read_indices = device_padded.view();
  selective_scan_step(on_cuda{}, step);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  tensor<State, 3> after = pool;
  device_pool.download(after);
  device.download(got);
  for (std::int64_t d = 0; d < 20; ++d) {
    for (std::int64_t t = 0; t < tokens; ++t) EXPECT_EQ(static_cast<float>(got.y.view()(1, t, d)), 0.0f);
    for (std::int64_t n = 0; n < N; ++n) {
      EXPECT_EQ(static_cast<float>(after.view()(0, d, n)), static_cast<float>(pool.view()(0, d, n)));
    }
  }
}
TEST(SelectiveScanCuda, StepEqualsForward) {
  for (const std::int64_t N : {1, 5, 16, 64, 256}) {
    for (const std::int64_t tokens : {1, 2, 8}) {
      SCOPED_TRACE(::testing::Message() << "N " << N << ", tokens " << tokens);
      step_equals_forward<float>(N, tokens);
    }
  }
  step_equals_forward<bfloat16>(16, 4);
}

TEST(SelectiveScanCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(30);
  const scan_problem<Data> p(scan_shape{.B = 2, .T = 40, .D = 64, .G = 1, .N = 16}, rng);
  const auto want = on_device(p);
  device_scan<float> device(p);
  const device_stream stream;
  const captured_graph graph(stream, [&] { selective_scan(stream.exec(), device.args()); });
  for (int i = 0; i < 2; ++i) {
    device.y.upload(p.y);  // poison again
    graph.replay(stream);
    scan_problem<Data> got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.y, want.y));
  }
  const device_stream other;
  device_scan<float> second(p);
  device.y.upload(p.y);
  selective_scan(stream.exec(), device.args());
  std::thread([&] { selective_scan(other.exec(), second.args()); }).join();
  stream.synchronize();
  other.synchronize();
  for (const auto* d : {&device, &second}) {
    scan_problem<Data> got = p;
    d->download(got);
    EXPECT_TRUE(bitwise_equal(got.y, want.y));
  }
}

TEST(SelectiveScanCuda, Refusals) {
  std::mt19937 rng(31);
  const scan_problem<Data> p(scan_shape{.B = 1, .T = 9, .D = 8, .G = 1, .N = 16, .lengths = {4, 5}}, rng);
  const device_scan<float> device(p);
  auto args = device.args();
  args.A = {args.A.data(), {8, 257}, {0, 0}};
  args.B = {args.B.data(), {1, 9, 1, 257}, {0, 0, 0, 0}};
  args.C = args.B;
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args), error_code::unsupported, "A", "N = 257, supported: 1 to 256"));
  alignas(256) static char scratch[512];
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = {scratch + 8, 64}}, device.args()), error_code::workspace,
                      "exec.workspace", "misaligned"));
  EXPECT_TRUE(validate(on_cuda{}, device.args()).ok());
  auto spoilt = p;
  spoilt.cu_seqlens.assign({0, 12, 9});
  const device_scan<float> bad(spoilt);
  EXPECT_TRUE(check(on_cuda{}, bad.args()).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, bad.args()), error_code::value, "cu_seqlens", "entry 2 is 9"));
  selective_scan(on_cuda{}, bad.args());  // clamped: no access leaves the operands
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// Small ones for the sanitizers.
TEST(SelectiveScanCuda, SanitizerForward) {
  std::mt19937 rng(32);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 3}}) {
    expect_reference(scan_problem<Data>(scan_shape{.B = 1, .T = 37, .D = 10, .G = 2, .N = 16, .memory = memory}, rng));
  }
  expect_reference(
      scan_problem<Data>(scan_shape{.B = 1, .T = 11, .D = 8, .G = 1, .N = 100, .lengths = {3, 0, 8}}, rng));
}
TEST(SelectiveScanCuda, SanitizerStep) { step_equals_forward<float>(5, 2); }

}  // namespace
}  // namespace polystate::testing
