// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The weighted read-out of many tokens: o_t = sum_l lam_tl scale S_l q_t + lam_tc open_t, l the closed segments that
/// token t sees, c its own. A block has 64 tokens and 64 rows of a head's states; it streams the states one after the
/// other and multiplies each with the queries, which lie in shared memory. Nothing a segment gives reaches memory.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/ssd/operands.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// What becomes of a read-out once a token: skip and gate of rule ssd, nothing for the others.
struct finishing {
  recurrence::ssd_form form;
  any_element_view<4> value, z;  ///< (B, T, heads, dv); read where the form has a skip or a gate

  [[nodiscard]] __device__ float operator()(float o, std::int64_t b, std::int64_t t, std::int64_t head,
                                            std::int64_t row) const {
    const float x = form.D.data() != nullptr ? value.load(b, t, head, row) : 0.0f;
    return form.finish(o, x, form.gated ? z.load(b, t, head, row) : 0.0f, form.skip_of(head, row));
  }
};

/// Queries as the states are read with them: normalised, not scaled.
struct query_rows {
  any_element_view<4> rows;  ///< (B, T, groups, dk)
  bool normalize = false;
  float eps = 0;

  [[nodiscard]] POLYSTATE_HOST_DEVICE int dk() const { return static_cast<int>(rows.extent(3)); }
};

/// Weights of tokens, as routing leaves them: [token][head][column], column c that of slot visible.first + c.
struct weight_rows {
  const float* data = nullptr;
  int columns = 0;
  std::int64_t first = 0;  ///< the token that data begins with

  [[nodiscard]] POLYSTATE_HOST_DEVICE float load(std::int64_t n, std::int64_t heads, std::int64_t head,
                                                 std::int32_t column) const {
    return data[((n - first) * heads + head) * columns + column];
  }
};

struct read_out_params {
  query_rows query;
  float scale = 1;
  any_element_view<5> states;  ///< (rows, entries, heads, dv, dk); slot r * entries + e is entry e of row r
  bool whole_states = false;   ///< four neighbours along dk are one access
  const moments::visible_slots* visible = nullptr;  ///< [token]
  weight_rows weights;
  const float* open = nullptr;  ///< [token][head][dv], what a token reads of its own segment; null: all are closed
  finishing finish;
  any_element_view<4> out;  ///< (B, T, heads, dv)
  std::int64_t first = 0;   ///< tokens, counted over batch entries, first .. last-1
  std::int64_t last = 0;

  [[nodiscard]] POLYSTATE_HOST_DEVICE int dv() const { return static_cast<int>(out.extent(3)); }
};

struct alignas(16) read_out_tile {
  static constexpr int tokens = 64;
  static constexpr int rows = 64;
  static constexpr int columns = 16;  ///< of a state, at once
  static constexpr int slots = 16;    ///< whose weights are staged together
  static constexpr int threads = 128;
  static constexpr int pitch = 68;  ///< of 64 floats: whole float4, and neighbours in other banks

  float states[2][columns * pitch];
  float weight[slots][tokens];
  float own[tokens];  ///< weight of the open segment
  std::int32_t first[tokens];
  std::int32_t end[tokens];  ///< behind the last closed slot
  unsigned read;             ///< bit l: slot l of those staged has a weight

  [[nodiscard]] POLYSTATE_HOST_DEVICE static constexpr int padded(int dk) {
    return static_cast<int>(tiles_of(dk, columns)) * columns;
  }
  static std::size_t bytes(int dk) {
    return sizeof(read_out_tile) + static_cast<std::size_t>(padded(dk) * pitch) * sizeof(float);
  }
};

/// Refuses a dk that the device has no room for.
inline status check_read_out_fits(const char* name, std::int64_t dk, const device_limits& limits) {
  return check_shared_memory(name, "in", "dk = " + std::to_string(dk), read_out_tile::bytes(static_cast<int>(dk)),
                             limits.shared_bytes);
}

