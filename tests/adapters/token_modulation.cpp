// SPDX-License-Identifier: Apache-2.0

// malora and toplora of the reference: numbers by hand, decoding, restarts, refusals.

#include "adapters/modulation_cases.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/adapters/token_modulation.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

template <class Data>
malora_problem<Data> malora_of(const modulation_shape& s, unsigned seed = 1) {
  std::mt19937 rng(seed);
  return malora_problem<Data>(s, rng);
}
template <class Data>
toplora_problem<Data> toplora_of(const modulation_shape& s, unsigned seed = 1) {
  std::mt19937 rng(seed);
  return toplora_problem<Data>(s, rng);
}

// phi_w = 0 leaves lam = softplus(phi_b): 1 at log(e - 1), so h is W0 x + B A x.
TEST(Malora, IsLoraWhereTheFactorIsOne) {
  for (const bool diagonal : {false, true}) {
    auto p = malora_of<double>({.diagonal = diagonal});
    fill(p.phi_w, 0);
    fill(p.phi_b, std::log(std::exp(1.0) - 1));
    malora(on_reference{}, p.args());
    const auto a = p.args();
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t i = 0; i < 3; ++i) {
        double want = 0;
        for (std::int64_t j = 0; j < 4; ++j) {
          want += (a.W0(i, j) + a.B(i, 0) * a.A(0, j) + a.B(i, 1) * a.A(1, j)) * a.x(1, t, j);
        }
        EXPECT_NEAR(a.h(1, t, i), want, 1e-14);
      }
    }
    for (const double lam : p.lam.values()) EXPECT_NEAR(lam, 1, 1e-15);
  }
}

// The factors by the block's own output; each of them times its own entry of A x.
TEST(Malora, FactorsComeFromTheBlock) {
  for (const bool diagonal : {false, true}) {
    auto p = malora_of<double>({.diagonal = diagonal, .base = false});
    malora(on_reference{}, p.args());
    const auto a = p.args();
    const std::int64_t q = diagonal ? 2 : 1;
    tensor<double, 3> px({2, 5, 3}), o({2, 5, 3});
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t i = 0; i < 3; ++i) {
          double& out = px.view()(b, t, i);
          out = 0;
          for (std::int64_t j = 0; j < 4; ++j) out += a.P(i, j) * a.x(b, t, j);
        }
      }
    }
    mamba_block(on_reference{}, mamba_block_args<double>{.x = px.view(),
                                                         .weights = a.mamba,
                                                         .initial_conv_state = a.initial_conv_state,
                                                         .initial_scan_state = a.initial_scan_state,
                                                         .y = o.view()});
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < 5; ++t) {
        std::array<double, 2> lam{};
        for (std::int64_t k = 0; k < 2; ++k) {
          const std::int64_t row = std::min(k, q - 1);
          double v = a.phi_b(row);
          for (std::int64_t i = 0; i < 3; ++i) v += a.phi_w(row, i) * o.view()(b, t, i);
          lam[static_cast<std::size_t>(k)] = std::log(1 + std::exp(v));
          EXPECT_NEAR(a.lam(b, t, row), lam[static_cast<std::size_t>(k)], 1e-14);
        }
        for (std::int64_t i = 0; i < 3; ++i) {
          double want = 0;
          for (std::int64_t j = 0; j < 4; ++j) {
            want += (a.B(i, 0) * lam[0] * a.A(0, j) + a.B(i, 1) * lam[1] * a.A(1, j)) * a.x(b, t, j);
          }
          EXPECT_NEAR(a.h(b, t, i), want, 1e-14);
        }
      }
    }
  }
}

