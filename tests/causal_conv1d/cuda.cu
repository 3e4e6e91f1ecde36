// SPDX-License-Identifier: Apache-2.0

// The CUDA convolution against the reference, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "causal_conv1d/cuda_problem.cuh"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tail.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;
using polystate_detail::cuda::conv1d::kernel_kind;
constexpr std::int64_t V = polystate_detail::cuda::vector_elements<Data>;

const std::vector<std::int64_t> widths = {1, 2, 3, 4, 5, 6, 7, 8, 9, 31};

const std::vector<layout<3>> layouts = {channel_last,   channel_first,   // whole
                                        {{0, 1, 2}, 3}, {{0, 2, 1}, 3},  // odd strides
                                        {{0, 1, 2}, 8}, {{0, 2, 1}, 8},  // gaps that keep the alignment
                                        {{1, 2, 0}, 0}, {{2, 1, 0}, 0}, {{1, 0, 2}, 0}, {{2, 0, 1}, 1}};

// Empty sequences, some shorter than the taps, some long.
const std::vector<std::int32_t> pieces = {0, 1, 2, 5, 8, 17, 64, 300};

// bugs B014, B019, B029, B032, B034, B037, B074, B085, B097, F10: any width, layout, length, option.
TEST(CausalConv1dCuda, RandomProblems) {
  std::mt19937 rng(11);
  std::map<kernel_kind, int> runs;
  for (const std::int64_t W : widths) {
    const bool fast = causal_conv1d_fast_widths::contains(W);
    for (int i = 0; i < (fast ? 120 : 30); ++i) {
      conv_shape s{.B = pick<std::int64_t>({1, 2, 3}, rng),
                   .T = pick<std::int64_t>({0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 256, 257, 1024, 1026}, rng),
                   .D = pick<std::int64_t>({1, 3, 8, 37, 64, 256, 264}, rng),
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
      conv_problem<Data> p(s, rng);
      const bool same_layout = rng() % 4 != 0;
      if (!same_layout) p.y = tensor<Data, 3>(p.y.extents(), pick(layouts, rng));
      if (coin(rng)) p.initial_state = laid_out(p.initial_state, channel_first);
      if (coin(rng)) p.final_state = laid_out(p.final_state, channel_first);
      if (coin(rng)) p.weight = laid_out(p.weight, layout<2>{{1, 0}, 1});
      const std::int64_t x_off = rng() % 8 == 0 ? 1 : 0;
      const std::int64_t y_off = rng() % 8 == 0 ? 1 : 0;
      SCOPED_TRACE(::testing::Message() << "W " << W << ", problem " << i << ": B " << s.B << ", T " << s.T << ", D "
                                        << s.D << ", sequences " << s.lengths.size() << ", x order "
                                        << s.memory.order[0] << s.memory.order[1] << s.memory.order[2] << " pad "
                                        << s.memory.pad << ", y like x " << same_layout << ", offsets " << x_off << ' '
                                        << y_off);
      const device_conv<Data> device(p, x_off, y_off);
      if (p.x.view().size() > 0) ++runs[polystate_detail::cuda::conv1d::choose_kernel(device.args())];
      expect_reference(p, device);
      if (HasFailure()) return;  // one report is enough
    }
  }
  for (const auto path : {kernel_kind::channel_last, kernel_kind::channel_first, kernel_kind::general}) {
    EXPECT_GE(runs[path], 20) << "the sweep must reach every kernel";
  }
}

// Several blocks along time in every path, each with the seams of its neighbours; and many channels.
TEST(CausalConv1dCuda, SeveralBlocksAlongTime) {
  std::mt19937 rng(12);
  for (const std::int64_t W : {2, 3, 4, 9}) {
    for (const auto& memory : layouts) {
      expect_reference(conv_problem<Data>(conv_shape{.B = 2, .T = 4096 + 24, .D = 16, .W = W, .memory = memory}, rng));
    }
  }
  for (const auto& memory : {channel_last, channel_first}) {
    expect_reference(conv_problem<Data>(conv_shape{.B = 3, .T = 520, .D = 1032, .W = 4, .memory = memory}, rng));
  }
}

// The schedule follows the size of the device, and no bit follows the schedule.
TEST(CausalConv1dCuda, SameBitsInEverySchedule) {
  std::mt19937 rng(13);
  const conv_problem<Data> p(conv_shape{.B = 2, .T = 1200, .D = 64, .W = 4, .memory = channel_last}, rng);
  const auto want = on_device(p);
  int runs = 0;
  for (int run = 0, multiprocessors = 1; multiprocessors < 1000; multiprocessors *= 2) {
    const device_conv<Data> device(p);
    const auto params = polystate_detail::cuda::conv1d::make_params(device.args(), multiprocessors);
    if (params.schedule.run == run) continue;
    run = params.schedule.run;
    ++runs;
    ASSERT_TRUE(polystate_detail::cuda::conv1d::launch_forward("test", on_cuda{}, params).ok());
    conv_problem<Data> got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.y, want.y)) << run << " tokens a thread";
  }
  EXPECT_GE(runs, 4);
}

