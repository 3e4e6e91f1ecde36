// SPDX-License-Identifier: Apache-2.0

// The CUDA convolution's gradients against the reference's, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "causal_conv1d/cuda_problem.cuh"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;
using polystate_detail::cuda::conv1d::kernel_kind;
constexpr std::int64_t V = polystate_detail::cuda::vector_elements<Data>;

/// c of the elementwise bound on what running error analysis allows: sums over time in another order.
constexpr double gradient_bound = 16;

const std::vector<layout<3>> layouts = {channel_last,   channel_first,   // whole
                                        {{0, 1, 2}, 3}, {{0, 2, 1}, 3},  // odd strides
                                        {{0, 1, 2}, 8}, {{0, 2, 1}, 8},  // gaps that keep the alignment
                                        {{1, 2, 0}, 0}, {{2, 1, 0}, 0}, {{1, 0, 2}, 0}, {{2, 0, 1}, 1}};

// Empty sequences, some shorter than the taps, some long.
const std::vector<std::int32_t> pieces = {0, 1, 2, 3, 5, 8, 17, 64, 300};

/// A problem with its upstream gradients, and the gradients to be written.
struct backward_problem {
  conv_problem<Data> p;
  conv_gradients<Data> g;

  backward_problem(const conv_shape& s, std::mt19937& rng) : p(s, rng), g(s, rng) {}
};

struct device_backward {
  device_conv<Data> p;
  device_conv_gradients<Data> g;

  explicit device_backward(const backward_problem& c, std::int64_t x_off = 0, std::int64_t dy_off = 0,
                           std::int64_t dx_off = 0)
      : p(c.p, x_off), g(c.g, dy_off, dx_off) {}

  void run(const on_cuda& exec = {}) const { causal_conv1d_backward(exec, p.args(), g.views()); }
  [[nodiscard]] std::size_t workspace() const { return workspace_bytes(on_cuda{}, p.args(), g.views()); }
  [[nodiscard]] conv_gradients<Data> gradients(const backward_problem& c) const {
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    conv_gradients<Data> got = c.g;
    g.download(got);
    return got;
  }
  /// Only the gradients are written: neither the inputs nor the forward's outputs.
  [[nodiscard]] bool others_unchanged() const {
    return p.x.unchanged() && p.weight.unchanged() && p.bias.unchanged() && p.initial_state.unchanged() &&
           p.y.unchanged() && p.final_state.unchanged() && g.d_y.unchanged() && g.d_final_state.unchanged();
  }
};

conv_gradients<Data> on_device(const backward_problem& c, const on_cuda& exec = {}) {
  const device_backward device(c);
  device.run(exec);
  return device.gradients(c);
}

void judge(const conv_gradients<Data>& got, const backward_problem& c) {
  const auto want = run_reference(c.p.in_double(), c.g.in_double());
  for_each_gradient(
      [](const char* name, const auto& g, const auto& value, const auto& error) {
        EXPECT_TRUE(within_elementwise_bound(g, value, error, gradient_bound)) << name;
        EXPECT_TRUE(g.untouched_outside()) << name;
      },
      got, want.value, want.error);
}

/// Runs the problem in a workspace of exactly the size asked for, and judges every gradient.
void expect_reference(const backward_problem& c, const device_backward& device) {
  const guarded_workspace memory(device.workspace());
  device.run(device.workspace() > 0 ? on_cuda{.workspace = memory.whole()} : on_cuda{});
  judge(device.gradients(c), c);
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(device.others_unchanged());
}
void expect_reference(const backward_problem& c) { expect_reference(c, device_backward(c)); }
void expect_reference(const conv_shape& s, std::mt19937& rng) { expect_reference(backward_problem(s, rng)); }

/// Every bit of every gradient.
void expect_same(const conv_gradients<Data>& a, const conv_gradients<Data>& b) {
  for_each_gradient([](const char* name, const auto& x, const auto& y) { EXPECT_TRUE(bitwise_equal(x, y)) << name; }, a,
                    b);
}

/// Leaves out the gradients whose bit is not set.
void want_only(conv_gradients<Data>& g, unsigned mask) {
  unsigned i = 0;
  for_each_gradient(
      [&](const char*, auto& gradient) {
        if ((mask >> i++ & 1u) == 0) gradient = {};
      },
      g);
}
constexpr unsigned number_of_gradients = 4;

