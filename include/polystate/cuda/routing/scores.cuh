// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Scores of queries against the moments of the segments that they see, and their derivatives. A token's scores lie
/// together, [token][moment head][column]: column c is slot visible.first + c. Closed segments are scored a tile of
/// tokens and a segment at a time, as products of matrices; the open one from the recurrence's read-outs. For other
/// operators: launch_closed_scores() on slot_moments from anywhere, a bank say.
///
///     r_mu = mu.q'        r_sigma = q'^T Sigma q' - r_mu^2

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/segment_moments/moments.cuh>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route {

using moments::moment_memory;
using moments::moment_problem;
using moments::running_divisor;
using moments::segment_table;
using moments::visible_slots;

/// Scores of all tokens, or the derivatives of them: of r_mu, what reaches mu.q' and, of r_sigma, q'^T Sigma q'.
struct score_rows {
  float* r_mu = nullptr;     ///< [token][moment head][column]
  float* r_sigma = nullptr;  ///< likewise; null where the router reads no Sigma
  int columns = 0;           ///< segments that a token sees, at most

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t at(std::int64_t token, std::int64_t heads, std::int64_t head) const {
    return (token * heads + head) * columns;
  }
};

/// Moments of slots, in any memory order; what lies there is divided by the slot's divisor. Slots may lie in rows,
/// those of a bank's sequences.
struct slot_moments {
  const float* mu = nullptr;
  const float* Sigma = nullptr;    ///< null where the router reads none
  const float* divisor = nullptr;  ///< (slots); null: 1
  std::int64_t slots_per_row = 1;
  std::int64_t mu_strides[4] = {};     ///< row, slot in its row, head, element
  std::int64_t Sigma_strides[5] = {};  ///< row, slot in its row, head, row of Sigma, element
  bool symmetric = false;              ///< Sigma is, in exact arithmetic

  [[nodiscard]] __device__ const float* mu_of(std::int64_t slot, std::int64_t head) const {
    return mu + slot / slots_per_row * mu_strides[0] + slot % slots_per_row * mu_strides[1] + head * mu_strides[2];
  }
  [[nodiscard]] __device__ const float* Sigma_of(std::int64_t slot, std::int64_t head) const {
    return Sigma + slot / slots_per_row * Sigma_strides[0] + slot % slots_per_row * Sigma_strides[1] +
           head * Sigma_strides[2];
  }
  [[nodiscard]] __device__ float factor(std::int64_t slot) const {
    return divisor == nullptr ? 1.0f : 1.0f / divisor[slot];
  }
};

/// The states of launch_moments().
inline slot_moments slots_of(const moment_problem& p, const moment_memory& m) {
  const std::int64_t head = std::int64_t{p.rows()} * p.dr();
  slot_moments s;
  s.mu = m.states + std::int64_t{p.mu_row()} * p.dr();
  s.Sigma = p.keeps_Sigma ? m.states : nullptr;
  s.divisor = m.table.divisor;
  s.slots_per_row = p.slots() > 0 ? p.slots() : 1;
  s.mu_strides[1] = s.Sigma_strides[1] = p.state();
  s.mu_strides[2] = s.Sigma_strides[2] = head;
  s.Sigma_strides[3] = p.dr();
  s.mu_strides[3] = s.Sigma_strides[4] = 1;
  s.symmetric = !p.erases;
  return s;
}

inline constexpr int score_threads = 256;
inline constexpr int score_tile = 64;   ///< tokens, and rows of Sigma, of a block
inline constexpr int score_chunk = 32;  ///< elements of Sigma's rows that are staged together
inline constexpr int slots_per_block = 8;

struct score_params {
  slot_moments from;
  const float* query = nullptr;            ///< [token][head][query_pitch], zeros behind dr
  const visible_slots* visible = nullptr;  ///< (tokens)
  score_rows scores;                       ///< out; of the gradient kernels the scores' derivatives, in
  float* d_query = nullptr;                ///< [token][head][query_pitch], out, of the gradient kernel
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  int dr = 0;
  int query_pitch = 0;
  int block_splits = 1;      ///< blocks that share a tile's segments
  bool last_is_open = true;  ///< the token's own segment is scored elsewhere
};

/// Shared memory of a block.
struct alignas(16) score_memory {
  static constexpr int pitch = score_chunk + 4;  // rows of 144 bytes: eight float4 of neighbouring rows, 32 banks
  float Sigma[score_tile * pitch];
  float q[score_tile * pitch];
  int first[score_tile];
  int end[score_tile];  ///< behind the last slot that is scored here
  int low, high;        ///< slots that any token of the tile sees
};

/// Visible slots of the tokens from t0 on.
__device__ inline void load_score_tile(const score_params& p, std::int64_t t0, score_memory& sm) {
  const int tid = static_cast<int>(threadIdx.x);
  if (tid < 32) {
    int low = 0x7fffffff;
    int high = 0;
    for (int t = tid; t < score_tile; t += 32) {
      visible_slots v = {0, -1, 0};
      if (t0 + t < p.tokens) v = p.visible[t0 + t];
      const int end = p.last_is_open ? v.current : v.current + 1;
      sm.first[t] = v.first;
      sm.end[t] = end;
      if (end > v.first) {
        low = min(low, v.first);
        high = max(high, end);
      }
    }
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    if (tid == 0) sm.low = min(low, high), sm.high = high;
  }
  __syncthreads();
}

/// Elements c0 .. of the tile's queries; zeros beyond.
template <int Threads>
__device__ void stage_query(const score_params& p, std::int64_t t0, std::int64_t head, int c0, score_memory& sm) {
  for (int k = static_cast<int>(threadIdx.x); k < score_tile * score_chunk / 4; k += Threads) {
    const int t = k / (score_chunk / 4);
    const int c = k % (score_chunk / 4) * 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (t0 + t < p.tokens && c0 + c < p.query_pitch) {
      x = *reinterpret_cast<const float4*>(p.query + ((t0 + t) * p.heads + head) * p.query_pitch + c0 + c);
    }
    *reinterpret_cast<float4*>(sm.q + t * score_memory::pitch + c) = x;
  }
}

/// Whether any token of the tile sees the slot; all threads meet here.
__device__ inline bool any_sees(const score_memory& sm, int slot) {
  const int tid = static_cast<int>(threadIdx.x);
  return __syncthreads_or(tid < score_tile && sm.first[tid] <= slot && slot < sm.end[tid]) != 0;
}

/// Rows i0 .. of a slot's Sigma, elements c0 ..; zeros beyond dr. With `both` of Sigma + Sigma^T.
template <int Threads>
__device__ void stage_Sigma(const slot_moments& from, const float* Sigma, int dr, int i0, int c0, bool both,
                            score_memory& sm) {
  const int tid = static_cast<int>(threadIdx.x);
  const std::int64_t row = from.Sigma_strides[3];
  const std::int64_t element = from.Sigma_strides[4];
  for (int k = tid; k < score_tile * score_chunk; k += Threads) {
    const int i = k / score_chunk;
    const int c = k % score_chunk;
    const bool there = i0 + i < dr && c0 + c < dr;
    sm.Sigma[i * score_memory::pitch + c] = there ? Sigma[(i0 + i) * row + (c0 + c) * element] : 0.0f;
  }
  if (!both) return;
  __syncthreads();
  for (int k = tid; k < score_tile * score_chunk; k += Threads) {  // neighbouring threads along Sigma's rows again
    const int c = k / score_tile;
    const int i = k % score_tile;
    if (i0 + i < dr && c0 + c < dr) {
      sm.Sigma[i * score_memory::pitch + c] += Sigma[(c0 + c) * row + (i0 + i) * element];
    }
  }
}

/// sum[a][b] += sum_c q[4 ty + a][c] Sigma[tx + 16 b][c] over the staged chunks.
__device__ inline void multiply_chunk(const score_memory& sm, int tx, int ty, float (&sum)[4][4]) {
#pragma unroll 2
  for (int c = 0; c < score_chunk; c += 4) {
    float4 x[4];
    float4 y[4];
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      x[a] = *reinterpret_cast<const float4*>(sm.q + (4 * ty + a) * score_memory::pitch + c);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      y[b] = *reinterpret_cast<const float4*>(sm.Sigma + (tx + 16 * b) * score_memory::pitch + c);
    }
#pragma unroll
    for (int a = 0; a < 4; ++a) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        sum[a][b] = fmaf(x[a].x, y[b].x, sum[a][b]);
        sum[a][b] = fmaf(x[a].y, y[b].y, sum[a][b]);
        sum[a][b] = fmaf(x[a].z, y[b].z, sum[a][b]);
        sum[a][b] = fmaf(x[a].w, y[b].w, sum[a][b]);
      }
    }
  }
}

