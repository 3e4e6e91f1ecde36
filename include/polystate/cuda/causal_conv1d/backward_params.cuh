// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the backward kernels of causal_conv1d share; docs/causal_conv1d.md has the derivation.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/cuda/causal_conv1d/convolution.cuh>
#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/workspace.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

template <class Data>
struct backward_params {
  causal_conv1d_args<Data> op;
  causal_conv1d_grads<Data> grads;
  sequences all;
  vector_rows<const Data, 3> initial_state;
  backward_schedule schedule;
  /// (rows, W+1, D) sums of the weights' gradients, the bias's last, over the tiles of a row; null: not wanted.
  float* partials = nullptr;
};

/// Whether anything summed over time is wanted.
template <class Data>
[[nodiscard]] bool wants_sums(const causal_conv1d_grads<Data>& grads) {
  return grads.d_weight.size() > 0 || grads.d_bias.size() > 0;
}

/// The backward's scratch memory: the partial sums.
template <class Data>
float* carve(workspace_carver& from, const causal_conv1d_args<Data>& args, const causal_conv1d_grads<Data>& grads,
             const backward_schedule& s) {
  return from.take<float>(wants_sums(grads) ? s.rows * (args.weight.extent(1) + 1) * args.x.extent(2) : 0);
}

template <class Data>
backward_params<Data> make_params(const causal_conv1d_args<Data>& args, const causal_conv1d_grads<Data>& grads,
                                  const backward_schedule& s, float* partials) {
  return {.op = args,
          .grads = grads,
          .all = sequences(args.x.extent(0), args.x.extent(1), args.cu_seqlens),
          .initial_state = vector_rows(args.initial_state),
          .schedule = s,
          .partials = partials};
}

/// Where a partial sum lies: of tap j, or j = W of the bias.
template <class Data>
__device__ float& partial_sum(const backward_params<Data>& p, std::int64_t row, std::int64_t j, std::int64_t d) {
  return p.partials[(row * (p.op.weight.extent(1) + 1) + j) * p.op.weight.extent(0) + d];
}

/// da[t], the gradient of the sum of token t of a sequence, whatever the width and the strides.
template <class Data>
__device__ float gradient_of_sum(const backward_params<Data>& p, const token_sequence& in, std::int64_t batch,
                                 std::int64_t t, std::int64_t d) {
  const auto& op = p.op;
  if (p.grads.d_y.data() == nullptr) return 0.0f;
  const auto dy = static_cast<float>(p.grads.d_y(batch, t, d));
  if (op.act != activation::silu) return dy;
  float a[1];
  const std::int64_t oldest = t - (op.weight.extent(1) - 1);
  convolve(op.weight, op.bias, d, a, [&](std::int64_t k) { return input_element(op, in, batch, oldest + k, d); });
  return silu_gradient<Data>(a[0], dy);
}

/// What the tokens from `first` to `last` of a sequence hand back to row q of its input, counted in x's tokens; those
/// that have no tap on it hand back nothing.
template <class Data>
__device__ float gradient_of_row(const backward_params<Data>& p, const token_sequence& in, std::int64_t batch,
                                 std::int64_t q, std::int64_t first, std::int64_t last, std::int64_t d) {
  const std::int64_t W = p.op.weight.extent(1);
  if (first < q) first = q;
  if (last > q + W - 1) last = q + W - 1;
  float sum = 0.0f;
  for (std::int64_t t = first; t <= last; ++t) {
    sum = fmaf(p.op.weight(d, W - 1 - (t - q)), gradient_of_sum(p, in, batch, t, d), sum);
  }
  return sum;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
