// SPDX-License-Identifier: Apache-2.0

// The CUDA scan's gradients against the reference's, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "selective_scan/cuda_problem.cuh"
#include "support/recurrence_properties.hpp"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <polystate/cuda/selective_scan.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;

/// A problem with its upstream gradients, and the gradients to be written.
template <class State = float>
struct backward_problem {
  scan_problem<Data, State> p;
  scan_gradients<Data, State> g;

  backward_problem() = default;
  backward_problem(const scan_shape& shape, std::mt19937& rng) : p(shape, rng), g(shape, rng) {}

  [[nodiscard]] expected_gradients reference() const { return run_reference(p.in_double(), g.in_double()); }
};

template <class State = float>
struct device_backward {
  device_scan<Data, State> p;
  device_scan_gradients<Data, State> g;

  explicit device_backward(const backward_problem<State>& c, const scan_offsets& off = {},
                           const scan_gradient_offsets& g_off = {})
      : p(c.p, off), g(c.g, g_off) {}

  [[nodiscard]] std::size_t workspace(const on_cuda& exec = {}) const {
    return workspace_bytes(exec, p.args(), g.views());
  }
  void run(const on_cuda& exec = {}) const { selective_scan_backward(exec, p.args(), g.views()); }
  [[nodiscard]] scan_gradients<Data, State> gradients(const backward_problem<State>& c) const {
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    scan_gradients<Data, State> got = c.g;
    g.download(got);
    return got;
  }
  /// Only the gradients are written: neither the inputs nor the forward's outputs.
  [[nodiscard]] bool others_unchanged() const {
    return p.inputs_unchanged() && p.y.unchanged() && p.final_state.unchanged() && g.d_y.unchanged() &&
           g.d_final_state.unchanged();
  }
};

constexpr polystate_detail::cuda::device_limits h200{132, std::size_t{227} << 10};

template <class State>
scan_gradients<Data, State> on_device(const backward_problem<State>& c, const on_cuda& exec = {}) {
  const device_backward<State> device(c);
  device.run(exec);
  return device.gradients(c);
}

template <class State>
void expect_reference(const backward_problem<State>& c, const device_backward<State>& device, on_cuda exec = {},
                      bool own_workspace = true) {
  const guarded_workspace memory(device.workspace(exec));
  if (own_workspace) exec.workspace = memory.whole();
  device.run(exec);
  judge(device.gradients(c), c.reference());
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(device.others_unchanged());
}
template <class State>
void expect_reference(const backward_problem<State>& c, const on_cuda& exec = {}) {
  expect_reference(c, device_backward<State>(c), exec);
}

/// Every bit of every gradient.
template <class State>
void expect_same(const scan_gradients<Data, State>& a, const scan_gradients<Data, State>& b) {
  for_each_gradient([](const char* name, const auto& x, const auto& y) { EXPECT_TRUE(bitwise_equal(x, y)) << name; }, a,
                    b);
}

/// Leaves out the gradients whose bit is not set.
template <class State>
void want_only(scan_gradients<Data, State>& g, unsigned mask) {
  unsigned i = 0;
  for_each_gradient(
      [&](const char*, auto& gradient) {
        if ((mask >> i++ & 1u) == 0) gradient = {};
      },
      g);
}
constexpr unsigned number_of_gradients = 9;

/// Each operand and gradient in a memory order of its own.
template <class State>
void mix_layouts(backward_problem<State>& c, std::mt19937& rng) {
  const auto mix = [&](const auto& orders, auto&... tensors) {
    ((tensors = laid_out(tensors, pick(orders, rng))), ...);
  };
  mix(layouts, c.p.u, c.p.delta, c.p.z, c.p.initial_state, c.g.d_y, c.g.d_u, c.g.d_delta, c.g.d_z, c.g.d_final_state,
      c.g.d_initial_state);
  mix(group_layouts, c.p.B, c.p.C, c.g.d_B, c.g.d_C);
  mix(std::vector<layout<2>>{{{0, 1}, 0}, {{1, 0}, 0}, {{0, 1}, 3}}, c.p.A, c.g.d_A);
}

/// The tokens begin .. end-1.
backward_problem<> tokens_of(const backward_problem<>& c, std::int64_t begin, std::int64_t end) {
  backward_problem<> part = c;
  const auto cut = [&](auto&... tensors) {
    ((tensors = tensors ? copy_of(tensors.view().slice(1, begin, end)) : tensors), ...);
  };
  cut(part.p.u, part.p.delta, part.p.z, part.p.y, part.p.B, part.p.C);
  cut(part.g.d_y, part.g.d_u, part.g.d_delta, part.g.d_z, part.g.d_B, part.g.d_C);
  return part;
}

template <class State>
void random_problem(const scan_shape& shape, std::mt19937& rng) {
  backward_problem<State> c(shape, rng);
  if (rng() % 4 == 0) c.g.d_y = {};
  if (rng() % 3 == 0) mix_layouts(c, rng);
  if (rng() % 3 == 0) want_only(c.g, static_cast<unsigned>(rng()));
  const auto off = [&] { return std::int64_t{rng() % 10 == 0}; };
  const scan_offsets offsets{.u = off(), .delta = off(), .z = off(), .B = off(), .C = off()};
  const scan_gradient_offsets d_offsets{
      .d_y = off(), .d_u = off(), .d_delta = off(), .d_z = off(), .d_B = off(), .d_C = off()};
  if (coin(rng)) {  // the forward's outputs are not needed
    c.p.y = {};
    c.p.final_state = {};
  }
  expect_reference(c, device_backward<State>(c, offsets, d_offsets), {.batch_invariant = coin(rng)}, coin(rng));
}

