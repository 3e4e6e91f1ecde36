// SPDX-License-Identifier: Apache-2.0

// mamba_block of the reference: a second formulation, its gradients, decoding, refusals.

#include "adapters/mamba_cases.hpp"
#include "support/gradient_properties.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/adapters/mamba_block.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

template <class Data = double>
struct problem_and_gradients {
  mamba_problem<Data> p;
  mamba_gradients<Data> g;

  explicit problem_and_gradients(const mamba_shape& shape, unsigned seed = 1) {
    std::mt19937 rng(seed);
    p = mamba_problem<Data>(shape, rng);
    g = mamba_gradients<Data>(shape, rng);
  }
};

double silu(double x) { return x / (1 + std::exp(-x)); }

/// One sequence, written out in numbers: rows of the result are tokens.
std::vector<std::vector<double>> written_out(const mamba_weights<double>& weights, const std::vector<double>& x,
                                             const mamba_sizes& n) {
  using row = std::vector<double>;
  const auto w = weights.views();
  const auto times = [](const auto& W, const row& v) {
    row out(static_cast<std::size_t>(W.extent(0)), 0);
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (std::size_t j = 0; j < v.size(); ++j) out[i] += W(i, j) * v[j];
    }
    return out;
  };
  const auto di = static_cast<std::size_t>(n.di), N = static_cast<std::size_t>(n.N), R = static_cast<std::size_t>(n.R);
  std::vector<row> xz, out;
  std::vector<row> h(di, row(N, 0));
  for (std::size_t t = 0; t * static_cast<std::size_t>(n.d) < x.size(); ++t) {
    xz.push_back(times(w.in_proj, row(x.begin() + static_cast<std::ptrdiff_t>(t) * n.d,
                                      x.begin() + static_cast<std::ptrdiff_t>(t + 1) * n.d)));
    row c(di), s(di);
    for (std::size_t i = 0; i < di; ++i) {
      double sum = w.conv_b(i);
      for (std::size_t back = 0; back < static_cast<std::size_t>(n.W) && back <= t; ++back) {
        sum += w.conv_w(i, static_cast<std::size_t>(n.W) - 1 - back) * xz[t - back][i];
      }
      c[i] = silu(sum);
    }
    const row dt_B_C = times(w.x_proj, c);
    const row delta = times(w.dt_proj_w, row(dt_B_C.begin(), dt_B_C.begin() + n.R));
    for (std::size_t i = 0; i < di; ++i) {
      const double dt = std::log(1 + std::exp(delta[i] + w.dt_proj_b(i)));
      s[i] = w.D(i) * c[i];
      for (std::size_t k = 0; k < N; ++k) {
        h[i][k] = std::exp(-dt * std::exp(w.A_log(i, k))) * h[i][k] + dt * dt_B_C[R + k] * c[i];
        s[i] += dt_B_C[R + N + k] * h[i][k];
      }
      s[i] *= silu(xz[t][di + i]);
    }
    out.push_back(times(w.out_proj, s));
  }
  return out;
}

TEST(MambaBlock, EqualsTheFormulasWrittenOut) {
  problem_and_gradients<> c({.B = 1, .T = 9, .initial_states = false});
  mamba_block(on_reference{}, c.p.args());
  const auto want = written_out(c.p.weights, c.p.x.values(), mamba_sizes{});
  ASSERT_EQ(want.size(), 9u);
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(c.p.y.view()(0, t, i), want[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)], 1e-13);
    }
  }
  EXPECT_TRUE(c.p.y.untouched_outside());
}

TEST(MambaBlock, Gradients) {
  for (const std::int64_t T : {0, 1, 2, 6}) {
    const problem_and_gradients<> c({.B = 2, .T = T});
    expect_gradients(c.p, c.g, "T " + std::to_string(T));
  }
  for (const bool initial : {false, true}) {
    const problem_and_gradients<> c({.T = 4, .initial_states = initial, .final_states = !initial});
    expect_gradients(c.p, c.g, "states");
  }
  const problem_and_gradients<> narrow({.B = 1, .T = 4, .block = {.d = 1, .di = 1, .W = 1, .R = 1, .N = 1}});
  expect_gradients(narrow.p, narrow.g, "narrow");
  const problem_and_gradients<> packed({.B = 1, .T = 6, .lengths = {2, 0, 4}});
  expect_gradients(packed.p, packed.g, "packed");
}