// bugs B007, B032, B035, B037, B068, B074, B085: any width, layout, length, option; strides of each gradient its own.
TEST(CausalConv1dCudaBackward, RandomProblems) {
  std::mt19937 rng(31);
  std::map<kernel_kind, int> runs;
  for (const std::int64_t W : {1, 2, 3, 4, 5, 9, 17, 31}) {
    const bool fast = causal_conv1d_fast_widths::contains(W);
    for (int i = 0; i < (fast ? 60 : 15); ++i) {
      conv_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
                   .T = pick<std::int64_t>({0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 127, 256, 264, 520}, rng),
                   .D = pick<std::int64_t>({1, 3, 8, 16, 37, 72}, rng),
                   .W = W,
                   .bias = coin(rng),
                   .initial_state = coin(rng),
                   .final_state = coin(rng),
                   .act = coin(rng) ? activation::silu : activation::none,
                   .memory = pick(layouts, rng)};
      if (coin(rng)) {
        s.B = 1;
        s.lengths = random_lengths(s.T, pieces, rng);
      }
      backward_problem c(s, rng);
      if (rng() % 6 == 0) c.g.d_y = {};
      if (rng() % 4 == 0) c.g.d_y = laid_out(c.g.d_y, pick(layouts, rng));
      if (rng() % 4 == 0) c.g.d_x = tensor<Data, 3>({s.B, s.T, s.D}, pick(layouts, rng));
      if (coin(rng)) c.p.initial_state = laid_out(c.p.initial_state, channel_first);
      if (coin(rng)) c.g.d_final_state = laid_out(c.g.d_final_state, channel_first);
      if (coin(rng)) c.g.d_initial_state = laid_out(c.g.d_initial_state, channel_first);
      if (coin(rng)) c.g.d_weight = tensor<float, 2>({s.D, W}, layout<2>{{1, 0}, 1});
      if (rng() % 4 == 0) want_only(c.g, static_cast<unsigned>(rng()));
      const auto off = [&] { return std::int64_t{rng() % 10 == 0}; };
      const std::int64_t x_off = off(), dy_off = off(), dx_off = off();
      SCOPED_TRACE(::testing::Message() << "W " << W << ", problem " << i << ": B " << s.B << ", T " << s.T << ", D "
                                        << s.D << ", sequences " << s.lengths.size() << ", silu "
                                        << (s.act == activation::silu) << ", x order " << s.memory.order[0]
                                        << s.memory.order[1] << s.memory.order[2] << " pad " << s.memory.pad
                                        << ", offsets " << x_off << dy_off << dx_off);
      const device_backward device(c, x_off, dy_off, dx_off);
      if (c.p.x.view().size() > 0)
        ++runs[polystate_detail::cuda::conv1d::choose_kernel(device.p.args(), device.g.views())];
      expect_reference(c, device);
      if (HasFailure()) return;  // one report is enough
    }
  }
  for (const auto path : {kernel_kind::channel_last, kernel_kind::channel_first, kernel_kind::general}) {
    EXPECT_GE(runs[path], 10) << "the sweep must reach every kernel";
  }
}

// Several blocks along time in every path, each with the seams of its neighbours; and several of channels.
TEST(CausalConv1dCudaBackward, SeveralBlocksAlongTime) {
  std::mt19937 rng(32);
  for (const std::int64_t W : {2, 3, 4, 9}) {
    for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 3}, layout<3>{{0, 2, 1}, 3}}) {
      expect_reference(conv_shape{.B = 2, .T = 2048 + 24, .D = 8, .W = W, .memory = memory}, rng);
    }
  }
  for (const auto& memory : {channel_last, channel_first}) {
    expect_reference(conv_shape{.B = 2, .T = 264, .D = 520, .W = 4, .memory = memory}, rng);
  }
}