// bugs B022, B025, B035, B064, B067, B068, B074, B085: each length with each N; any sizes, layouts, options, wanted
// gradients, packed sequences, state types.
TEST(SelectiveScanBackwardCuda, RandomProblems) {
  std::mt19937 rng(41);
  const std::vector<std::int64_t> lengths = {0,  1,  2,  3,   7,   8,   15,  16,  17,  31,  33,
                                             63, 64, 65, 127, 128, 129, 257, 300, 515, 1030};
  const std::vector<std::int64_t> sizes = {1, 2, 3, 5, 8, 16, 17, 31, 33, 64, 100, 256};
  for (std::size_t i = 0; i < lengths.size() * sizes.size(); ++i) {
    const std::size_t which = i % lengths.size();
    const bool softplus = coin(rng);
    scan_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
                 .T = lengths[which],
                 .D = pick<std::int64_t>({1, 2, 3, 5, 8, 24, 37, 40, 64, 72}, rng),
                 .G = pick<std::int64_t>({1, 1, 2, 3, 4}, rng),
                 .N = sizes[(i / lengths.size() + which) % sizes.size()],
                 .initial_state = coin(rng),
                 .final_state = coin(rng),
                 .skip = coin(rng),
                 .z = coin(rng),
                 .delta_bias = softplus && coin(rng),  // without softplus it would make steps negative
                 .delta_softplus = softplus,
                 .memory = pick(layouts, rng),
                 .group_memory = pick(group_layouts, rng)};
    const auto work = [&] { return s.B * s.T * s.D * s.N; };
    constexpr std::int64_t most = std::int64_t{1} << 20;  // the reference takes its time
    if (work() > most) s.B = 1;
    while (work() > most && s.D > 8) s.D = s.D / 2;
    if (s.D % s.G != 0) s.G = 1;
    if (rng() % 3 == 0) {
      s.B = 1;
      s.lengths = random_lengths(s.T, {0, 1, 1, 2, 5, 17, 64, 300}, rng);
    }
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", D " << s.D << ", G "
                                      << s.G << ", N " << s.N << ", sequences " << s.lengths.size() << ", order "
                                      << s.memory.order[0] << s.memory.order[1] << s.memory.order[2] << " pad "
                                      << s.memory.pad);
    switch (rng() % 6) {
      case 0:
        random_problem<half>(s, rng);
        break;
      case 1:
        random_problem<bfloat16>(s, rng);
        break;
      default:
        random_problem<float>(s, rng);
    }
    if (HasFailure()) return;  // one report is enough
  }
}

// Every option, there or not.
TEST(SelectiveScanBackwardCuda, EveryOption) {
  std::mt19937 rng(42);
  for (unsigned mask = 0; mask < 128; ++mask) {
    const auto has = [&](unsigned bit) { return (mask >> bit & 1u) != 0; };
    backward_problem<> c(scan_shape{.B = 2,
                                    .T = 19,
                                    .D = 8,
                                    .G = 2,
                                    .N = 5,
                                    .initial_state = has(0),
                                    .final_state = has(1),
                                    .skip = has(2),
                                    .z = has(3),
                                    .delta_bias = has(4),
                                    .delta_softplus = has(5)},
                         rng);
    if (!has(5)) c.p.delta.uniform(rng, 0.6, 0.9);  // positive whatever the bias
    if (has(6)) c.g.d_y = {};
    SCOPED_TRACE(::testing::Message() << "options " << mask);
    expect_reference(c);
    if (HasFailure()) return;
  }
}

// bugs B068: each gradient alone, all but each, none; nothing else is written, and no absent one is needed.
TEST(SelectiveScanBackwardCuda, EveryGradientAlone) {
  std::mt19937 rng(43);
  for (const auto& shape :
       {scan_shape{.B = 2, .T = 70, .D = 24, .G = 2, .N = 16}, scan_shape{.B = 1, .T = 700, .D = 3, .G = 1, .N = 20}}) {
    const backward_problem<> c(shape, rng);
    for (unsigned i = 0; i < number_of_gradients; ++i) {
      for (const unsigned mask : {1u << i, ~(1u << i)}) {
        SCOPED_TRACE(::testing::Message() << "gradient " << i << ", mask " << mask);
        backward_problem<> some = c;
        want_only(some.g, mask);
        expect_reference(some);
      }
    }
    backward_problem<> none = c;
    want_only(none.g, 0);
    expect_reference(none);
  }
}

// Without upstream gradients all are 0; sums over nothing are 0 too.
TEST(SelectiveScanBackwardCuda, EmptyAndZero) {
  std::mt19937 rng(44);
  for (const auto& shape : {scan_shape{.B = 0, .T = 9, .D = 8}, scan_shape{.B = 2, .T = 0, .D = 8},
                            scan_shape{.B = 2, .T = 9, .D = 0}, scan_shape{.B = 0, .T = 0, .D = 0}}) {
    expect_reference(backward_problem<>(shape, rng));
  }
  backward_problem<> c(scan_shape{.B = 2, .T = 70, .D = 8, .final_state = false}, rng);
  c.g.d_y = {};
  for_each_gradient([](const char* name, const auto& gradient) { EXPECT_TRUE(all_are(gradient.view(), 0)) << name; },
                    on_device(c));
}

