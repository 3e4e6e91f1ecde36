// SPDX-License-Identifier: Apache-2.0
#pragma once

// The scan's operands and gradients on the device, and the judgement of what comes back.

#include "selective_scan/oracle.hpp"
#include "support/compare.hpp"
#include "support/device.cuh"
#include "support/random.hpp"

#include <polystate/cuda/selective_scan.cuh>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace polystate::testing {

/// c of the elementwise bound: plain float arithmetic is sure to keep c = 1, and was seen to keep 0.6; the
/// special-function unit errs by a few more roundings than a correct exponential.
inline constexpr double scan_bound = 4;

inline constexpr layout<3> channel_last = {{0, 1, 2}, 0};
inline constexpr layout<3> channel_first = {{0, 2, 1}, 0};
inline constexpr layout<4> group_last = {{0, 1, 2, 3}, 0};
inline constexpr layout<4> time_last = {{0, 2, 3, 1}, 0};

/// Memory orders of the operands: whole, odd strides, gaps that keep the alignment, permuted.
inline const std::vector<layout<3>> layouts = {channel_last,   channel_first,  {{0, 1, 2}, 3}, {{0, 2, 1}, 3},
                                               {{0, 1, 2}, 8}, {{0, 2, 1}, 8}, {{2, 1, 0}, 0}, {{1, 2, 0}, 1}};
inline const std::vector<layout<4>> group_layouts = {group_last,        time_last,         {{0, 1, 2, 3}, 1},
                                                     {{0, 2, 3, 1}, 8}, {{3, 2, 1, 0}, 0}, {{2, 0, 1, 3}, 0}};

/// Elements by which operands are off the 16-byte boundary.
struct scan_offsets {
  std::int64_t u = 0, delta = 0, z = 0, y = 0, B = 0, C = 0;
};

template <class Data, class State = acc_t<Data>>
struct device_scan {
  device_tensor<Data, 3> u, delta, z, y;
  device_tensor<Data, 4> B, C;
  device_tensor<acc_t<Data>, 2> A;
  device_tensor<acc_t<Data>, 1> D, delta_bias;
  device_tensor<State, 3> initial_state, final_state;
  device_tensor<std::int32_t, 1> cu_seqlens;
  bool delta_softplus;
  bool in_place = false;  ///< final_state is initial_state itself

  explicit device_scan(const scan_problem<Data, State>& p, const scan_offsets& off = {})
      : u(p.u, off.u),
        delta(p.delta, off.delta),
        z(p.z, off.z),
        y(p.y, off.y),
        B(p.B, off.B),
        C(p.C, off.C),
        A(p.A),
        D(p.D),
        delta_bias(p.delta_bias),
        initial_state(p.initial_state),
        final_state(p.final_state),
        cu_seqlens(p.cu_seqlens),
        delta_softplus(p.delta_softplus) {}

  [[nodiscard]] selective_scan_args<Data, State> args() const {
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
            .final_state = in_place ? initial_state.view() : final_state.view(),
            .delta_softplus = delta_softplus};
  }
  void download(scan_problem<Data, State>& p) const {
    y.download(p.y);
    (in_place ? initial_state : final_state).download(p.final_state);
  }
  /// Fresh outputs.
  void poison(scan_problem<Data, State>& p) {
    p.y.poison();
    p.final_state.poison();
    y.upload(p.y);
    final_state.upload(p.final_state);
  }
  [[nodiscard]] bool inputs_unchanged() const {
    return u.unchanged() && delta.unchanged() && z.unchanged() && A.unchanged() && B.unchanged() && C.unchanged() &&
           D.unchanged() && delta_bias.unchanged() && (in_place || initial_state.unchanged());
  }
};

struct scan_gradient_offsets {
  std::int64_t d_y = 0, d_u = 0, d_delta = 0, d_z = 0, d_B = 0, d_C = 0;
};

template <class Data, class State = acc_t<Data>>
struct device_scan_gradients {
  device_tensor<Data, 3> d_y;
  device_tensor<State, 3> d_final_state;
  device_tensor<Data, 3> d_u, d_delta, d_z;
  device_tensor<Data, 4> d_B, d_C;
  device_tensor<acc_t<Data>, 2> d_A;
  device_tensor<acc_t<Data>, 1> d_D, d_delta_bias;
  device_tensor<State, 3> d_initial_state;

  explicit device_scan_gradients(const scan_gradients<Data, State>& g, const scan_gradient_offsets& off = {})
      : d_y(g.d_y, off.d_y),
        d_final_state(g.d_final_state),
        d_u(g.d_u, off.d_u),
        d_delta(g.d_delta, off.d_delta),
        d_z(g.d_z, off.d_z),
        d_B(g.d_B, off.d_B),
        d_C(g.d_C, off.d_C),
        d_A(g.d_A),
        d_D(g.d_D),
        d_delta_bias(g.d_delta_bias),
        d_initial_state(g.d_initial_state) {}

  [[nodiscard]] selective_scan_grads<Data, State> views() const {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_u = d_u.view(),
            .d_delta = d_delta.view(),
            .d_A = d_A.view(),
            .d_B = d_B.view(),
            .d_C = d_C.view(),
            .d_D = d_D.view(),
            .d_z = d_z.view(),
            .d_delta_bias = d_delta_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  void download(scan_gradients<Data, State>& g) const {
    for_each_gradient([](const char*, const auto& from, auto& to) { from.download(to); }, *this, g);
  }
  /// Fresh gradients.
  void poison(scan_gradients<Data, State>& g) {
    for_each_gradient(
        [](const char*, auto& to, auto& from) {
          from.poison();
          to.upload(from);
        },
        *this, g);
  }
};

/// Whether y and final_state are the reference's.
template <class Data, class State>
void judge(const scan_problem<Data, State>& got, const scan_problem<Data, State>& p) {
  const expected_scan want = run_reference(p.in_double());
  EXPECT_TRUE(within_elementwise_bound(got.y, want.value.y, want.error.y, scan_bound)) << "y";
  EXPECT_TRUE(got.y.untouched_outside());
  if (!p.final_state) return;
  EXPECT_TRUE(within_elementwise_bound(got.final_state, want.value.final_state, want.error.final_state, scan_bound))
      << "final_state";
  EXPECT_TRUE(got.final_state.untouched_outside());
}

/// Whether each gradient that `got` has is the reference's.
template <class Data, class State>
void judge(const scan_gradients<Data, State>& got, const expected_gradients& want) {
  for_each_gradient(
      [](const char* name, const auto& gradient, const auto& value, const auto& error) {
        if (!gradient) return;
        EXPECT_TRUE(within_elementwise_bound(gradient, value, error, scan_bound)) << name;
        EXPECT_TRUE(gradient.untouched_outside()) << name;
      },
      got, want.value, want.error);
}

}  // namespace polystate::testing