// bugs B008, B010, B011: more batch entries, channels and tokens than a grid has rows.
TEST(CausalConv1dCuda, MoreThan65535OfEverything) {
  std::mt19937 rng(14);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {4, 5}) {
      const auto run = [&](std::int64_t B, std::int64_t T, std::int64_t D) {
        expect_reference(conv_problem<Data>(conv_shape{.B = B, .T = T, .D = D, .W = W, .memory = memory}, rng));
      };
      run(70000, 1, 1);
      run(8193, 8, 8);
      run(1, 8, 70000);
      run(1, 70001, 1);
      run(1, 131080, 8);
    }
  }
}

// A row of more than 65,536 sequences, some empty.
TEST(CausalConv1dCuda, ManySequences) {
  std::mt19937 rng(15);
  for (const auto& memory : {channel_last, channel_first}) {
    std::vector<std::int32_t> lengths(66000);
    for (auto& n : lengths) n = static_cast<std::int32_t>(rng() % 4);
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    lengths.push_back(static_cast<std::int32_t>(V - total % V));
    expect_reference(conv_problem<Data>(
        conv_shape{.B = 1, .T = total + lengths.back(), .D = V, .W = 4, .lengths = lengths, .memory = memory}, rng));
  }
}

// bugs B019, B085: one length two past a boundary; empty sequences in front, between and behind.
TEST(CausalConv1dCuda, SanitizerPackedTails) {
  std::mt19937 rng(16);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const auto& lengths : std::vector<std::vector<std::int32_t>>{
             {130, 5, 1}, {0, 0, 1, 0, 2, 3, 1, 1, 40, 0}, {8, 16, 8}, {0}, {0, 0}}) {
      conv_shape s{.B = 1,
                   .T = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
                   .D = 8,
                   .W = 4,
                   .lengths = lengths,
                   .memory = memory};
      expect_reference(conv_problem<Data>(s, rng));
    }
  }
}

TEST(CausalConv1dCuda, SanitizerEveryPath) {
  std::mt19937 rng(17);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}, layout<3>{{2, 1, 0}, 0}}) {
    for (const std::int64_t W : {1, 2, 3, 4, 6}) {
      for (const std::int64_t T : {1, 8, 40}) {
        expect_reference(conv_problem<Data>(conv_shape{.B = 2, .T = T, .D = 24, .W = W, .memory = memory}, rng));
      }
    }
  }
}

// T = 0 copies the state; B, D or everything 0 is a valid problem and launches no empty grid. bugs B085.
TEST(CausalConv1dCuda, SanitizerEmptyProblems) {
  std::mt19937 rng(18);
  for (const std::int64_t W : {1, 4, 7}) {
    for (const bool state : {false, true}) {
      for (const auto& [B, T, D] :
           std::vector<std::array<std::int64_t, 3>>{{2, 0, 8}, {0, 5, 8}, {2, 5, 0}, {0, 0, 0}}) {
        expect_reference(conv_problem<Data>(conv_shape{.B = B, .T = T, .D = D, .W = W, .initial_state = state}, rng));
      }
    }
  }
}