// Many channels, many batch entries, many tokens, and every schedule. bugs B008, B010.
TEST(SelectiveScanBackwardCuda, LargeProblems) {
  std::mt19937 rng(45);
  using polystate_detail::cuda::scan::cut;
  std::set<std::tuple<bool, int, cut>> plans;  // few lanes, passes, cut
  std::set<cut> forward_cuts;
  for (const auto& shape :
       {scan_shape{.B = 1, .T = 140, .D = 1024, .G = 1, .N = 16},
        scan_shape{.B = 2, .T = 24, .D = 8200, .G = 2, .N = 8, .memory = channel_first},
        scan_shape{.B = 1, .T = 20000, .D = 8, .G = 1, .N = 16},
        scan_shape{.B = 2, .T = 4097, .D = 8, .G = 4, .N = 16, .memory = channel_first},
        scan_shape{.B = 1, .T = 4097, .D = 2, .G = 1, .N = 64}, scan_shape{.B = 16, .T = 20, .D = 256, .G = 1, .N = 64},
        scan_shape{.B = 5, .T = 600, .D = 40, .G = 40, .N = 3}, scan_shape{.B = 270, .T = 100, .D = 33, .G = 1, .N = 2},
        scan_shape{.B = 270, .T = 136, .D = 36, .G = 1, .N = 4, .memory = channel_first},
        scan_shape{.B = 270, .T = 9, .D = 136, .G = 1, .N = 4}, scan_shape{.B = 150, .T = 60, .D = 2, .G = 2, .N = 40},
        scan_shape{.B = 70000, .T = 1, .D = 1, .G = 1, .N = 2},
        scan_shape{.B = 1, .T = 3, .D = 70000, .G = 1, .N = 1}}) {
    SCOPED_TRACE(::testing::Message() << "B " << shape.B << ", T " << shape.T << ", D " << shape.D);
    const backward_problem<> c(shape, rng);
    const device_backward<> device(c);
    const auto plan = polystate_detail::cuda::scan::plan_backward(device.p.args(), device.g.views(), h200, false);
    plans.insert({plan.block == polystate_detail::cuda::scan::backward_block::few_lanes, plan.backward.passes,
                  plan.backward.schedule.how});
    if (plan.checkpointed) forward_cuts.insert(plan.forward.schedule.how);
    expect_reference(c, device);
    if (HasFailure()) return;
  }
  for (const bool is_short : {false, true}) {
    for (const cut how : {cut::whole, cut::stream}) {
      EXPECT_TRUE(plans.count({is_short, 1, how})) << is_short << ' ' << static_cast<int>(how);
    }
    EXPECT_TRUE(plans.count({is_short, 2, cut::stream})) << is_short;
  }
  EXPECT_EQ(forward_cuts.size(), 3u) << "the checkpoints must come from every cut";
}

// More batch entries and states than scratch memory has room for dB and dC: a sequence is walked in segments. The
// entries are one, repeated through stride 0.
TEST(SelectiveScanBackwardCuda, Segments) {
  std::mt19937 rng(64);
  constexpr std::int64_t B = 512, T = 1100, D = 40, N = 64;
  const backward_problem<> one(scan_shape{.B = 1, .T = T, .D = D, .G = 1, .N = N}, rng);
  const device_backward<> device(one);
  const auto repeat = [](const auto& view) {
    using view_type = std::remove_cvref_t<decltype(view)>;
    std::int64_t extents[view_type::rank];
    std::int64_t strides[view_type::rank];
    for (int i = 0; i < view_type::rank; ++i) extents[i] = view.extent(i), strides[i] = view.stride(i);
    extents[0] = B;
    strides[0] = 0;
    return view_type(view.data(), extents, strides);
  };
  auto args = device.p.args();
  args.u = repeat(args.u);
  args.delta = repeat(args.delta);
  args.z = repeat(args.z);
  args.B = repeat(args.B);
  args.C = repeat(args.C);
  args.initial_state = repeat(args.initial_state);
  args.y = {};
  args.final_state = {};
  const device_memory d_delta(B * T * D * sizeof(Data));
  const device_memory d_B(B * T * N * sizeof(Data));
  const device_memory d_C(B * T * N * sizeof(Data));
  const device_memory d_initial_state(B * D * N * sizeof(float));
  for (const auto* memory : {&d_delta, &d_B, &d_C, &d_initial_state}) {
    POLYSTATE_CUDA_REQUIRE(cudaMemset(memory->data(), 0xff, memory->bytes()));
  }
  const selective_scan_grads<Data> grads{.d_y = repeat(device.g.views().d_y),
                                         .d_final_state = repeat(device.g.views().d_final_state),
                                         .d_delta = {static_cast<Data*>(d_delta.data()), {B, T, D}},
                                         .d_B = {static_cast<Data*>(d_B.data()), {B, T, 1, N}},
                                         .d_C = {static_cast<Data*>(d_C.data()), {B, T, 1, N}},
                                         .d_initial_state = {static_cast<float*>(d_initial_state.data()), {B, D, N}}};
  const auto plan = polystate_detail::cuda::scan::plan_backward(args, grads, h200, false);
  EXPECT_GT(polystate_detail::cuda::tiles_of(T, plan.segment_tokens), 1);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, args, grads));
  selective_scan_backward(on_cuda{.workspace = memory.whole()}, args, grads);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  EXPECT_TRUE(memory.guards_untouched());

  const expected_gradients want = one.reference();
  for (const std::int64_t b : {std::int64_t{0}, B / 3, B - 1}) {
    scan_gradients<Data> got = one.g;
    const auto entry = [&](auto& to, const auto& from) {  // both row-major
      POLYSTATE_CUDA_REQUIRE(cudaMemcpy(to.view().data(), from.slice(0, b, b + 1).data(),
                                        static_cast<std::size_t>(to.view().size()) * sizeof(*from.data()),
                                        cudaMemcpyDeviceToHost));
    };
    want_only(got, 0x11au);  // those four
    entry(got.d_delta, grads.d_delta);
    entry(got.d_B, grads.d_B);
    entry(got.d_C, grads.d_C);
    entry(got.d_initial_state, grads.d_initial_state);
    SCOPED_TRACE(::testing::Message() << "batch entry " << b);
    judge(got, want);
  }
}

