// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of segment_moments and their gradients, as support/gradient_properties.hpp asks.

#include "segment_moments/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/segment_moments.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// The gradients of routing keys, all of those that are given.
template <class Data>
struct key_gradients {
  tensor<Data, 4> d_k;
  tensor<acc_t<Data>, 3> d_g, d_beta;

  key_gradients() = default;
  explicit key_gradients(const routing_keys<Data>& keys)
      : d_k(poisoned_like(keys.k)), d_g(poisoned_like(keys.g)), d_beta(poisoned_like(keys.beta)) {}

  [[nodiscard]] key_moment_grads<Data> views() {
    return {.d_k = d_k.view(), .d_g = d_g.view(), .d_beta = d_beta.view()};
  }
  template <class Keys, class F>
  void for_each(Keys& keys, F&& f) {
    f("moments.k", keys.k, d_k);
    f("moments.g", keys.g, d_g);
    f("moments.beta", keys.beta, d_beta);
  }
};

template <class Data, class Separation>
struct moments_problem {
  using data_type = Data;
  using args_type = segment_moments_args<Data, Separation>;

  routing_keys<Data> keys;
  std::int64_t m = 3;
  std::vector<std::int32_t> cuts;  ///< of boundaries
  tensor<std::int32_t, 1> cu_seqlens;
  tensor<acc_t<Data>, 4> mu;
  tensor<acc_t<Data>, 5> Sigma;

  moments_problem() = default;
  template <class Rng>
  moments_problem(const keys_shape& s, Rng& rng, std::int64_t m_, const std::vector<std::int32_t>& cuts_,
                  const std::vector<std::int32_t>& lengths = {})
      : keys(s, rng), m(m_), cuts(cuts_), cu_seqlens(cu_seqlens_of(lengths)) {
    const auto separation = separation_of<Separation>(m, cuts);
    const std::int64_t L =
        total_segments(separation, sequences(s.B, s.T, cu_seqlens.view())) / (lengths.empty() ? s.B : 1);
    mu = tensor<acc_t<Data>, 4>({s.B, L, s.HR, s.dr});
    Sigma = tensor<acc_t<Data>, 5>({s.B, L, s.HR, s.dr, s.dr});
  }

  [[nodiscard]] args_type args() {
    return {.moments = keys.view(),
            .separation = separation_of<Separation>(m, cuts),
            .cu_seqlens = cu_seqlens.view(),
            .mu = mu.view(),
            .Sigma = Sigma.view()};
  }
  template <class To>
  [[nodiscard]] moments_problem<To, Separation> in() const {
    moments_problem<To, Separation> p;
    p.keys = keys.template in<To>();
    p.m = m;
    p.cuts = cuts;
    p.cu_seqlens = cu_seqlens;
    p.mu = tensor<acc_t<To>, 4>(mu.extents());
    p.Sigma = tensor<acc_t<To>, 5>(Sigma.extents());
    return p;
  }
  [[nodiscard]] moments_problem<double, Separation> in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    segment_moments(exec, args);
  }
};

template <class Data>
struct moments_gradients {
  tensor<acc_t<Data>, 4> d_mu;     ///< upstream
  tensor<acc_t<Data>, 5> d_Sigma;  ///< upstream
  key_gradients<Data> keys;

  moments_gradients() = default;
  template <class Separation, class Rng>
  moments_gradients(const moments_problem<Data, Separation>& p, Rng& rng)
      : d_mu(poisoned_like(p.mu)), d_Sigma(poisoned_like(p.Sigma)), keys(p.keys) {
    d_mu.uniform(rng, -1, 1);
    d_Sigma.uniform(rng, -1, 1);
  }

  [[nodiscard]] segment_moments_grads<Data> views() {
    return {.d_mu = d_mu.view(), .d_Sigma = d_Sigma.view(), .moments = keys.views()};
  }
  template <class Exec, class Separation>
  static void run(const Exec& exec, const segment_moments_args<Data, Separation>& args,
                  const segment_moments_grads<Data>& grads) {
    segment_moments_backward(exec, args, grads);
  }
  [[nodiscard]] moments_gradients<double> in_double() const {
    moments_gradients<double> g;
    g.d_mu = convert<double>(d_mu);
    g.d_Sigma = convert<double>(d_Sigma);
    g.keys.d_k = convert<double>(keys.d_k);
    g.keys.d_g = convert<double>(keys.d_g);
    g.keys.d_beta = convert<double>(keys.d_beta);
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("mu", p.mu, d_mu);
    f("Sigma", p.Sigma, d_Sigma);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    keys.for_each(p.keys, f);
  }
};

}  // namespace polystate::testing
