// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Few queries against a bank: o = sum_l lam_l scale S_l q, memory bound. First the entries that have a weight are
/// listed, so that the others are never read; then blocks that share the list of a head stream its states, 16 bytes an
/// access, into partial sums over their share; these are added up in their order.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/multi_state/policy.hpp>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector.cuh>

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// The entries that queries have weights for, of each query and head. Query n is query n % T of row n / T.
struct weighted_entries {
  std::int32_t* count = nullptr;  ///< [query][head]
  std::int32_t* entry = nullptr;  ///< [query][head][column]
  float* weight = nullptr;        ///< likewise
};

struct list_params {
  const moments::visible_slots* visible = nullptr;  ///< of each query; slots are entries, counted over all rows
  weight_rows weights;
  std::int64_t queries = 0;
  std::int64_t heads = 0;
  std::int64_t columns = 0;
  bool weighted = true;  ///< else every weight is 1
  weighted_entries to;
};

/// A warp has a query and a head.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_list_kernel(const __grid_constant__ list_params p) {
  const std::int64_t unit = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (unit >= p.queries * p.heads) return;
  const std::int64_t n = unit / p.heads;
  const std::int64_t head = unit % p.heads;
  const moments::visible_slots seen = p.visible[n];
  std::int32_t* const entry = p.to.entry + unit * p.columns;
  float* const weight = p.to.weight + unit * p.columns;
  int count = 0;
  for (std::int32_t base = seen.first; base <= seen.current; base += 32) {
    const std::int32_t slot = base + lane;
    float w = 0.0f;
    if (slot <= seen.current) w = p.weighted ? p.weights.load(n, p.heads, head, slot - seen.first) : 1.0f;
    const unsigned kept = __ballot_sync(0xffffffffu, w != 0.0f);
    if (w != 0.0f) {
      const int at = count + __popc(kept & ((1u << lane) - 1));
      entry[at] = slot - seen.origin;
      weight[at] = w;
    }
    count += __popc(kept);
  }
  if (lane == 0) p.to.count[unit] = count;
}

inline POLYSTATE_HIDDEN status launch_list(const char* name, const cuda_policy auto& exec, const list_params& p) {
  constexpr int threads = 128;
  return launch(name, exec, grid{.blocks = tiles_of(p.queries * p.heads, threads / 32), .threads = threads},
                multi_state_list_kernel<threads>, p);
}

template <class State>
struct bank_read_params {
  query_rows query;
  tensor_view<const State, 5> states;  ///< (B, capacity, heads, dv, dk)
  bool whole = false;                  ///< 16-byte accesses along dk
  weighted_entries list;
  std::int64_t columns = 0;  ///< of the list
  std::int64_t queries = 0;
  int shares = 1;            ///< blocks that a list is cut into
  float* partial = nullptr;  ///< [query][head][share][dv]
};