// Sequences much longer and much shorter than any part of a split.
TEST(SelectiveScanBackwardCuda, LongPackedSequences) {
  std::mt19937 rng(46);
  for (const auto& lengths : std::vector<std::vector<std::int32_t>>{
           {2999, 1}, {1, 2999}, {0, 1500, 0, 0, 1500}, {7, 9, 2000, 3, 981}, std::vector<std::int32_t>(1500, 2)}) {
    for (const auto& memory : {channel_last, channel_first}) {
      for (const bool batch_invariant : {false, true}) {
        expect_reference(
            backward_problem<>(
                scan_shape{.B = 1, .T = 3000, .D = 4, .G = 1, .N = 16, .lengths = lengths, .memory = memory}, rng),
            {.batch_invariant = batch_invariant});
      }
    }
  }
}

// bugs B043, B055: steps near 0 and long, decays from 0 to beyond 1, gates shut and open, alone and mixed.
TEST(SelectiveScanBackwardCuda, HardValues) {
  std::mt19937 rng(47);
  const std::vector<double> decays = {-50, -1, 0, 1e-3};
  const std::vector<double> steps = {-20, 0, 20};
  const std::vector<double> gates = {-30, 30};
  for (const std::int64_t T : {65, 300}) {
    const backward_problem<> c(scan_shape{.B = 1, .T = T, .D = 4, .G = 1, .N = 8}, rng);
    for (const double A : decays) {
      for (const double step : steps) {
        for (const double gate : gates) {
          if (A > 0 && step > 0 && T > 65) continue;  // grows out of half's range
          SCOPED_TRACE(::testing::Message() << "A " << A << ", delta " << step << ", z " << gate << ", T " << T);
          backward_problem<> hard = c;
          fill(hard.p.A, A);
          fill(hard.p.delta, step);
          fill(hard.p.z, gate);
          expect_reference(hard);
        }
      }
    }
    backward_problem<> mixed = c;
    mixed.p.A.for_each([&](float& x) { x = static_cast<float>(pick<double>({-50, -1, 0}, rng)); });
    mixed.p.delta.for_each([&](Data& x) { x = static_cast<Data>(pick(steps, rng)); });
    mixed.p.z.for_each([&](Data& x) { x = static_cast<Data>(pick(gates, rng)); });
    expect_reference(mixed);
  }
}

// A state that forgets next to nothing for thousands of tokens: the error of each decay stays.
TEST(SelectiveScanBackwardCuda, LongMemory) {
  std::mt19937 rng(48);
  for (const auto& [D, A] : std::vector<std::pair<std::int64_t, double>>{{4, -1e-4}, {4, 0}, {4, 1e-4}, {640, -1e-4}}) {
    backward_problem<> c(
        scan_shape{.B = 1, .T = 2000, .D = D, .G = 1, .N = 4, .delta_bias = false, .delta_softplus = false}, rng);
    fill(c.p.A, A);
    fill(c.p.delta, 0.1);
    SCOPED_TRACE(::testing::Message() << "D " << D << ", A " << A);
    expect_reference(c);
  }
}

// The gradient of a run is that of its parts, last first, the state's handed on (wanted feature F01).
TEST(SelectiveScanBackwardCuda, SplitAndResume) {
  std::mt19937 rng(49);
  for (const auto& [T, cut] : std::vector<std::pair<std::int64_t, std::int64_t>>{{70, 33}, {70, 69}, {1500, 1001}}) {
    const backward_problem<> whole(scan_shape{.B = 2, .T = T, .D = 16, .G = 2, .N = 16}, rng);
    const expected_gradients want = whole.reference();
    backward_problem<> early = tokens_of(whole, 0, cut);
    backward_problem<> late = tokens_of(whole, cut, T);
    late.p.initial_state = convert<float>(run_reference(early.p.in_double()).value.final_state);
    const auto d_late = on_device(late);
    early.g.d_final_state = d_late.d_initial_state;
    const auto d_early = on_device(early);

    auto got = whole.g;
    const auto join = [&](auto& to, const auto& first, const auto& second) {
      assign(to.view().slice(1, 0, cut), first.view());
      assign(to.view().slice(1, cut, T), second.view());
    };
    join(got.d_u, d_early.d_u, d_late.d_u);
    join(got.d_delta, d_early.d_delta, d_late.d_delta);
    join(got.d_z, d_early.d_z, d_late.d_z);
    join(got.d_B, d_early.d_B, d_late.d_B);
    join(got.d_C, d_early.d_C, d_late.d_C);
    const auto add = [](auto& to, const auto& first, const auto& second) {
      auto sum = first.values();
      const auto more = second.values();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
      to.assign(sum);
    };
    add(got.d_A, d_early.d_A, d_late.d_A);
    add(got.d_D, d_early.d_D, d_late.d_D);
    add(got.d_delta_bias, d_early.d_delta_bias, d_late.d_delta_bias);
    got.d_initial_state = d_early.d_initial_state;
    SCOPED_TRACE(::testing::Message() << "cut at " << cut << " of " << T);
    judge(got, want);
  }
}

/// Small shapes of every kind of schedule: short and long sequences, a block a tile and tiles streamed over blocks, few
/// and many states.
const std::vector<scan_shape> schedules = {
    {.B = 3, .T = 45, .D = 64, .G = 1, .N = 16},  {.B = 3, .T = 200, .D = 64, .G = 2, .N = 16, .memory = channel_first},
    {.B = 3, .T = 1500, .D = 8, .G = 1, .N = 16}, {.B = 2, .T = 130, .D = 24, .G = 3, .N = 100},
    {.B = 5, .T = 300, .D = 36, .G = 36, .N = 3}, {.B = 2, .T = 64, .D = 2048, .G = 1, .N = 4}};