// Every length of runs and number of rows of partial sums, which large problems take: d_x to the bit, packed too.
TEST(CausalConv1dCudaBackward, EverySchedule) {
  namespace conv1d = polystate_detail::cuda::conv1d;
  std::mt19937 rng(33);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const bool packed : {false, true}) {
      conv_shape s{.B = packed ? 1 : 2, .T = 2304, .D = 40, .W = 4, .memory = memory};
      if (packed) s.lengths = {300, 0, 1, 3, 1200, 2, 798};
      const backward_problem c(s, rng);
      const auto want = on_device(c);
      judge(want, c);
      device_backward device(c);
      const auto chosen = conv1d::choose_schedule(device.p.args(), device.g.views());
      ASSERT_NE(chosen.tiling.kernel, kernel_kind::general);
      for (int run = chosen.tiling.run; run <= 2048; run *= 2) {
        for (const std::int64_t most_rows : {1, 2, 1000}) {
          auto schedule = chosen;
          schedule.tiling.block_tokens *= run / schedule.tiling.run;
          schedule.tiling.run = run;
          schedule.tiling.cover(s.B, s.T, s.D);
          schedule.tasks = s.B * schedule.tiling.time_tiles;
          schedule.rows = std::min(most_rows, schedule.tasks);
          schedule.blocks = schedule.tiling.channel_tiles * schedule.rows;
          const device_memory partials(static_cast<std::size_t>(schedule.rows * (s.W + 1) * s.D) * sizeof(float));
          const auto params =
              conv1d::make_params(device.p.args(), device.g.views(), schedule, static_cast<float*>(partials.data()));
          device.g.d_x.upload(c.g.d_x);  // poison again
          device.g.d_weight.upload(c.g.d_weight);
          device.g.d_bias.upload(c.g.d_bias);
          POLYSTATE_CUDA_REQUIRE(cudaMemset(partials.data(), 0xff, partials.bytes()));
          ASSERT_TRUE(conv1d::launch_backward("test", on_cuda{}, params).ok());
          const auto got = device.gradients(c);
          SCOPED_TRACE(::testing::Message() << "run " << run << ", rows " << schedule.rows << ", packed " << packed);
          judge(got, c);
          EXPECT_TRUE(bitwise_equal(got.d_x, want.d_x));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// bugs B008, B010, B011: more batch entries, channels and tokens than a grid has rows.
TEST(CausalConv1dCudaBackward, MoreThan65535OfEverything) {
  std::mt19937 rng(34);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {4, 5}) {
      expect_reference(conv_shape{.B = 70000, .T = 1, .D = 1, .W = W, .memory = memory}, rng);
      expect_reference(conv_shape{.B = 8193, .T = 8, .D = 8, .W = W, .memory = memory}, rng);
      expect_reference(conv_shape{.B = 1, .T = 8, .D = 70000, .W = W, .memory = memory}, rng);
      expect_reference(conv_shape{.B = 1, .T = 70008, .D = 8, .W = W, .memory = memory}, rng);
    }
  }
}

// bugs B085: a row of more than 65,536 sequences, some empty, most shorter than the taps.
TEST(CausalConv1dCudaBackward, ManySequences) {
  std::mt19937 rng(35);
  for (const auto& memory : {channel_last, channel_first}) {
    std::vector<std::int32_t> lengths(66000);
    for (auto& n : lengths) n = static_cast<std::int32_t>(rng() % 5);
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    lengths.push_back(static_cast<std::int32_t>(V - total % V));
    expect_reference(
        conv_shape{.B = 1, .T = total + lengths.back(), .D = V, .W = 4, .lengths = lengths, .memory = memory}, rng);
  }
}

// bugs B019, B085: sequences that end and begin anywhere in a vector, a group of rows or a run; under the checkers too.
TEST(CausalConv1dCudaBackward, SanitizerPackedTails) {
  std::mt19937 rng(36);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const auto& lengths : std::vector<std::vector<std::int32_t>>{
             {130, 5, 1}, {0, 0, 1, 0, 2, 3, 1, 1, 40, 0}, {8, 16, 8}, {3, 4, 5, 6, 7, 7}, {0}, {0, 0}}) {
      expect_reference(conv_shape{.B = 1,
                                  .T = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
                                  .D = 8,
                                  .W = 4,
                                  .lengths = lengths,
                                  .memory = memory},
                       rng);
    }
  }
}

TEST(CausalConv1dCudaBackward, SanitizerEveryPath) {
  std::mt19937 rng(37);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}, layout<3>{{2, 1, 0}, 0}}) {
    for (const std::int64_t W : {1, 2, 3, 4, 10}) {
      for (const std::int64_t T : {1, 8, 40}) {
        expect_reference(conv_shape{.B = 2, .T = T, .D = 24, .W = W, .memory = memory}, rng);
      }
    }
  }
}

