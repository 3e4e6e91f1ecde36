// SPDX-License-Identifier: Apache-2.0

// The CUDA scan against the reference, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "selective_scan/cuda_problem.cuh"
#include "support/recurrence_properties.hpp"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <polystate/cuda/selective_scan.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;
using polystate_detail::cuda::scan::access;
using polystate_detail::cuda::scan::choose_schedule;
using polystate_detail::cuda::scan::cut;

/// Runs the problem on the device.
template <class State>
scan_problem<Data, State> on_device(scan_problem<Data, State> p, const device_scan<Data, State>& device,
                                    const on_cuda& exec = {}) {
  selective_scan(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}
template <class State>
scan_problem<Data, State> on_device(const scan_problem<Data, State>& p) {
  return on_device(p, device_scan<Data, State>(p));
}

template <class State = float>
void expect_reference(const scan_problem<Data, State>& p, const scan_offsets& off = {}, const on_cuda& exec = {}) {
  const device_scan<Data, State> device(p, off);
  judge(on_device(p, device, exec), p);
  EXPECT_TRUE(device.inputs_unchanged());
}

/// A workspace of exactly the bytes asked for gives the reference's numbers, and the bits that scratch memory of the
/// operator's own gives.
void expect_reference_in_workspace(const scan_problem<Data>& p, on_cuda exec = {}) {
  const device_scan<Data> device(p);
  const auto without = on_device(p, device, exec);
  const guarded_workspace memory(workspace_bytes(exec, device.args()));
  exec.workspace = memory.whole();
  const device_scan<Data> fresh(p);
  const auto got = on_device(p, fresh, exec);
  judge(got, p);
  EXPECT_TRUE(fresh.inputs_unchanged() && memory.guards_untouched());
  EXPECT_TRUE(bitwise_equal(got.y, without.y));
  EXPECT_TRUE(bitwise_equal(got.final_state, without.final_state));
}

// bugs B025, B026, B064, B070, B079, B083, B085: any length, N, layout, grouping, option; every access and split.
TEST(SelectiveScanCuda, RandomProblems) {
  std::mt19937 rng(21);
  std::set<access> accesses;
  std::set<std::pair<int, int>> splits;
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
      s.lengths = random_lengths(s.T, {0, 1, 5, 8, 40}, rng);
    }
    const scan_problem<Data> p(s, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", D " << s.D << ", G "
                                      << s.G << ", N " << s.N << ", sequences " << s.lengths.size() << ", order "
                                      << s.memory.order[0] << s.memory.order[1] << s.memory.order[2]);
    const auto schedule = choose_schedule(device_scan<Data>(p).args(), s.sequences(), 132, false);
    accesses.insert(schedule.moves.access);
    splits.insert({schedule.lanes.lanes, schedule.lanes.states});
    expect_reference(p, {.u = rng() % 8 == 0 ? 1 : 0, .C = rng() % 8 == 0 ? 1 : 0});
    if (HasFailure()) return;  // one report is enough
  }
  EXPECT_EQ(accesses.size(), 4u) << "the sweep must reach every access";
  EXPECT_GE(splits.size(), 5u);
}