// bugs B097: final_state may be initial_state itself, for sequences longer and shorter than the state.
TEST(CausalConv1dCuda, SanitizerFinalStateInPlace) {
  std::mt19937 rng(19);
  for (const std::int64_t W : {2, 4, 7}) {
    for (const std::int64_t T : {0, 1, 2, 3, 4, 5, 6, 40}) {
      for (const auto& memory : {channel_last, channel_first}) {
        conv_problem<Data> p(conv_shape{.B = 3, .T = T, .D = 16, .W = W, .memory = memory}, rng);
        device_conv<Data> device(p);
        device.in_place = true;
        expect_reference(p, device);
      }
    }
  }
}

// Every path sums in one order: layout, alignment and schedule change no bit. bugs F10, F11, B113.
TEST(CausalConv1dCuda, SameBitsInEveryLayout) {
  std::mt19937 rng(20);
  for (const std::int64_t W : {2, 3, 4}) {
    for (const auto act : {activation::none, activation::silu}) {
      conv_problem<Data> p(conv_shape{.B = 2, .T = 264, .D = 40, .W = W, .act = act}, rng);
      const auto first = on_device(p);
      EXPECT_TRUE(bitwise_equal(first.y, on_device(p).y)) << "twice the same call";
      EXPECT_TRUE(bitwise_equal(first.y, on_device(p, 1, 0).y)) << "x misaligned";
      EXPECT_TRUE(bitwise_equal(first.y, on_device(p, 0, 1).y)) << "y misaligned";
      for (const auto& memory : layouts) {
        conv_problem<Data> other = p;
        other.x = laid_out(p.x, memory);
        other.y = laid_out(p.y, memory);
        EXPECT_TRUE(bitwise_equal(first.y, on_device(other).y));
      }
    }
  }
}

// dims<W> runs what dims<> chooses, and refuses other widths.
TEST(CausalConv1dCuda, FixedDims) {
  std::mt19937 rng(27);
  const auto same = [&]<int W>(std::integral_constant<int, W>) {
    const conv_problem<Data> p(conv_shape{.B = 2, .T = 50, .D = 16, .W = W}, rng);
    const device_conv<Data> device(p);
    causal_conv1d<dims<W>>(on_cuda{}, device.args());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    conv_problem<Data> got = p;
    device.download(got);
    EXPECT_TRUE(bitwise_equal(got.y, on_device(p).y)) << "W " << W;
    EXPECT_TRUE(refuses(try_causal_conv1d<dims<W + 1>>(on_cuda{}, device.args()), error_code::unsupported, "weight",
                        "supported: dims<"));
  };
  same(std::integral_constant<int, 4>{});
  same(std::integral_constant<int, 6>{});  // any width has the general kernels
}

// bugs B166: tokens behind the last offset are of no sequence: their outputs are 0, and final states end before them.
TEST(CausalConv1dCuda, RowsOfNoSequence) {
  std::mt19937 rng(28);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {1, 4, 6}) {
      const conv_problem<Data> whole(
          conv_shape{.B = 1, .T = 48, .D = 16, .W = W, .lengths = {20, 28}, .memory = memory}, rng);
      for (const std::int32_t end : {31, 20, 0}) {
        SCOPED_TRACE(::testing::Message() << "W " << W << ", end " << end);
        auto cut = whole;
        cut.cu_seqlens.assign({0, std::min(end, 20), end});
        EXPECT_TRUE(cleared_from(end, on_device(cut).y, on_device(whole).y));
        auto none = whole;
        none.cu_seqlens = tensor<std::int32_t, 1>({1});
        none.cu_seqlens.assign({0});
        none.initial_state = {};
        none.final_state = {};
        EXPECT_TRUE(all_are(on_device(none).y.view(), 0.0));
      }
    }
  }
}