/// A thread's four tokens' queries in memory; those of the last token where there are fewer.
__device__ inline void query_rows(const score_params& p, std::int64_t t0, std::int64_t head, int ty,
                                  const float* (&rows)[4]) {
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    const std::int64_t token = t0 + 4 * ty + a;
    rows[a] = p.query + ((token < p.tokens ? token : p.tokens - 1) * p.heads + head) * p.query_pitch;
  }
}

/// A block has a tile of tokens, a moment head, and every block_splits-th run of slots. Thread (tx, ty) of 16 x 16 has
/// four tokens and, of 64 rows of Sigma, every sixteenth.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_closed_scores_kernel(const __grid_constant__ score_params p) {
  static_assert(Threads == 16 * 16);
  __shared__ score_memory sm;
  const int tx = static_cast<int>(threadIdx.x) % 16;
  const int ty = static_cast<int>(threadIdx.x) / 16;
  const auto splits = static_cast<unsigned>(p.block_splits);
  const unsigned split = blockIdx.x % splits;
  const std::int64_t head = blockIdx.x / splits % static_cast<unsigned>(p.heads);
  const std::int64_t t0 = std::int64_t{blockIdx.x / splits / static_cast<unsigned>(p.heads)} * score_tile;
  load_score_tile(p, t0, sm);
  const float* q[4];
  query_rows(p, t0, head, ty, q);

  const int run = static_cast<int>(splits) * slots_per_block;
  for (int begin = sm.low + static_cast<int>(split) * slots_per_block; begin < sm.high; begin += run) {
    const int end = min(begin + slots_per_block, sm.high);
    for (int slot = begin; slot < end; ++slot) {
      if (!any_sees(sm, slot)) continue;
      float square[4] = {};
      float mean[4] = {};
      const float* const mu = p.from.mu_of(slot, head);
      for (int c = tx; c < p.dr; c += 16) {
        const float m = mu[c * p.from.mu_strides[3]];
#pragma unroll
        for (int a = 0; a < 4; ++a) mean[a] = fmaf(m, q[a][c], mean[a]);
      }
      if (p.from.Sigma != nullptr) {
        const float* const Sigma = p.from.Sigma_of(slot, head);
        for (int i0 = 0; i0 < p.dr; i0 += score_tile) {
          float sum[4][4] = {};
          for (int c0 = 0; c0 < p.dr; c0 += score_chunk) {
            stage_query<Threads>(p, t0, head, c0, sm);
            stage_Sigma<Threads>(p.from, Sigma, p.dr, i0, c0, false, sm);
            __syncthreads();
            multiply_chunk(sm, tx, ty, sum);
            __syncthreads();  // the chunk is used up
          }
#pragma unroll
          for (int b = 0; b < 4; ++b) {
            const int i = i0 + tx + 16 * b;
            if (i >= p.dr) continue;
#pragma unroll
            for (int a = 0; a < 4; ++a) square[a] = fmaf(sum[a][b], q[a][i], square[a]);
          }
        }
      }
      const float factor = p.from.factor(slot);
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const float r_mu = factor * recurrence::sum_in_group<16>(mean[a]);
        const float r_sigma = fmaf(-r_mu, r_mu, factor * recurrence::sum_in_group<16>(square[a]));
        const int t = 4 * ty + a;
        if (tx != 0 || sm.first[t] > slot || slot >= sm.end[t]) continue;
        const std::int64_t to = p.scores.at(t0 + t, p.heads, head) + (slot - sm.first[t]);
        p.scores.r_mu[to] = r_mu;
        if (p.from.Sigma != nullptr) p.scores.r_sigma[to] = r_sigma;
      }
    }
  }
}

