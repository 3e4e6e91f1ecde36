// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of mara, and their gradients, as support/gradient_properties.hpp asks.

#include "adapters/mamba_cases.hpp"
#include "support/tensor.hpp"

#include <polystate/adapters/segment_retrieval.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace polystate::testing {

struct mara_shape {
  std::vector<std::int32_t> lengths = {2, 3, 1};  ///< of the segments
  std::int64_t d = 3, da = 2, D = 3, NG = 2;
  mamba_sizes block = {.d = 3, .di = 4, .W = 3, .R = 1, .N = 2};
  std::int64_t layers = 2;
  bool residual = false, local = true, global = true;
  layout<2> memory = row_major<2>();  ///< of H, p, s

  [[nodiscard]] std::int64_t N() const { return static_cast<std::int64_t>(lengths.size()); }
  [[nodiscard]] std::int64_t T() const {
    std::int64_t sum = 0;
    for (const auto n : lengths) sum += n;
    return sum;
  }
};

template <class Data>
struct mara_problem {
  using data_type = Data;
  using shape_type = mara_shape;

  tensor<Data, 2> H, W_k, W_in, W_g, p, s;
  tensor<Data, 1> q_a, w_l, r, g, r_global;
  tensor<std::int32_t, 1> cu_segments;
  std::vector<mamba_weights<Data>> blocks;
  bool residual = false;

  mara_problem() = default;
  template <class Rng>
  mara_problem(const mara_shape& n, Rng& rng)
      : H(tensor<Data, 2>({n.T(), n.d}, n.memory).uniform(rng, -2, 2)),
        W_k(tensor<Data, 2>({n.da, n.d}).uniform(rng, -1, 1)),
        W_in(tensor<Data, 2>({n.D, n.d}).uniform(rng, -1, 1)),
        p({n.N(), n.d}, n.memory),
        s({n.N(), n.D}, n.memory),
        q_a(tensor<Data, 1>({n.da}).uniform(rng, -2, 2)),
        g({n.D}),
        cu_segments(cu_seqlens_of(n.lengths)),
        residual(n.residual) {
    for (std::int64_t l = 0; l < n.layers; ++l) blocks.emplace_back(n.block, rng);
    if (n.local) {
      w_l = tensor<Data, 1>({n.D}).uniform(rng, -1, 1);
      r = tensor<Data, 1>({n.N()});
    }
    if (n.global) {
      W_g = tensor<Data, 2>({n.NG, n.D}).uniform(rng, -1, 1);
      r_global = tensor<Data, 1>({n.NG});
    }
  }

  [[nodiscard]] mara_args<Data> args() {
    mara_args<Data> a{.H = H.view(),
                      .cu_segments = cu_segments.view(),
                      .W_k = W_k.view(),
                      .q_a = q_a.view(),
                      .W_in = W_in.view(),
                      .w_l = w_l.view(),
                      .W_g = W_g.view(),
                      .p = p.view(),
                      .s = s.view(),
                      .r = r.view(),
                      .g = g.view(),
                      .r_global = r_global.view(),
                      .layers = static_cast<std::int64_t>(blocks.size()),
                      .residual = residual};
    for (std::size_t l = 0; l < blocks.size(); ++l) a.blocks[l] = blocks[l].views();
    return a;
  }

  /// The same numbers in another type, outputs poisoned.
  template <class To>
  [[nodiscard]] mara_problem<To> in() const {
    mara_problem<To> q;
    q.H = convert<To>(H);
    q.W_k = convert<To>(W_k);
    q.W_in = convert<To>(W_in);
    q.W_g = convert<To>(W_g);
    q.q_a = convert<To>(q_a);
    q.w_l = convert<To>(w_l);
    q.cu_segments = cu_segments;
    q.p = tensor<To, 2>(p.extents());
    q.s = tensor<To, 2>(s.extents());
    q.g = tensor<To, 1>(g.extents());
    if (r) q.r = tensor<To, 1>(r.extents());
    if (r_global) q.r_global = tensor<To, 1>(r_global.extents());
    for (const auto& b : blocks) q.blocks.push_back(b.template in<To>());
    q.residual = residual;
    return q;
  }
  [[nodiscard]] mara_problem<double> in_double() const { return in<double>(); }