TEST(MambaBlock, GradientsAreIndependent) {
  const problem_and_gradients<> c({.T = 3});
  expect_gradients_independent(c.p, c.g);
  expect_absent_upstream_is_zero(c.p, c.g);
}

template <class Data>
void expect_rounds_once(unsigned seed) {
  problem_and_gradients<Data> c({.T = 7}, seed);
  auto in_double = c.p.in_double();
  mamba_block(on_reference{}, c.p.args());
  mamba_block(on_reference{}, in_double.args());
  EXPECT_TRUE(bitwise_equal(c.p.y, convert<Data>(in_double.y)));
  EXPECT_TRUE(bitwise_equal(c.p.after.conv, convert<Data>(in_double.after.conv)));
  EXPECT_TRUE(bitwise_equal(c.p.after.scan, convert<float>(in_double.after.scan)));
  expect_gradients_rounded_once(c.p, c.g);
}
TEST(MambaBlock, RoundsOnce) {
  expect_rounds_once<float>(2);
  expect_rounds_once<half>(3);
  expect_rounds_once<bfloat16>(4);
}

TEST(MambaBlock, StridesChangeNothing) {
  problem_and_gradients<> plain({.T = 5});
  mamba_block(on_reference{}, plain.p.args());
  problem_and_gradients<> strided({.T = 5, .memory = {{2, 0, 1}, 3}});
  mamba_block(on_reference{}, strided.p.args());
  EXPECT_TRUE(bitwise_equal(plain.p.y, strided.p.y));
  EXPECT_TRUE(strided.p.y.untouched_outside());
}

TEST(MambaBlock, PackedEqualsSeparate) {
  problem_and_gradients<> c({.B = 1, .T = 9, .lengths = {4, 0, 5}});
  mamba_block(on_reference{}, c.p.args());
  for (const auto [s, begin, end] : {std::array{0, 0, 4}, std::array{2, 4, 9}}) {
    auto args = c.p.args();
    auto alone = mamba_states<double>::shaped({}, 1);
    tensor<double, 3> y({1, end - begin, 3});
    args.x = args.x.slice(1, begin, end);
    args.cu_seqlens = {};
    args.initial_conv_state = args.initial_conv_state.slice(0, s, s + 1);
    args.initial_scan_state = args.initial_scan_state.slice(0, s, s + 1);
    args.y = y.view();
    args.final_conv_state = alone.conv.view();
    args.final_scan_state = alone.scan.view();
    mamba_block(on_reference{}, args);
    EXPECT_TRUE(same_bits(c.p.y.view().slice(1, begin, end), y.view()));
    EXPECT_TRUE(same_bits(c.p.after.scan.view().slice(0, s, s + 1), alone.scan.view()));
    EXPECT_TRUE(same_bits(c.p.after.conv.view().slice(0, s, s + 1), alone.conv.view()));
  }
  EXPECT_TRUE(same_bits(c.p.after.scan.view().slice(0, 1, 2), c.p.before.scan.view().slice(0, 1, 2)));
}