/// Blocks of the kernels over tiles of tokens.
inline std::int64_t score_tiles(const score_params& p) { return tiles_of(p.tokens, score_tile) * p.heads; }

/// Scores of the closed segments.
inline POLYSTATE_HIDDEN status launch_closed_scores(const char* name, const cuda_policy auto& exec, score_params p) {
  const int closed = p.scores.columns - (p.last_is_open ? 1 : 0);
  if (closed <= 0) return {};
  p.block_splits = static_cast<int>(tiles_of(closed, slots_per_block));
  const grid g{.blocks = score_tiles(p) * p.block_splits, .threads = score_threads};
  return launch(name, exec, g, routing_closed_scores_kernel<score_threads>, p);
}

/// dq' += e mu + f (Sigma + Sigma^T) q' over the closed segments, e and f the derivatives of mu.q' and q'^T Sigma q'.
/// A block has a tile of tokens, a moment head and 64 elements of dq'; threads as above.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_query_gradient_kernel(const __grid_constant__ score_params p) {
  static_assert(Threads == 16 * 16);
  __shared__ score_memory sm;
  const int tx = static_cast<int>(threadIdx.x) % 16;
  const int ty = static_cast<int>(threadIdx.x) / 16;
  const auto row_tiles = static_cast<unsigned>(tiles_of(p.dr, score_tile));
  const int i0 = static_cast<int>(blockIdx.x % row_tiles) * score_tile;
  const std::int64_t head = blockIdx.x / row_tiles % static_cast<unsigned>(p.heads);
  const std::int64_t t0 = std::int64_t{blockIdx.x / row_tiles / static_cast<unsigned>(p.heads)} * score_tile;
  load_score_tile(p, t0, sm);

  float d[4][4] = {};
  for (int slot = sm.low; slot < sm.high; ++slot) {
    if (!any_sees(sm, slot)) continue;
    const float factor = p.from.factor(slot);
    float sum[4][4] = {};
    if (p.from.Sigma != nullptr) {
      const float* const Sigma = p.from.Sigma_of(slot, head);
      for (int c0 = 0; c0 < p.dr; c0 += score_chunk) {
        stage_query<Threads>(p, t0, head, c0, sm);
        stage_Sigma<Threads>(p.from, Sigma, p.dr, i0, c0, !p.from.symmetric, sm);
        __syncthreads();
        multiply_chunk(sm, tx, ty, sum);
        __syncthreads();  // the chunk is used up
      }
    }
    const float twice = p.from.symmetric ? 2.0f * factor : factor;
    const float* const mu = p.from.mu_of(slot, head);
    float mean[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = i0 + tx + 16 * b;
      mean[b] = i < p.dr ? factor * mu[i * p.from.mu_strides[3]] : 0.0f;
    }
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      const int t = 4 * ty + a;
      if (sm.first[t] > slot || slot >= sm.end[t]) continue;
      const std::int64_t at = p.scores.at(t0 + t, p.heads, head) + (slot - sm.first[t]);
      const float e = p.scores.r_mu[at];
      const float f = p.from.Sigma != nullptr ? p.scores.r_sigma[at] : 0.0f;
#pragma unroll
      for (int b = 0; b < 4; ++b) d[a][b] += fmaf(e, mean[b], f * twice * sum[a][b]);
    }
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    if (t0 + 4 * ty + a >= p.tokens) continue;
    float* const to = p.d_query + ((t0 + 4 * ty + a) * p.heads + head) * p.query_pitch;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = i0 + tx + 16 * b;
      if (i < p.dr) to[i] = d[a][b];
    }
  }
}