  template <class Exec>
  static void run(const Exec& exec, const mara_args<Data>& args) {
    mara(exec, args);
  }
};

template <class Data>
struct mara_gradients {
  tensor<Data, 2> d_p, d_s;              ///< upstream
  tensor<Data, 1> d_r, d_g, d_r_global;  ///< upstream
  tensor<Data, 2> d_H, d_W_k, d_W_in, d_W_g;
  tensor<Data, 1> d_q_a, d_w_l;
  std::vector<mamba_weights<Data>> d_blocks;

  mara_gradients() = default;
  template <class Rng>
  mara_gradients(const mara_shape& n, Rng& rng)
      : d_p(tensor<Data, 2>({n.N(), n.d}).uniform(rng, -1, 1)),
        d_s(tensor<Data, 2>({n.N(), n.D}).uniform(rng, -1, 1)),
        d_g(tensor<Data, 1>({n.D}).uniform(rng, -1, 1)),
        d_H({n.T(), n.d}, n.memory),
        d_W_k({n.da, n.d}),
        d_W_in({n.D, n.d}),
        d_q_a({n.da}) {
    if (n.local) {
      d_r = tensor<Data, 1>({n.N()}).uniform(rng, -1, 1);
      d_w_l = tensor<Data, 1>({n.D});
    }
    if (n.global) {
      d_r_global = tensor<Data, 1>({n.NG}).uniform(rng, -1, 1);
      d_W_g = tensor<Data, 2>({n.NG, n.D});
    }
    for (std::int64_t l = 0; l < n.layers; ++l) d_blocks.push_back(mamba_weights<Data>::shaped(n.block));
  }

  [[nodiscard]] mara_grads<Data> views() {
    mara_grads<Data> v{.d_p = d_p.view(),
                       .d_s = d_s.view(),
                       .d_r = d_r.view(),
                       .d_g = d_g.view(),
                       .d_r_global = d_r_global.view(),
                       .d_H = d_H.view(),
                       .d_W_k = d_W_k.view(),
                       .d_q_a = d_q_a.view(),
                       .d_W_in = d_W_in.view(),
                       .d_w_l = d_w_l.view(),
                       .d_W_g = d_W_g.view()};
    for (std::size_t l = 0; l < d_blocks.size(); ++l) v.d_blocks[l] = views_of_gradients(d_blocks[l]);
    return v;
  }
  template <class Exec>
  static void run(const Exec& exec, const mara_args<Data>& args, const mara_grads<Data>& grads) {
    mara_backward(exec, args, grads);
  }
  /// The same upstream gradients in double, and those to be written where they are.
  [[nodiscard]] mara_gradients<double> in_double() const {
    mara_gradients<double> q;
    q.d_p = convert<double>(d_p);
    q.d_s = convert<double>(d_s);
    q.d_r = convert<double>(d_r);
    q.d_g = convert<double>(d_g);
    q.d_r_global = convert<double>(d_r_global);
    q.d_H = convert<double>(d_H);
    q.d_W_k = convert<double>(d_W_k);
    q.d_W_in = convert<double>(d_W_in);
    q.d_W_g = convert<double>(d_W_g);
    q.d_q_a = convert<double>(d_q_a);
    q.d_w_l = convert<double>(d_w_l);
    for (const auto& b : d_blocks) q.d_blocks.push_back(b.template in<double>());
    return q;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("p", p.p, d_p);
    f("s", p.s, d_s);
    f("r", p.r, d_r);
    f("g", p.g, d_g);
    f("r_global", p.r_global, d_r_global);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("H", p.H, d_H);
    f("W_k", p.W_k, d_W_k);
    f("q_a", p.q_a, d_q_a);
    f("W_in", p.W_in, d_W_in);
    f("w_l", p.w_l, d_w_l);
    f("W_g", p.W_g, d_W_g);
    for (std::size_t l = 0; l < d_blocks.size(); ++l) {
      for_each_weight(
          [&](const char* name, auto& input, auto& gradient) {
            f(("blocks[" + std::to_string(l) + "].d_" + name).c_str(), input, gradient);
          },
          p.blocks[l], d_blocks[l]);
    }
  }
};

}  // namespace polystate::testing
