// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Rows that are to be normalised, x / sqrt(x.x + eps), read by validate(): kernels sum squares in float.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/error.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// What x.x + eps may be of a row that is not zero: float holds it, and the products of its elements, without loss.
struct squares_range {
  static constexpr double least = 1e-30;
  static constexpr double most = 1e38;
};

struct row_range_params {
  any_element_view<4> rows;  ///< (B, T, heads, dim)
  double eps = 0;
  std::int64_t count = 0;
  unsigned long long* first = nullptr;  ///< the first row outside the range, times 2^24, and the sum's upper 24 bits
};

/// A warp has a row.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    row_range_kernel(const __grid_constant__ row_range_params p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.count) return;
  const std::int64_t heads = p.rows.extent(2);
  const std::int64_t time = p.rows.extent(1);
  double squares = 0.0;
  for (std::int64_t i = lane; i < p.rows.extent(3); i += 32) {
    const double x = p.rows.load(row / heads / time, row / heads % time, row % heads, i);
    squares += x * x;
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
  const double sum = squares + p.eps;
  // A NaN is the caller's, and stays in its sequence and head.
  if (lane != 0 || squares == 0.0 || !(sum < squares_range::least || sum > squares_range::most)) return;
  const unsigned bits = __float_as_uint(static_cast<float>(sum));
  atomicMin(p.first, static_cast<unsigned long long>(row) << 24 | bits >> 8);
}

/// Refuses rows outside the range. Waits for exec.stream, so it cannot run under graph capture.
template <class Data>
POLYSTATE_HIDDEN status check_row_squares(const char* op, const cuda_policy auto& exec, const char* name,
                                          const tensor_view<const Data, 4>& rows, double eps) {
  if (!rows || rows.size() == 0) return {};
  if (status s = check_not_captured(op, exec); !s.ok()) return s;
  row_range_params p = {.rows = any_element_view<4>(rows),
                        .eps = static_cast<double>(static_cast<float>(eps)),
                        .count = rows.extent(0) * rows.extent(1) * rows.extent(2)};
  void* memory = nullptr;
  status s = runtime_status(op, name, cudaMallocAsync(&memory, sizeof(*p.first), exec.stream));
  if (!s.ok()) return s;
  p.first = static_cast<unsigned long long*>(memory);
  constexpr int threads = 256;
  constexpr auto none = ~0ULL;
  unsigned long long first = none;
  s = runtime_status(op, name, cudaMemsetAsync(memory, 0xff, sizeof(first), exec.stream));
  if (s.ok()) {
    s = launch(op, exec, grid{.blocks = tiles_of(p.count, threads / 32), .threads = threads}, row_range_kernel<threads>,
               p);
  }
  if (s.ok()) {
    s = runtime_status(op, name, cudaMemcpyAsync(&first, memory, sizeof(first), cudaMemcpyDefault, exec.stream));
  }
  const status freed = runtime_status(op, name, cudaFreeAsync(memory, exec.stream));
  const status waited = runtime_status(op, name, cudaStreamSynchronize(exec.stream));
  if (s.ok()) s = freed.ok() ? waited : freed;
  if (!s.ok() || first == none) return s;
  const auto row = static_cast<std::int64_t>(first >> 24);
  const std::int64_t heads = rows.extent(2);
  const std::int64_t time = rows.extent(1);
  char text[96];
  std::snprintf(text, sizeof(text), " is %.3g, supported on_cuda: 0, or %g to %g with l2norm_eps",
                static_cast<double>(__builtin_bit_cast(float, static_cast<std::uint32_t>(first & 0xffffff) << 8)),
                squares_range::least, squares_range::most);
  return {error_code::value, op, name,
          "the sum of squares of row (" + std::to_string(row / heads / time) + ", " +
              std::to_string(row / heads % time) + ", " + std::to_string(row % heads) + ")" + text};
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