// The splits that only many channels choose.
TEST(SelectiveScanCuda, EverySplit) {
  std::mt19937 rng(22);
  for (const auto& split : polystate_detail::cuda::scan::splits) {
    for (const auto& memory : {channel_last, channel_first}) {
      const scan_problem<Data> p(scan_shape{.B = 1, .T = 72, .D = 136, .G = 1, .N = split.capacity(), .memory = memory},
                                 rng);
      const device_scan<Data> device(p);
      auto schedule = choose_schedule(device.args(), 1, 132, false);
      schedule.lanes = split;
      schedule.group_tiles = polystate_detail::cuda::tiles_of(136, polystate_detail::cuda::scan::channels_of(split));
      schedule.blocks = schedule.group_tiles;
      const auto params = polystate_detail::cuda::scan::make_params(device.args(), schedule);
      ASSERT_TRUE(polystate_detail::cuda::scan::launch_forward("test", on_cuda{}, params).ok());
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
  expect_reference(scan_problem<Data>(scan_shape{.B = 2, .T = 36, .D = 8200, .G = 1, .N = 8}, rng));
  expect_reference(scan_problem<Data>(scan_shape{.B = 1, .T = 100, .D = 5120, .G = 1, .N = 16}, rng));
  // bugs B008, B010: more batch entries and channels than a grid has rows
  expect_reference(scan_problem<Data>(scan_shape{.B = 70000, .T = 1, .D = 1, .G = 1, .N = 2}, rng));
}

// Lanes along time, a block a tile, tiles streamed over blocks, time split over blocks: few channels with many tokens,
// and few states with many channels.
TEST(SelectiveScanCuda, LanesAlongTime) {
  std::mt19937 rng(33);
  std::set<cut> cuts;
  const auto run = [&](const scan_shape& s) {
    SCOPED_TRACE(::testing::Message() << "B " << s.B << ", T " << s.T << ", D " << s.D << ", G " << s.G << ", N " << s.N
                                      << ", sequences " << s.lengths.size());
    const scan_problem<Data> p(s, rng);
    const auto plan =
        polystate_detail::cuda::scan::plan_forward(device_scan<Data>(p).args(), {132, std::size_t{227} << 10}, false);
    if (plan.along_time) cuts.insert(plan.over_time.schedule.how);
    expect_reference_in_workspace(p);
  };
  for (const std::int64_t D : {1, 2, 8, 40}) {
    for (const std::int64_t T : {511, 512, 513, 1000, 4097, 20000}) {
      scan_shape s{.B = pick<std::int64_t>({1, 2}, rng),
                   .T = T,
                   .D = D,
                   .G = D >= 8 ? 2 : 1,
                   .N = pick<std::int64_t>({1, 16, 17, 64}, rng),
                   .initial_state = coin(rng),
                   .memory = pick(layouts, rng),
                   .group_memory = pick(group_layouts, rng)};
      if (T == 20000) s.N = 16;
      if (T == 4097 && coin(rng)) {
        s.B = 1;
        s.lengths = {1, 4000, 0, 96};
      }
      run(s);
      if (HasFailure()) return;
    }
  }
  run({.B = 1, .T = 1500, .D = 3, .G = 1, .N = 256});
  run({.B = 1, .T = 600, .D = 5120, .G = 1, .N = 4});  // 160 tiles
  run({.B = 5, .T = 1100, .D = 40, .G = 40, .N = 3, .memory = channel_first});
  run({.B = 70, .T = 520, .D = 6, .G = 2, .N = 8});
  EXPECT_EQ(cuts.size(), 3u) << "the shapes must reach every cut";
}

// Sequences much longer and much shorter than any part of a split, so that parts lie inside and across them.
TEST(SelectiveScanCuda, LongPackedSequences) {
  std::mt19937 rng(34);
  for (const auto& lengths : std::vector<std::vector<std::int32_t>>{
           {2999, 1}, {1, 2999}, {0, 1500, 0, 0, 1500}, {7, 9, 2000, 3, 981}, std::vector<std::int32_t>(1500, 2)}) {
    for (const auto& memory : {channel_last, channel_first}) {
      const scan_problem<Data> p(
          scan_shape{.B = 1, .T = 3000, .D = 4, .G = 1, .N = 16, .lengths = lengths, .memory = memory}, rng);
      expect_reference_in_workspace(p);
      expect_reference_in_workspace(p, {.batch_invariant = true});
    }
  }
}

// A state that forgets nothing for thousands of tokens: the error of each decay stays.
TEST(SelectiveScanCuda, LongMemory) {
  std::mt19937 rng(35);
  for (const auto& [D, A] : std::vector<std::pair<std::int64_t, double>>{{2, -1e-4}, {2, 0}, {2, 1e-4}, {640, -1e-4}}) {
    scan_problem<Data> p(
        scan_shape{.B = 1, .T = 3000, .D = D, .G = 1, .N = 4, .z = false, .delta_bias = false, .delta_softplus = false},
        rng);
    fill(p.A, A);
    expect_reference(p);
  }
}

TEST(SelectiveScanCuda, WorkspaceRefused) {
  std::mt19937 rng(36);
  for (const std::int64_t T : {40, 20000}) {
    scan_problem<Data> p(scan_shape{.B = 1, .T = T, .D = 4, .G = 1, .N = 16}, rng);
    device_scan<Data> device(p);
    const std::size_t bytes = workspace_bytes(on_cuda{}, device.args());
    const guarded_workspace memory(bytes);
    EXPECT_TRUE(refuses(try_selective_scan(on_cuda{.workspace = memory.misaligned()}, device.args()),
                        error_code::workspace, "exec.workspace", "misaligned"));
    EXPECT_TRUE(refuses(try_selective_scan(on_cuda{.workspace = {nullptr, 16}}, device.args()), error_code::workspace,
                        "exec.workspace", "null"));
    if (bytes > 0) {
      EXPECT_TRUE(refuses(try_selective_scan(on_cuda{.workspace = memory.too_small()}, device.args()),
                          error_code::workspace, "exec.workspace", "needed: " + std::to_string(bytes)));
    }
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    device.download(p);
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")) && all_are(p.final_state.view(), std::nan("")));
  }
}

// bugs B005, B007: strides past 2^32 elements in each of the indices, read and written.
TEST(SelectiveScanCuda, StridesPast2To32) {
  std::mt19937 rng(39);
  constexpr std::int64_t far = (std::int64_t{1} << 32) + 64;
  struct far_shape {
    scan_shape shape;
    std::int64_t strides[3];
  };
  for (const auto& [shape, strides] : {far_shape{{.B = 2, .T = 20, .D = 8, .G = 1, .N = 4}, {far, 8, 1}},
                                       far_shape{{.B = 1, .T = 40, .D = 2, .G = 1, .N = 4}, {0, 1, far}},
                                       far_shape{{.B = 1, .T = 2, .D = 8, .G = 1, .N = 4}, {0, far, 1}}}) {
    scan_problem<Data> p(shape, rng);
    const std::size_t bytes = 2 * spread_tensor<Data, 3>::bytes(p.u, strides);
    if (!device_has_free(bytes + (std::size_t{1} << 30))) GTEST_SKIP() << "needs " << bytes << " bytes";
    const device_scan<Data> device(p);
    const spread_tensor<Data, 3> u(p.u, strides);
    const spread_tensor<Data, 3> y(p.y, strides);
    auto args = device.args();
    args.u = u.view();
    args.y = y.view();
    selective_scan(on_cuda{}, args);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    scan_problem<Data> got = p;
    device.final_state.download(got.final_state);
    y.download(got.y);
    judge(got, p);
  }
}

// bugs B058: states in any type.
TEST(SelectiveScanCuda, StatesInEveryType) {
  std::mt19937 rng(24);
  const scan_shape s{.B = 2, .T = 50, .D = 24, .G = 1, .N = 16};
  expect_reference(scan_problem<Data, half>(s, rng));
  expect_reference(scan_problem<Data, bfloat16>(s, rng));
}

// Final states in place of the initial ones; a run in parts is the run.
TEST(SelectiveScanCuda, StatesInPlaceSplitAndResume) {
  std::mt19937 rng(25);
  const auto split = [&](const scan_shape& shape, std::int64_t cut) {
    const scan_problem<Data> p(shape, rng);
    device_scan<Data> device(p);
    device.in_place = true;
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, cut}, {cut, shape.T}}) {
      selective_scan(on_cuda{}, scan_problem<Data>::part(device.args(), 1, begin, end));
    }
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    scan_problem<Data> parts = p;
    device.download(parts);
    judge(parts, p);
  };
  split({.B = 2, .T = 70, .D = 16, .G = 2, .N = 16}, 33);
  split({.B = 1, .T = 70, .D = 4096, .G = 2, .N = 16}, 33);
  split({.B = 1, .T = 5000, .D = 8, .G = 1, .N = 16}, 1);
  split({.B = 1, .T = 5000, .D = 8, .G = 1, .N = 16, .memory = channel_first}, 4001);
  split({.B = 2, .T = 300, .D = 24, .G = 1, .N = 100}, 129);
}

