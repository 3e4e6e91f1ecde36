// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ssd in the terms of cuda/recurrence/operands.cuh: key B, query C, value x, decay exp(d A), write strength d.

#include <polystate/cuda/math.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/recurrence.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

struct ssd_form {
  static constexpr bool erases = false;
  static constexpr bool finishes = true;
  static constexpr bool normalizes = false;

  any_element_view<3> dt;            ///< (B, T, heads)
  tensor_view<const float, 1> A;     ///< (heads)
  tensor_view<const float, 1> bias;  ///< (heads)
  tensor_view<const float, 2> D;     ///< (heads, dv)
  bool gated = false;                ///< whether there is a z
  bool has_softplus = false;
  double min = 0;  ///< as given: the ends of the clamp are compared exactly
  double max = 0;

  [[nodiscard]] __device__ gate_inputs load_gate(std::int64_t b, std::int64_t t, std::int64_t head) const {
    return {.first = __uint_as_float(dt.load_bits(b, t, head))};  // kernels load gates long before they use them
  }
  [[nodiscard]] __device__ head_numbers numbers_of(std::int64_t head) const {
    return {.first = A(head), .second = bias.data() != nullptr ? bias(head) : 0.0f};
  }
  /// d = clamp(softplus(dt + dt_bias), dt_min, dt_max); a NaN passes.
  [[nodiscard]] __device__ float step_length(const gate_inputs& in, const head_numbers& head) const {
    float d = from_bits(__float_as_uint(in.first), dt.type()) + head.second;
    if (has_softplus) d = softplus<float>(d);
    if (d < min) d = static_cast<float>(min);
    if (d > max) d = static_cast<float>(max);
    return d;
  }
  [[nodiscard]] __device__ gate gate_of(const gate_inputs& in, const head_numbers& head) const {
    const float d = step_length(in, head);
    return {.alpha = expf(d * head.first), .write = d};
  }
  [[nodiscard]] __device__ float skip_of(std::int64_t head, std::int64_t row) const {
    return D.data() != nullptr ? D(head, row) : 0.0f;
  }
  [[nodiscard]] __device__ float finish(float o, float x, float z, float skip) const {
    if (D.data() != nullptr) o = fmaf(skip, x, o);
    return gated ? o * silu<float>(z) : o;
  }
  /// y = s silu(z), s = o + D x
  [[nodiscard]] __device__ output_gradient finish_backward(float o, float x, float z, float dy, float skip) const {
    const float s = fmaf(skip, x, o);
    return {.d_o = gated ? dy * silu<float>(z) : dy, .d_z = gated ? dy * s * silu_slope<float>(z) : 0.0f};
  }

  struct gate_gradients {
    any_element_view<3> d_dt;  ///< (B, T, heads)
  };
  /// d(d A) = d_log_alpha. Returns what the token adds to the derivatives of A and of the bias.
  __device__ float2 store_gate_gradient(const gate_gradients& to, float d_log_alpha, float d_write, std::int64_t b,
                                        std::int64_t t, std::int64_t head, const head_numbers& numbers) const {
    const gate_inputs in = load_gate(b, t, head);
    const float raw = from_bits(__float_as_uint(in.first), dt.type()) + numbers.second;
    const float unclamped = has_softplus ? softplus<float>(raw) : raw;
    float d_raw = fmaf(numbers.first, d_log_alpha, d_write);
    if (has_softplus) d_raw *= sigmoid<float>(raw);
    if (unclamped < min || unclamped > max) d_raw = 0.0f;
    if (to.d_dt.given()) to.d_dt.store(d_raw, b, t, head);
    return make_float2(step_length(in, numbers) * d_log_alpha, d_raw);
  }
};

template <class Data>
ssd_form make_form(const operands<Data, rule::ssd>& in) {
  ssd_form form;
  form.dt = any_element_view<3>(in.dt);
  form.A = in.A;
  form.bias = in.dt_bias;
  form.D = in.D;
  form.gated = static_cast<bool>(in.z);
  form.has_softplus = in.dt_softplus;
  form.min = in.dt_min;
  form.max = in.dt_max;
  return form;
}

template <class Data>
shared_operands make_shared_operands(const operands<Data, rule::ssd>& in, const tensor_view<Data, 4>& out) {
  return make_shared_operands(in.B, in.C, in.x, in.z, out);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
