// SPDX-License-Identifier: Apache-2.0

// The CUDA forward of a layer: sizes, types, memory orders, memory, graphs. cuda_cells_*.cu have every cell of the
// axes.

#include "multi_state/cuda_problem.cuh"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

namespace polystate::testing {
namespace {

template <class Data>
using merlin_cell = cell<rule::gated_delta, separation::uniform, router::merlin<Data>>;
template <class Data>
using fenwick_cell = cell<rule::gated_delta, separation::fenwick, router::position<Data>>;

template <class Data>
class MultiStateCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(MultiStateCuda, element_types);

layer_shape random_shape(std::mt19937& rng) {
  const std::int64_t H = pick<std::int64_t>({1, 2, 4, 6}, rng);
  layer_shape s{
      .B = pick<std::int64_t>({1, 2, 3}, rng),
      .T = pick<std::int64_t>({1, 3, 15, 16, 17, 63, 64, 65, 130}, rng),
      .H = H,
      .HK = H % 2 == 0 && coin(rng) ? H / 2 : 1,
      .HR = H % 2 == 0 && coin(rng) ? H / 2 : H,
      .dk = pick<std::int64_t>({1, 3, 8, 16, 32, 33, 65, 130}, rng),
      .dv = pick<std::int64_t>({1, 3, 8, 16, 32, 33, 65, 130}, rng),
      .dr = pick<std::int64_t>({1, 3, 8, 16, 33, 65}, rng),
      .m = pick<std::int64_t>({1, 2, 5, 16, 17, 64}, rng),
      .max_visible = pick<std::int64_t>({0, 0, 1, 2, 5}, rng),
      .qk_l2norm = coin(rng),
      .qkp_l2norm = coin(rng),
      .moment_rule = pick<moment_rule>({moment_rule::plain, moment_rule::decay_write, moment_rule::delta}, rng),
      .keep_current = coin(rng)};
  if (rng() % 3 == 0) {
    s.B = 1;
    s.lengths = random_lengths(s.T, {0, 1, 2, 16, 33}, rng);
  }
  return s;
}

template <class T>
tensor<T, 4> strided(const tensor<T, 4>& t, std::mt19937& rng) {
  const std::vector<layout<4>> layouts = {row_major<4>(), {{0, 2, 1, 3}, 0}, {{0, 1, 2, 3}, 3}, {{0, 2, 3, 1}, 1}};
  return laid_out(t, pick(layouts, rng));
}

// bugs B014, B017, B026, B028, B046, B079, B083: any sizes, groups, memory orders and options.
TYPED_TEST(MultiStateCuda, RandomProblems) {
  std::mt19937 rng(11);
  for (int i = 0; i < 40; ++i) {
    const layer_shape s = random_shape(rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", heads " << s.H << ' '
                                      << s.HK << ' ' << s.HR << ", dims " << s.dk << ' ' << s.dv << ' ' << s.dr
                                      << ", m " << s.m << ", visible " << s.max_visible << ", sequences "
                                      << s.lengths.size());
    layer_problem<TypeParam, merlin_cell<TypeParam>> p(s, rng);
    p.in.q = strided(p.in.q, rng);
    p.in.k = strided(p.in.k, rng);
    p.in.v = strided(p.in.v, rng);
    p.keys.k = strided(p.keys.k, rng);
    p.router.q = strided(p.router.q, rng);
    expect_reference(p);
    layer_problem<TypeParam, fenwick_cell<TypeParam>> levels(s, rng);
    levels.in.v = strided(levels.in.v, rng);
    levels.router.weights = strided(levels.router.weights, rng);
    expect_reference(levels);
    if (this->HasFailure()) return;
  }
}

// Every padded key dim, value dims of more than one tile, routing dims up to the largest.
TYPED_TEST(MultiStateCuda, LargeDims) {
  std::mt19937 rng(12);
  for (const auto& [dk, dv, dr] : std::vector<std::array<std::int64_t, 3>>{
           {256, 512, 128}, {257, 20, 130}, {512, 70, 512}, {64, 200, 256}, {128, 128, 64}}) {
    SCOPED_TRACE(::testing::Message() << "dims " << dk << ' ' << dv << ' ' << dr);
    const layer_shape s{.B = 1,
                        .T = 70,
                        .H = 2,
                        .HK = 1,
                        .HR = 1,
                        .dk = dk,
                        .dv = dv,
                        .dr = dr,
                        .m = 16,
                        .qk_l2norm = true,
                        .qkp_l2norm = true};
    expect_reference(layer_problem<TypeParam, merlin_cell<TypeParam>>(s, rng));
    expect_reference(layer_problem<TypeParam, fenwick_cell<TypeParam>>(s, rng));
  }
}

/// The outputs of a run whose bank is of type State, in any memory order.
template <class State, class Data, class Cell>
void expect_bank_in(const layer_problem<Data, Cell>& p, const layout<5>& memory) {
  const std::int64_t L = entries_of(p);
  const auto want = wanted(p, L);
  auto got = p.results(L);
  tensor<State, 5> S({p.shape.B, L, p.shape.H, p.shape.dv, p.shape.dk}, memory);
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, got);
  mirror.add(S);
  const auto args = mirrored(mirror, p.args(got));
  multi_state_args<Data, typename Cell::Rule, typename Cell::Separation, typename Cell::Router, State> typed{
      .in = args.in,
      .separation = args.separation,
      .moments = args.moments,
      .router = args.router,
      .o = args.o,
      .S = mirror(S.view())};
  multi_state(on_cuda{}, typed);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  mirror.download(got.o);
  mirror.download(S);
  EXPECT_TRUE(within_relative_blocks(got.o, want.o, layer_bound<Data>, 2));
  EXPECT_LE(relative_l2(S, want.S), layer_bound<State>);
  EXPECT_TRUE(S.untouched_outside());
}

TYPED_TEST(MultiStateCuda, BanksInEveryTypeAndOrder) {
  std::mt19937 rng(13);
  const std::vector<layout<5>> orders = {row_major<5>(), {{1, 0, 2, 3, 4}, 0}, {{0, 1, 2, 4, 3}, 3}};
  for (const auto& memory : orders) {
    const layer_problem<TypeParam, merlin_cell<TypeParam>> p({.T = 33, .dk = 16, .dv = 8, .m = 8}, rng);
    expect_bank_in<float>(p, memory);
    expect_bank_in<half>(p, memory);
    expect_bank_in<bfloat16>(p, memory);
    const layer_problem<TypeParam, fenwick_cell<TypeParam>> levels({.T = 33, .dk = 16, .dv = 8}, rng);
    expect_bank_in<float>(levels, memory);
    expect_bank_in<bfloat16>(levels, memory);
    const layer_problem<TypeParam, cell<rule::gated_delta, separation::single, router::none>> one({.T = 33}, rng);
    expect_bank_in<float>(one, memory);
    expect_bank_in<bfloat16>(one, memory);
  }
}

// bugs B002, B011, B044: more weights than are in memory at once, so that windows of tokens follow each other; running
// moments divided by what a token has seen.
TEST(MultiStateCudaLong, WindowsOfTokens) {
  std::mt19937 rng(14);
  const layer_shape s{.B = 1,
                      .T = 9000,
                      .H = 1,
                      .HK = 1,
                      .HR = 1,
                      .dk = 4,
                      .dv = 3,
                      .dr = 2,
                      .m = 1,
                      .qk_l2norm = true,
                      .divide_by = divide_by::count};
  layer_problem<float, merlin_cell<float>> p(s, rng);
  ASSERT_LT(polystate_detail::cuda::layer::window_of(1, 9000, 9000 * 3 * 4).time, 9000);
  layer_results<float> got;
  layer_results<double> want;
  got.o = tensor<float, 4>({1, 9000, 1, 3});
  want.o = tensor<double, 4>({1, 9000, 1, 3});
  const auto d = in_double(p);
  run_reference<merlin_cell<double>>(d.args(want));
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, got);
  multi_state(on_cuda{}, mirrored(mirror, p.args(got)));
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  download(mirror, got);
  EXPECT_TRUE(within_relative_blocks(got.o, want.o, layer_bound<float>, 2));
}