// bugs B095: a run split anywhere and resumed from the state is the whole run, to the bit.
TEST(CausalConv1dCuda, SplitAndResume) {
  std::mt19937 rng(21);
  for (const auto& memory : {channel_last, channel_first}) {
    for (const std::int64_t W : {1, 4, 6}) {
      conv_problem<Data> whole(conv_shape{.B = 2, .T = 80, .D = 8, .W = W, .memory = memory}, rng);
      const device_conv<Data> once(whole);
      causal_conv1d(on_cuda{}, once.args());
      for (const std::int64_t cut : {0, 1, 2, 3, 8, 41, 80}) {
        device_conv<Data> parts(whole);
        parts.in_place = true;
        for (const auto& [begin, end] : std::vector<std::array<std::int64_t, 2>>{{0, cut}, {cut, 80}}) {
          auto args = parts.args();
          args.x = args.x.slice(1, begin, end);
          args.y = args.y.slice(1, begin, end);
          causal_conv1d(on_cuda{}, args);
        }
        conv_problem<Data> a = whole;
        conv_problem<Data> b = whole;
        once.download(a);
        parts.download(b);
        EXPECT_TRUE(bitwise_equal(a.y, b.y)) << "cut at " << cut;
        EXPECT_TRUE(bitwise_equal(a.final_state, b.final_state)) << "cut at " << cut;
      }
    }
  }
}

// A NaN or an infinity reaches the W outputs under its taps, and no other sequence, channel or batch entry.
TEST(CausalConv1dCuda, NanStaysInItsSequenceAndChannel) {
  std::mt19937 rng(22);
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    for (const bool packed : {false, true}) {
      conv_shape s{.B = packed ? 1 : 2, .T = 64, .D = 16, .W = 4, .memory = memory};
      if (packed) s.lengths = {20, 3, 0, 41};
      conv_problem<Data> p(s, rng);
      p.x.view()(0, 18, 5) = static_cast<Data>(std::numeric_limits<float>::quiet_NaN());
      p.x.view()(0, 40, 2) = static_cast<Data>(std::numeric_limits<float>::infinity());
      p.initial_state.view()(1, 2, 7) = static_cast<Data>(std::numeric_limits<float>::quiet_NaN());
      expect_reference(p);  // NaN exactly where the reference has it
    }
  }
}

// Sums far outside exp's range: silu is 0 on the left and the sum itself on the right, never NaN.
TEST(CausalConv1dCuda, SiluOfLargeSums) {
  for (const auto& memory : {channel_last, channel_first, layout<3>{{0, 1, 2}, 1}}) {
    conv_problem<Data> p;
    p.x = tensor<Data, 3>({1, 64, 8}, memory);
    p.y = tensor<Data, 3>({1, 64, 8}, memory);
    p.weight = tensor<float, 2>({8, 2});
    p.weight.for_each([](float& w) { w = 0.5f; });
    p.act = activation::silu;
    double value = -60000;
    p.x.for_each([&](Data& x) { x = static_cast<Data>(value += 234.5); });
    expect_reference(p);
  }
}