/// The closed segments' part of dq'; 0 where a token sees none.
inline POLYSTATE_HIDDEN status launch_query_gradient(const char* name, const cuda_policy auto& exec,
                                                     const score_params& p) {
  const grid g{.blocks = score_tiles(p) * tiles_of(p.dr, score_tile), .threads = score_threads};
  return launch(name, exec, g, routing_query_gradient_kernel<score_threads>, p);
}

struct moment_gradient_params {
  segment_table table;
  const float* query = nullptr;  ///< [token][head][query_pitch]
  score_rows d_scores;
  float* d_states = nullptr;  ///< [slot][head][row][dr]
  bool adds = false;          ///< to what d_states holds
  std::int64_t slots = 0;
  std::int64_t heads = 0;
  std::int64_t max_visible = 0;
  int dr = 0;
  int query_pitch = 0;
  int rows = 0;
  int mu_row = 0;
};

/// dmu += e q', dSigma += f q' q'^T over the tokens that see a segment once it is closed. A block has a slot, a head
/// and 64 x 64 elements of Sigma; thread (tx, ty) has 4 x 4 of them.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_moment_gradient_kernel(const __grid_constant__ moment_gradient_params p) {
  static_assert(Threads == 16 * 16);
  constexpr int tile_tokens = 32;
  constexpr int pitch = score_tile + 4;
  __shared__ alignas(16) float rows[tile_tokens * pitch];     // f q', this block's rows
  __shared__ alignas(16) float columns[tile_tokens * pitch];  // q', this block's columns
  __shared__ float of_mu[tile_tokens];                        // e
  __shared__ float of_Sigma[tile_tokens];                     // f
  const int tid = static_cast<int>(threadIdx.x);
  const int tx = tid % 16;
  const int ty = tid / 16;
  const auto column_tiles = static_cast<unsigned>(tiles_of(p.dr, score_tile));
  const unsigned row_tiles = p.mu_row > 0 ? column_tiles : 1;
  const int c0 = static_cast<int>(blockIdx.x % column_tiles) * score_tile;
  const int i0 = static_cast<int>(blockIdx.x / column_tiles % row_tiles) * score_tile;
  const unsigned unit = blockIdx.x / column_tiles / row_tiles;
  const std::int64_t head = unit % static_cast<unsigned>(p.heads);
  const std::int64_t slot = unit / static_cast<unsigned>(p.heads);

  const std::int64_t behind = std::int64_t{p.table.last[slot]} + 1;
  const bool windowed = p.max_visible > 0 && slot + p.max_visible < behind;
  const std::int64_t end = p.table.begins[windowed ? slot + p.max_visible : behind];
  float sum[4][4] = {};
  float mu_sum = 0.0f;
  for (std::int64_t t0 = p.table.begins[slot + 1]; t0 < end; t0 += tile_tokens) {
    if (tid < tile_tokens) {
      float e = 0.0f;
      float f = 0.0f;
      if (t0 + tid < end) {
        const visible_slots v = p.table.visible[t0 + tid];
        if (v.first <= slot && slot < v.current) {  // not so where boundaries are no boundaries
          const std::int64_t at = p.d_scores.at(t0 + tid, p.heads, head) + (slot - v.first);
          e = p.d_scores.r_mu[at];
          f = p.mu_row > 0 ? p.d_scores.r_sigma[at] : 0.0f;
        }
      }
      of_mu[tid] = e;
      of_Sigma[tid] = f;
    }
    __syncthreads();
    for (int k = tid; k < tile_tokens * score_tile; k += Threads) {
      const int t = k / score_tile;
      const int c = k % score_tile;
      const bool there = t0 + t < end;
      const float* const q = p.query + ((t0 + t) * p.heads + head) * p.query_pitch;
      rows[t * pitch + c] = there && i0 + c < p.dr ? of_Sigma[t] * q[i0 + c] : 0.0f;
      columns[t * pitch + c] = there && c0 + c < p.dr ? q[c0 + c] : 0.0f;
    }
    __syncthreads();
    if (p.mu_row > 0) {
#pragma unroll 4
      for (int t = 0; t < tile_tokens; ++t) {
        const float4 x4 = *reinterpret_cast<const float4*>(rows + t * pitch + 4 * ty);
        const float4 y4 = *reinterpret_cast<const float4*>(columns + t * pitch + 4 * tx);
        const float x[4] = {x4.x, x4.y, x4.z, x4.w};
        const float y[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
        for (int a = 0; a < 4; ++a) {
#pragma unroll
          for (int b = 0; b < 4; ++b) sum[a][b] = fmaf(x[a], y[b], sum[a][b]);
        }
      }
    }
    if (i0 == 0 && tid < score_tile) {
      for (int t = 0; t < tile_tokens; ++t) mu_sum = fmaf(of_mu[t], columns[t * pitch + tid], mu_sum);
    }
    __syncthreads();  // the tile is used up
  }

  const float factor = 1.0f / p.table.divisor[slot];
  const bool empty = p.table.begins[slot] >= p.table.begins[slot + 1];  // its divisor may be 0
  float* const to = p.d_states + (slot * p.heads + head) * p.rows * p.dr;
  const auto store = [&](int row, int c, float x) {
    float& target = to[row * p.dr + c];
    const float gradient = empty ? 0.0f : factor * x;
    target = p.adds ? target + gradient : gradient;
  };
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (i0 + 4 * ty + a < p.mu_row && c0 + 4 * tx + b < p.dr) store(i0 + 4 * ty + a, c0 + 4 * tx + b, sum[a][b]);
    }
  }
  if (i0 != 0 || tid >= score_tile || c0 + tid >= p.dr) return;
  store(p.mu_row, c0 + tid, mu_sum);
  for (int row = p.mu_row + 1; row < p.rows; ++row) store(row, c0 + tid, 0.0f);
}