// T = 0 hands the final state's gradient to the initial state; the sums of nothing are zero. bugs B085.
TEST(CausalConv1dCudaBackward, SanitizerEmptyProblems) {
  std::mt19937 rng(38);
  for (const std::int64_t W : {1, 4, 7}) {
    for (const bool state : {false, true}) {
      for (const auto& [B, T, D] :
           std::vector<std::array<std::int64_t, 3>>{{2, 0, 8}, {0, 5, 8}, {2, 5, 0}, {0, 0, 0}}) {
        expect_reference(conv_shape{.B = B, .T = T, .D = D, .W = W, .initial_state = state}, rng);
      }
    }
  }
}

// bugs B068, B074: each gradient alone, and all but it, has the bits that it has beside the others.
TEST(CausalConv1dCudaBackward, EachGradientAlone) {
  std::mt19937 rng(39);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const bool packed : {false, true}) {
      conv_shape s{.B = packed ? 1 : 2, .T = 48, .D = 16, .W = 4, .memory = memory};
      if (packed) s.lengths = {20, 1, 0, 27};
      backward_problem c(s, rng);
      const auto all = on_device(c);
      for (unsigned mask = 0; mask < 1u << number_of_gradients; ++mask) {
        backward_problem some = c;
        want_only(some.g, mask);
        some.p.y = {};
        some.p.final_state = {};
        for_each_gradient(
            [&](const char* name, const auto& got, const auto& want) {
              if (got) EXPECT_TRUE(bitwise_equal(got, want)) << name << " of " << mask;
            },
            on_device(some), all);
      }
    }
  }
}

// An absent upstream gradient is one of zeros.
TEST(CausalConv1dCudaBackward, AbsentUpstreamIsZero) {
  std::mt19937 rng(40);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    const backward_problem c(conv_shape{.T = 40, .D = 16, .memory = memory}, rng);
    for (unsigned mask = 1; mask < 4; ++mask) {
      backward_problem absent = c;
      backward_problem zero = c;
      const auto clear = [](Data& x) { x = static_cast<Data>(0.0f); };
      if ((mask & 1u) != 0) {
        absent.g.d_y = {};
        zero.g.d_y.for_each(clear);
      }
      if ((mask & 2u) != 0) {
        absent.g.d_final_state = {};
        zero.g.d_final_state.for_each(clear);
      }
      const auto a = on_device(absent);
      const auto b = on_device(zero);
      for_each_gradient(  // of either sign
          [&](const char* name, const auto& x, const auto& y) {
            const auto left = x.values();
            const auto right = y.values();
            for (std::size_t i = 0; i < left.size(); ++i) {
              EXPECT_EQ(static_cast<float>(left[i]), static_cast<float>(right[i])) << name << ' ' << i;
            }
          },
          a, b);
    }
  }
}

// bugs F11: twenty runs, bit for bit.
// bugs B166: tokens behind the last offset are of no sequence: their gradients are 0, and they add to none.
TEST(CausalConv1dCudaBackward, RowsOfNoSequence) {
  std::mt19937 rng(38);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {1, 4, 6}) {
      backward_problem whole(conv_shape{.B = 1, .T = 48, .D = 16, .W = W, .lengths = {20, 28}, .memory = memory}, rng);
      whole.g.d_final_state = {};
      auto cut = whole;
      cut.p.cu_seqlens.assign({0, 20, 31});
      clear_from(31, whole.g.d_y);
      judge(on_device(cut), whole);
    }
  }
}

TEST(CausalConv1dCudaBackward, TwentyRunsGiveTheSameBits) {
  std::mt19937 rng(41);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    const backward_problem c(conv_shape{.B = 3, .T = 520, .D = 72, .W = 4, .memory = memory}, rng);
    const auto first = on_device(c);
    for (int i = 0; i < 20; ++i) expect_same(first, on_device(c));
  }
}

