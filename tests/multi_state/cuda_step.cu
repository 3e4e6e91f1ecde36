// SPDX-License-Identifier: Apache-2.0

// Steps of a bank on CUDA: every stepping cell token for token against the definition, what the bank holds afterwards,
// banks of unequal lengths, restored and forked.

#include "multi_state/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

/// Rows first .. last-1 of a problem take the tokens begin .. end-1, on the device and in double.
template <class Data, class Cell, class State = acc_t<Data>>
class stepped {
 public:
  using double_cell = cell_in<Cell, double>;

  explicit stepped(const layer_problem<Data, Cell>& p, std::int64_t capacity, const layout<5>& memory = row_major<5>())
      : p_(p),
        in_double_(in_double(p)),
        got_(p.bank_shape(p.shape.B), capacity, memory),
        want_(p.bank_shape(p.shape.B), capacity),
        o_({p.shape.B, p.shape.T, p.shape.H, p.shape.dv}),
        o_double_({p.shape.B, p.shape.T, p.shape.H, p.shape.dv}) {
    testing::add_to(mirror_, p_);
    got_.add_to(mirror_);
    mirror_.add(o_);
  }

  void step(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end, bool reads = true,
            const on_cuda& exec = {}) {
    multi_state_step(exec, device_args(first, last, begin, end, reads));
    auto args = arguments(in_double_, want_, o_double_, first, last, begin, end, reads);
    step_reference<double_cell>(args);
  }
  [[nodiscard]] auto device_args(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end,
                                 bool reads = true) {
    return mirrored(mirror_, arguments(p_, got_, o_, first, last, begin, end, reads));
  }

  /// The outputs so far and the bank.
  void expect_reference(double bound = layer_bound<Data>) {
    download();
    EXPECT_TRUE(within_relative_blocks(o_, o_double_, bound, 2));
    judge_bank(got_, want_);
    EXPECT_TRUE(o_.untouched_outside());
  }
  void download() {
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    mirror_.download(o_);
    got_.download(mirror_);
  }
  [[nodiscard]] device_mirror& mirror() { return mirror_; }
  [[nodiscard]] test_bank<Data, State>& bank() { return got_; }
  [[nodiscard]] test_bank<double>& bank_in_double() { return want_; }
  [[nodiscard]] tensor<Data, 4>& o() { return o_; }

 private:
  template <class T, class C, class S>
  static auto arguments(const layer_problem<T, C>& p, test_bank<T, S>& bank, tensor<T, 4>& o, std::int64_t first,
                        std::int64_t last, std::int64_t begin, std::int64_t end, bool reads) {
    const auto rows = [&](const auto& v) { return v ? v.slice(0, first, last) : v; };
    const auto part = p.part({every_entry, begin, end});
    multi_state_step_args<T, typename C::Rule, typename C::Separation, typename C::Router, S> args{
        .in = part.in,
        .separation = part.separation,
        .moments = part.moments,
        .router = part.router,
        .bank = rows_of(bank.view(), first, last),
        .shared_kq = part.shared_kq,
        .max_visible = part.max_visible};
    if (last - first != p.shape.B) {  // of one row
      const auto one = p.part({first, begin, end});
      args.in = one.in;
      args.moments = one.moments;
      args.router = one.router;
    }
    if (reads) args.o = rows(tokens_of(o.view(), {every_entry, begin, end}));
    return args;
  }

  const layer_problem<Data, Cell>& p_;
  layer_problem<double, double_cell> in_double_;
  test_bank<Data, State> got_;
  test_bank<double> want_;
  tensor<Data, 4> o_;
  tensor<double, 4> o_double_;
  device_mirror mirror_;
};

std::vector<layer_shape> step_shapes() {
  return {{.T = 19, .m = 4},
          {.T = 19, .HR = 4, .dk = 33, .dv = 40, .dr = 9, .m = 5, .max_visible = 2, .moment_rule = moment_rule::delta},
          {.T = 9, .m = 1, .moment_rule = moment_rule::decay_write, .keep_current = true},
          {.T = 12, .m = 3, .qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true}};
}

template <class Cell>
class CudaSteppingCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(CudaSteppingCell);

// bug B131, F19: decoding is prefill token for token, by any number of tokens a call.
TYPED_TEST_P(CudaSteppingCell, StepEqualsDefinition) {
  std::mt19937 rng(31);
  int row = 0;
  for (const auto& shape : step_shapes()) {
    for (const std::int64_t n : {1, 3, 8, 19}) {
      SCOPED_TRACE("row " + std::to_string(row) + " by " + std::to_string(n));
      const layer_problem<float, cell_in<TypeParam, float>> p(shape, rng);
      stepped<float, cell_in<TypeParam, float>> run(p, p.entries(shape.T) + 1);
      for (std::int64_t begin = 0; begin < shape.T; begin += n) {
        run.step(0, shape.B, begin, std::min(begin + n, shape.T));
      }
      run.step(0, shape.B, shape.T, shape.T);  // no token
      run.expect_reference();
      if (this->HasFailure()) return;
    }
    ++row;
  }
}