/// From the closed segments' score derivatives to those of the states at their ends.
inline POLYSTATE_HIDDEN status launch_moment_gradient(const char* name, const cuda_policy auto& exec,
                                                      const moment_gradient_params& p) {
  const std::int64_t tiles = tiles_of(p.dr, score_tile);
  const grid g{.blocks = p.slots * p.heads * tiles * (p.mu_row > 0 ? tiles : 1), .threads = score_threads};
  return launch(name, exec, g, routing_moment_gradient_kernel<score_threads>, p);
}

/// The open segment's score, and backwards its derivatives.
struct open_params {
  segment_table table;
  const float* query = nullptr;  ///< [token][head][query_pitch]
  const float* read = nullptr;   ///< [token][head][row]: S_t q', times the divisor
  score_rows scores;             ///< out; backwards their derivatives, in
  float* d_read = nullptr;       ///< [token][head][row], out
  float* d_query = nullptr;      ///< [token][head][query_pitch], added to
  bool counts = false;           ///< divide_by::count
  std::int64_t first = 0;        ///< of the table's tokens, the one that is number 0 here
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  int dr = 0;
  int query_pitch = 0;
  int rows = 0;
  int mu_row = 0;
};

inline constexpr int open_threads = 128;

/// A warp has a token and a moment head.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_open_scores_kernel(const __grid_constant__ open_params p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.tokens * p.heads) return;
  const std::int64_t token = row / p.heads;
  const float* const q = p.query + row * p.query_pitch;
  const float* const read = p.read + row * p.rows;
  float square = 0.0f;
  for (int i = lane; i < p.mu_row; i += 32) square = fmaf(q[i], read[i], square);
  square = recurrence::sum_in_group<32>(square);
  if (lane != 0) return;
  const float divisor = running_divisor(p.table, p.counts, p.first + token);
  const float r_mu = read[p.mu_row] / divisor;
  const visible_slots v = p.table.visible[p.first + token];
  const std::int64_t to = p.scores.at(token, p.heads, row % p.heads) + (v.current - v.first);
  p.scores.r_mu[to] = r_mu;
  if (p.mu_row > 0) p.scores.r_sigma[to] = fmaf(-r_mu, r_mu, square / divisor);
}

