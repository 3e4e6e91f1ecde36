// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of selective_scan that every backend's tests share.

#include "support/recurrence_properties.hpp"
#include "support/tensor.hpp"

#include <polystate/selective_scan.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// Sizes and options of one problem. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct scan_shape {
  std::int64_t B = 2, T = 17, D = 6, G = 2, N = 5;
  bool initial_state = true, final_state = true, skip = true, z = true, delta_bias = true, delta_softplus = true;
  std::vector<std::int32_t> lengths = {};
  layout<3> memory = row_major<3>();        ///< of u, delta, z, y
  layout<4> group_memory = row_major<4>();  ///< of B, C
  layout<3> state_memory = row_major<3>();

  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

/// Owned operands of one problem: A in [-4, -1/16], step lengths around 0.1, rows of B and C of length near 1.
template <class Data, class State = acc_t<Data>>
struct scan_problem {
  using data_type = Data;
  using state_type = State;
  using shape_type = scan_shape;

  tensor<Data, 3> u, delta, z, y;
  tensor<Data, 4> B, C;
  tensor<acc_t<Data>, 2> A;
  tensor<acc_t<Data>, 1> D, delta_bias;
  tensor<State, 3> initial_state, final_state;
  tensor<std::int32_t, 1> cu_seqlens;
  bool delta_softplus = false;

  scan_problem() = default;
  template <class Rng>
  scan_problem(const scan_shape& s, Rng& rng) : delta_softplus(s.delta_softplus) {
    const std::int64_t S = s.sequences();
    const double unit = std::sqrt(3 / static_cast<double>(s.N));
    u = tensor<Data, 3>({s.B, s.T, s.D}, s.memory).uniform(rng, -2, 2);
    delta = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    A = tensor<acc_t<Data>, 2>({s.D, s.N}).uniform(rng, -4, -0.0625);
    B = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.group_memory).uniform(rng, -unit, unit);
    C = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.group_memory).uniform(rng, -unit, unit);
    y = tensor<Data, 3>({s.B, s.T, s.D}, s.memory);
    if (s.delta_softplus) {
      delta.uniform(rng, -3, 1);
    } else {
      delta.uniform(rng, 0.001, 0.3);
    }
    if (s.skip) D = tensor<acc_t<Data>, 1>({s.D}).uniform(rng, -1, 1);
    if (s.z) z = tensor<Data, 3>({s.B, s.T, s.D}, s.memory).uniform(rng, -2, 2);
    if (s.delta_bias) delta_bias = tensor<acc_t<Data>, 1>({s.D}).uniform(rng, -0.5, 0.5);
    if (s.initial_state) initial_state = tensor<State, 3>({S, s.D, s.N}, s.state_memory).uniform(rng, -1, 1);
    if (s.final_state) final_state = tensor<State, 3>({S, s.D, s.N}, s.state_memory);
    cu_seqlens = cu_seqlens_of(s.lengths);
  }

  using args_type = selective_scan_args<Data, State>;
  using step_type = selective_scan_step_args<Data, State>;

  [[nodiscard]] args_type args() {
    return {.u = u.view(),
            .delta = delta.view(),
            .A = A.view(),
            .B = B.view(),
            .C = C.view(),
            .D = D.view(),
            .z = z.view(),
            .delta_bias = delta_bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = final_state.view(),
            .delta_softplus = delta_softplus};
  }

  /// The same numbers in another type, outputs poisoned.
  template <class To>
  [[nodiscard]] scan_problem<To> in() const {
    scan_problem<To> p;
    p.u = convert<To>(u);
    p.delta = convert<To>(delta);
    p.A = convert<acc_t<To>>(A);
    p.B = convert<To>(B);
    p.C = convert<To>(C);
    p.D = convert<acc_t<To>>(D);
    p.z = convert<To>(z);
    p.delta_bias = convert<acc_t<To>>(delta_bias);
    p.initial_state = convert<acc_t<To>>(initial_state);
    p.cu_seqlens = cu_seqlens;
    p.y = tensor<To, 3>(y.extents());
    if (final_state) p.final_state = tensor<acc_t<To>, 3>(final_state.extents());
    p.delta_softplus = delta_softplus;
    return p;
  }
  [[nodiscard]] scan_problem<double> in_double() const { return in<double>(); }

  // As support/recurrence_properties.hpp asks; a head is a channel.
  [[nodiscard]] tensor<Data, 3>& output() { return y; }
  template <class F>
  void for_each_operand(F&& f) {
    f("u", u);
    f("delta", delta);
    f("B", B);
    f("C", C);
    if (z) f("z", z);
  }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    selective_scan(exec, args);
  }
  template <class Exec>
  static void run(const Exec& exec, const step_type& args) {
    selective_scan_step(exec, args);
  }
  /// The output view of either kind of args.
  template <class Args>
  static auto& output_of(Args& args) {
    return args.y;
  }
  static args_type part(args_type args, int dim, std::int64_t begin, std::int64_t end) {
    args.u = part_of(args.u, dim, begin, end);
    args.delta = part_of(args.delta, dim, begin, end);
    args.B = part_of(args.B, dim, begin, end);
    args.C = part_of(args.C, dim, begin, end);
    args.z = part_of(args.z, dim, begin, end);
    args.y = part_of(args.y, dim, begin, end);
    return args;
  }
  static step_type step_of(const args_type& args) {
    return {.u = args.u,
            .delta = args.delta,
            .A = args.A,
            .B = args.B,
            .C = args.C,
            .D = args.D,
            .z = args.z,
            .delta_bias = args.delta_bias,
            .state = {},
            .y = args.y,
            .delta_softplus = args.delta_softplus};
  }
};

}  // namespace polystate::testing