// y = (3, 4) has mean square 12.5; with eps 12.5 the norm divides by 5.
TEST(Toplora, FactorsByHand) {
  auto p = toplora_of<double>({.B = 1, .T = 1, .din = 2, .dout = 1, .r = 2});
  p.x.assign({3, 4});
  p.P.assign({1, 0, 0, 1});
  p.A.assign({1, 0, 0, 1});
  p.B.assign({1, 10});
  p.W0.assign({100, 1000});
  p.rms_w.assign({1, -0.5});
  auto args = p.args();
  args.rms_eps = 12.5;
  toplora(on_reference{}, args);
  EXPECT_NEAR(p.lam.values()[0], std::exp(0.6), 1e-15);
  EXPECT_NEAR(p.lam.values()[1], std::exp(-0.4), 1e-15);
  EXPECT_NEAR(p.h.values()[0], 4300 + 3 * std::exp(0.6) + 40 * std::exp(-0.4), 1e-11);
}

// Decoding in steps of any size carries the convolution's and the scan's state on: bit for bit the whole run.
TEST(Malora, DecodingEqualsTheFullPass) {
  for (const bool diagonal : {false, true}) {
    for (const std::int64_t tokens : {1, 2, 5, 8}) {
      auto full = malora_of<double>({.T = 24, .diagonal = diagonal});
      auto decoded = full;
      malora(on_reference{}, full.args());
      auto pool = decoded.before;
      for (std::int64_t t = 0; t < 24; t += tokens) {
        malora_step(on_reference{}, decoded.step_args(t, std::min<std::int64_t>(24, t + tokens), pool));
      }
      EXPECT_TRUE(bitwise_equal(decoded.h, full.h)) << tokens;
      EXPECT_TRUE(bitwise_equal(decoded.lam, full.lam)) << tokens;
      EXPECT_TRUE(bitwise_equal(pool.conv, full.after.conv)) << tokens;
      EXPECT_TRUE(bitwise_equal(pool.scan, full.after.scan)) << tokens;
    }
  }
}

// A prefill of some tokens, then decoding from its final states; a run in two halves, the states handed on in place.
TEST(Malora, PrefillAndResume) {
  auto full = malora_of<double>({.T = 12});
  auto parts = full;
  malora(on_reference{}, full.args());
  auto args = parts.args();
  const auto tokens = [&](std::int64_t begin, std::int64_t end) {
    auto a = args;
    a.x = args.x.slice(1, begin, end);
    a.h = args.h.slice(1, begin, end);
    a.lam = args.lam.slice(1, begin, end);
    a.final_conv_state = parts.before.conv.view();
    a.final_scan_state = parts.before.scan.view();
    return a;
  };
  malora(on_reference{}, tokens(0, 5));
  malora(on_reference{}, tokens(5, 10));
  malora_step(on_reference{}, parts.step_args(10, 12, parts.before));
  EXPECT_TRUE(bitwise_equal(parts.h, full.h));
  EXPECT_TRUE(bitwise_equal(parts.before.scan, full.after.scan));
}

// What decoding without the states amounts to: each token as a sequence of its own. It is another function from the
// second token on.
TEST(Malora, RestartingAtEachTokenDiffers) {
  auto full = malora_of<double>({.B = 1, .T = 16, .initial_states = false, .final_states = false});
  auto restarted = full;
  malora(on_reference{}, full.args());
  auto args = restarted.args();
  args.x = args.x.permuted({1, 0, 2});  // 16 sequences of one token
  args.h = args.h.permuted({1, 0, 2});
  args.lam = args.lam.permuted({1, 0, 2});
  malora(on_reference{}, args);
  const auto difference = [&](std::int64_t t) {
    double d = 0, size = 0;
    for (std::int64_t i = 0; i < 2; ++i) {
      const double a = full.lam.view()(0, t, i), b = restarted.lam.view()(0, t, i);
      d += (a - b) * (a - b), size += a * a;
    }
    return std::sqrt(d / size);
  };
  EXPECT_EQ(difference(0), 0);
  double mean = 0;
  for (std::int64_t t = 1; t < 16; ++t) {
    EXPECT_GT(difference(t), 1e-6) << t;
    mean += difference(t) / 15;
  }
  std::printf("restarted at each token, lam is off by %.3f of its length, averaged over tokens 1 to 15\n", mean);
  RecordProperty("mean_relative_difference", std::to_string(mean));
  EXPECT_GT(mean, 0.01);
}

