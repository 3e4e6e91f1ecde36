// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Rows of routing keys and queries, (B, T, heads, dr) in any type and memory order, as floats that lie together, and
/// their gradients back again. A row x may be normalised on the way, x / sqrt(x.x + eps), once or twice: a recurrence
/// that normalises its own keys shares them with moments that normalise them once more.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// The most that dr may be: a warp holds a row in registers.
inline constexpr int most_dr = 512;
inline constexpr int row_threads = 128;

/// Where rows come from, and what is done to them.
struct row_source {
  any_element_view<4> rows;  ///< (B, T, heads, dr)
  int normalizations = 0;    ///< 0, 1 or 2
  float eps[2] = {};         ///< of each, in their order

  [[nodiscard]] POLYSTATE_HOST_DEVICE int dr() const { return static_cast<int>(rows.extent(3)); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t time() const { return rows.extent(1); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t heads() const { return rows.extent(2); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t count() const { return rows.extent(0) * time() * heads(); }
};

/// A lane's share of a row: elements lane, lane + 32, ..
struct row_share {
  static constexpr int most = most_dr / 32;
  float x[most];

  [[nodiscard]] __device__ float dot(const row_share& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < most; ++i) sum = fmaf(x[i], other.x[i], sum);
    return recurrence::sum_in_group<32>(sum);
  }
  __device__ void scale(float by) {
#pragma unroll
    for (int i = 0; i < most; ++i) x[i] *= by;
  }
  /// Divides by the length; returns what it multiplied by.
  __device__ float normalize(float eps) {
    const float by = recurrence::inverse_length(dot(*this), eps);
    scale(by);
    return by;
  }
  /// Of y = x / n to dx = (dy - y (y.dy)) / n.
  __device__ void normalize_backward(const row_share& y, float by) {
    const float along = y.dot(*this);
#pragma unroll
    for (int i = 0; i < most; ++i) x[i] = by * fmaf(-along, y.x[i], x[i]);
  }
};

__device__ inline row_share load_row(const row_source& from, std::int64_t row, int lane) {
  const std::int64_t token = row / from.heads();
  const char* const at = from.rows.address(token / from.time(), token % from.time(), row % from.heads(), 0);
  const std::int64_t stride = from.rows.stride(3);
  row_share r;
#pragma unroll
  for (int i = 0; i < row_share::most; ++i) {
    const int c = i * 32 + lane;
    r.x[i] = c < from.dr() ? load_element(at, from.rows.type(), c * stride) : 0.0f;
  }
  return r;
}

struct stage_params {
  row_source from;
  float* to = nullptr;  ///< [token][head][pitch]: the row, then `after`, then zeros
  int pitch = 0;
  float after = 0;
  // Gates that go with the rows, where there are any: (B, T, heads) to [token][head].
  tensor_view<const float, 3> gates[2]{};
  float* gates_to[2] = {};
};

/// A warp has a row.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    moment_rows_stage_kernel(const __grid_constant__ stage_params p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.from.count()) return;
  row_share x = load_row(p.from, row, lane);
  for (int n = 0; n < p.from.normalizations; ++n) x.normalize(p.from.eps[n]);
  float* const to = p.to + row * p.pitch;
  const int dr = p.from.dr();
#pragma unroll
  for (int i = 0; i < row_share::most; ++i) {
    const int c = i * 32 + lane;
    if (c < dr) to[c] = x.x[i];
  }
  for (int c = dr + lane; c < p.pitch; c += 32) to[c] = c == dr ? p.after : 0.0f;
  if (lane > 1 || p.gates_to[lane] == nullptr) return;
  const std::int64_t token = row / p.from.heads();
  p.gates_to[lane][row] = p.gates[lane](token / p.from.time(), token % p.from.time(), row % p.from.heads());
}

inline POLYSTATE_HIDDEN status launch_stage_rows(const char* name, const cuda_policy auto& exec,
                                                 const stage_params& p) {
  const std::int64_t rows = p.from.dr() == 0 ? 0 : p.from.count();
  return launch(name, exec, grid{.blocks = tiles_of(rows, row_threads / 32), .threads = row_threads},
                moment_rows_stage_kernel<row_threads>, p);
}

/// One of the arrays that a gradient is the sum of.
struct row_part {
  const float* rows = nullptr;  ///< [token][head][pitch]; null: absent
  int pitch = 0;
};

struct unstage_params {
  row_source from;             ///< the forward's
  row_part parts[3]{};         ///< what its staged rows' gradients are the sum of
  any_element_view<4> to;      ///< (B, T, heads, dr), or absent
  const float* gates[2] = {};  ///< [token][head], or null
  tensor_view<float, 3> gates_to[2]{};
};

/// A warp has a row.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    moment_rows_unstage_kernel(const __grid_constant__ unstage_params p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.from.count()) return;
  const std::int64_t token = row / p.from.heads();
  const std::int64_t b = token / p.from.time();
  const std::int64_t t = token % p.from.time();
  const std::int64_t head = row % p.from.heads();
  if (lane < 2 && p.gates_to[lane].data() != nullptr) p.gates_to[lane](b, t, head) = p.gates[lane][row];
  if (!p.to.given()) return;
  const int dr = p.from.dr();
  row_share d{};
  for (const row_part& part : p.parts) {
    if (part.rows == nullptr) continue;
#pragma unroll
    for (int i = 0; i < row_share::most; ++i) {
      const int c = i * 32 + lane;
      if (c < dr) d.x[i] += part.rows[row * part.pitch + c];
    }
  }
  if (p.from.normalizations > 0) {
    row_share y = load_row(p.from, row, lane);
    const float by = y.normalize(p.from.eps[0]);
    if (p.from.normalizations > 1) {
      row_share z = y;
      const float by_second = z.normalize(p.from.eps[1]);
      d.normalize_backward(z, by_second);
    }
    d.normalize_backward(y, by);
  }
#pragma unroll
  for (int i = 0; i < row_share::most; ++i) {
    const int c = i * 32 + lane;
    if (c < dr) p.to.store(d.x[i], b, t, head, c);
  }
}

inline POLYSTATE_HIDDEN status launch_unstage_rows(const char* name, const cuda_policy auto& exec,
                                                   const unstage_params& p) {
  const std::int64_t rows = p.from.dr() == 0 ? 0 : p.from.count();
  return launch(name, exec, grid{.blocks = tiles_of(rows, row_threads / 32), .threads = row_threads},
                moment_rows_unstage_kernel<row_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