// bugs B004, B011, F09: a tensor of more than 2^31 elements; the same content in every row.
TEST(CausalConv1dCuda, MoreThan2To31Elements) {
  constexpr std::int64_t D = 2048;
  constexpr std::int64_t T = 1'050'000;
  static_assert(T * D > (std::int64_t{1} << 31));
  constexpr std::size_t bytes = static_cast<std::size_t>(T * D) * sizeof(Data);
  if (!device_has_free(2 * bytes + (std::size_t{1} << 30))) GTEST_SKIP() << "needs " << 2 * bytes << " bytes";
  const device_memory x(bytes);
  const device_memory y(bytes);
  constexpr int filler = 0x3c;  // a small number in each of the types
  POLYSTATE_CUDA_REQUIRE(cudaMemset(x.data(), filler, bytes));
  Data one;
  std::memset(static_cast<void*>(&one), filler, sizeof(Data));
  const tensor<float, 2> weights = [] {
    tensor<float, 2> w({D, 4});
    w.for_each([](float& e) { e = 1; });
    return w;
  }();
  const device_tensor<float, 2> weight(weights);
  const auto view = [&](void* data, bool time_inner) {
    auto* d = static_cast<Data*>(data);
    return time_inner ? tensor_view<Data, 3>(d, {1, T, D}, {T * D, 1, T}) : tensor_view<Data, 3>(d, {1, T, D});
  };
  for (const bool time_inner : {false, true}) {
    POLYSTATE_CUDA_REQUIRE(cudaMemset(y.data(), 0xff, bytes));
    const auto out = view(y.data(), time_inner);
    causal_conv1d(on_cuda{},
                  causal_conv1d_args<Data>{.x = view(x.data(), time_inner), .weight = weight.view(), .y = out});
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, T / 2,
                                 (std::int64_t{1} << 31) / D, T - 1}) {
      for (const std::int64_t d : {std::int64_t{0}, D / 2, D - 1}) {
        Data got;
        POLYSTATE_CUDA_REQUIRE(cudaMemcpy(&got, &out(0, t, d), sizeof(Data), cudaMemcpyDefault));
        const double taps = static_cast<double>(std::min<std::int64_t>(t + 1, 4));
        const auto want = static_cast<Data>(taps * static_cast<double>(static_cast<float>(one)));
        EXPECT_FLOAT_EQ(static_cast<float>(got), static_cast<float>(want)) << "t " << t << ", d " << d;
      }
    }
  }
}

// Copies on the device row by row, or element by element where the rows of one side have gaps.
void copy_pieces(const tensor_view<Data, 3>& to, const tensor_view<Data, 3>& from) {
  const bool rows = to.stride(2) == 1 && from.stride(2) == 1;
  const std::int64_t width = rows ? to.extent(2) : 1;
  for (std::int64_t b = 0; b < to.extent(0); ++b) {
    for (std::int64_t t = 0; t < to.extent(1); ++t) {
      for (std::int64_t d = 0; d < to.extent(2); d += width) {
        POLYSTATE_CUDA_REQUIRE(cudaMemcpyAsync(&to(b, t, d), &from(b, t, d),
                                               static_cast<std::size_t>(width) * sizeof(Data), cudaMemcpyDefault));
      }
    }
  }
}

// bugs B005, B007: strides and offsets past 2^32 elements, in each of the indices, read and written.
TEST(CausalConv1dCuda, StridesPast2To32) {
  struct far_view {
    std::int64_t B, T, D;
    std::int64_t strides[3];
  };
  constexpr std::int64_t far = (std::int64_t{1} << 32) + 64;
  std::mt19937 rng(23);
  for (const auto& v :
       {far_view{2, 40, 16, {far, 16, 1}}, far_view{2, 40, 16, {far, 1, 40}}, far_view{1, 131200, 8, {0, 32784, 1}},
        far_view{1, 2, 16, {0, far, 1}}, far_view{1, 40, 2, {0, 1, far}}, far_view{2, 3, 3, {4, far / 4, 1}}}) {
    const std::int64_t reach = (v.B - 1) * v.strides[0] + (v.T - 1) * v.strides[1] + (v.D - 1) * v.strides[2] + 1;
    const std::size_t bytes = static_cast<std::size_t>(reach) * sizeof(Data);
    if (!device_has_free(2 * bytes + (std::size_t{1} << 30))) GTEST_SKIP() << "needs " << 2 * bytes << " bytes";
    const device_memory far_x(bytes);
    const device_memory far_y(bytes);
    conv_problem<Data> p(conv_shape{.B = v.B, .T = v.T, .D = v.D, .W = 4}, rng);
    const device_conv<Data> near(p);
    causal_conv1d(on_cuda{}, near.args());

    const std::int64_t extents[3] = {v.B, v.T, v.D};
    const tensor_view<Data, 3> x(static_cast<Data*>(far_x.data()), extents, v.strides);
    const tensor_view<Data, 3> y(static_cast<Data*>(far_y.data()), extents, v.strides);
    copy_pieces(x, near.x.view());
    POLYSTATE_CUDA_REQUIRE(cudaMemset(far_y.data(), 0xff, bytes));
    const device_conv<Data> distant(p);
    auto args = distant.args();
    args.x = x;
    args.y = y;
    causal_conv1d(on_cuda{}, args);
    copy_pieces(distant.y.view(), y);

    conv_problem<Data> want = p;
    near.download(want);
    distant.download(p);
    EXPECT_TRUE(bitwise_equal(p.y, want.y)) << "strides " << v.strides[0] << ' ' << v.strides[1] << ' ' << v.strides[2];
    EXPECT_TRUE(bitwise_equal(p.final_state, want.final_state));
  }
}

