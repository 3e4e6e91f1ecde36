// SPDX-License-Identifier: Apache-2.0
#pragma once

// A problem of segment_moments on the device, and how the CUDA tests judge it.

#include "segment_moments/oracle.hpp"
#include "support/compare.hpp"
#include "support/device.cuh"
#include "support/random.hpp"

#include <polystate/cuda/segment_moments.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// c of the elementwise bound: sums in another order than the reference's, and four tokens at once.
inline constexpr double moment_bound = 8;

/// Boundaries in device memory; absent where there are none.
inline tensor<std::int32_t, 1> cuts_tensor(const std::vector<std::int32_t>& cuts) {
  if (cuts.empty()) return {};
  tensor<std::int32_t, 1> t({static_cast<std::int64_t>(cuts.size())});
  t.assign(cuts);
  return t;
}

template <class Separation>
Separation device_separation(std::int64_t m, const device_tensor<std::int32_t, 1>& cuts) {
  if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    return {cuts.view()};
  } else {
    return {m};
  }
}

template <class Data>
struct device_keys {
  device_tensor<Data, 4> k;
  device_tensor<float, 3> g, beta;
  keys_shape options;

  explicit device_keys(const routing_keys<Data>& keys, std::int64_t off = 0)
      : k(keys.k, off), g(keys.g), beta(keys.beta), options(keys.options) {}

  [[nodiscard]] key_moments<Data> view() const {
    return {.k = k.view(),
            .g = g.view(),
            .beta = beta.view(),
            .moment_rule = options.moment_rule,
            .divide_by = options.divide_by,
            .qkp_l2norm = options.qkp_l2norm};
  }
  [[nodiscard]] bool unchanged() const { return k.unchanged() && g.unchanged() && beta.unchanged(); }
};

template <class Data, class Separation>
struct device_moments {
  device_keys<Data> keys;
  device_tensor<std::int32_t, 1> cuts, cu_seqlens;
  device_tensor<float, 4> mu;
  device_tensor<float, 5> Sigma;
  std::int64_t m;

  explicit device_moments(const moments_problem<Data, Separation>& p, std::int64_t off = 0)
      : keys(p.keys, off),
        cuts(cuts_tensor(std::is_same_v<Separation, separation::boundaries> ? p.cuts : std::vector<std::int32_t>{})),
        cu_seqlens(p.cu_seqlens),
        mu(p.mu),
        Sigma(p.Sigma),
        m(p.m) {}

  [[nodiscard]] segment_moments_args<Data, Separation> args() const {
    return {.moments = keys.view(),
            .separation = device_separation<Separation>(m, cuts),
            .cu_seqlens = cu_seqlens.view(),
            .mu = mu.view(),
            .Sigma = Sigma.view()};
  }
  void download(moments_problem<Data, Separation>& p) const {
    mu.download(p.mu);
    Sigma.download(p.Sigma);
  }
};

