// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Rows of no sequence: tokens of a packed batch entry behind the last offset of cu_seqlens. Their outputs and
/// gradients are 0, by one launch for all operators.

#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// Outputs with a row a token, (1, T, ..), of any type; absent ones are left out.
struct tail_rows {
  static constexpr int most = 5;
  any_element_view<4> views[most];
  int count = 0;

  template <class T, int Rank>
  void add(const tensor_view<T, Rank>& rows) {
    static_assert(Rank == 3 || Rank == 4);
    if (!rows || rows.size() == 0) return;
    if constexpr (Rank == 4) {
      views[count++] = any_element_view<4>(rows);
    } else {
      views[count++] =
          any_element_view<4>(tensor_view<T, 4>(rows.data(), {rows.extent(0), rows.extent(1), rows.extent(2), 1},
                                                {rows.stride(0), rows.stride(1), rows.stride(2), 0}));
    }
  }
};

struct clear_tail_params {
  sequences all;
  tail_rows rows;
};

/// Writes the share of block `block` of `blocks`.
__device__ inline void clear_tail(const clear_tail_params& p, std::int64_t block, std::int64_t blocks) {
  const std::int64_t end = p.all.end();
  for (int v = 0; v < p.rows.count; ++v) {
    const any_element_view<4>& to = p.rows.views[v];
    const std::int64_t columns = to.extent(3);
    const std::int64_t row = to.extent(2) * columns;
    const std::int64_t elements = (to.extent(1) - end) * row;
    for (std::int64_t i = block * blockDim.x + threadIdx.x; i < elements; i += blocks * blockDim.x) {
      to.store(0.0f, 0, end + i / row, i % row / columns, i % columns);
    }
  }
}

template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    clear_tail_kernel(const __grid_constant__ clear_tail_params p) {
  clear_tail(p, blockIdx.x, gridDim.x);
}

/// Where there usually is no such row, few blocks: they look at one offset and leave.
inline constexpr int clear_tail_blocks = 64;

/// Enqueues the zeros, if sequences are packed.
template <class... Rows>
POLYSTATE_HIDDEN status launch_clear_tail(const char* name, const cuda_policy auto& exec, const sequences& all,
                                          const Rows&... rows) {
  static_assert(sizeof...(Rows) <= tail_rows::most);
  if (!all.packed()) return {};
  clear_tail_params p = {.all = all, .rows = {}};
  (p.rows.add(rows), ...);
  constexpr int threads = 256;
  return launch(name, exec, grid{.blocks = p.rows.count > 0 ? clear_tail_blocks : 0, .threads = threads},
                clear_tail_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