/// `Dk` bounds dk.
template <int Threads, int Dk>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads, 3)
    multi_state_read_out_kernel(const __grid_constant__ read_out_params p) {
  using Tile = read_out_tile;
  static_assert(Threads == Tile::threads && Threads / 16 * 8 == Tile::tokens && 16 * 4 == Tile::rows);
  constexpr int K = Tile::columns;
  constexpr int pitch = Tile::pitch;
  constexpr int lanes = 32;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);
  float* const q = reinterpret_cast<float*>(&sm + 1);  // (padded dk) x pitch

  const int tid = static_cast<int>(threadIdx.x);
  const int dk = p.query.dk();
  const int dv = p.dv();
  const std::int64_t time = p.out.extent(1);
  const std::int64_t heads = p.out.extent(2);
  const auto tiles = static_cast<unsigned>(tiles_of(p.last - p.first, Tile::tokens));
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, Tile::rows));
  // The last tokens see the most segments: first things first.
  const std::int64_t n0 = p.first + static_cast<std::int64_t>(tiles - 1 - blockIdx.x % tiles) * Tile::tokens;
  const int row0 = static_cast<int>(blockIdx.x / tiles % row_tiles) * Tile::rows;
  const std::int64_t head = blockIdx.x / tiles / row_tiles;
  const std::int64_t group = group_of_head(head, heads, p.query.rows.extent(2));

  if (tid < Tile::tokens) {
    const std::int64_t n = n0 + tid;
    moments::visible_slots seen = {0, -1, 0};
    float own = 0.0f;
    if (n < p.last) {
      seen = p.visible[n];
      if (p.open != nullptr) own = p.weights.load(n, heads, head, seen.current - seen.first);
    }
    sm.first[tid] = seen.first;
    sm.end[tid] = p.open != nullptr && n < p.last ? seen.current : seen.current + 1;
    sm.own[tid] = own;
  }
  for (int t = tid / lanes; t < Tile::tokens; t += Threads / lanes) {
    constexpr int most = Dk / lanes;
    const std::int64_t n = n0 + t;
    const char* const row = n < p.last ? p.query.rows.address(n / time, n % time, group, 0) : nullptr;
    const std::int64_t stride = p.query.rows.stride(3);
    float x[most];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int k = i * lanes + tid % lanes;
      x[i] = row != nullptr && k < dk ? load_element(row, p.query.rows.type(), k * stride) : 0.0f;
      squares = fmaf(x[i], x[i], squares);
    }
    float factor = 1.0f;
    if (p.query.normalize) factor = recurrence::inverse_length(recurrence::sum_in_group<lanes>(squares), p.query.eps);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int k = i * lanes + tid % lanes;
      if (k < Tile::padded(dk)) q[k * pitch + t] = x[i] * factor;
    }
  }
  __syncthreads();
  std::int32_t low = sm.first[0];
  std::int32_t high = 0;
  for (int t = 0; t < Tile::tokens && n0 + t < p.last; ++t) {
    low = min(low, sm.first[t]);
    high = max(high, sm.end[t]);
  }

  const int token_at = tid / 16 * 8;  // this thread's 8 tokens and 4 rows of the tile
  const int row_at = tid % 16 * 4;
  float o[8][4] = {};

  // A chunk of a state, 64 rows of 16 columns: a thread moves four columns of two rows.
  constexpr int moved = Tile::rows * K / 4 / Threads;
  const int moved_row = tid / (K / 4);
  const int moved_column = tid % (K / 4) * 4;
  float4 next[moved];
  const element_type type = p.states.type();
  const std::int64_t row_bytes = p.states.stride(3) * bytes_of(type);
  const std::int64_t column_stride = p.states.stride(4);
  const auto fetch = [&](const char* state, int k0) {
#pragma unroll
    for (int j = 0; j < moved; ++j) {
      const int row = row0 + moved_row + j * (Threads / (K / 4));
      const int k = k0 + moved_column;
      next[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row >= dv || k >= dk) continue;
      const char* const at = state + row * row_bytes + k * column_stride * bytes_of(type);
      if (p.whole_states) {
        next[j] = load_four(at, type);
      } else {
        next[j].x = load_element(at, type, 0);
        if (k + 1 < dk) next[j].y = load_element(at, type, column_stride);
        if (k + 2 < dk) next[j].z = load_element(at, type, 2 * column_stride);
        if (k + 3 < dk) next[j].w = load_element(at, type, 3 * column_stride);
      }
    }
  };

  for (std::int64_t base = low; base < high; base += Tile::slots) {
    __syncthreads();  // the weights before are used up
    if (tid == 0) sm.read = 0;
    __syncthreads();
    bool any = false;
    for (int i = tid; i < Tile::slots * Tile::tokens; i += Threads) {
      const int t = i / Tile::slots;
      const auto slot = static_cast<std::int32_t>(base) + i % Tile::slots;
      const bool sees = n0 + t < p.last && slot >= sm.first[t] && slot < sm.end[t];
      const float w = sees ? p.weights.load(n0 + t, heads, head, slot - sm.first[t]) : 0.0f;
      sm.weight[i % Tile::slots][t] = w;
      any = any || w != 0.0f;
    }
    const unsigned votes = __ballot_sync(0xffffffffu, any);  // a thread has one slot, two threads of a warp the same
    static_assert(Tile::slots == 16 && Threads % Tile::slots == 0);
    if (tid % lanes == 0) atomicOr(&sm.read, (votes | votes >> 16) & 0xffffu);
    __syncthreads();
    const unsigned read = sm.read;

#pragma unroll 1
    for (int l = 0; l < Tile::slots; ++l) {
      if ((read >> l & 1u) == 0) continue;
      const std::int64_t slot = base + l;
      const char* const state = p.states.address(slot / p.states.extent(1), slot % p.states.extent(1), head, 0, 0);
      float part[8][4] = {};
      fetch(state, 0);
#pragma unroll 1
      for (int k0 = 0; k0 < dk; k0 += K) {
        // Two buffers: who fills one has passed the barrier behind which nobody reads it any more.
        float* const chunk = sm.states[k0 / K % 2];
#pragma unroll
        for (int j = 0; j < moved; ++j) {
          float* const to = chunk + moved_column * pitch + moved_row + j * (Threads / (K / 4));
          to[0] = next[j].x, to[pitch] = next[j].y, to[2 * pitch] = next[j].z, to[3 * pitch] = next[j].w;
        }
        __syncthreads();
        if (k0 + K < dk) fetch(state, k0 + K);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const float4 a = *reinterpret_cast<const float4*>(q + (k0 + k) * pitch + token_at);
          const float4 b = *reinterpret_cast<const float4*>(q + (k0 + k) * pitch + token_at + 4);
          const float4 s = *reinterpret_cast<const float4*>(chunk + k * pitch + row_at);
          const float of_token[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
          for (int t = 0; t < 8; ++t) {
            part[t][0] = fmaf(of_token[t], s.x, part[t][0]);
            part[t][1] = fmaf(of_token[t], s.y, part[t][1]);
            part[t][2] = fmaf(of_token[t], s.z, part[t][2]);
            part[t][3] = fmaf(of_token[t], s.w, part[t][3]);
          }
        }
      }
      if (tiles_of(dk, K) % 2 != 0) __syncthreads();  // the next state begins in the buffer just read
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const float w = sm.weight[l][token_at + t];
        if (w == 0.0f) continue;  // what a token does not read cannot reach it, not as NaN either
#pragma unroll
        for (int r = 0; r < 4; ++r) o[t][r] = fmaf(w, part[t][r], o[t][r]);
      }
    }
  }