// bugs B113, B115: same bits every time; with batch_invariant also in any company.
TEST(SelectiveScanCuda, RepeatableAndBatchInvariant) {
  std::mt19937 rng(26);
  const on_cuda exec{.batch_invariant = true};
  for (const auto& shape :
       {scan_shape{.B = 3, .T = 45, .D = 64, .G = 1, .N = 16},
        scan_shape{.B = 3, .T = 45, .D = 64, .G = 1, .N = 16, .memory = channel_first},
        scan_shape{.B = 5, .T = 3000, .D = 8, .G = 2, .N = 16}, scan_shape{.B = 40, .T = 700, .D = 24, .G = 1, .N = 8},
        scan_shape{.B = 2, .T = 300, .D = 512, .G = 1, .N = 64},
        scan_shape{.B = 12, .T = 64, .D = 2048, .G = 1, .N = 4}}) {
    SCOPED_TRACE(::testing::Message() << "B " << shape.B << ", T " << shape.T << ", D " << shape.D);
    const scan_problem<Data> p(shape, rng);
    const device_scan<Data> device(p);
    const auto any = on_device(p, device);
    EXPECT_TRUE(bitwise_equal(on_device(p, device).y, any.y));
    EXPECT_TRUE(bitwise_equal(on_device(p, device).final_state, any.final_state));
    const auto once = on_device(p, device, exec);
    EXPECT_TRUE(bitwise_equal(on_device(p, device, exec).y, once.y));
    scan_problem<Data> again = p;
    device_scan<Data> apart(p);
    for (std::int64_t b = 0; b < shape.B; b = b * 2 + 1) {
      auto alone = scan_problem<Data>::part(apart.args(), 0, b, b + 1);
      alone.initial_state = alone.initial_state.slice(0, b, b + 1);
      alone.final_state = alone.final_state.slice(0, b, b + 1);
      selective_scan(exec, alone);
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      apart.download(again);
      EXPECT_TRUE(same_bits(again.y.view().slice(0, b, b + 1), once.y.view().slice(0, b, b + 1)));
      EXPECT_TRUE(same_bits(again.final_state.view().slice(0, b, b + 1), once.final_state.view().slice(0, b, b + 1)));
    }
  }
}

