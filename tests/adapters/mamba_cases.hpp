// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of mamba_block, and its parameters, which the adapters' problems hold too.

#include "support/recurrence_properties.hpp"
#include "support/tensor.hpp"

#include <polystate/adapters/mamba_block.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace polystate::testing {

/// Sizes of one block.
struct mamba_sizes {
  std::int64_t d = 3, di = 4, W = 3, R = 2, N = 3;
};

/// Calls f(name, parameter...) with the same parameter of each of the sets.
template <class F, class... Sets>
void for_each_weight(F&& f, Sets&&... s) {
  f("in_proj", s.in_proj...);
  f("conv_w", s.conv_w...);
  f("conv_b", s.conv_b...);
  f("x_proj", s.x_proj...);
  f("dt_proj_w", s.dt_proj_w...);
  f("dt_proj_b", s.dt_proj_b...);
  f("A_log", s.A_log...);
  f("D", s.D...);
  f("out_proj", s.out_proj...);
}

/// Owned parameters: rows of length near 1, A in [-4, -1/2], step lengths around 0.7.
template <class Data>
struct mamba_weights {
  tensor<Data, 2> in_proj, x_proj, dt_proj_w, out_proj;
  tensor<acc_t<Data>, 2> conv_w, A_log;
  tensor<acc_t<Data>, 1> conv_b, dt_proj_b, D;

  mamba_weights() = default;
  template <class Rng>
  mamba_weights(const mamba_sizes& n, Rng& rng) : mamba_weights(shaped(n)) {
    const auto unit = [](std::int64_t inputs) { return std::sqrt(3 / static_cast<double>(inputs)); };
    in_proj.uniform(rng, -unit(n.d), unit(n.d));
    conv_w.uniform(rng, -unit(n.W), unit(n.W));
    conv_b.uniform(rng, -0.5, 0.5);
    x_proj.uniform(rng, -unit(n.di), unit(n.di));
    dt_proj_w.uniform(rng, -unit(n.R), unit(n.R));
    dt_proj_b.uniform(rng, -0.5, 0.5);
    A_log.uniform(rng, -0.7, 1.4);
    D.uniform(rng, -1, 1);
    out_proj.uniform(rng, -unit(n.di), unit(n.di));
  }
  /// Poisoned.
  static mamba_weights shaped(const mamba_sizes& n) {
    mamba_weights w;
    w.in_proj = tensor<Data, 2>({2 * n.di, n.d});
    w.conv_w = tensor<acc_t<Data>, 2>({n.di, n.W});
    w.conv_b = tensor<acc_t<Data>, 1>({n.di});
    w.x_proj = tensor<Data, 2>({n.R + 2 * n.N, n.di});
    w.dt_proj_w = tensor<Data, 2>({n.di, n.R});
    w.dt_proj_b = tensor<acc_t<Data>, 1>({n.di});
    w.A_log = tensor<acc_t<Data>, 2>({n.di, n.N});
    w.D = tensor<acc_t<Data>, 1>({n.di});
    w.out_proj = tensor<Data, 2>({n.d, n.di});
    return w;
  }
  template <class To>
  [[nodiscard]] mamba_weights<To> in() const {
    mamba_weights<To> w;
    for_each_weight(
        [](const char*, const auto& from, auto& to) { to = convert<typename decltype(to.values())::value_type>(from); },
        *this, w);
    return w;
  }
  [[nodiscard]] mamba_block_weights<Data> views() const {
    mamba_block_weights<Data> v{};
    for_each_weight([](const char*, const auto& own, auto& view) { view = own.view(); }, *this, v);
    return v;
  }
};

/// Gradients of the parameters, poisoned.
template <class Data>
mamba_block_weight_grads<Data> views_of_gradients(mamba_weights<Data>& g) {
  return {.d_in_proj = g.in_proj.view(),
          .d_conv_w = g.conv_w.view(),
          .d_conv_b = g.conv_b.view(),
          .d_x_proj = g.x_proj.view(),
          .d_dt_proj_w = g.dt_proj_w.view(),
          .d_dt_proj_b = g.dt_proj_b.view(),
          .d_A_log = g.A_log.view(),
          .d_D = g.D.view(),
          .d_out_proj = g.out_proj.view()};
}

/// One problem. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct mamba_shape {
  std::int64_t B = 2, T = 5;
  mamba_sizes block = {};
  bool initial_states = true, final_states = true;
  std::vector<std::int32_t> lengths = {};
  layout<3> memory = row_major<3>();  ///< of x, y

  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

/// The states of a block before and after its sequences.
template <class Data>
struct mamba_states {
  tensor<Data, 3> conv;
  tensor<acc_t<Data>, 3> scan;