TEST(Malora, PackedEqualsSeparate) {
  auto p = malora_of<double>({.B = 1, .T = 9, .lengths = {4, 0, 5}});
  malora(on_reference{}, p.args());
  for (const auto [s, begin, end] : {std::array{0, 0, 4}, std::array{2, 4, 9}}) {
    auto args = p.args();
    auto alone = mamba_states<double>::shaped({}, 1);
    tensor<double, 3> h({1, end - begin, 3});
    args.x = args.x.slice(1, begin, end);
    args.cu_seqlens = {};
    args.initial_conv_state = args.initial_conv_state.slice(0, s, s + 1);
    args.initial_scan_state = args.initial_scan_state.slice(0, s, s + 1);
    args.h = h.view();
    args.lam = {};
    args.final_conv_state = alone.conv.view();
    args.final_scan_state = alone.scan.view();
    malora(on_reference{}, args);
    EXPECT_TRUE(same_bits(p.h.view().slice(1, begin, end), h.view()));
    EXPECT_TRUE(same_bits(p.after.scan.view().slice(0, s, s + 1), alone.scan.view()));
  }
}

TEST(Malora, PaddingRowsOfAStep) {
  auto p = malora_of<double>({.B = 2, .T = 3});
  auto pool = p.before;
  tensor<std::int32_t, 1> slots({2});
  slots.assign({-1, 1});
  auto args = p.step_args(0, 3, pool);
  args.read_indices = slots.view();
  malora_step(on_reference{}, args);
  EXPECT_TRUE(all_are(p.h.view().select(0, 0), 0) && all_are(p.lam.view().select(0, 0), 0));
  EXPECT_FALSE(all_are(p.h.view().select(0, 1), 0));
  EXPECT_TRUE(same_bits(pool.scan.view().select(0, 0), p.before.scan.view().select(0, 0)));
  EXPECT_FALSE(same_bits(pool.scan.view().select(0, 1), p.before.scan.view().select(0, 1)));
}

TEST(Malora, NoTokens) {
  auto p = malora_of<double>({.T = 0});
  malora(on_reference{}, p.args());
  EXPECT_TRUE(bitwise_equal(p.after.conv, p.before.conv) && bitwise_equal(p.after.scan, p.before.scan));
}

TEST(TokenModulation, StridesChangeNothing) {
  const layout<3> strided{{2, 0, 1}, 3};
  auto plain = malora_of<double>({}), other = malora_of<double>({.memory = strided});
  malora(on_reference{}, plain.args());
  malora(on_reference{}, other.args());
  EXPECT_TRUE(bitwise_equal(plain.h, other.h) && bitwise_equal(plain.lam, other.lam));
  EXPECT_TRUE(other.h.untouched_outside() && other.lam.untouched_outside());
  auto top = toplora_of<double>({}), top_other = toplora_of<double>({.memory = strided});
  toplora(on_reference{}, top.args());
  toplora(on_reference{}, top_other.args());
  EXPECT_TRUE(bitwise_equal(top.h, top_other.h) && bitwise_equal(top.lam, top_other.lam));
  EXPECT_TRUE(top_other.h.untouched_outside() && top_other.lam.untouched_outside());
}