TEST(MultiStateCudaLong, LevelsOfALongSequence) {
  std::mt19937 rng(15);
  expect_reference(layer_problem<float, fenwick_cell<float>>(
      {.B = 1, .T = 5000, .H = 1, .HK = 1, .dk = 8, .dv = 4, .qk_l2norm = true}, rng));
}

// bugs B008, B010: more batch entries times heads than a grid has rows.
TEST(MultiStateCudaLong, MoreThan65535Heads) {
  std::mt19937 rng(16);
  expect_reference(layer_problem<float, merlin_cell<float>>(
      {.B = 10923, .T = 3, .H = 6, .HK = 6, .HR = 3, .dk = 2, .dv = 2, .dr = 2, .m = 2}, rng));
}

// bugs B109, B112: a NaN stays in its sequence and in the heads that read it, and never reaches tokens before it.
TEST(MultiStateCudaFrame, NanStaysInItsHead) {
  std::mt19937 rng(17);
  layer_problem<float, merlin_cell<float>> p({.T = 70, .HK = 2, .m = 16}, rng);
  const auto clean = on_device(p, entries_of(p));
  p.in.k.view()(1, 37, 1, 3) = std::numeric_limits<float>::quiet_NaN();
  const auto spoilt = on_device(p, entries_of(p));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 70; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const bool reached = b == 1 && h >= 2 && t >= 37;
        const float x = spoilt.o.view()(b, t, h, 0);
        ASSERT_EQ(std::isnan(x), reached) << b << ' ' << t << ' ' << h;
        if (!reached) ASSERT_EQ(x, clean.o.view()(b, t, h, 0)) << b << ' ' << t << ' ' << h;
      }
    }
  }
}