// Layout, alignment, and what else is in the batch change no bit of d_x; bugs F10, B113.
TEST(CausalConv1dCudaBackward, SameBitsInEveryLayoutAndBatch) {
  std::mt19937 rng(42);
  for (const std::int64_t W : {2, 3, 4}) {
    for (const auto act : {activation::none, activation::silu}) {
      const backward_problem c(conv_shape{.B = 2, .T = 264, .D = 40, .W = W, .act = act}, rng);
      const auto first = on_device(c);
      for (const auto& memory : layouts) {
        backward_problem other = c;
        other.p.x = laid_out(c.p.x, memory);
        other.g.d_y = laid_out(c.g.d_y, memory);
        other.g.d_x = laid_out(c.g.d_x, memory);
        const auto got = on_device(other);
        EXPECT_TRUE(bitwise_equal(first.d_x, got.d_x));
        EXPECT_TRUE(bitwise_equal(first.d_initial_state, got.d_initial_state));
      }
      const device_backward device(c);
      const auto all_of = [](const auto& v, std::int64_t b) { return v.slice(0, b, b + 1); };
      for (std::int64_t b = 0; b < 2; ++b) {
        auto args = device.p.args();
        auto grads = device.g.views();
        args.x = all_of(args.x, b);
        args.y = {};
        args.initial_state = all_of(args.initial_state, b);
        args.final_state = {};
        grads = {.d_y = all_of(grads.d_y, b),
                 .d_final_state = all_of(grads.d_final_state, b),
                 .d_x = all_of(grads.d_x, b),
                 .d_initial_state = all_of(grads.d_initial_state, b)};
        causal_conv1d_backward(on_cuda{}, args, grads);
      }
      const auto alone = device.gradients(c);
      EXPECT_TRUE(bitwise_equal(first.d_x, alone.d_x)) << "each batch entry alone";
      EXPECT_TRUE(bitwise_equal(first.d_initial_state, alone.d_initial_state)) << "each batch entry alone";
    }
  }
}

// Packed sequences are separate ones; bugs B034, B085.
TEST(CausalConv1dCudaBackward, PackedIsSeparate) {
  std::mt19937 rng(43);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    const std::vector<std::int32_t> lengths = {16, 8, 0, 1, 3, 20, 48};
    const std::int64_t T = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const backward_problem c(conv_shape{.B = 1, .T = T, .D = 16, .W = 4, .lengths = lengths, .memory = memory}, rng);
    const auto packed = on_device(c);
    const device_backward device(c);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto s = static_cast<std::int64_t>(i);
      const std::int64_t end = begin + lengths[i];
      auto args = device.p.args();
      const auto g = device.g.views();
      args.cu_seqlens = {};
      args.x = args.x.slice(1, begin, end);
      args.y = {};
      args.initial_state = args.initial_state.slice(0, s, s + 1);
      args.final_state = {};
      causal_conv1d_backward(on_cuda{}, args,
                             causal_conv1d_grads<Data>{.d_y = g.d_y.slice(1, begin, end),
                                                       .d_final_state = g.d_final_state.slice(0, s, s + 1),
                                                       .d_x = g.d_x.slice(1, begin, end),
                                                       .d_initial_state = g.d_initial_state.slice(0, s, s + 1)});
      begin = end;
    }
    const auto separate = device.gradients(c);
    EXPECT_TRUE(bitwise_equal(packed.d_x, separate.d_x));
    EXPECT_TRUE(bitwise_equal(packed.d_initial_state, separate.d_initial_state));
  }
}

