// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of gated_delta_rule that every backend's tests share.

#include "support/recurrence_properties.hpp"
#include "support/tensor.hpp"

#include <polystate/gated_delta_rule.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// Sizes and options of one problem. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct delta_shape {
  std::int64_t B = 2, T = 17, HK = 2, HV = 4, dk = 5, dv = 3;
  bool initial_state = true, final_state = true, qk_l2norm = false;
  double scale = 0.5;
  double g_min = -0.5;  ///< g is in [g_min, 0]
  std::vector<std::int32_t> lengths = {};
  layout<4> memory = row_major<4>();       ///< of q, k, v, o
  layout<3> gate_memory = row_major<3>();  ///< of g, beta
  layout<4> state_memory = row_major<4>();

  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

/// Divides each row by its length.
template <class Data>
void normalize_rows(tensor<Data, 4>& rows) {
  const auto v = rows.view();
  for (std::int64_t i = 0; i < v.extent(0) * v.extent(1) * v.extent(2); ++i) {
    const auto row = v.select(0, i / (v.extent(1) * v.extent(2)))
                         .select(0, i / v.extent(2) % v.extent(1))
                         .select(0, i % v.extent(2));
    double squares = 0;
    for_each(row, [&](const Data& x) { squares += static_cast<double>(x) * static_cast<double>(x); });
    for_each(row, [&](Data& x) { x = static_cast<Data>(static_cast<double>(x) / std::sqrt(squares)); });
  }
}

/// Owned operands of one problem: unit keys unless the operator normalises them, beta in [0, 2].
template <class Data, class Rule = rule::gated_delta, class State = acc_t<Data>>
struct delta_problem {
  using data_type = Data;
  using state_type = State;
  using shape_type = delta_shape;

  tensor<Data, 4> q, k, v, o;
  tensor<acc_t<Data>, 3> g, beta;
  tensor<State, 4> initial_state, final_state;
  tensor<std::int32_t, 1> cu_seqlens;
  double scale = 1;
  bool qk_l2norm = false;

  delta_problem() = default;
  template <class Rng>
  delta_problem(const delta_shape& s, Rng& rng) : scale(s.scale), qk_l2norm(s.qk_l2norm) {
    const std::int64_t S = s.sequences();
    q = tensor<Data, 4>({s.B, s.T, s.HK, s.dk}, s.memory).uniform(rng, -2, 2);
    k = tensor<Data, 4>({s.B, s.T, s.HK, s.dk}, s.memory).uniform(rng, -2, 2);
    v = tensor<Data, 4>({s.B, s.T, s.HV, s.dv}, s.memory).uniform(rng, -2, 2);
    o = tensor<Data, 4>({s.B, s.T, s.HV, s.dv}, s.memory);
    if (!qk_l2norm) normalize_rows(k);
    if constexpr (Rule::has_decay) {
      g = tensor<acc_t<Data>, 3>({s.B, s.T, s.HV}, s.gate_memory).uniform(rng, s.g_min, 0);
    }
    if constexpr (Rule::has_beta) {
      beta = tensor<acc_t<Data>, 3>({s.B, s.T, s.HV}, s.gate_memory).uniform(rng, 0, 2);
    }
    if (s.initial_state) {
      initial_state = tensor<State, 4>({S, s.HV, s.dv, s.dk}, s.state_memory).uniform(rng, -1, 1);
    }
    if (s.final_state) final_state = tensor<State, 4>({S, s.HV, s.dv, s.dk}, s.state_memory);
    cu_seqlens = cu_seqlens_of(s.lengths);
  }

  [[nodiscard]] gated_delta_rule_args<Data, Rule, State> args() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .o = o.view(),
            .final_state = final_state.view(),
            .scale = scale,
            .qk_l2norm = qk_l2norm};
  }

  /// The same numbers in another type, outputs poisoned.
  template <class To>
  [[nodiscard]] delta_problem<To, Rule> in() const {
    delta_problem<To, Rule> p;
    p.q = convert<To>(q);
    p.k = convert<To>(k);
    p.v = convert<To>(v);
    p.g = convert<acc_t<To>>(g);
    p.beta = convert<acc_t<To>>(beta);
    p.initial_state = convert<acc_t<To>>(initial_state);
    p.cu_seqlens = cu_seqlens;
    p.o = tensor<To, 4>(o.extents());
    if (final_state) p.final_state = tensor<acc_t<To>, 4>(final_state.extents());
    p.scale = scale;
    p.qk_l2norm = qk_l2norm;
    return p;
  }
  [[nodiscard]] delta_problem<double, Rule> in_double() const { return in<double>(); }

  // As support/recurrence_properties.hpp asks.
  [[nodiscard]] tensor<Data, 4>& output() { return o; }
  template <class F>
  void for_each_operand(F&& f) {
    f("q", q);
    f("k", k);
    f("v", v);
    if constexpr (Rule::has_decay) f("g", g);
    if constexpr (Rule::has_beta) f("beta", beta);
  }

  using args_type = gated_delta_rule_args<Data, Rule, State>;
  using step_type = gated_delta_rule_step_args<Data, Rule, State>;
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    gated_delta_rule(exec, args);
  }
  template <class Exec>
  static void run(const Exec& exec, const step_type& args) {
    gated_delta_rule_step(exec, args);
  }
  /// The output view of either kind of args.
  template <class Args>
  static auto& output_of(Args& args) {
    return args.o;
  }
  static args_type part(args_type args, int dim, std::int64_t begin, std::int64_t end) {
    args.q = part_of(args.q, dim, begin, end);
    args.k = part_of(args.k, dim, begin, end);
    args.v = part_of(args.v, dim, begin, end);
    args.g = part_of(args.g, dim, begin, end);
    args.beta = part_of(args.beta, dim, begin, end);
    args.o = part_of(args.o, dim, begin, end);
    return args;
  }
  static step_type step_of(const args_type& args) {
    return {.q = args.q,
            .k = args.k,
            .v = args.v,
            .g = args.g,
            .beta = args.beta,
            .state = {},
            .o = args.o,
            .scale = args.scale,
            .qk_l2norm = args.qk_l2norm,
            .l2norm_eps = args.l2norm_eps};
  }
};

}  // namespace polystate::testing