  static mamba_states shaped(const mamba_sizes& n, std::int64_t S) {
    return {tensor<Data, 3>({S, n.W - 1, n.di}), tensor<acc_t<Data>, 3>({S, n.di, n.N})};
  }
  template <class Rng>
  static mamba_states random(const mamba_sizes& n, std::int64_t S, Rng& rng) {
    auto states = shaped(n, S);
    states.conv.uniform(rng, -1, 1);
    states.scan.uniform(rng, -1, 1);
    return states;
  }
  template <class To>
  [[nodiscard]] mamba_states<To> in() const {
    return {convert<To>(conv), convert<acc_t<To>>(scan)};
  }
  [[nodiscard]] mamba_states poisoned() const { return {poisoned_like(conv), poisoned_like(scan)}; }
};

template <class Data>
struct mamba_problem {
  using data_type = Data;

  tensor<Data, 3> x, y;
  mamba_weights<Data> weights;
  mamba_states<Data> before, after;
  tensor<std::int32_t, 1> cu_seqlens;

  mamba_problem() = default;
  template <class Rng>
  mamba_problem(const mamba_shape& s, Rng& rng)
      : x(tensor<Data, 3>({s.B, s.T, s.block.d}, s.memory).uniform(rng, -2, 2)),
        y({s.B, s.T, s.block.d}, s.memory),
        weights(s.block, rng),
        cu_seqlens(cu_seqlens_of(s.lengths)) {
    if (s.initial_states) before = mamba_states<Data>::random(s.block, s.sequences(), rng);
    if (s.final_states) after = mamba_states<Data>::shaped(s.block, s.sequences());
  }
  [[nodiscard]] mamba_block_args<Data> args() {
    return {.x = x.view(),
            .weights = weights.views(),
            .initial_conv_state = before.conv.view(),
            .initial_scan_state = before.scan.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_conv_state = after.conv.view(),
            .final_scan_state = after.scan.view()};
  }
  template <class To>
  [[nodiscard]] mamba_problem<To> in() const {
    mamba_problem<To> p;
    p.x = convert<To>(x);
    p.y = tensor<To, 3>(y.extents());
    p.weights = weights.template in<To>();
    p.before = before.template in<To>();
    p.after = after.template in<To>().poisoned();
    p.cu_seqlens = cu_seqlens;
    return p;
  }
  [[nodiscard]] mamba_problem<double> in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const mamba_block_args<Data>& args) {
    mamba_block(exec, args);
  }
};

/// As support/gradient_properties.hpp asks.
template <class Data>
struct mamba_gradients {
  tensor<Data, 3> d_y;         ///< upstream
  mamba_states<Data> d_after;  ///< upstream
  tensor<Data, 3> d_x;
  mamba_weights<Data> d_weights;
  mamba_states<Data> d_before;

  mamba_gradients() = default;
  template <class Rng>
  mamba_gradients(const mamba_shape& s, Rng& rng)
      : d_y(tensor<Data, 3>({s.B, s.T, s.block.d}, s.memory).uniform(rng, -1, 1)),
        d_x({s.B, s.T, s.block.d}, s.memory),
        d_weights(mamba_weights<Data>::shaped(s.block)),
        d_before(mamba_states<Data>::shaped(s.block, s.sequences())) {
    if (s.final_states) d_after = mamba_states<Data>::random(s.block, s.sequences(), rng);
  }
  [[nodiscard]] mamba_block_grads<Data> views() {
    return {.d_y = d_y.view(),
            .d_final_conv_state = d_after.conv.view(),
            .d_final_scan_state = d_after.scan.view(),
            .d_x = d_x.view(),
            .d_weights = views_of_gradients(d_weights),
            .d_initial_conv_state = d_before.conv.view(),
            .d_initial_scan_state = d_before.scan.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const mamba_block_args<Data>& args, const mamba_block_grads<Data>& grads) {
    mamba_block_backward(exec, args, grads);
  }
  [[nodiscard]] mamba_gradients<double> in_double() const {
    mamba_gradients<double> g;
    g.d_y = convert<double>(d_y);
    g.d_after = d_after.template in<double>();
    g.d_x = convert<double>(d_x);
    g.d_weights = d_weights.template in<double>();
    g.d_before = d_before.template in<double>();
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("y", p.y, d_y);
    f("final_conv_state", p.after.conv, d_after.conv);
    f("final_scan_state", p.after.scan, d_after.scan);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("x", p.x, d_x);
    for_each_weight(f, p.weights, d_weights);
    f("initial_conv_state", p.before.conv, d_before.conv);
    f("initial_scan_state", p.before.scan, d_before.scan);
  }
};

}  // namespace polystate::testing