// bugs B113, B115: same bits every time; with batch_invariant also in any company.
TEST(SelectiveScanBackwardCuda, RepeatableAndBatchInvariant) {
  std::mt19937 rng(50);
  for (auto shape : schedules) {
    for (const std::int64_t B : {shape.B, std::int64_t{40}}) {
      if (B * shape.T * shape.D > 300000) continue;
      shape.B = B;
      SCOPED_TRACE(::testing::Message() << "B " << B << ", T " << shape.T << ", D " << shape.D);
      const backward_problem<> c(shape, rng);
      expect_same(on_device(c), on_device(c));
      const on_cuda exec{.batch_invariant = true};
      const auto together = on_device(c, exec);
      expect_same(on_device(c, exec), together);
      for (const std::int64_t b : {std::int64_t{0}, B / 2, B - 1}) {
        backward_problem<> one = c;
        const auto only = [&](auto&... tensors) {
          ((tensors = tensors ? laid_out(copy_of(tensors.view().slice(0, b, b + 1)), shape.memory) : tensors), ...);
        };
        const auto only_contiguous = [&](auto&... tensors) {
          ((tensors = tensors ? copy_of(tensors.view().slice(0, b, b + 1)) : tensors), ...);
        };
        only(one.p.u, one.p.delta, one.p.z, one.p.y, one.g.d_y, one.g.d_u, one.g.d_delta, one.g.d_z);
        only_contiguous(one.p.B, one.p.C, one.p.initial_state, one.p.final_state, one.g.d_final_state, one.g.d_B,
                        one.g.d_C, one.g.d_initial_state);
        const auto alone = on_device(one, exec);
        const auto same = [&](const char* name, const auto& x, const auto& all) {
          EXPECT_TRUE(same_bits(x.view(), all.view().slice(0, b, b + 1))) << name << ", batch entry " << b;
        };
        same("d_u", alone.d_u, together.d_u);
        same("d_delta", alone.d_delta, together.d_delta);
        same("d_z", alone.d_z, together.d_z);
        same("d_B", alone.d_B, together.d_B);
        same("d_C", alone.d_C, together.d_C);
        same("d_initial_state", alone.d_initial_state, together.d_initial_state);
      }
    }
  }
}

// bugs B109, B112: a NaN stays in its sequence and channel, of B and C in its group; and where the definition has one,
// it is not lost.
TEST(SelectiveScanBackwardCuda, NanStaysInItsSequenceAndChannel) {
  std::mt19937 rng(51);
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  for (auto shape : schedules) {
    for (const bool packed : {false, true}) {
      if (packed) {
        shape.lengths = {13, static_cast<std::int32_t>(shape.T - 13)};
        shape.B = 1;
      }
      const backward_problem<> clean(shape, rng);
      const auto want = on_device(clean);
      for (int which = 0; which < 4; ++which) {
        SCOPED_TRACE(::testing::Message()
                     << "T " << shape.T << ", D " << shape.D << ", packed " << packed << ", NaN in " << which);
        // In sequence 1, channel 3.
        const std::int64_t b = packed ? 0 : 1;
        const std::int64_t t = packed ? 13 + 5 : 5;
        backward_problem<> c = clean;
        if (which == 0) c.p.u.view()(b, t, 3) = static_cast<Data>(nan);
        if (which == 1) c.p.delta.view()(b, t, 3) = static_cast<Data>(nan);
        if (which == 2) c.g.d_y.view()(b, t, 3) = static_cast<Data>(nan);
        if (which == 3) c.g.d_final_state.view()(1, 3, 0) = nan;
        const auto got = on_device(c);
        const auto expected = c.reference();
        for_each_gradient(
            [&](const char* name, const auto& gradient, const auto& value) {
              const auto x = gradient.values();
              const auto y = value.values();
              std::int64_t lost = 0;
              for (std::size_t i = 0; i < x.size(); ++i)
                lost += std::isnan(y[i]) && !std::isnan(static_cast<float>(x[i]));
              EXPECT_EQ(lost, 0) << name;
            },
            got, expected.value);

        // Everything but sequence 1 of channel, or group, 3 is as it was.
        const std::int64_t group = 3 / (shape.D / shape.G);
        std::int64_t changed = 0;
        const auto compare = [&](const auto& x, const auto& y, const auto& reached) {
          const auto a = x.values();
          const auto before = y.values();
          for (std::size_t i = 0; i < a.size(); ++i) {
            changed +=
                !reached(static_cast<std::int64_t>(i)) && static_cast<float>(a[i]) != static_cast<float>(before[i]);
          }
        };
        const auto compare_tokens = [&](const auto& x, const auto& y, std::int64_t column, std::int64_t columns,
                                        std::int64_t width) {  // (B, T, columns, width)
          compare(x, y, [&](std::int64_t i) {
            const std::int64_t token = i / (columns * width);
            const bool in_sequence = packed ? token >= 13 : token / shape.T == 1;
            return in_sequence && i / width % columns == column;
          });
        };
        compare_tokens(got.d_u, want.d_u, 3, shape.D, 1);
        compare_tokens(got.d_delta, want.d_delta, 3, shape.D, 1);
        compare_tokens(got.d_z, want.d_z, 3, shape.D, 1);
        compare_tokens(got.d_B, want.d_B, group, shape.G, shape.N);
        compare_tokens(got.d_C, want.d_C, group, shape.G, shape.N);
        compare(got.d_A, want.d_A, [&](std::int64_t i) { return i / shape.N == 3; });
        compare(got.d_D, want.d_D, [](std::int64_t i) { return i == 3; });
        compare(got.d_delta_bias, want.d_delta_bias, [](std::int64_t i) { return i == 3; });
        compare(got.d_initial_state, want.d_initial_state,
                [&](std::int64_t i) { return i / shape.N == shape.D + 3; });  // (S, D, N)
        EXPECT_EQ(changed, 0) << "numbers outside its sequence and channel";
        if (HasFailure()) return;
      }
    }
  }
}