// Steps of every size, states in a pool whose slots are permuted, are the whole run.
TEST(MambaBlock, StepsEqualTheWholeRun) {
  for (const std::int64_t tokens : {1, 3, 8}) {
    problem_and_gradients<> c({.B = 2, .T = 16});
    mamba_block(on_reference{}, c.p.args());
    auto pool = mamba_states<double>::shaped({}, 4);
    tensor<std::int32_t, 1> slots({2});
    slots.assign({3, 1});
    for (std::int64_t b = 0; b < 2; ++b) {
      assign(pool.conv.view().select(0, slots.view()(b)), c.p.before.conv.view().select(0, b));
      assign(pool.scan.view().select(0, slots.view()(b)), c.p.before.scan.view().select(0, b));
    }
    tensor<double, 3> y(c.p.y.extents());
    for (std::int64_t t = 0; t < 16; t += tokens) {
      const std::int64_t end = std::min<std::int64_t>(16, t + tokens);
      mamba_block_step(on_reference{}, mamba_block_step_args<double>{.x = c.p.args().x.slice(1, t, end),
                                                                     .weights = c.p.weights.views(),
                                                                     .read_indices = slots.view(),
                                                                     .conv_state = pool.conv.view(),
                                                                     .scan_state = pool.scan.view(),
                                                                     .y = y.view().slice(1, t, end)});
    }
    EXPECT_TRUE(bitwise_equal(y, c.p.y)) << tokens;
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_TRUE(same_bits(pool.conv.view().select(0, slots.view()(b)), c.p.after.conv.view().select(0, b)));
      EXPECT_TRUE(same_bits(pool.scan.view().select(0, slots.view()(b)), c.p.after.scan.view().select(0, b)));
    }
    for (const std::int64_t slot : {0, 2}) {
      EXPECT_TRUE(all_are(pool.conv.view().select(0, slot), std::nan("")));
      EXPECT_TRUE(all_are(pool.scan.view().select(0, slot), std::nan("")));
    }
  }
}

// The states after each token, another slot written than read, a padding row.
TEST(MambaBlock, StepIntoAnotherSlot) {
  problem_and_gradients<> c({.B = 2, .T = 4});
  auto pool = mamba_states<double>::shaped({}, 3);
  assign(pool.conv.view().slice(0, 0, 2), c.p.before.conv.view());
  assign(pool.scan.view().slice(0, 0, 2), c.p.before.scan.view());
  const auto source = pool;
  tensor<double, 4> conv_after({2, 4, 2, 4}), scan_after({2, 4, 4, 3});
  tensor<std::int32_t, 1> read({2}), write({2});
  read.assign({0, -1});
  write.assign({2, 1});
  mamba_block_step_args<double> args{.x = c.p.args().x,
                                     .weights = c.p.weights.views(),
                                     .read_indices = read.view(),
                                     .write_indices = write.view(),
                                     .conv_state = pool.conv.view(),
                                     .scan_state = pool.scan.view(),
                                     .y = c.p.y.view(),
                                     .intermediate_conv_states = conv_after.view(),
                                     .intermediate_scan_states = scan_after.view()};
  mamba_block_step(on_reference{}, args);
  EXPECT_TRUE(same_bits(pool.conv.view().slice(0, 0, 2), source.conv.view().slice(0, 0, 2)));
  EXPECT_TRUE(same_bits(pool.scan.view().slice(0, 0, 2), source.scan.view().slice(0, 0, 2)));
  EXPECT_TRUE(same_bits(pool.conv.view().select(0, 2), conv_after.view().select(0, 0).select(0, 3)));
  EXPECT_TRUE(same_bits(pool.scan.view().select(0, 2), scan_after.view().select(0, 0).select(0, 3)));
  EXPECT_TRUE(all_are(c.p.y.view().select(0, 1), 0));
  EXPECT_TRUE(all_are(scan_after.view().select(0, 1), std::nan("")));
  // A rollback to the second token is a copy of its states: what follows is what followed.
  auto resumed = mamba_states<double>::shaped({}, 1);
  assign(resumed.conv.view().select(0, 0), conv_after.view().select(0, 0).select(0, 1));
  assign(resumed.scan.view().select(0, 0), scan_after.view().select(0, 0).select(0, 1));
  tensor<double, 3> y({1, 2, 3});
  mamba_block_step(on_reference{}, mamba_block_step_args<double>{.x = c.p.args().x.slice(0, 0, 1).slice(1, 2, 4),
                                                                 .weights = c.p.weights.views(),
                                                                 .conv_state = resumed.conv.view(),
                                                                 .scan_state = resumed.scan.view(),
                                                                 .y = y.view()});
  EXPECT_TRUE(same_bits(y.view(), c.p.y.view().slice(0, 0, 1).slice(1, 2, 4)));
}