// bugs B109, B112: a NaN stays in its sequence and channel, and reaches every later token there.
TEST(SelectiveScanCuda, NanStaysInItsChannel) {
  std::mt19937 rng(27);
  for (const auto& shape :
       {scan_shape{.B = 2, .T = 40, .D = 16, .G = 1, .N = 16}, scan_shape{.B = 2, .T = 3000, .D = 16, .G = 1, .N = 16},
        scan_shape{.B = 2, .T = 300, .D = 4, .G = 1, .N = 16, .memory = channel_first},
        scan_shape{.B = 2, .T = 40, .D = 3000, .G = 1, .N = 3}}) {
    SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", D " << shape.D);
    scan_problem<Data> p(shape, rng);
    const auto clean = on_device(p);
    p.u.view()(1, 5, 3) = static_cast<Data>(std::numeric_limits<float>::quiet_NaN());
    const auto spoilt = on_device(p);
    std::int64_t wrong = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < shape.T; ++t) {
        for (std::int64_t d = 0; d < shape.D; ++d) {
          const auto y = static_cast<float>(spoilt.y.view()(b, t, d));
          if (b != 1 || d != 3) {
            wrong += y != static_cast<float>(clean.y.view()(b, t, d));
          } else if (t >= 5) {
            wrong += !std::isnan(y);
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0);
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

// bugs B070: operands that repeat through stride 0: B and C constant over time, one A for all channels, one u for all
// batch entries.
TEST(SelectiveScanCuda, RepeatedOperands) {
  std::mt19937 rng(37);
  for (const std::int64_t T : {70, 2000}) {
    scan_problem<Data> p(scan_shape{.B = 2, .T = T, .D = 8, .G = 2, .N = 16}, rng);
    for (std::int64_t t = 1; t < T; ++t) {
      assign(p.B.view().select(1, t), p.B.view().select(1, 0));
      assign(p.C.view().select(1, t), p.C.view().select(1, 0));
    }
    for (std::int64_t d = 1; d < 8; ++d) assign(p.A.view().select(0, d), p.A.view().select(0, 0));
    assign(p.u.view().select(0, 1), p.u.view().select(0, 0));
    const device_scan<Data> device(p);
    auto args = device.args();
    args.B = {args.B.data(), {2, T, 2, 16}, {args.B.stride(0), 0, args.B.stride(2), 1}};
    args.C = {args.C.data(), {2, T, 2, 16}, {args.C.stride(0), 0, args.C.stride(2), 1}};
    args.A = {args.A.data(), {8, 16}, {0, 1}};
    args.u = {args.u.data(), {2, T, 8}, {0, args.u.stride(1), 1}};
    selective_scan(on_cuda{}, args);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    scan_problem<Data> got = p;
    device.download(got);
    judge(got, p);
  }
}

// The step is the forward, token for token: 1 to 8 tokens a call, a pool of slots, a padding row, intermediate states.
template <class State>
void step_equals_forward(std::int64_t N, std::int64_t tokens) {
  std::mt19937 rng(29);
  const scan_problem<Data, State> p(scan_shape{.B = 3, .T = 8, .D = 20, .G = 2, .N = N}, rng);
  const auto [want, error] = run_reference(p.in_double());

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
  const device_scan<Data, State> device(p);
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
  EXPECT_TRUE(within_elementwise_bound(got.y, want.y, error.y, rounding));
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t d = 0; d < 20; ++d) {
      for (std::int64_t n = 0; n < N; ++n) {
        const auto last = static_cast<float>(pool.view()(slots[static_cast<std::size_t>(b)], d, n));
        EXPECT_NEAR(last, want.final_state.view()(b, d, n),
                    rounding * roundoff<float>::unit * error.final_state.view()(b, d, n) +
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

// Other slots get what the read ones would have got, also without a token.
TEST(SelectiveScanCuda, StepWritesOtherSlots) {
  std::mt19937 rng(31);
  for (const std::int64_t T : {0, 1, 3}) {
    const scan_problem<Data> p(scan_shape{.B = 3, .T = T, .D = 20, .G = 2, .N = 16}, rng);
    tensor<float, 3> pool({6, 20, 16});
    pool.uniform(rng, -1, 1);
    tensor<std::int32_t, 1> read({3}), write({3});
    read.assign({4, 0, 3});
    write.assign({1, 5, 2});
    const device_scan<Data> device(p);
    const device_tensor<float, 3> in_place(pool), moved(pool);
    const device_tensor<std::int32_t, 1> device_read(read), device_write(write);
    auto step = scan_problem<Data>::step_of(device.args());
    step.read_indices = device_read.view();
    step.state = in_place.view();
    selective_scan_step(on_cuda{}, step);
    step.write_indices = device_write.view();
    step.state = moved.view();
    selective_scan_step(on_cuda{}, step);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    tensor<float, 3> want = pool, got = pool;
    in_place.download(want);
    moved.download(got);
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t d = 0; d < 20; ++d) {
        for (std::int64_t n = 0; n < 16; ++n) {
          EXPECT_EQ(got.view()(write.view()(b), d, n), want.view()(read.view()(b), d, n)) << "T " << T;
          EXPECT_EQ(got.view()(read.view()(b), d, n), pool.view()(read.view()(b), d, n)) << "a slot read was written";
        }
      }
    }
  }
}

TEST(SelectiveScanCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(30);
  for (const auto& shape : {scan_shape{.B = 2, .T = 40, .D = 64, .G = 1, .N = 16},
                            scan_shape{.B = 1, .T = 5000, .D = 8, .G = 1, .N = 16}}) {
    scan_problem<Data> p(shape, rng);
    const auto want = on_device(p);
    device_scan<Data> device(p);
    const device_stream stream;
    const captured_graph graph(stream, [&] { selective_scan(stream.exec(), device.args()); });
    for (int i = 0; i < 2; ++i) {
      device.poison(p);
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      graph.replay(stream);
      scan_problem<Data> got = p;
      device.download(got);
      EXPECT_TRUE(bitwise_equal(got.y, want.y));
      EXPECT_TRUE(bitwise_equal(got.final_state, want.final_state));
    }
    const device_stream other;
    device_scan<Data> second(p);
    device.poison(p);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    for (int repeat = 0; repeat < 5; ++repeat) {
      selective_scan(stream.exec(), device.args());
      std::thread([&] { selective_scan(other.exec(), second.args()); }).join();
    }
    stream.synchronize();
    other.synchronize();
    for (const auto* d : {&device, &second}) {
      scan_problem<Data> got = p;
      d->download(got);
      EXPECT_TRUE(bitwise_equal(got.y, want.y));
    }
  }
}

TEST(SelectiveScanCuda, Refusals) {
  std::mt19937 rng(31);
  const scan_problem<Data> p(scan_shape{.B = 1, .T = 9, .D = 8, .G = 1, .N = 16, .lengths = {4, 5}}, rng);
  const device_scan<Data> device(p);
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
  const device_scan<Data> bad(spoilt);
  EXPECT_TRUE(check(on_cuda{}, bad.args()).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, bad.args()), error_code::value, "cu_seqlens", "entry 2 is 9"));
  selective_scan(on_cuda{}, bad.args());  // clamped: no access leaves the operands
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// bugs B166: tokens behind the last offset are of no sequence: their outputs are 0.
TEST(SelectiveScanCuda, RowsOfNoSequence) {
  std::mt19937 rng(42);
  for (const std::int64_t T : {48, 1600}) {  // lanes over states, lanes along time
    const auto half = static_cast<std::int32_t>(T / 2);
    const scan_problem<Data> whole(scan_shape{.B = 1, .T = T, .D = 12, .G = 1, .N = 16, .lengths = {half, half}}, rng);
    auto cut = whole;
    cut.cu_seqlens.assign({0, half, half + 7});
    EXPECT_TRUE(cleared_from(half + 7, on_device(cut).y, on_device(whole).y));
  }
}

// Devices with less shared memory run other tiles, to the same values.
TEST(SelectiveScanCuda, LessSharedMemory) {
  std::mt19937 rng(43);
  for (const std::size_t kib : {99, 163}) {
    for (const std::int64_t N : {16, 256}) {
      for (const std::int64_t T : {50, 1600}) {
        expect_reference(scan_problem<Data>(scan_shape{.B = 1, .T = T, .D = 12, .G = 1, .N = N}, rng), {},
                         {.shared_memory_limit = kib * 1024});
      }
    }
  }
}

// dims<N> runs what dims<> chooses, and refuses other N.
TEST(SelectiveScanCuda, FixedDims) {
  std::mt19937 rng(41);
  const auto same = [&]<int N>(std::integral_constant<int, N>) {
    for (const std::int64_t T : {50, 1600}) {  // lanes over states, lanes along time
      const scan_problem<Data> p(scan_shape{.B = 1, .T = T, .D = 12, .G = 1, .N = N}, rng);
      const device_scan<Data> device(p);
      selective_scan<dims<N>>(on_cuda{}, device.args());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      scan_problem<Data> got = p;
      device.download(got);
      EXPECT_TRUE(bitwise_equal(got.y, on_device(p).y)) << "N " << N << ", T " << T;
      EXPECT_TRUE(refuses(try_selective_scan<dims<N + 1>>(on_cuda{}, device.args()), error_code::unsupported, "A",
                          "supported: dims<"));
    }
  };
  same(std::integral_constant<int, 16>{});
  same(std::integral_constant<int, 5>{});
  same(std::integral_constant<int, 100>{});
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
TEST(SelectiveScanCuda, SanitizerLongTime) {
  std::mt19937 rng(38);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 3}}) {
    expect_reference_in_workspace(
        scan_problem<Data>(scan_shape{.B = 1, .T = 1600, .D = 3, .G = 1, .N = 5, .memory = memory}, rng));
  }
  expect_reference(
      scan_problem<Data>(scan_shape{.B = 1, .T = 700, .D = 2, .G = 1, .N = 17, .lengths = {600, 0, 1, 99}}, rng));
}
TEST(SelectiveScanCuda, SanitizerTilesOverBlocks) {  // more tiles than a chip has multiprocessors
  std::mt19937 rng(40);
  expect_reference(scan_problem<Data>(scan_shape{.B = 1, .T = 520, .D = 150, .G = 150, .N = 1}, rng));
}
TEST(SelectiveScanCuda, SanitizerStep) { step_equals_forward<float>(5, 2); }

}  // namespace
}  // namespace polystate::testing