// bugs B070: operands that repeat through stride 0, and an upstream gradient of one number.
TEST(SelectiveScanBackwardCuda, RepeatedOperands) {
  std::mt19937 rng(52);
  for (const std::int64_t T : {70, 1200}) {
    backward_problem<> c(scan_shape{.B = 2, .T = T, .D = 8, .G = 2, .N = 16}, rng);
    for (std::int64_t t = 1; t < T; ++t) {
      assign(c.p.B.view().select(1, t), c.p.B.view().select(1, 0));
      assign(c.p.C.view().select(1, t), c.p.C.view().select(1, 0));
    }
    for (std::int64_t d = 1; d < 8; ++d) assign(c.p.A.view().select(0, d), c.p.A.view().select(0, 0));
    assign(c.p.u.view().select(0, 1), c.p.u.view().select(0, 0));
    fill(c.g.d_y, 0.75);
    const device_backward<> device(c);
    auto args = device.p.args();
    args.B = {args.B.data(), {2, T, 2, 16}, {args.B.stride(0), 0, args.B.stride(2), 1}};
    args.C = {args.C.data(), {2, T, 2, 16}, {args.C.stride(0), 0, args.C.stride(2), 1}};
    args.A = {args.A.data(), {8, 16}, {0, 1}};
    args.u = {args.u.data(), {2, T, 8}, {0, args.u.stride(1), 1}};
    auto grads = device.g.views();
    grads.d_y = {grads.d_y.data(), {2, T, 8}, {0, 0, 0}};
    selective_scan_backward(on_cuda{}, args, grads);
    judge(device.gradients(c), c.reference());
  }
}

// bugs B001: checkpoints and partial sums past 2^31 elements. One sequence of one channel, repeated through stride 0.
TEST(SelectiveScanBackwardCuda, ScratchPast2To31Elements) {
  constexpr std::int64_t T = 2048;
  constexpr std::int64_t D = 4096;
  constexpr std::int64_t N = 16;
  std::mt19937 rng(53);
  const backward_problem<> one(scan_shape{.B = 1, .T = T, .D = 1, .G = 1, .N = N}, rng);
  const device_backward<> device(one);
  const auto args_of = [&](std::int64_t B) {
    auto a = device.p.args();
    const auto repeat = [&](auto& view) { view = {view.data(), {B, T, D}, {0, 1, 0}}; };
    repeat(a.u);
    repeat(a.delta);
    repeat(a.z);
    a.A = {a.A.data(), {D, N}, {0, 1}};
    a.D = {a.D.data(), {D}, {0}};
    a.delta_bias = {a.delta_bias.data(), {D}, {0}};
    a.B = {a.B.data(), {B, T, 1, N}, {0, N, N, 1}};
    a.C = {a.C.data(), {B, T, 1, N}, {0, N, N, 1}};
    a.initial_state = {a.initial_state.data(), {B, D, N}, {0, 0, 1}};
    a.y = {};
    a.final_state = {};
    return a;
  };
  const auto grads_of = [&](std::int64_t B, float* d_initial_state, float* d_A) {
    selective_scan_grads<Data> g;
    g.d_y = {device.g.d_y.view().data(), {B, T, D}, {0, 1, 0}};
    g.d_final_state = {device.g.d_final_state.view().data(), {B, D, N}, {0, 0, 1}};
    g.d_initial_state = {d_initial_state, {B, D, N}};
    g.d_A = {d_A, {D, N}};
    return g;
  };
  std::size_t bytes = 0;
  std::int64_t B = 32;
  // Sizes alone are asked for: addresses without memory, away from each other.
  float* const nowhere = reinterpret_cast<float*>(std::uintptr_t{1} << 40);
  float* const elsewhere = reinterpret_cast<float*>(std::uintptr_t{1} << 41);
  do {
    B *= 2;
    bytes = workspace_bytes(on_cuda{}, args_of(B), grads_of(B, nowhere, elsewhere));
  } while (bytes <= (std::size_t{1} << 33) + (std::size_t{1} << 30) && B < 4096);
  const std::size_t results = static_cast<std::size_t>(B * D * N) * sizeof(float);
  if (!device_has_free(bytes + results + (std::size_t{2} << 30)))
    GTEST_SKIP() << "needs " << bytes + results << " bytes";

  const device_memory d_initial_state(results);
  const device_memory d_A(static_cast<std::size_t>(D * N) * sizeof(float));
  POLYSTATE_CUDA_REQUIRE(cudaMemset(d_initial_state.data(), 0xff, results));
  const guarded_workspace memory(bytes);
  const auto grads = grads_of(B, static_cast<float*>(d_initial_state.data()), static_cast<float*>(d_A.data()));
  selective_scan_backward(on_cuda{.workspace = memory.whole()}, args_of(B), grads);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  EXPECT_TRUE(memory.guards_untouched());

  const expected_gradients want = one.reference();
  const auto rows_of = [&](auto from, std::int64_t times) {  // N numbers on the device, `times` the reference's
    std::vector<float> got(N);
    POLYSTATE_CUDA_REQUIRE(cudaMemcpy(got.data(), from, N * sizeof(float), cudaMemcpyDeviceToHost));
    return std::pair(got, static_cast<double>(times));
  };
  for (const std::int64_t d : {std::int64_t{0}, D / 2, D - 1}) {
    for (const std::int64_t b : {std::int64_t{0}, B / 2, B - 1}) {
      const auto [state, once] = rows_of(&grads.d_initial_state(b, d, 0), 1);
      const auto [sum, times] = rows_of(&grads.d_A(d, 0), B);
      for (std::int64_t n = 0; n < N; ++n) {
        const auto i = static_cast<std::size_t>(n);
        constexpr double unit = scan_bound * roundoff<float>::unit;
        EXPECT_NEAR(state[i], want.value.d_initial_state.view()(0, 0, n),
                    unit * want.error.d_initial_state.view()(0, 0, n) + 1e-30)
            << "batch entry " << b << ", channel " << d;
        const double d_A_once = want.value.d_A.view()(0, n);
        EXPECT_NEAR(sum[i], times * d_A_once, times * unit * (want.error.d_A.view()(0, n) + times * std::abs(d_A_once)))
            << "channel " << d;
      }
    }
  }
}