/// r = q'^T O + .., O = S q' / m:  dO = f q' / m, and for mu's row e / m;  dq' += f O / m. What S owes to q' comes from
/// the recurrence.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_open_gradient_kernel(const __grid_constant__ open_params p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.tokens * p.heads) return;
  const std::int64_t token = row / p.heads;
  const visible_slots v = p.table.visible[p.first + token];
  const std::int64_t at = p.scores.at(token, p.heads, row % p.heads) + (v.current - v.first);
  const float divisor = running_divisor(p.table, p.counts, p.first + token);
  const float e = p.scores.r_mu[at] / divisor;
  const float f = p.mu_row > 0 ? p.scores.r_sigma[at] / divisor : 0.0f;
  const float* const q = p.query + row * p.query_pitch;
  const float* const read = p.read + row * p.rows;
  for (int i = lane; i < p.rows; i += 32) {
    p.d_read[row * p.rows + i] = i < p.mu_row ? f * q[i] : (i == p.mu_row ? e : 0.0f);
    if (i < p.mu_row) p.d_query[row * p.query_pitch + i] += f * read[i];
  }
}

inline POLYSTATE_HIDDEN status launch_open_scores(const char* name, const cuda_policy auto& exec,
                                                  const open_params& p) {
  const grid g{.blocks = tiles_of(p.tokens * p.heads, open_threads / 32), .threads = open_threads};
  return launch(name, exec, g, routing_open_scores_kernel<open_threads>, p);
}
inline POLYSTATE_HIDDEN status launch_open_gradient(const char* name, const cuda_policy auto& exec,
                                                    const open_params& p) {
  const grid g{.blocks = tiles_of(p.tokens * p.heads, open_threads / 32), .threads = open_threads};
  return launch(name, exec, g, routing_open_gradient_kernel<open_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route