// Sequences that are not equally far, and tokens that are only written.
TYPED_TEST_P(CudaSteppingCell, UnequalLengths) {
  std::mt19937 rng(32);
  const layer_shape shape{.T = 24, .m = 4};
  const layer_problem<half, cell_in<TypeParam, half>> p(shape, rng);
  stepped<half, cell_in<TypeParam, half>> run(p, p.entries(40) + 2);
  run.step(0, 2, 0, 1);
  run.step(1, 2, 1, 14);
  run.step(0, 1, 1, 14, false);
  run.step(0, 1, 1, 14);
  run.step(0, 2, 14, 24);
  run.expect_reference();
}

// A prefill leaves its bank where the steps go on.
TYPED_TEST_P(CudaSteppingCell, PrefillThenSteps) {
  std::mt19937 rng(33);
  const layer_shape shape{.T = 21, .m = 4};
  using problem = layer_problem<bfloat16, cell_in<TypeParam, bfloat16>>;
  const problem p(shape, rng);
  stepped<bfloat16, cell_in<TypeParam, bfloat16>> run(p, p.entries(21));
  const auto want = wanted(p, p.entries(21));
  auto prefill = p.part({every_entry, 0, 14});
  const std::int64_t L = problem::is_fenwick ? p.entries(14) : p.separation().count(14);
  const auto bank = run.bank().view();
  const auto entries = [&](const auto& v) { return v ? v.slice(1, 0, L) : v; };
  prefill.o = tokens_of(run.o().view(), {every_entry, 0, 14});
  prefill.S = entries(bank.S), prefill.mu = entries(bank.mu), prefill.Sigma = entries(bank.Sigma);
  multi_state(on_cuda{}, mirrored(run.mirror(), prefill));
  state_bank<double> counted(p.bank_shape(2), p.entries(21));
  for (std::int64_t b = 0; b < 2; ++b) {
    counted.resume(b, p.separation(), 14);
    bank.counters(b) = counted.counters(b);
  }
  POLYSTATE_CUDA_REQUIRE(cudaMemcpy(run.mirror()(bank.counters).data(), bank.counters.data(), 2 * sizeof(bank_counters),
                                    cudaMemcpyHostToDevice));
  for (std::int64_t t = 14; t < 21; ++t) multi_state_step(on_cuda{}, run.device_args(0, 2, t, t + 1));
  run.download();
  EXPECT_TRUE(within_relative_blocks(run.o(), want.o, layer_bound<bfloat16>, 2));
}

REGISTER_TYPED_TEST_SUITE_P(CudaSteppingCell, StepEqualsDefinition, UnequalLengths, PrefillThenSteps);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, CudaSteppingCell, cells_of<rule::gated_delta>::stepping, cell_names);

template <class Rule>
using merlin_step = cell<Rule, separation::uniform, router::merlin<float>>;
using some_of_ssd = ::testing::Types<cell<rule::ssd, separation::single, router::none>, merlin_step<rule::ssd>,
                                     cell<rule::ssd, separation::fenwick, router::position<float>>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, CudaSteppingCell, some_of_ssd, cell_names);

using merlin = merlin_step<rule::gated_delta>;
using fenwick = cell<rule::gated_delta, separation::fenwick, router::position<float>>;

TEST(MultiStateCudaStep, SegmentsClosedByHand) {
  std::mt19937 rng(34);
  const layer_problem<float, merlin> p({.T = 20, .m = 6}, rng);
  stepped<float, merlin> run(p, 8);
  run.step(0, 2, 0, 8);
  run.download();
  for (std::int64_t b = 0; b < 2; ++b) {
    run.bank().counters.view()(b).open_tokens = 0;
    run.bank_in_double().counters.view()(b).open_tokens = 0;
  }
  const auto host = run.bank().counters.view();
  POLYSTATE_CUDA_REQUIRE(
      cudaMemcpy(run.mirror()(host).data(), host.data(), 2 * sizeof(bank_counters), cudaMemcpyHostToDevice));
  run.step(0, 2, 8, 20);
  run.expect_reference();
}

// A bank is its memory: a copy restores it and forks it.
TEST(MultiStateCudaStep, RestoreAndFork) {
  std::mt19937 rng(35);
  const layer_problem<float, merlin> p({.T = 20, .m = 4}, rng);
  stepped<float, merlin> run(p, 6);
  run.step(0, 2, 0, 9);
  run.download();  // host memory is the snapshot
  const auto snapshot = run.bank().S;
  run.step(0, 2, 9, 20);
  run.download();
  const auto once = run.o();
  const auto after = run.bank().S;
  stepped<float, merlin> fork(p, 6);
  fork.step(0, 2, 0, 9);
  fork.download();
  EXPECT_TRUE(bitwise_equal(fork.bank().S, snapshot));
  fork.mirror().upload();  // restored from the snapshot
  fork.step(0, 2, 9, 20);
  fork.download();
  EXPECT_TRUE(bitwise_equal(fork.bank().S, after));
  EXPECT_TRUE(bitwise_equal(copy_of(tokens_of(fork.o().view(), {every_entry, 9, 20})),
                            copy_of(tokens_of(once.view(), {every_entry, 9, 20}))));
}