// bugs B005, B007, B035: strides past 2^32 elements in each of the indices, read and written.
TEST(SelectiveScanBackwardCuda, StridesPast2To32) {
  std::mt19937 rng(54);
  constexpr std::int64_t far = (std::int64_t{1} << 32) + 64;
  struct far_shape {
    scan_shape shape;
    std::int64_t strides[3];
  };
  for (const auto& [shape, strides] : {far_shape{{.B = 2, .T = 20, .D = 8, .G = 1, .N = 4}, {far, 8, 1}},
                                       far_shape{{.B = 1, .T = 40, .D = 2, .G = 1, .N = 4}, {0, 1, far}},
                                       far_shape{{.B = 1, .T = 2, .D = 8, .G = 1, .N = 4}, {0, far, 1}}}) {
    const backward_problem<> c(shape, rng);
    const std::size_t bytes = 3 * spread_tensor<Data, 3>::bytes(c.p.u, strides);
    if (!device_has_free(bytes + (std::size_t{1} << 30))) GTEST_SKIP() << "needs " << bytes << " bytes";
    const device_backward<> device(c);
    const spread_tensor<Data, 3> u(c.p.u, strides);
    const spread_tensor<Data, 3> d_y(c.g.d_y, strides);
    const spread_tensor<Data, 3> d_delta(c.g.d_delta, strides);
    auto args = device.p.args();
    args.u = u.view();
    auto grads = device.g.views();
    grads.d_y = d_y.view();
    grads.d_delta = d_delta.view();
    selective_scan_backward(on_cuda{}, args, grads);
    auto got = device.gradients(c);
    d_delta.download(got.d_delta);
    judge(got, c.reference());
  }
}

TEST(SelectiveScanBackwardCuda, Workspace) {
  std::mt19937 rng(55);
  for (const auto& shape : schedules) {
    const backward_problem<> c(shape, rng);
    const device_backward<> device(c);
    const std::size_t bytes = device.workspace();
    const guarded_workspace memory(bytes);
    const auto refused = [&](const workspace& given, const std::string& text) {
      EXPECT_TRUE(refuses(try_selective_scan_backward(on_cuda{.workspace = given}, device.p.args(), device.g.views()),
                          error_code::workspace, "exec.workspace", text));
    };
    refused(memory.misaligned(), "misaligned");
    refused({nullptr, 16}, "null");
    if (bytes > 0) refused(memory.too_small(), "needed: " + std::to_string(bytes));
    for_each_gradient(
        [](const char* name, const auto& gradient) { EXPECT_TRUE(all_are(gradient.view(), std::nan(""))) << name; },
        device.gradients(c));
    // What the scratch memory held, and whose it is, changes no bit.
    device.run(on_cuda{.workspace = memory.whole()});
    const auto given = device.gradients(c);
    EXPECT_TRUE(memory.guards_untouched());
    expect_same(given, on_device(c));
  }
}

TEST(SelectiveScanBackwardCuda, GraphReplayTwoStreamsAndAnotherThread) {
  std::mt19937 rng(56);
  for (const auto& shape : schedules) {
    backward_problem<> c(shape, rng);
    const auto want = on_device(c);
    device_backward<> device(c);
    const device_stream stream;
    const guarded_workspace memory(device.workspace());
    for (const bool given : {false, true}) {
      on_cuda exec = stream.exec();
      if (given) exec.workspace = memory.whole();
      const captured_graph graph(stream, [&] { device.run(exec); });
      for (int i = 0; i < 2; ++i) {
        device.g.poison(c.g);
        POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
        graph.replay(stream);
        expect_same(device.gradients(c), want);
      }
    }
    const device_stream other;
    const device_backward<> second(c);
    device.g.poison(c.g);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    for (int repeat = 0; repeat < 5; ++repeat) {
      device.run(stream.exec());
      std::thread([&] { second.run(other.exec()); }).join();
    }
    expect_same(device.gradients(c), want);
    expect_same(second.gradients(c), want);
  }
}

// bugs B166: tokens behind the last offset are of no sequence: their gradients are 0, and they add to none.
TEST(SelectiveScanBackwardCuda, RowsOfNoSequence) {
  std::mt19937 rng(61);
  for (const std::int64_t T : {48, 600}) {
    const auto half = static_cast<std::int32_t>(T / 2);
    backward_problem<> whole(scan_shape{.B = 1, .T = T, .D = 12, .G = 1, .N = 16, .lengths = {half, half}}, rng);
    whole.g.d_final_state = {};
    auto cut = whole;
    cut.p.cu_seqlens.assign({0, half, half + 7});
    clear_from(half + 7, whole.g.d_y);
    judge(on_device(cut), whole.reference());
  }
}

