// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ssd in the terms of cuda/recurrence/operands.cuh: key B, query C, value x, decay exp(d A), write strength d.

#include <polystate/cuda/math.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/recurrence.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

struct ssd_form {
  static constexpr bool erases = false;

  any_element_view<3> dt;            ///< (B, T, heads)
  tensor_view<const float, 1> A;     ///< (heads)
  tensor_view<const float, 1> bias;  ///< (heads)
  tensor_view<const float, 2> D;     ///< (heads, dv)
  bool gated = false;                ///< whether there is a z
  bool has_softplus = false;
  float min = 0;
  float max = 0;

  [[nodiscard]] __device__ gate_inputs load_gate(std::int64_t b, std::int64_t t, std::int64_t head) const {
    return {.first = dt.load(b, t, head)};
  }
  [[nodiscard]] __device__ head_numbers numbers_of(std::int64_t head) const {
    return {.first = A(head), .second = bias.data() != nullptr ? bias(head) : 0.0f};
  }
  /// d = clamp(softplus(dt + dt_bias), dt_min, dt_max); a NaN passes.
  [[nodiscard]] __device__ float step_length(const gate_inputs& in, const head_numbers& head) const {
    float d = in.first + head.second;
    if (has_softplus) d = softplus<float>(d);
    if (d < min) d = min;
    if (d > max) d = max;
    return d;
  }
  [[nodiscard]] __device__ gate gate_of(const gate_inputs& in, const head_numbers& head) const {
    const float d = step_length(in, head);
    return {.alpha = expf(d * head.first), .write = d};
  }
  [[nodiscard]] __device__ float finish(float o, float x, float z, std::int64_t head, std::int64_t row) const {
    if (D.data() != nullptr) o = fmaf(D(head, row), x, o);
    return gated ? o * silu<float>(z) : o;
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
  form.min = static_cast<float>(in.dt_min);
  form.max = static_cast<float>(in.dt_max);
  return form;
}

template <class Data>
shared_operands make_shared_operands(const operands<Data, rule::ssd>& in, const tensor_view<Data, 4>& out) {
  return make_shared_operands(in.B, in.C, in.x, in.z, out);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