// bugs B166: tokens behind the last offset are of no sequence: their outputs are 0.
template <class Cell>
void expect_tail_cleared() {
  std::mt19937 rng(22);
  const layer_problem<float, Cell> whole({.B = 1, .T = 48, .m = 8, .lengths = {20, 28}}, rng);
  auto cut = whole;
  cut.cu_seqlens.assign({0, 20, 31});
  const auto run = [](const layer_problem<float, Cell>& p) {
    auto out = p.results(p.shape.T);
    device_mirror mirror;
    add_to(mirror, p);
    add_to(mirror, out);
    auto args = mirrored(mirror, p.args(out));
    args.S = {}, args.mu = {}, args.Sigma = {};
    multi_state(on_cuda{}, args);
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    mirror.download(out.o);
    return out;
  };
  EXPECT_TRUE(cleared_from(31, run(cut).o, run(whole).o));
}
TEST(MultiStateCudaFrame, RowsOfNoSequence) {
  expect_tail_cleared<merlin_cell<float>>();
  expect_tail_cleared<fenwick_cell<float>>();
  expect_tail_cleared<cell<rule::gated_delta, separation::single, router::none>>();
}

// Devices with less shared memory run other tiles, to the same values, or refuse what has no room.
TEST(MultiStateCudaFrame, LessSharedMemory) {
  std::mt19937 rng(23);
  for (const std::size_t kib : {99, 163}) {
    const on_cuda exec{.shared_memory_limit = kib * 1024};
    for (const std::int64_t dk : {40, 200, 512}) {
      const layer_problem<float, merlin_cell<float>> p({.T = 40, .dk = dk, .dv = 20, .dr = 200, .m = 16}, rng);
      if (kib == 99 && dk == 512) {
        auto out = p.results();
        device_mirror mirror;
        add_to(mirror, p);
        add_to(mirror, out);
        EXPECT_TRUE(refuses(check(exec, mirrored(mirror, p.args(out))), error_code::unsupported, "in", "up to 101376"));
        continue;
      }
      const auto got = on_device(p, entries_of(p), exec);
      const auto want = wanted(p, entries_of(p));
      // The usual bound, twice: 2.3e-5 was measured at dr = 200. That the dr^2 products of a score cause it, and not
      // the smaller tile, is not shown: the same layer without a limit was not measured.
      EXPECT_TRUE(within_relative_blocks(got.o, want.o, 2 * layer_bound<float>, 2));
      EXPECT_TRUE(within_relative_blocks(got.lam, want.lam, 2 * layer_bound<float>, 2));
      EXPECT_LE(relative_l2(got.S, want.S), layer_bound<float>);
      EXPECT_LE(relative_l2(got.Sigma, want.Sigma), layer_bound<float>);
      EXPECT_TRUE(got.untouched_outside());
    }
  }
}

// dims<dk, dv, dr> runs what dims<> chooses, and refuses other shapes.
TEST(MultiStateCudaFrame, FixedDims) {
  std::mt19937 rng(21);
  const layer_problem<bfloat16, merlin_cell<bfloat16>> p({.T = 70, .dk = 40, .dv = 24, .dr = 16, .m = 16}, rng);
  const auto want = on_device(p, entries_of(p));
  auto got = p.results();
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, got);
  const auto args = mirrored(mirror, p.args(got));
  multi_state<dims<40, 24, 16>>(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  download(mirror, got);
  EXPECT_TRUE(bitwise_equal(got.o, want.o) && bitwise_equal(got.lam, want.lam));
  EXPECT_TRUE(refuses(try_multi_state<dims<40, 24, 32>>(on_cuda{}, args), error_code::unsupported, "in",
                      "dk, dv, dr = 40, 24, 16, supported: dims<40, 24, 32> only"));
}

// bugs B113: the company of other batch entries changes no bits.
TEST(MultiStateCudaFrame, SameBitsAlone) {
  std::mt19937 rng(18);
  const layer_problem<bfloat16, merlin_cell<bfloat16>> p({.B = 3, .T = 70, .m = 16}, rng);
  const auto all = on_device(p, entries_of(p));
  auto got = p.results();
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, got);
  auto args = p.part({1, 0, 70});
  args.o = tokens_of(got.o.view(), {1, 0, 70});
  multi_state(on_cuda{}, mirrored(mirror, args));
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  download(mirror, got);
  EXPECT_TRUE(
      bitwise_equal(copy_of(tokens_of(got.o.view(), {1, 0, 70})), copy_of(tokens_of(all.o.view(), {1, 0, 70}))));
}