#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const std::int64_t n = n0 + token_at + t;
    if (n >= p.last) continue;
    const float own = sm.own[token_at + t];
    const std::int64_t b = n / time;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = row0 + row_at + r;
      if (row >= dv) continue;
      float y = p.scale * o[t][r];
      if (own != 0.0f) y = fmaf(own, p.open[(n * heads + head) * dv + row], y);
      p.out.store(p.finish(y, b, n - b * time, head, row), b, n - b * time, head, row);
    }
  }
}

template <class Shapes>
POLYSTATE_HIDDEN status launch_read_out(const char* name, const on_cuda& exec, const read_out_params& p) {
  using Tile = read_out_tile;
  constexpr int moderate = 256;
  using most_key_dims =
      std::conditional_t<Shapes::size == 1, int_list<(Shapes::values[0] <= moderate ? moderate : 512)>,
                         int_list<moderate, 512>>;
  const int most = p.query.dk() <= moderate ? moderate : 512;
  const grid g{.blocks = tiles_of(p.last - p.first, Tile::tokens) * tiles_of(p.dv(), Tile::rows) * p.out.extent(2),
               .threads = Tile::threads,
               .shared_bytes = Tile::bytes(p.query.dk())};
  status s;
  static_cast<void>(dispatch(most, most_key_dims{}, [&](auto dk) {
    s = launch(name, exec, g, multi_state_read_out_kernel<Tile::threads, dk>, p);
  }));
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