// The state after the last token, and each output, as the forward gives them.
conv_step_problem<Data> random_step(std::int64_t B, std::int64_t T, std::int64_t D, std::int64_t W, std::mt19937& rng) {
  conv_step_problem<Data> p;
  p.x = tensor<Data, 3>({B, T, D}).uniform(rng, -2, 2);
  p.y = tensor<Data, 3>({B, T, D});
  p.weight = tensor<float, 2>({D, W}).uniform(rng, -1, 1);
  if (coin(rng)) p.bias = tensor<float, 1>({D}).uniform(rng, -1, 1);
  p.act = coin(rng) ? activation::silu : activation::none;
  p.state = tensor<Data, 3>({B, W - 1, D}).uniform(rng, -2, 2);
  if (coin(rng)) p.intermediate_states = tensor<Data, 4>({B, T, W - 1, D});
  return p;
}

// Rows of a shuffled pool: row b reads slots[b] and, of `separate`, writes a slot nobody reads; some are
// padding.
void use_pool(conv_step_problem<Data>& p, bool separate, bool padding, std::mt19937& rng) {
  const std::int64_t B = p.x.extents()[0];
  const std::int64_t pool = 2 * B + 3;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(pool));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), rng);
  const auto half_way = slots.begin() + B;
  std::vector<std::int32_t> read(slots.begin(), half_way);
  std::vector<std::int32_t> write(half_way, half_way + B);
  for (std::size_t b = 0; padding && b < read.size(); b += 3) (coin(rng) && separate ? write : read)[b] = -1;
  p.state = tensor<Data, 3>({pool, p.state.extents()[1], p.state.extents()[2]}).uniform(rng, -2, 2);
  p.read_indices = tensor<std::int32_t, 1>({B});
  p.read_indices.assign(read);
  if (separate) {
    p.write_indices = tensor<std::int32_t, 1>({B});
    p.write_indices.assign(write);
  }
}