// bugs B116, B118: graphs, streams, threads, the caller's workspace.
template <class Cell>
void expect_any_frame() {
  std::mt19937 rng(19);
  const layer_problem<float, Cell> p({.T = 70, .m = 16}, rng);
  const auto want = on_device(p, entries_of(p));
  auto out = p.results();
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, out);
  const auto args = mirrored(mirror, p.args(out));

  const guarded_workspace memory(workspace_bytes(on_cuda{}, args));
  const device_stream stream;
  const on_cuda exec{.stream = stream, .workspace = memory.whole()};
  const captured_graph graph(stream, [&] { multi_state(exec, args); });
  for (int i = 0; i < 2; ++i) {
    mirror.upload();  // poison again
    graph.replay(stream);
    download(mirror, out);
    EXPECT_TRUE(bitwise_equal(out.o, want.o));
    out.o.poison();
  }
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, args), error_code::workspace, "exec.workspace",
                      "needed"));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.misaligned()}, args), error_code::workspace, "exec.workspace",
                      "misaligned"));

  mirror.upload();
  const device_stream other;
  std::thread([&] { multi_state(other.exec(), args); }).join();
  other.synchronize();
  mirror.download(out.o);
  EXPECT_TRUE(bitwise_equal(out.o, want.o));
}
TEST(MultiStateCudaFrame, GraphsThreadsAndWorkspace) { expect_any_frame<merlin_cell<float>>(); }
TEST(MultiStateCudaFrame, GraphsThreadsAndWorkspaceOfLevels) { expect_any_frame<fenwick_cell<float>>(); }

TEST(MultiStateCudaFrame, Refusals) {
  std::mt19937 rng(20);
  layer_problem<float, merlin_cell<float>> p({.B = 1, .T = 16, .lengths = {6, 10}}, rng);
  auto out = p.results(entries_of(p));
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, out);
  auto args = mirrored(mirror, p.args(out));
  EXPECT_TRUE(validate(on_cuda{}, args).ok());
  auto wide = args;
  wide.S = {};
  wide.in.q = {args.in.q.data(), {1, 16, 2, 513}, {0, 0, 0, 0}};
  wide.in.k = wide.in.q;
  EXPECT_TRUE(refuses(check(on_cuda{}, wide), error_code::unsupported, "in", "dk = 513, supported: 1 to 512"));
  auto many = args;
  many.mu = {}, many.Sigma = {};
  many.moments.k = {args.moments.k.data(), {1, 16, 2, 513}, {0, 0, 0, 0}};
  many.router.q = many.moments.k;
  EXPECT_TRUE(refuses(check(on_cuda{}, many), error_code::unsupported, "moments.k", "dr = 513, supported: 1 to 512"));
  EXPECT_EQ(workspace_bytes(on_cuda{}, many), 0U);

  auto few = p.results(entries_of(p) - 1);
  mirror.add(few.S);
  args.S = mirror(few.S.view());
  args.mu = {}, args.Sigma = {};
  EXPECT_TRUE(refuses(validate(on_cuda{}, args), error_code::shape, "S", "supported"));
  multi_state(on_cuda{}, args);  // nothing behind the bank is written
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  mirror.download(few.S);
  EXPECT_TRUE(few.S.untouched_outside());

  auto spoilt = p;
  spoilt.cu_seqlens.assign({0, 20, 16});
  device_mirror bad;
  add_to(bad, spoilt);
  auto o = p.results(entries_of(p));
  add_to(bad, o);
  auto clamped = mirrored(bad, spoilt.args(o));
  EXPECT_TRUE(refuses(validate(on_cuda{}, clamped), error_code::value, "cu_seqlens", "entry 2 is 16"));
  multi_state(on_cuda{}, clamped);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

// Small ones for the sanitizers.
TYPED_TEST(MultiStateCuda, SanitizerForward) {
  std::mt19937 rng(21);
  expect_reference(layer_problem<TypeParam, merlin_cell<TypeParam>>(
      {.T = 21, .dk = 18, .dv = 5, .dr = 6, .m = 4, .moment_rule = moment_rule::delta}, rng));
  expect_reference(layer_problem<TypeParam, fenwick_cell<TypeParam>>({.T = 37, .dk = 18, .dv = 5}, rng));
  expect_reference(layer_problem<TypeParam, fenwick_cell<TypeParam>>(
      {.B = 1, .T = 53, .dk = 18, .dv = 5, .lengths = {0, 33, 20}}, rng));
  expect_reference(layer_problem<TypeParam, merlin_cell<TypeParam>>(
      {.B = 1, .T = 20, .dk = 4, .dv = 8, .m = 4, .lengths = {7, 0, 13}}, rng));
}

}  // namespace
}  // namespace polystate::testing