template <class State, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(bank_split::threads)
    multi_state_bank_read_kernel(const __grid_constant__ bank_read_params<State> p) {
  constexpr bank_split Split = split_of_bank(Padded, sizeof(State));
  constexpr int V = Split.elements;
  constexpr int L = Split.lanes;
  constexpr int N = Split.vectors;
  constexpr int R = Split.rows;
  constexpr int staged = 64;
  __shared__ float query[Padded];
  __shared__ std::int32_t entry[staged];
  __shared__ float weight[staged];

  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % L;
  const int dk = p.query.dk();
  const auto dv = static_cast<int>(p.states.extent(3));
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, Split.block_rows()));
  const auto heads = static_cast<unsigned>(p.states.extent(2));
  const auto shares = static_cast<unsigned>(p.shares);
  const auto share = static_cast<int>(blockIdx.x % shares);
  const int first_row = static_cast<int>(blockIdx.x / shares % row_tiles) * Split.block_rows() + tid / L * R;
  const std::int64_t unit = blockIdx.x / shares / row_tiles;  // query and head
  const std::int64_t head = unit % heads;
  const std::int64_t n = unit / heads;
  const std::int64_t time = p.query.rows.extent(1);
  const std::int64_t b = n / time;

  if (tid < 32) {
    const char* const row = p.query.rows.address(b, n % time, group_of_head(head, heads, p.query.rows.extent(2)), 0);
    const std::int64_t stride = p.query.rows.stride(3);
    float squares = 0.0f;
    for (int k = tid; k < Padded; k += 32) {
      const float x = k < dk ? load_element(row, p.query.rows.type(), k * stride) : 0.0f;
      query[k] = x;
      squares = fmaf(x, x, squares);
    }
    if (p.query.normalize) {
      const float factor = recurrence::inverse_length(recurrence::sum_in_group<32>(squares), p.query.eps);
      for (int k = tid; k < Padded; k += 32) query[k] *= factor;
    }
  }
  __syncthreads();
  float q[N][V];
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < V; ++j) q[i][j] = query[(i * L + lane) * V + j];
  }

  const std::int64_t count = p.list.count[unit];
  const std::int64_t begin = count * share / p.shares;
  const std::int64_t end = count * (share + 1) / p.shares;
  const std::int64_t list = unit * p.columns;
  const std::int64_t entry_stride = p.states.stride(1);
  const std::int64_t row_stride = p.states.stride(3);
  const std::int64_t column_stride = p.states.stride(4);
  const State* const rows = &p.states(b, 0, head, first_row, 0);
  float sum[R] = {};

  for (std::int64_t from = begin; from < end; from += staged) {
    const int some = static_cast<int>(end - from < staged ? end - from : staged);
    __syncthreads();
    if (tid < some) {
      entry[tid] = p.list.entry[list + from + tid];
      weight[tid] = p.list.weight[list + from + tid];
    }
    __syncthreads();
    if (first_row >= dv) continue;
    const auto read = [&](auto whole) {
#pragma unroll 2
      for (int e = 0; e < some; ++e) {
        const State* const at = rows + entry[e] * entry_stride;
        vector<State> x[R][N];
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const int c = (i * L + lane) * V;
            x[r][i] = {};
            if (first_row + r >= dv || c >= dk) continue;
            if constexpr (decltype(whole)::value) {
              x[r][i] = load_vector_read_only(at + r * row_stride + c);
            } else {
#pragma unroll
              for (int j = 0; j < V; ++j) {
                if (c + j < dk) insert_element(x[r][i], j, at[r * row_stride + (c + j) * column_stride]);
              }
            }
          }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          float dot = 0.0f;
#pragma unroll
          for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int j = 0; j < V; ++j) dot = fmaf(static_cast<float>(element_of(x[r][i], j)), q[i][j], dot);
          }
          sum[r] = fmaf(weight[e], dot, sum[r]);
        }
      }
    };
    if (p.whole) {
      read(std::true_type{});
    } else {
      read(std::false_type{});
    }
  }

#pragma unroll
  for (int r = 0; r < R; ++r) {
    const float o = recurrence::sum_in_group<L>(sum[r]);
    if (lane == 0 && first_row + r < dv) p.partial[(unit * p.shares + share) * dv + first_row + r] = o;
  }
}

template <class Shapes, class State>
POLYSTATE_HIDDEN status launch_bank_read(const char* name, const on_cuda& exec, const bank_read_params<State>& p) {
  status s;
  const bool found = dispatch(recurrence::padded_key_dim(p.query.dk()), Shapes{}, [&](auto padded) {
    constexpr bank_split Split = split_of_bank(padded, sizeof(State));
    const grid g{.blocks = p.queries * p.states.extent(2) * tiles_of(p.states.extent(3), Split.block_rows()) * p.shares,
                 .threads = bank_split::threads};
    s = launch(name, exec, g, multi_state_bank_read_kernel<State, padded>, p);
  });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(p.query.dk())};
}

struct combine_params {
  const float* partial = nullptr;  ///< [query][head][share][dv]
  int shares = 1;
  float scale = 1;
  finishing finish;
  any_element_view<4> out;  ///< (B, T, heads, dv)
};

/// A thread has an element of the output.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_combine_kernel(const __grid_constant__ combine_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t dv = p.out.extent(3);
  const std::int64_t heads = p.out.extent(2);
  const std::int64_t unit = i / dv;
  const std::int64_t n = unit / heads;
  const std::int64_t b = n / p.out.extent(1);
  if (b >= p.out.extent(0)) return;
  const std::int64_t t = n % p.out.extent(1);
  const float* const partial = p.partial + unit * p.shares * dv + i % dv;
  float o = 0.0f;
  for (int share = 0; share < p.shares; ++share) o += partial[share * dv];
  p.out.store(p.finish(p.scale * o, b, t, unit % heads, i % dv), b, t, unit % heads, i % dv);
}

inline POLYSTATE_HIDDEN status launch_combine(const char* name, const cuda_policy auto& exec, const combine_params& p) {
  constexpr int threads = 256;
  const std::int64_t elements = p.out.extent(0) * p.out.extent(1) * p.out.extent(2) * p.out.extent(3);
  return launch(name, exec, grid{.blocks = tiles_of(elements, threads), .threads = threads},
                multi_state_combine_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
