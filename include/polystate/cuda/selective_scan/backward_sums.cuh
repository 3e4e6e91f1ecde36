// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The last passes of selective_scan's backward: sums over tiles and sequences, in a fixed order.

#include <polystate/cuda/selective_scan/backward.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

constexpr int sum_threads = 128;

template <class Data>
struct BC_sum_params {
  tensor_view<Data, 4> d_B, d_C;
  const float* sums;  ///< (B, G, tiles, N, 2, segment)
  std::int64_t B, G, tiles, N;
  std::int64_t segment_begin, segment_end;
};

/// One thread an element of dB or dC.
template <class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(sum_threads)
    selective_scan_BC_sum_kernel(const __grid_constant__ BC_sum_params<Data> p) {
  const std::int64_t segment = p.segment_end - p.segment_begin;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  if (i >= p.B * p.G * p.N * 2 * segment) return;
  const std::int64_t t = i % segment;
  const std::int64_t of_tile = i / segment % (p.N * 2);  // state and which
  const std::int64_t unit = i / segment / (p.N * 2);     // batch entry and group
  const tensor_view<Data, 4>& to = of_tile % 2 == 0 ? p.d_B : p.d_C;
  if (to.data() == nullptr) return;
  const float* from = p.sums + (unit * p.tiles * p.N * 2 + of_tile) * segment + t;
  float sum = 0.0f;
  for (std::int64_t tile = 0; tile < p.tiles; ++tile) sum += from[tile * p.N * 2 * segment];
  to(unit / p.G, p.segment_begin + t, unit % p.G, of_tile / 2) = static_cast<Data>(sum);
}

template <class Data>
POLYSTATE_HIDDEN status launch_BC_sum(const char* name, const on_cuda& exec, const BC_sum_params<Data>& p) {
  const std::int64_t elements = p.B * p.G * p.N * 2 * (p.segment_end - p.segment_begin);
  const grid g{.blocks = tiles_of(elements, sum_threads), .threads = sum_threads};
  return launch(name, exec, g, selective_scan_BC_sum_kernel<Data>, p);
}

struct record_sum_params {
  backward_records records;
  any_element_view<3> d_initial_state;
  tensor_view<float, 2> d_A;
  tensor_view<float, 1> d_D, d_delta_bias;
  std::int64_t rows, D, N;
};

/// One thread a state of a channel: its gradient in each sequence, then the sums over sequences.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    selective_scan_record_sum_kernel(const __grid_constant__ record_sum_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i < p.rows * p.D * p.N && p.d_initial_state.given()) {
    p.d_initial_state.store(p.records.dh[i], i / (p.D * p.N), i / p.N % p.D, i % p.N);
  }
  if (i >= p.D * p.N) return;
  const std::int64_t d = i / p.N;
  const std::int64_t n = i % p.N;
  if (p.d_A.data() != nullptr) {
    float sum = 0.0f;
    for (std::int64_t row = 0; row < p.rows; ++row) sum += p.records.dA[row * p.D * p.N + i];
    p.d_A(d, n) = sum;
  }
  if (n > 1) return;
  const tensor_view<float, 1>& to = n == 0 ? p.d_D : p.d_delta_bias;
  const auto sum_over_rows = [&](std::int64_t which, const tensor_view<float, 1>& out) {
    if (out.data() == nullptr) return;
    float sum = 0.0f;
    for (std::int64_t row = 0; row < p.rows; ++row) sum += p.records.sums[(row * p.D + d) * 2 + which];
    out(d) = sum;
  };
  sum_over_rows(n, to);
  if (p.N == 1) sum_over_rows(1, p.d_delta_bias);
}

inline POLYSTATE_HIDDEN status launch_record_sum(const char* name, const cuda_policy auto& exec,
                                                 const record_sum_params& p) {
  const std::int64_t threads = p.rows * p.D * p.N > p.D * p.N ? p.rows * p.D * p.N : p.D * p.N;
  const grid g{.blocks = tiles_of(threads, sum_threads), .threads = sum_threads};
  return launch(name, exec, g, selective_scan_record_sum_kernel<sum_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
