// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What queries of a bank see of it, and their scores against its moments: one query reads the moments of every visible
/// entry once, so moving them is all the work. Query n is query n % T of row n / T, slot s entry s % capacity of row
/// s / capacity.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/multi_state/counting.hpp>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/tiling.hpp>
#include <polystate/separation.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

struct bank_sight_params {
  tensor_view<const bank_counters, 1> counters;  ///< (B)
  token_counting counting;
  std::int64_t tokens = 0;  ///< further ones that the counters do not know of
  std::int64_t time = 0;    ///< queries of a row
  std::int64_t capacity = 0;
  std::int64_t max_visible = 0;          ///< 0: all
  moments::visible_slots* to = nullptr;  ///< [query]
};

/// One thread a query. Counters that validation would refuse are clamped: at least one entry, none behind the capacity.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_bank_sight_kernel(const __grid_constant__ bank_sight_params p) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t b = n / p.time;
  if (b >= p.counters.extent(0)) return;
  std::int64_t entries = p.counting.after(p.counters(b), p.tokens).segments;
  entries = entries < 1 ? 1 : (entries > p.capacity ? p.capacity : entries);
  const std::int64_t first = p.max_visible > 0 && p.max_visible < entries ? entries - p.max_visible : 0;
  const std::int64_t origin = b * p.capacity;
  p.to[n] = {static_cast<std::int32_t>(origin + first), static_cast<std::int32_t>(origin + entries - 1),
             static_cast<std::int32_t>(origin)};
}

inline POLYSTATE_HIDDEN status launch_bank_sight(const char* name, const cuda_policy auto& exec,
                                                 const bank_sight_params& p) {
  constexpr int threads = 128;
  return launch(name, exec, grid{.blocks = tiles_of(p.counters.extent(0) * p.time, threads), .threads = threads},
                multi_state_bank_sight_kernel<threads>, p);
}

struct bank_score_params {
  tensor_view<const float, 4> mu;     ///< (B, capacity, heads, dr)
  tensor_view<const float, 5> Sigma;  ///< (B, capacity, heads, dr, dr), or absent
  bool whole = false;                 ///< 16-byte accesses along Sigma's rows
  const float* query = nullptr;       ///< [query][head][query_pitch], queries query_stride floats apart
  int query_pitch = 0;
  std::int64_t query_stride = 0;
  const moments::visible_slots* visible = nullptr;  ///< [query]
  std::int64_t queries = 0;
  route::score_rows scores;  ///< out
};

/// A block has a query, a moment head and an entry.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_bank_score_kernel(const __grid_constant__ bank_score_params p) {
  constexpr int warps = Threads / 32;
  __shared__ alignas(16) float q[moments::most_dr];
  __shared__ float sums[2][warps];
  const int tid = static_cast<int>(threadIdx.x);
  const auto columns = static_cast<unsigned>(p.scores.columns);
  const auto column = static_cast<int>(blockIdx.x % columns);
  const std::int64_t row = blockIdx.x / columns;  // query and head
  const std::int64_t heads = p.mu.extent(2);
  const std::int64_t head = row % heads;
  const moments::visible_slots seen = p.visible[row / heads];
  if (column >= seen.size()) return;
  const std::int64_t entry = seen.first + column - seen.origin;
  const std::int64_t b = seen.origin / p.mu.extent(1);
  const auto dr = static_cast<int>(p.mu.extent(3));

  for (int i = tid; i < dr; i += Threads) q[i] = p.query[row / heads * p.query_stride + head * p.query_pitch + i];
  __syncthreads();
  float mean = 0.0f;
  for (int i = tid; i < dr; i += Threads) mean = fmaf(p.mu(b, entry, head, i), q[i], mean);
  float square = 0.0f;
  if (p.Sigma.data() != nullptr) {
    const float* const Sigma = &p.Sigma(b, entry, head, 0, 0);
    const std::int64_t down = p.Sigma.stride(3);
    const std::int64_t along = p.Sigma.stride(4);
    // The threads walk over the matrix in its order, Threads accesses at a time.
    const int width = p.whole ? dr / 4 : dr;
    int i = tid / width;
    int c = tid % width;
    const int rows_on = Threads / width;
    const int columns_on = Threads % width;
    const auto next = [&] {
      i += rows_on;
      c += columns_on;
      if (c >= width) {
        c -= width;
        ++i;
      }
    };
    if (p.whole) {
#pragma unroll 4
      for (; i < dr; next()) {
        const float4 x = __ldg(reinterpret_cast<const float4*>(Sigma + i * down + c * 4));
        const float4 y = *reinterpret_cast<const float4*>(q + c * 4);
        square = fmaf(q[i], fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w))), square);
      }
    } else {
      for (; i < dr; next()) square = fmaf(q[i], Sigma[i * down + c * along] * q[c], square);
    }
  }
  mean = recurrence::sum_in_group<32>(mean);
  square = recurrence::sum_in_group<32>(square);
  if (tid % 32 == 0) {
    sums[0][tid / 32] = mean;
    sums[1][tid / 32] = square;
  }
  __syncthreads();
  if (tid != 0) return;
  for (int w = 1; w < warps; ++w) {
    mean += sums[0][w];
    square += sums[1][w];
  }
  const std::int64_t to = row * p.scores.columns + column;
  p.scores.r_mu[to] = mean;
  if (p.Sigma.data() != nullptr) p.scores.r_sigma[to] = fmaf(-mean, mean, square);
}

inline POLYSTATE_HIDDEN status launch_bank_scores(const char* name, const cuda_policy auto& exec,
                                                  const bank_score_params& p) {
  constexpr int threads = 128;
  return launch(name, exec, grid{.blocks = p.queries * p.mu.extent(2) * p.scores.columns, .threads = threads},
                multi_state_bank_score_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