/// Runs the problem on the device.
template <class Data, class Separation>
moments_problem<Data, Separation> on_device(moments_problem<Data, Separation> p,
                                            const device_moments<Data, Separation>& device, const on_cuda& exec = {}) {
  segment_moments(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}
template <class Data, class Separation>
moments_problem<Data, Separation> on_device(const moments_problem<Data, Separation>& p) {
  return on_device(p, device_moments<Data, Separation>(p));
}

template <class Data, class Separation>
void judge(const moments_problem<Data, Separation>& got, const moments_problem<Data, Separation>& p) {
  const auto want = run_reference(p.in_double());
  if (got.mu) EXPECT_TRUE(within_elementwise_bound(got.mu, want.value.mu, want.error.mu, moment_bound)) << "mu";
  if (got.Sigma) {
    EXPECT_TRUE(within_elementwise_bound(got.Sigma, want.value.Sigma, want.error.Sigma, moment_bound)) << "Sigma";
  }
  EXPECT_TRUE(got.mu.untouched_outside());
  EXPECT_TRUE(got.Sigma.untouched_outside());
}

template <class Data, class Separation>
void expect_reference(const moments_problem<Data, Separation>& p, std::int64_t off = 0) {
  const device_moments<Data, Separation> device(p, off);
  judge(on_device(p, device), p);
  EXPECT_TRUE(device.keys.unchanged());
}

template <class Data>
struct device_key_gradients {
  device_tensor<Data, 4> d_k;
  device_tensor<float, 3> d_g, d_beta;

  explicit device_key_gradients(const key_gradients<Data>& g) : d_k(g.d_k), d_g(g.d_g), d_beta(g.d_beta) {}
  [[nodiscard]] key_moment_grads<Data> views() const {
    return {.d_k = d_k.view(), .d_g = d_g.view(), .d_beta = d_beta.view()};
  }
  void download(key_gradients<Data>& g) const {
    d_k.download(g.d_k);
    d_g.download(g.d_g);
    d_beta.download(g.d_beta);
  }
  void upload(const key_gradients<Data>& g) {
    d_k.upload(g.d_k);
    d_g.upload(g.d_g);
    d_beta.upload(g.d_beta);
  }
};

/// Whether each gradient that `got` has is the reference's.
template <class Data>
void judge(const key_gradients<Data>& got, const key_gradients<double>& value, const key_gradients<double>& error,
           double bound) {
  const auto one = [&](const char* name, const auto& x, const auto& want, const auto& allowed) {
    if (x) EXPECT_TRUE(within_elementwise_bound(x, want, allowed, bound)) << name;
    EXPECT_TRUE(x.untouched_outside()) << name;
  };
  one("d_k", got.d_k, value.d_k, error.d_k);
  one("d_g", got.d_g, value.d_g, error.d_g);
  one("d_beta", got.d_beta, value.d_beta, error.d_beta);
}

template <class Data>
void expect_bitwise_equal(const key_gradients<Data>& a, const key_gradients<Data>& b) {
  EXPECT_TRUE(bitwise_equal(a.d_k, b.d_k)) << "d_k";
  EXPECT_TRUE(bitwise_equal(a.d_g, b.d_g)) << "d_g";
  EXPECT_TRUE(bitwise_equal(a.d_beta, b.d_beta)) << "d_beta";
}

/// Increasing from 0 to T in steps of 1 to `longest`.
inline std::vector<std::int32_t> random_cuts(std::int64_t T, std::int64_t longest, std::mt19937& rng) {
  std::vector<std::int32_t> cuts = {0};
  while (cuts.back() < T) {
    const std::int64_t step = std::uniform_int_distribution<std::int64_t>(1, longest)(rng);
    cuts.push_back(static_cast<std::int32_t>(std::min(cuts.back() + step, T)));
  }
  return cuts;
}

/// Memory orders of rows and of gates.
inline layout<4> random_row_layout(std::mt19937& rng) {
  return pick<layout<4>>({row_major<4>(), row_major<4>(), {{0, 2, 1, 3}, 0}, {{0, 1, 2, 3}, 3}, {{3, 1, 0, 2}, 1}},
                         rng);
}
inline layout<3> random_gate_layout(std::mt19937& rng) {
  return pick<layout<3>>({row_major<3>(), {{2, 0, 1}, 1}}, rng);
}

/// Keys of a sweep, of at most about `work` products of an element of Sigma and a token.
inline keys_shape random_keys_shape(std::int64_t work, std::mt19937& rng) {
  keys_shape s{
      .B = pick<std::int64_t>({1, 2, 3}, rng),
      .T = pick<std::int64_t>({0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 130, 257}, rng),
      .HR = pick<std::int64_t>({1, 1, 2, 3}, rng),
      .dr = pick<std::int64_t>({1, 3, 4, 5, 8, 16, 20, 32, 33, 64, 65, 100, 128, 130}, rng),
      .moment_rule = pick<moment_rule>({moment_rule::plain, moment_rule::decay_write, moment_rule::delta}, rng),
      .qkp_l2norm = coin(rng)};
  if (s.moment_rule == moment_rule::plain && coin(rng)) s.divide_by = divide_by::count;
  while (s.B * s.T * s.HR * s.dr * s.dr > work) {
    if (s.B > 1) {
      s.B = 1;
    } else if (s.HR > 1) {
      s.HR = 1;
    } else {
      s.T = s.T / 2 + 1;
    }
  }
  // Keys of the delta rule that are not short erase too much: what is left grows with every token.
  if (s.moment_rule == moment_rule::delta) s.qkp_l2norm = true;
  return s;
}

/// The keys of a problem in other memory orders.
template <class Data>
void lay_out(routing_keys<Data>& keys, std::mt19937& rng) {
  keys.k = laid_out(keys.k, random_row_layout(rng));
  const layout<3> gates = random_gate_layout(rng);
  keys.g = laid_out(keys.g, gates);
  keys.beta = laid_out(keys.beta, gates);
}

template <class Data, class Separation>
moments_problem<Data, Separation> random_moments(std::int64_t work, std::mt19937& rng) {
  const keys_shape first = random_keys_shape(work, rng);
  keys_shape s = first;
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> cuts;
  const std::int64_t m = pick<std::int64_t>({1, 2, 3, 7, 16, 64, 1000, std::int64_t{1} << 62}, rng);
  if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    cuts = random_cuts(s.T, pick<std::int64_t>({1, 5, 40, 1000}, rng), rng);
  } else if (rng() % 3 == 0) {
    s.B = 1;
    lengths = random_lengths(s.T, {0, 1, 3, 4, 5, 16, 40}, rng);
  }
  moments_problem<Data, Separation> p(s, rng, m, cuts, lengths);
  lay_out(p.keys, rng);
  p.mu = tensor<float, 4>(p.mu.extents(), random_row_layout(rng));
  p.Sigma = tensor<float, 5>(p.Sigma.extents(),
                             pick<layout<5>>({row_major<5>(), {{0, 1, 2, 3, 4}, 3}, {{4, 2, 0, 1, 3}, 0}}, rng));
  return p;
}

template <class Data, class Separation>
std::string describe(const moments_problem<Data, Separation>& p) {
  const keys_shape& s = p.keys.options;
  return std::string(Separation::name) + ": B " + std::to_string(s.B) + ", T " + std::to_string(s.T) + ", HR " +
         std::to_string(s.HR) + ", dr " + std::to_string(s.dr) + ", m " + std::to_string(p.m) + ", rule " +
         std::to_string(static_cast<int>(s.moment_rule)) + ", count " + std::to_string(static_cast<int>(s.divide_by)) +
         ", l2norm " + std::to_string(s.qkp_l2norm) + ", packed " + std::to_string(static_cast<bool>(p.cu_seqlens));
}

}  // namespace polystate::testing