// States of 16 bits round once a token.
TEST(MultiStateCudaStep, BanksInEveryTypeAndOrder) {
  std::mt19937 rng(36);
  for (const auto& memory : {row_major<5>(), layout<5>{{1, 0, 2, 3, 4}, 0}, layout<5>{{0, 1, 2, 4, 3}, 3}}) {
    const layer_problem<float, merlin> p({.T = 12, .dk = 16, .dv = 8, .m = 4}, rng);
    stepped<float, merlin, bfloat16> shorter(p, 4, memory);
    shorter.step(0, 2, 0, 12);
    shorter.expect_reference(2 * layer_bound<bfloat16>);
    stepped<float, merlin, half> other(p, 4, memory);
    other.step(0, 2, 0, 12);
    other.expect_reference(2 * layer_bound<half>);
    stepped<float, merlin> whole(p, 4, memory);
    whole.step(0, 2, 0, 12);
    whole.expect_reference();
  }
}

// bugs B109, B112: a NaN stays in its row and in the heads that read it.
TEST(MultiStateCudaStep, NanStaysInItsHead) {
  std::mt19937 rng(37);
  layer_problem<float, merlin> p({.T = 12, .HK = 2, .m = 4}, rng);
  p.in.k.view()(1, 6, 1, 3) = std::numeric_limits<float>::quiet_NaN();
  stepped<float, merlin> run(p, 3);
  multi_state_step(on_cuda{}, run.device_args(0, 2, 0, 12));
  run.download();
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 12; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        EXPECT_EQ(std::isnan(run.o().view()(b, t, h, 0)), b == 1 && h >= 2 && t >= 6) << b << ' ' << t << ' ' << h;
      }
    }
  }
}

// bugs B113, B116: same bits every time, in a graph, in the caller's workspace, and whatever the number of rows where
// that is asked for.
TEST(MultiStateCudaStep, SameBitsInAGraph) {
  std::mt19937 rng(38);
  const layer_problem<float, merlin> p({.T = 12, .m = 4}, rng);
  stepped<float, merlin> run(p, 3);
  run.step(0, 2, 0, 12);
  run.download();
  const auto once = run.o();

  stepped<float, merlin> again(p, 3);
  const auto args = again.device_args(0, 2, 0, 12);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, args));
  const device_stream stream;
  const captured_graph graph(stream,
                             [&] { multi_state_step(on_cuda{.stream = stream, .workspace = memory.whole()}, args); });
  for (int i = 0; i < 2; ++i) {
    again.mirror().upload();
    graph.replay(stream);
    again.mirror().download(again.o());
    EXPECT_TRUE(bitwise_equal(again.o(), once));
  }
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, args), error_code::workspace, "exec.workspace",
                      "needed"));

  stepped<float, merlin> alone(p, 3);
  multi_state_step(on_cuda{.batch_invariant = true}, alone.device_args(1, 2, 0, 12));
  alone.download();
  stepped<float, merlin> all(p, 3);
  multi_state_step(on_cuda{.batch_invariant = true}, all.device_args(0, 2, 0, 12));
  all.download();
  EXPECT_TRUE(bitwise_equal(copy_of(alone.o().view().slice(0, 1, 2)), copy_of(all.o().view().slice(0, 1, 2))));
}

TEST(MultiStateCudaStep, Refusals) {
  std::mt19937 rng(39);
  const layer_problem<float, merlin> p({.T = 12, .m = 4}, rng);
  stepped<float, merlin> run(p, 2);
  const auto args = run.device_args(0, 2, 0, 12);
  EXPECT_TRUE(check(on_cuda{}, args).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, args), error_code::shape, "bank.S", "needs 3 entries"));
  multi_state_step(on_cuda{}, args);  // counted, and nothing behind the bank is written
  run.download();
  EXPECT_TRUE(run.bank().untouched_outside());
  EXPECT_EQ(run.bank().counters.view()(1).tokens, 12);
  EXPECT_TRUE(refuses(validate(on_cuda{}, run.device_args(0, 2, 0, 1)), error_code::value, "bank.counters",
                      "supported: those of a bank of capacity 2"));
  stepped<float, merlin> none(p, 0);
  EXPECT_TRUE(refuses(check(on_cuda{}, none.device_args(0, 2, 0, 1)), error_code::shape, "bank.S", "capacity = 0"));
}

TEST(MultiStateCudaStep, SanitizerStep) {
  std::mt19937 rng(40);
  const layer_problem<float, merlin> p({.T = 9, .dk = 18, .dv = 5, .dr = 6, .m = 4}, rng);
  stepped<float, merlin> run(p, 3);
  run.step(0, 2, 0, 9);
  run.expect_reference();
  const layer_problem<float, fenwick> levels({.T = 9, .dk = 18, .dv = 5}, rng);
  stepped<float, fenwick> level_run(levels, levels.entries(9));
  level_run.step(0, 2, 0, 9);
  level_run.expect_reference();
}

}  // namespace
}  // namespace polystate::testing
