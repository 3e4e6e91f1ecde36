// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The delta family in the terms of cuda/recurrence/operands.cuh.

#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/recurrence.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Whether a rule has a decay is known at run time: where it has none, alpha is 1.
template <bool Erases>
struct delta_form {
  static constexpr bool erases = Erases;
  static constexpr bool finishes = false;
  static constexpr bool normalizes = true;

  tensor_view<const float, 3> g;     ///< (B, T, heads)
  tensor_view<const float, 3> beta;  ///< (B, T, heads)

  [[nodiscard]] __device__ gate_inputs load_gate(std::int64_t b, std::int64_t t, std::int64_t head) const {
    return {.first = g.data() != nullptr ? g(b, t, head) : 0.0f,
            .second = beta.data() != nullptr ? beta(b, t, head) : 1.0f};
  }
  [[nodiscard]] __device__ head_numbers numbers_of(std::int64_t) const { return {}; }
  [[nodiscard]] __device__ static gate gate_of(const gate_inputs& in, const head_numbers&) {
    return {.alpha = expf(in.first), .write = in.second};
  }
  [[nodiscard]] __device__ static float skip_of(std::int64_t, std::int64_t) { return 0.0f; }
  [[nodiscard]] __device__ static float finish(float o, float, float, float) { return o; }

  struct gate_gradients {
    tensor_view<float, 3> d_g;     ///< (B, T, heads)
    tensor_view<float, 3> d_beta;  ///< (B, T, heads)
  };
  __device__ float2 store_gate_gradient(const gate_gradients& to, float d_log_alpha, float d_write, std::int64_t b,
                                        std::int64_t t, std::int64_t head, const head_numbers&) const {
    if (to.d_g.data() != nullptr) to.d_g(b, t, head) = d_log_alpha;
    if (to.d_beta.data() != nullptr) to.d_beta(b, t, head) = d_write;
    return make_float2(0.0f, 0.0f);
  }
};

template <class Rule>
using form_of_rule = delta_form<Rule::has_beta>;

template <class Data, class Rule>
form_of_rule<Rule> make_form(const operands<Data, Rule>& in) {
  form_of_rule<Rule> form;
  if constexpr (Rule::has_decay) form.g = in.g;
  if constexpr (Rule::has_beta) form.beta = in.beta;
  return form;
}

template <class Data, class Rule>
shared_operands make_shared_operands(const operands<Data, Rule>& in, const tensor_view<Data, 4>& out) {
  shared_operands s = make_shared_operands(in.k, in.q, in.v, {}, out);
  s.scale = static_cast<float>(in.scale);
  s.normalize = in.qk_l2norm;
  s.eps = static_cast<float>(in.l2norm_eps);
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
