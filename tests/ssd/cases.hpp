// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of ssd that every backend's tests share.

#include "support/recurrence_properties.hpp"
#include "support/tensor.hpp"

#include <polystate/ssd.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace polystate::testing {

/// The skip weight D: none, a number a head (stride 0 along P), or a number a channel.
enum class skip { none, per_head, per_channel };

/// Sizes and options of one problem. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct ssd_shape {
  std::int64_t B = 2, T = 17, H = 4, G = 2, P = 3, N = 5;
  bool initial_state = true, final_state = true, z = true, dt_bias = true, dt_softplus = true;
  skip D = skip::per_channel;
  double dt_min = -std::numeric_limits<double>::infinity();
  double dt_max = std::numeric_limits<double>::infinity();
  std::vector<std::int32_t> lengths = {};
  layout<4> memory = row_major<4>();       ///< of x, B, C, z, y
  layout<3> gate_memory = row_major<3>();  ///< of dt
  layout<4> state_memory = row_major<4>();

  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

/// Owned operands of one problem: A in [-4, -1/16], step lengths around 0.1, rows of B and C of length
/// near 1.
template <class Data, class State = acc_t<Data>>
struct ssd_problem {
  using data_type = Data;
  using state_type = State;
  using shape_type = ssd_shape;

  tensor<Data, 4> x, B, C, z, y;
  tensor<Data, 3> dt;
  tensor<acc_t<Data>, 1> A, dt_bias;
  tensor<acc_t<Data>, 2> D;  ///< (H, P), or (H, 1) for a number a head
  tensor<State, 4> initial_state, final_state;
  tensor<std::int32_t, 1> cu_seqlens;
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();
  double dt_max = std::numeric_limits<double>::infinity();

  ssd_problem() = default;
  template <class Rng>
  ssd_problem(const ssd_shape& s, Rng& rng) : dt_softplus(s.dt_softplus), dt_min(s.dt_min), dt_max(s.dt_max) {
    const std::int64_t S = s.sequences();
    const double unit = std::sqrt(3 / static_cast<double>(s.N));
    x = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory).uniform(rng, -2, 2);
    B = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.memory).uniform(rng, -unit, unit);
    C = tensor<Data, 4>({s.B, s.T, s.G, s.N}, s.memory).uniform(rng, -unit, unit);
    y = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory);
    dt = tensor<Data, 3>({s.B, s.T, s.H}, s.gate_memory);
    A = tensor<acc_t<Data>, 1>({s.H}).uniform(rng, -4, -0.0625);
    if (s.dt_softplus) {
      dt.uniform(rng, -3, 1);
    } else {
      dt.uniform(rng, 0.001, 0.3);
    }
    if (s.dt_bias) dt_bias = tensor<acc_t<Data>, 1>({s.H}).uniform(rng, -0.5, 0.5);
    if (s.z) z = tensor<Data, 4>({s.B, s.T, s.H, s.P}, s.memory).uniform(rng, -2, 2);
    if (s.D != skip::none) {
      D = tensor<acc_t<Data>, 2>({s.H, s.D == skip::per_head ? 1 : s.P}).uniform(rng, -1, 1);
    }
    if (s.initial_state) {
      initial_state = tensor<State, 4>({S, s.H, s.P, s.N}, s.state_memory).uniform(rng, -1, 1);
    }
    if (s.final_state) final_state = tensor<State, 4>({S, s.H, s.P, s.N}, s.state_memory);
    cu_seqlens = cu_seqlens_of(s.lengths);
  }

  using args_type = ssd_args<Data, State>;
  using step_type = ssd_step_args<Data, State>;

  [[nodiscard]] args_type args() {
    return {.x = x.view(),
            .dt = dt.view(),
            .A = A.view(),
            .B = B.view(),
            .C = C.view(),
            .D = skip_view(),
            .z = z.view(),
            .dt_bias = dt_bias.view(),
            .initial_state = initial_state.view(),
            .cu_seqlens = cu_seqlens.view(),
            .y = y.view(),
            .final_state = final_state.view(),
            .dt_softplus = dt_softplus,
            .dt_min = dt_min,
            .dt_max = dt_max};
  }
  /// D as the operator takes it: (H, P).
  [[nodiscard]] tensor_view<const acc_t<Data>, 2> skip_view() const {
    const auto v = D.view();
    if (!v || v.extent(1) == x.extents()[3]) return v;
    return {v.data(), {v.extent(0), x.extents()[3]}, {v.stride(0), 0}};
  }

  /// The same numbers in another type, outputs poisoned.
  template <class To>
  [[nodiscard]] ssd_problem<To> in() const {
    ssd_problem<To> p;
    p.x = convert<To>(x);
    p.dt = convert<To>(dt);
    p.A = convert<acc_t<To>>(A);
    p.B = convert<To>(B);
    p.C = convert<To>(C);
    p.D = convert<acc_t<To>>(D);
    p.z = convert<To>(z);
    p.dt_bias = convert<acc_t<To>>(dt_bias);
    p.initial_state = convert<acc_t<To>>(initial_state);
    p.cu_seqlens = cu_seqlens;
    p.y = tensor<To, 4>(y.extents());
    if (final_state) p.final_state = tensor<acc_t<To>, 4>(final_state.extents());
    p.dt_softplus = dt_softplus;
    p.dt_min = dt_min;
    p.dt_max = dt_max;
    return p;
  }
  [[nodiscard]] ssd_problem<double> in_double() const { return in<double>(); }

  // As support/recurrence_properties.hpp asks.
  [[nodiscard]] tensor<Data, 4>& output() { return y; }
  template <class F>
  void for_each_operand(F&& f) {
    f("x", x);
    f("dt", dt);
    f("B", B);
    f("C", C);
    if (z) f("z", z);
  }
  template <class Exec>
  static void run(const Exec& exec, const args_type& args) {
    ssd(exec, args);
  }
  template <class Exec>
  static void run(const Exec& exec, const step_type& args) {
    ssd_step(exec, args);
  }
  /// The output view of either kind of args.
  template <class Args>
  static auto& output_of(Args& args) {
    return args.y;
  }
  static args_type part(args_type args, int dim, std::int64_t begin, std::int64_t end) {
    args.x = part_of(args.x, dim, begin, end);
    args.dt = part_of(args.dt, dim, begin, end);
    args.B = part_of(args.B, dim, begin, end);
    args.C = part_of(args.C, dim, begin, end);
    args.z = part_of(args.z, dim, begin, end);
    args.y = part_of(args.y, dim, begin, end);
    return args;
  }
  static step_type step_of(const args_type& args) {
    return {.x = args.x,
            .dt = args.dt,
            .A = args.A,
            .B = args.B,
            .C = args.C,
            .D = args.D,
            .z = args.z,
            .dt_bias = args.dt_bias,
            .state = {},
            .y = args.y,
            .dt_softplus = args.dt_softplus,
            .dt_min = args.dt_min,
            .dt_max = args.dt_max};
  }
};

}  // namespace polystate::testing