// bugs B095: a run cut anywhere, the states' gradients handed from the second part to the first, is the whole run.
TEST(CausalConv1dCudaBackward, SplitAndResume) {
  std::mt19937 rng(44);
  const double tolerance = std::is_same_v<Data, float> ? 1e-6 : std::is_same_v<Data, half> ? 2e-3 : 1.5e-2;
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {2, 4, 6}) {
      const backward_problem c(conv_shape{.B = 2, .T = 80, .D = 8, .W = W, .memory = memory}, rng);
      const auto want = run_reference(c.p.in_double(), c.g.in_double());
      for (const std::int64_t cut : {0, 1, 2, 3, 8, 41, 80}) {
        const device_backward device(c);
        const device_tensor<Data, 3> state(c.g.d_initial_state);  // between the parts
        const device_tensor<Data, 3> d_state(c.g.d_initial_state);
        const auto args = device.p.args();
        const auto g = device.g.views();
        auto head = args;
        head.x = args.x.slice(1, 0, cut);
        head.y = args.y.slice(1, 0, cut);
        head.final_state = state.view();
        causal_conv1d(on_cuda{}, head);
        auto tail = args;
        tail.x = args.x.slice(1, cut, 80);
        tail.y = {};
        tail.initial_state = state.view();
        tail.final_state = {};
        causal_conv1d_backward(on_cuda{}, tail,
                               causal_conv1d_grads<Data>{.d_y = g.d_y.slice(1, cut, 80),
                                                         .d_final_state = g.d_final_state,
                                                         .d_x = g.d_x.slice(1, cut, 80),
                                                         .d_initial_state = d_state.view()});
        causal_conv1d_backward(on_cuda{}, head,
                               causal_conv1d_grads<Data>{.d_y = g.d_y.slice(1, 0, cut),
                                                         .d_final_state = d_state.view(),
                                                         .d_x = g.d_x.slice(1, 0, cut),
                                                         .d_initial_state = g.d_initial_state});
        const auto got = device.gradients(c);
        EXPECT_LE(relative_l2(got.d_x, want.value.d_x), tolerance) << "cut at " << cut;
        EXPECT_LE(relative_l2(got.d_initial_state, want.value.d_initial_state), tolerance) << "cut at " << cut;
      }
    }
  }
}

// A NaN upstream or in x stays in its sequence and channel; in d_weight and d_bias it is the channel's.
TEST(CausalConv1dCudaBackward, NanStaysInItsSequenceAndChannel) {
  std::mt19937 rng(45);
  const auto nan = static_cast<Data>(std::numeric_limits<float>::quiet_NaN());
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const bool packed : {false, true}) {
      conv_shape s{.B = packed ? 1 : 2, .T = 64, .D = 16, .W = 4, .memory = memory};
      if (packed) s.lengths = {20, 3, 0, 41};
      backward_problem c(s, rng);
      c.g.d_y.view()(0, 18, 5) = nan;
      c.p.x.view()(0, 40, 2) = nan;
      c.p.initial_state.view()(1, 2, 7) = nan;
      c.g.d_final_state.view()(0, 1, 9) = nan;
      expect_reference(c);  // NaN exactly where the reference has it
    }
  }
}

// Sums far outside exp's range: the slope of silu is 0 on the left and 1 on the right, never NaN.
TEST(CausalConv1dCudaBackward, SlopeOfLargeSums) {
  std::mt19937 rng(46);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    backward_problem c(conv_shape{.B = 1, .T = 64, .D = 8, .W = 2, .memory = memory}, rng);
    double value = -60000;
    c.p.x.for_each([&](Data& x) { x = static_cast<Data>(value += 234.5); });
    expect_reference(c);
  }
}

// bugs B005, B007: strides and offsets past 2^32 elements, in each of the indices, read and written.
TEST(CausalConv1dCudaBackward, StridesPast2To32) {
  struct far_view {
    std::int64_t B, T, D;
    std::int64_t strides[3];
  };
  constexpr std::int64_t far = (std::int64_t{1} << 32) + 64;
  std::mt19937 rng(47);
  for (const auto& v : {far_view{2, 40, 16, {far, 16, 1}}, far_view{2, 40, 16, {far, 1, 40}},
                        far_view{1, 2, 16, {0, far, 1}}, far_view{1, 40, 2, {0, 1, far}}}) {
    const backward_problem c(conv_shape{.B = v.B, .T = v.T, .D = v.D, .W = 4}, rng);
    using far_tensor = spread_tensor<Data, 3>;
    const std::size_t bytes = 3 * far_tensor::bytes(c.p.x, v.strides);
    if (!device_has_free(bytes + (std::size_t{1} << 30))) GTEST_SKIP() << "needs " << bytes << " bytes";
    const far_tensor x(c.p.x, v.strides);
    const far_tensor d_y(c.g.d_y, v.strides);
    const far_tensor d_x(c.g.d_x, v.strides);
    const device_backward device(c);
    auto args = device.p.args();
    auto grads = device.g.views();
    args.x = x.view();
    grads.d_y = d_y.view();
    grads.d_x = d_x.view();
    causal_conv1d_backward(on_cuda{}, args, grads);
    auto got = device.gradients(c);
    d_x.download(got.d_x);
    judge(got, c);
  }
}