TEST(MambaBlock, Refusals) {
  problem_and_gradients<float> c({.T = 5});
  expect_gradients_checked(c.p, c.g);
  EXPECT_TRUE(check(on_reference{}, c.p.args()).ok());
  const auto refused = [&](auto change, error_code code, const std::string& argument, const std::string& text) {
    auto args = c.p.args();
    change(args);
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_THROW(mamba_block(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(c.p.y.view(), std::nan("")));
  };
  using args_type = mamba_block_args<float>;
  refused([](args_type& a) { a.x = {}; }, error_code::missing, "x", "mamba_block: x: not given");
  refused([](args_type& a) { a.weights.in_proj = {}; }, error_code::missing, "in_proj", "(2di, d)");
  refused([](args_type& a) { a.weights.in_proj = a.weights.in_proj.slice(0, 0, 7); }, error_code::shape, "in_proj",
          "shape (7, 3), supported: (2di, d) = (8, 3)");
  refused([](args_type& a) { a.weights.conv_b = {}; }, error_code::missing, "conv_b", "(di)");
  refused([](args_type& a) { a.weights.x_proj = a.weights.x_proj.slice(0, 0, 7); }, error_code::shape, "x_proj",
          "supported: (R+2N, di) = (8, 4)");
  refused([](args_type& a) { a.weights.dt_proj_w = a.weights.dt_proj_w.slice(1, 0, 0); }, error_code::unsupported,
          "dt_proj_w", "R = 0, supported: at least 1");
  refused([](args_type& a) { a.weights.A_log = a.weights.A_log.slice(0, 0, 3); }, error_code::shape, "A_log",
          "(di, N) = (4, any)");
  refused([](args_type& a) { a.weights.out_proj = a.weights.out_proj.slice(0, 0, 2); }, error_code::shape, "out_proj",
          "(d, di) = (3, 4)");
  refused([](args_type& a) { a.initial_conv_state = a.initial_conv_state.slice(1, 0, 1); }, error_code::shape,
          "initial_conv_state", "(S, W-1, di) = (2, 2, 4)");
  refused([](args_type& a) { a.final_scan_state = a.final_scan_state.slice(0, 0, 1); }, error_code::shape,
          "final_scan_state", "(S, di, N)");
  std::vector<float> memory(30);
  refused(
      [&](args_type& a) {
        a.y = {memory.data(), {2, 5, 3}}, a.x = a.y;
      },
      error_code::overlap, "y", "shares memory with x");

  auto pool = mamba_states<float>::shaped({}, 3);
  mamba_block_step_args<float> step{.x = c.p.args().x,
                                    .weights = c.p.weights.views(),
                                    .conv_state = pool.conv.view(),
                                    .scan_state = pool.scan.view(),
                                    .y = c.p.y.view()};
  EXPECT_TRUE(refuses(check(on_reference{}, step), error_code::shape, "conv_state", "slots = 3, supported without"));
  tensor<std::int32_t, 1> slots({2});
  slots.assign({0, 3});
  step.read_indices = slots.view();
  EXPECT_TRUE(refuses(check(on_reference{}, step), error_code::value, "read_indices", "entry 1 is 3"));
  slots.assign({0, 2});
  EXPECT_TRUE(check(on_reference{}, step).ok());
  step.scan_state = step.scan_state.slice(0, 0, 2);
  EXPECT_TRUE(refuses(check(on_reference{}, step), error_code::shape, "scan_state", "(slots, di, N) = (3, 4, 3)"));
  problem_and_gradients<float> nine({.T = 9});
  step.x = nine.p.args().x;
  EXPECT_TRUE(refuses(check(step), error_code::unsupported, "x", "T = 9, supported: 0 to 8"));
}

}  // namespace
}  // namespace polystate::testing