template <class Data>
void expect_rounds_once() {
  auto p = malora_of<Data>({.T = 7});
  auto p_double = p.in_double();
  malora(on_reference{}, p.args());
  malora(on_reference{}, p_double.args());
  EXPECT_TRUE(bitwise_equal(p.h, convert<Data>(p_double.h)));
  EXPECT_TRUE(bitwise_equal(p.lam, convert<float>(p_double.lam)));
  EXPECT_TRUE(bitwise_equal(p.after.conv, convert<Data>(p_double.after.conv)));
  auto top = toplora_of<Data>({.T = 7});
  auto top_double = top.in_double();
  toplora(on_reference{}, top.args());
  toplora(on_reference{}, top_double.args());
  EXPECT_TRUE(bitwise_equal(top.h, convert<Data>(top_double.h)));
  EXPECT_TRUE(bitwise_equal(top.lam, convert<float>(top_double.lam)));
}
TEST(TokenModulation, RoundsOnce) {
  expect_rounds_once<float>();
  expect_rounds_once<half>();
  expect_rounds_once<bfloat16>();
}

TEST(TokenModulation, Refusals) {
  auto p = malora_of<float>({});
  const auto refused = [&](auto change, error_code code, const std::string& argument, const std::string& text) {
    auto args = p.args();
    change(args);
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_THROW(malora(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.h.view(), std::nan("")) && all_are(p.after.scan.view(), std::nan("")));
  };
  using args_type = malora_args<float>;
  refused([](args_type& a) { a.x = {}; }, error_code::missing, "x", "malora: x: not given");
  refused([](args_type& a) { a.A = {}; }, error_code::missing, "A", "(r, din)");
  refused([](args_type& a) { a.B = a.B.slice(1, 0, 1); }, error_code::shape, "B", "(dout, r) = (3, 2)");
  refused([](args_type& a) { a.W0 = a.W0.slice(0, 0, 2); }, error_code::shape, "W0", "(dout, din) = (3, 4)");
  refused([](args_type& a) { a.P = a.P.slice(1, 0, 3); }, error_code::shape, "P", "(dp, din) = (3, 4)");
  refused([](args_type& a) { a.P = a.P.slice(0, 0, 2); }, error_code::shape, "in_proj", "(2di, dp) = (8, 2)");
  refused([](args_type& a) { a.mamba.D = {}; }, error_code::missing, "D", "(di)");
  std::vector<float> memory(100);
  refused(
      [&](args_type& a) {
        a.phi_w = {memory.data(), {3, 3}};
      },
      error_code::unsupported, "phi_w", "q = 3, supported: 1 or r = 2");
  refused([](args_type& a) { a.phi_b = a.phi_b.slice(0, 0, 1); }, error_code::shape, "phi_b", "(q) = (2)");
  refused([](args_type& a) { a.lam = a.lam.slice(2, 0, 1); }, error_code::shape, "lam", "(B, T, q) = (2, 5, 2)");
  refused([&](args_type& a) { a.lam = {a.h.data(), {2, 5, 2}}; }, error_code::overlap, "lam", "shares memory with h");
  refused([](args_type& a) { a.initial_scan_state = a.initial_scan_state.slice(0, 0, 1); }, error_code::shape,
          "initial_scan_state", "(S, di, N) = (2, 4, 3)");

  auto pool = p.before;
  auto step = p.step_args(0, 5, pool);
  EXPECT_TRUE(check(on_reference{}, step).ok());
  step.conv_state = step.conv_state.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(step), error_code::shape, "scan_state", "malora_step: scan_state"));
  auto nine = malora_of<float>({.T = 9});
  EXPECT_TRUE(refuses(check(nine.step_args(0, 9, pool)), error_code::unsupported, "x", "T = 9, supported: 0 to 8"));

  auto top = toplora_of<float>({});
  auto args = top.args();
  args.rms_eps = 0;
  EXPECT_TRUE(refuses(check(args), error_code::value, "rms_eps", "supported: above 0"));
  args = top.args();
  args.P = args.P.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "P", "toplora: P: shape (1, 4), supported: (r, din) = (2, 4)"));
  EXPECT_THROW(toplora(on_reference{}, args), argument_error);
  EXPECT_TRUE(all_are(top.h.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