TEST(CausalConv1dCudaBackward, Workspace) {  // bugs B134
  std::mt19937 rng(48);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    backward_problem c(conv_shape{.B = 2, .T = 64, .D = 32, .W = 4, .memory = memory}, rng);
    const device_backward device(c);
    const guarded_workspace scratch(device.workspace());
    EXPECT_GT(device.workspace(), 0u);
    device.run(on_cuda{.workspace = scratch.whole()});
    const auto given = device.gradients(c);
    EXPECT_TRUE(scratch.guards_untouched());
    expect_same(given, on_device(c));
    const device_backward untouched(c);
    for (const auto& bad : {scratch.too_small(), scratch.misaligned()}) {
      EXPECT_TRUE(
          refuses(try_causal_conv1d_backward(on_cuda{.workspace = bad}, untouched.p.args(), untouched.g.views()),
                  error_code::workspace, "exec.workspace", bad.bytes == device.workspace() ? "misaligned" : "needed"));
    }
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    EXPECT_TRUE(untouched.g.d_x.unchanged() && untouched.g.d_weight.unchanged());
    want_only(c.g, 0b1001);  // nothing summed
    EXPECT_EQ(device_backward(c).workspace(), 0u);
  }
}

TEST(CausalConv1dCudaBackward, Refusals) {
  std::mt19937 rng(49);
  const backward_problem c(conv_shape{.B = 1, .T = 16, .D = 8, .W = 4, .lengths = {10, 6}}, rng);
  const device_backward device(c);
  auto grads = device.g.views();
  grads.d_y = grads.d_x;
  EXPECT_TRUE(
      refuses(try_causal_conv1d_backward(on_cuda{}, device.p.args(), grads), error_code::overlap, "d_x", "d_y"));
  grads = device.g.views();
  grads.d_weight = grads.d_weight.slice(0, 0, 7);
  EXPECT_TRUE(refuses(try_causal_conv1d_backward(on_cuda{}, device.p.args(), grads), error_code::shape, "d_weight",
                      "supported: (D, W)"));
  EXPECT_THROW(causal_conv1d_backward(on_cuda{}, device.p.args(), grads), argument_error);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  EXPECT_TRUE(device.g.d_x.unchanged());
}

// Contents that validate() refuses stay inside the operands: under a memory checker too.
TEST(CausalConv1dCudaBackward, SanitizerInvalidContentsStayInside) {
  std::mt19937 rng(50);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const auto& cu : std::vector<std::vector<std::int32_t>>{
             {5, 9, 20, 30, 64}, {-7, 900, 3, 70, 64}, {64, 64, 64, 64, 64}, {0, 40, 20, 50, 10}, {0, 0, 0, 0, 0}}) {
      backward_problem c(conv_shape{.B = 1, .T = 64, .D = 32, .W = 4, .lengths = {20, 0, 3, 41}, .memory = memory},
                         rng);
      c.p.cu_seqlens.assign(cu);
      for_each_gradient([](const char* name, const auto& g) { EXPECT_TRUE(g.untouched_outside()) << name; },
                        on_device(c));
    }
  }
}

// Captured once, replayed on contents that change; called from two threads on streams of their own.
TEST(CausalConv1dCudaBackward, GraphsStreamsAndThreads) {
  std::mt19937 rng(51);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    const conv_shape s{.B = 1, .T = 64, .D = 32, .W = 4, .lengths = {20, 0, 3, 41}, .memory = memory};
    const backward_problem c(s, rng);
    const auto want = on_device(c);
    const device_stream stream;
    device_backward device(c);
    const captured_graph graph(stream, [&] { device.run(stream.exec()); });
    graph.replay(stream);
    expect_same(want, device.gradients(c));
    const backward_problem other(s, rng);
    device.g.d_y.upload(other.g.d_y);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    graph.replay(stream);
    backward_problem changed = c;
    changed.g.d_y = other.g.d_y;
    expect_same(on_device(changed), device.gradients(c));

    const device_stream second_stream;
    const device_backward first(c);
    const device_backward second(c);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    for (int repeat = 0; repeat < 5; ++repeat) {
      first.run(stream.exec());
      std::thread([&] { second.run(second_stream.exec()); }).join();
    }
    expect_same(want, first.gradients(c));
    expect_same(want, second.gradients(c));
  }
}

}  // namespace
}  // namespace polystate::testing