// Devices with less shared memory run other tiles, to the same values.
TEST(SelectiveScanBackwardCuda, LessSharedMemory) {
  std::mt19937 rng(62);
  for (const std::size_t kib : {99, 163}) {
    const on_cuda exec{.shared_memory_limit = kib * 1024};
    for (const auto& shape :
         {scan_shape{.B = 2, .T = 20, .D = 12, .G = 2, .N = 64}, scan_shape{.B = 1, .T = 600, .D = 37, .G = 1, .N = 16},
          scan_shape{.B = 1, .T = 300, .D = 40, .G = 1, .N = 256},
          scan_shape{.B = 1, .T = 700, .D = 10, .G = 1, .N = 17, .lengths = {600, 0, 1, 99}},
          scan_shape{.B = 40, .T = 150, .D = 136, .G = 1, .N = 16, .memory = channel_first}}) {
      SCOPED_TRACE(::testing::Message() << kib << " KiB, T " << shape.T << ", N " << shape.N);
      const backward_problem<> c(shape, rng);
      expect_reference(c, exec);
      expect_same(on_device(c, exec), on_device(c, exec));
    }
  }
}
TEST(SelectiveScanBackwardCuda, SanitizerLessSharedMemory) {
  std::mt19937 rng(63);
  expect_reference(backward_problem<>(scan_shape{.B = 1, .T = 150, .D = 20, .G = 1, .N = 18}, rng),
                   on_cuda{.shared_memory_limit = std::size_t{99} * 1024});
}

TEST(SelectiveScanBackwardCuda, Refusals) {
  std::mt19937 rng(57);
  const backward_problem<> c(scan_shape{.B = 1, .T = 9, .D = 8, .G = 1, .N = 16, .lengths = {4, 5}}, rng);
  const device_backward<> device(c);
  auto grads = device.g.views();
  EXPECT_TRUE(check(on_cuda{}, device.p.args(), grads).ok());
  grads.d_A = {grads.d_A.data(), {8, 15}};
  EXPECT_TRUE(refuses(check(on_cuda{}, device.p.args(), grads), error_code::shape, "d_A", "(D, N)"));
  EXPECT_TRUE(refuses(try_selective_scan_backward(on_cuda{}, device.p.args(), grads), error_code::shape, "d_A",
                      "selective_scan_backward"));
  EXPECT_THROW(selective_scan_backward(on_cuda{}, device.p.args(), grads), argument_error);
  auto args = device.p.args();
  args.A = {args.A.data(), {8, 257}, {0, 0}};
  args.B = {args.B.data(), {1, 9, 1, 257}, {0, 0, 0, 0}};
  args.C = args.B;
  args.initial_state = {};
  EXPECT_TRUE(refuses(check(on_cuda{}, args, {.d_u = device.g.d_u.view()}), error_code::unsupported, "A",
                      "N = 257, supported: 1 to 256"));
  EXPECT_TRUE(validate(on_cuda{}, device.p.args(), device.g.views()).ok());

  auto spoilt = c;
  spoilt.p.cu_seqlens.assign({0, 12, 9});
  const device_backward<> bad(spoilt);
  EXPECT_TRUE(check(on_cuda{}, bad.p.args(), bad.g.views()).ok());
  EXPECT_TRUE(
      refuses(validate(on_cuda{}, bad.p.args(), bad.g.views()), error_code::value, "cu_seqlens", "entry 2 is 9"));
  bad.run();  // clamped: no access leaves the operands
  for_each_gradient([](const char* name, const auto& gradient) { EXPECT_TRUE(gradient.untouched_outside()) << name; },
                    bad.gradients(spoilt));
}

// Small ones for the sanitizers.
TEST(SelectiveScanBackwardCuda, SanitizerLayouts) {
  std::mt19937 rng(58);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 3}}) {
    expect_reference(backward_problem<>(
        scan_shape{.B = 1, .T = 37, .D = 10, .G = 2, .N = 16, .memory = memory, .group_memory = time_last}, rng));
  }
}
TEST(SelectiveScanBackwardCuda, SanitizerManyStates) {
  std::mt19937 rng(59);
  expect_reference(backward_problem<>(scan_shape{.B = 1, .T = 70, .D = 8, .G = 1, .N = 100}, rng));
  expect_reference(backward_problem<>(scan_shape{.B = 2, .T = 9, .D = 3, .G = 3, .N = 1}, rng));
}
TEST(SelectiveScanBackwardCuda, SanitizerLongTime) {
  std::mt19937 rng(60);
  expect_reference(backward_problem<>(scan_shape{.B = 1, .T = 1100, .D = 3, .G = 1, .N = 5}, rng));
  expect_reference(
      backward_problem<>(scan_shape{.B = 1, .T = 700, .D = 8, .G = 1, .N = 17, .memory = channel_first}, rng));
}
TEST(SelectiveScanBackwardCuda, SanitizerPacked) {
  std::mt19937 rng(61);
  expect_reference(
      backward_problem<>(scan_shape{.B = 1, .T = 131, .D = 24, .G = 1, .N = 16, .lengths = {0, 3, 65, 0, 1, 62}}, rng));
  expect_reference(
      backward_problem<>(scan_shape{.B = 1, .T = 700, .D = 2, .G = 1, .N = 8, .lengths = {600, 0, 1, 99}}, rng));
}
TEST(SelectiveScanBackwardCuda, SanitizerManyChannels) {
  std::mt19937 rng(62);
  expect_reference(backward_problem<>(scan_shape{.B = 1, .T = 70, .D = 1032, .G = 1, .N = 4}, rng));
}
TEST(SelectiveScanBackwardCuda, SanitizerTilesOverBlocks) {  // more tiles than a chip has multiprocessors
  std::mt19937 rng(65);
  expect_reference(backward_problem<>(scan_shape{.B = 1, .T = 150, .D = 150, .G = 150, .N = 2}, rng));
  expect_reference(backward_problem<>(scan_shape{.B = 150, .T = 70, .D = 2, .G = 1, .N = 2}, rng));
}
TEST(SelectiveScanBackwardCuda, SanitizerSomeGradients) {
  std::mt19937 rng(63);
  for (const unsigned mask : {0x001u, 0x004u, 0x018u, 0x100u, 0x0a2u}) {
    backward_problem<> c(scan_shape{.B = 2, .T = 40, .D = 8, .G = 1, .N = 8}, rng);
    want_only(c.g, mask);
    expect_reference(c);
  }
}

}  // namespace
}  // namespace polystate::testing