// bugs B029, B031, B094, B098, B101, F02, F07: any width, tokens, pool, layout; padding touches nothing.
TEST(CausalConv1dCuda, RandomSteps) {
  std::mt19937 rng(24);
  int fast = 0;
  for (const std::int64_t W : widths) {
    for (int i = 0; i < 60; ++i) {
      const auto T = static_cast<std::int64_t>(rng() % 9);
      auto p = random_step(pick<std::int64_t>({1, 2, 5, 64}, rng), T, pick<std::int64_t>({1, 3, 8, 37, 256, 264}, rng),
                           W, rng);
      if (coin(rng)) use_pool(p, coin(rng), coin(rng), rng);
      if (coin(rng)) p.state = laid_out(p.state, pick(layouts, rng));
      if (rng() % 3 == 0) p.x = laid_out(p.x, pick(layouts, rng));
      if (rng() % 3 == 0) p.y = laid_out(p.y, pick(layouts, rng));
      if (coin(rng)) p.intermediate_states = laid_out(p.intermediate_states, layout<4>{{0, 1, 3, 2}, 0});
      if (coin(rng)) p.weight = laid_out(p.weight, layout<2>{{1, 0}, 1});
      SCOPED_TRACE(::testing::Message() << "W " << W << ", step " << i << ": B " << p.x.extents()[0] << ", T " << T
                                        << ", D " << p.x.extents()[2] << ", pool " << bool(p.read_indices)
                                        << bool(p.write_indices));
      const std::int64_t x_off = rng() % 8 == 0 ? 1 : 0;
      if (x_off == 0 && polystate_detail::cuda::conv1d::choose_schedule(p.args()).vectors) ++fast;
      expect_reference(p, x_off);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(fast, 30) << "the sweep must reach the vector kernels";
}

TEST(CausalConv1dCuda, SanitizerSteps) {
  std::mt19937 rng(25);
  for (const std::int64_t W : {1, 2, 4, 6}) {
    for (const std::int64_t T : {0, 1, 3}) {
      for (const std::int64_t D : {3, 16}) {
        auto p = random_step(4, T, D, W, rng);
        use_pool(p, coin(rng), true, rng);
        expect_reference(p);
      }
    }
  }
  expect_reference(random_step(0, 1, 8, 4, rng));
  expect_reference(random_step(2, 1, 0, 4, rng));
}

// bugs B008, B010: more rows than a grid's second dimension holds.
TEST(CausalConv1dCuda, StepOfMoreThan65535Rows) {
  std::mt19937 rng(26);
  for (const std::int64_t W : {4, 5}) {
    for (const std::int64_t D : {std::int64_t{1}, V}) {
      auto p = random_step(66000, 2, D, W, rng);
      use_pool(p, true, true, rng);
      expect_reference(p);
    }
  }
}

// Any cut of a run into steps gives the forward's bits, and its states after each token.
TEST(CausalConv1dCuda, StepsAreTheForward) {
  std::mt19937 rng(27);
  for (const std::int64_t W : {1, 2, 3, 4, 6}) {
    for (const std::int64_t D : {5, 16}) {
      constexpr std::int64_t T = 23;
      conv_problem<Data> p(conv_shape{.B = 2, .T = T, .D = D, .W = W}, rng);
      const device_conv<Data> forward(p);
      causal_conv1d(on_cuda{}, forward.args());

      const device_conv<Data> stepped(p);
      const device_tensor<Data, 4> after(tensor<Data, 4>({2, T, W - 1, D}));
      for (std::int64_t t = 0; t < T;) {
        const std::int64_t n = std::min<std::int64_t>(T - t, static_cast<std::int64_t>(rng() % 9));
        const auto a = stepped.args();
        causal_conv1d_step(on_cuda{},
                           causal_conv1d_step_args<Data>{.x = a.x.slice(1, t, t + n),
                                                         .weight = a.weight,
                                                         .bias = a.bias,
                                                         .state = stepped.initial_state.view(),
                                                         .y = a.y.slice(1, t, t + n),
                                                         .intermediate_states = after.view().slice(1, t, t + n),
                                                         .act = a.act});
        t += n;
      }
      conv_problem<Data> a = p;
      conv_problem<Data> b = p;
      forward.download(a);
      stepped.y.download(b.y);
      stepped.initial_state.download(b.final_state);
      EXPECT_TRUE(bitwise_equal(a.y, b.y));
      EXPECT_TRUE(bitwise_equal(a.final_state, b.final_state));

      tensor<Data, 4> states({2, T, W - 1, D});
      after.download(states);
      for (std::int64_t t = 0; t < T; ++t) {
        auto args = forward.args();
        args.x = args.x.slice(1, 0, t + 1);
        args.y = args.y.slice(1, 0, t + 1);
        causal_conv1d(on_cuda{}, args);
        forward.final_state.download(a.final_state);
        tensor<Data, 3> at_t({2, W - 1, D});
        for (std::int64_t bb = 0; bb < 2; ++bb) {
          for (std::int64_t r = 0; r < W - 1; ++r) {
            for (std::int64_t d = 0; d < D; ++d) at_t.view()(bb, r, d) = states.view()(bb, t, r, d);
          }
        }
        EXPECT_TRUE(bitwise_equal(at_t, a.final_state)) << "after token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace polystate::testing
