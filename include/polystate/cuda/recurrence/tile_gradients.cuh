// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The gradients that need no walk, a tile of sixteen tokens of a head at a time. With S the state before the tile, G
/// the derivative of the one behind it, D as in chunk_system.cuh over the tile's tokens, u_t = write_t e_t and
/// w_t = write_t du_t (w = 0 in forms that do not erase):
///
///     dq_t = scale (D(t) S^T do_t + sum_{s<=t} D(t, s) (u_s.do_t) k_s)
///     dk_s = D(15, s) G^T u_s - D(s) S^T w_s + sum_{t>=s} scale D(t, s) (u_s.do_t) q_t
///            - sum_{t>s} D(t, s) (u_s.w_t) k_t - sum_{r<s} D(s, r) (u_r.w_s) k_r
///     dv_t = write_t du_t + skip do_t        dwrite_t = du_t.e_t
///
/// and dlog alpha_r is the sum, over all terms with a factor D that token r is part of, of the term times its
/// derivative. Products are made on tensor cores, in the accuracy of float.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/reverse.cuh>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/recurrence/work_items.hpp>
#include <polystate/cuda/tensor_core.cuh>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form>
struct tile_gradient_params {
  shared_operands in;
  Form form;
  work_items items;
  read_out_gradient d_o;
  const float* states = nullptr;  ///< what the walks recorded
  const float* d_states = nullptr;
  const float* error = nullptr;  ///< in forms that erase; else it is the value
  const float* d_written = nullptr;
  int rows = most_gradient_rows;  ///< of a state, that a block has at most
  int heads_together = 1;         ///< heads that a block works through one after the other; they share a group
  any_element_view<4> d_value;    ///< (B, T, heads, dv); may be absent
  // What a block's rows add to sums over rows, of the window's tokens; null where it is not wanted.
  float* d_query = nullptr;  ///< [row part][token][head][dk], of the normalised row
  float* d_key = nullptr;    ///< likewise
  float* d_gate = nullptr;   ///< [row part][token][head][2], of log alpha and of write
};

/// Rows of a tile's tokens in shared memory, for matrix products over their columns: of sixteen columns, those that a
/// thread's parts of two products take, c, c + 4, c + 8 and c + 12, lie together.
struct rows_of_four {
  POLYSTATE_HOST_DEVICE static constexpr int place(int column) {
    return column / 16 * 16 + column % 4 * 4 + column % 16 / 4;
  }
  /// For rows of `width` columns: without bank conflicts.
  POLYSTATE_HOST_DEVICE static constexpr int pitch_of(int width) {
    return static_cast<int>(tiles_of(width, 32)) * 32 + 16;
  }
};
template <int Padded>
struct key_rows : rows_of_four {
  static constexpr int pitch = pitch_of(Padded);
};

struct alignas(16) gradient_tile {
  static constexpr int T = record_tokens;
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;

  // [t][s]. Those that are left factors lie in rows_of_four's order.
  float products[4][T][T + 1];  ///< do_t.u_s, q_t.k_s, w_t.u_s, k_t.k_s
  float decay[T][T + 1];        ///< D(t, s), s <= t, else 0
  float pairs[T][T + 1];        ///< what the pairs of tokens add to the derivative of log D(t, s), s < t
  float by_query[T * T];        ///< of dq, over k
  float by_key[T * T];          ///< of dk, over q
  float among_keys[T * T];      ///< of dk, over k
  float alpha[T];
  float write[T];
  float from_start[T];  ///< D(t)
  float to_end[T];      ///< D(15, s)
  float of_write[T];
  float with_state[warps][T];  ///< what token t has to do with S
  float with_end[warps][T];    ///< what token s has to do with G
  float end_state[warps];      ///< <G, S>

  /// Columns of the states that a warp has at a time, in eights.
  POLYSTATE_HOST_DEVICE static constexpr int count(int padded) { return padded >= 128 ? 4 : padded / 32; }
  /// Behind it lie k, q, u, do, in forms that erase w, and of each warp sixteen rows of both states.
  POLYSTATE_HOST_DEVICE static std::size_t bytes(int padded, int dv, int most_rows, bool erases) {
    const int rows = recorded_rows(dv < most_rows ? dv : most_rows);
    const int floats = 2 * T * rows_of_four::pitch_of(padded) + (erases ? 3 : 2) * T * rows_of_four::pitch_of(rows) +
                       warps * 2 * count(padded) * 128;
    return sizeof(gradient_tile) + static_cast<std::size_t>(floats) * sizeof(float);
  }
  /// The most rows that shared memory takes, and no more than dv needs.
  [[nodiscard]] static int rows_within(int padded, bool erases, std::size_t shared_bytes) {
    int rows = most_gradient_rows;
    while (rows > least_gradient_rows && bytes(padded, rows, rows, erases) > shared_bytes) rows /= 2;
    return rows;
  }
};

/// Rows g and g + 8 of sixteen columns, as a thread's parts of two left factors; those of one row as a right one's.
struct sixteen_columns {
  float4 upper;
  float4 lower;

  /// `rows` at its columns' place in row 0.
  __device__ sixteen_columns(const float* rows, int pitch) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* const at = rows + lane / 4 * pitch + lane % 4 * 4;
    upper = *reinterpret_cast<const float4*>(at);
    lower = *reinterpret_cast<const float4*>(at + 8 * pitch);
  }
  __device__ void scale(float of_upper, float of_lower) {
    upper.x *= of_upper, upper.y *= of_upper, upper.z *= of_upper, upper.w *= of_upper;
    lower.x *= of_lower, lower.y *= of_lower, lower.z *= of_lower, lower.w *= of_lower;
  }
  [[nodiscard]] __device__ tf32_left first() const { return left_factor<true>(upper.x, lower.x, upper.z, lower.z); }
  [[nodiscard]] __device__ tf32_left second() const { return left_factor<true>(upper.y, lower.y, upper.w, lower.w); }
};

/// sums[j] += a b[j] over sixteen columns, b in the columns' order c, c + 8 and then c + 4, c + 12; the products are
/// added in float, rounded to the nearest, which a tensor core does not.
template <int Count>
__device__ void add_products(float (&sums)[Count][4], const sixteen_columns& a, const float (&first)[Count][2],
                             const float (&second)[Count][2]) {
  float of_these[Count][4] = {};
  multiply_add_all<false>(of_these, a.first(), first);
  multiply_add_all<false>(of_these, a.second(), second);
#pragma unroll
  for (int j = 0; j < Count; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] += of_these[j][i];
  }
}

/// to[t][s] = left row t . right row s, rows of `width` columns; a warp.
__device__ inline void multiply_tokens(const float* left, const float* right, int pitch, int width,
                                       float (&to)[record_tokens][record_tokens + 1]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[2][4] = {};
  for (int column = 0; column < width; column += 16) {
    const sixteen_columns a(left + column, pitch);
    const sixteen_columns b(right + column, pitch);
    add_products(sums, a, {{b.upper.x, b.upper.z}, {b.lower.x, b.lower.z}},
                 {{b.upper.y, b.upper.w}, {b.lower.y, b.lower.w}});
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[lane / 4 + i / 2 * 8][j * 8 + lane % 4 * 2 + i % 2] = sums[j][i];
  }
}

template <class Form, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(gradient_tile::threads, Form::erases ? 3 : 4)
    recurrence_tile_gradient_kernel(const __grid_constant__ tile_gradient_params<Form> p) {
  constexpr int T = gradient_tile::T;
  constexpr int warps = gradient_tile::warps;
  constexpr int threads = gradient_tile::threads;
  constexpr int key_pitch = key_rows<Padded>::pitch;
  extern __shared__ uint4 shared_memory[];
  gradient_tile& sm = *reinterpret_cast<gradient_tile*>(shared_memory);
  float* const k = reinterpret_cast<float*>(&sm + 1);
  float* const q = k + T * key_pitch;

  const shared_operands& in = p.in;
  const int tid = static_cast<int>(threadIdx.x);
  int warp = tid / 32;
  int lane = tid % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int dv = in.dv();
  const int dk = in.dk();
  const auto row_parts = static_cast<unsigned>(tiles_of(dv, p.rows));
  const auto row_part = blockIdx.x % row_parts;
  const int block_row = static_cast<int>(row_part) * p.rows;
  const int block_rows = min(p.rows, dv - block_row);
  const int rows = recorded_rows(block_rows);
  const int pitch = rows_of_four::pitch_of(rows);
  float* const u = q + T * key_pitch;
  float* const d_o = u + T * pitch;
  float* const w = d_o + T * pitch;
  const auto heads = static_cast<unsigned>(in.heads());
  const auto head_blocks = heads / static_cast<unsigned>(p.heads_together);
  const std::int64_t first_head = blockIdx.x / row_parts % head_blocks * static_cast<unsigned>(p.heads_together);
  const std::int64_t tile = blockIdx.x / row_parts / head_blocks;
  const std::int64_t item = p.items.item_of_tile(tile, T);
  const token_range tokens = p.items[item];
  const std::int64_t b = tokens.batch;
  const std::int64_t t0 = tokens.begin + (tile - p.items.first_tile(item, T)) * T;
  if (t0 >= tokens.end) return;
  const int n = static_cast<int>(tokens.end - t0 < T ? tokens.end - t0 : T);
  std::int64_t head = first_head;
  const auto row_of_token = [&](int t) { return p.items.token_index(b, t0 + t) * heads + head; };
  const std::int64_t parts_apart = p.items.token_count() * heads;
  const auto partial = [&](int t) { return row_part * parts_apart + row_of_token(t); };

  // A warp has `columns` of the states' columns at a time, and goes through their rows, of which the next sixteen are
  // always on their way.
  constexpr int count = gradient_tile::count(Padded);
  constexpr int columns = 8 * count;
  constexpr int of_state = count * 128;
  float* const staged = (Form::erases ? w : d_o) + T * pitch + warp * 2 * of_state;
  const auto fetch_states = [&](int column, int row) {
    const std::int64_t from =
        ((tile * heads + head) * recorded_rows(dv) + block_row + row) * Padded + column * 16 + lane * 4;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      __pipeline_memcpy_async(staged + i * 128 + lane * 4, p.states + from + i * 128, 16);
      __pipeline_memcpy_async(staged + of_state + i * 128 + lane * 4, p.d_states + from + i * 128, 16);
    }
    __pipeline_commit();
  };
  // A warp's tokens are warp, warp + 4, .., a lane's rows lane, lane + 32, ... What all loads bring is on its way
  // before the first is used: numbers stay as they lie in memory until then.
  constexpr int tokens_of_warp = T / warps;
  constexpr int rows_of_lane = Form::erases ? 4 : 2;
  std::uint32_t e_bits[tokens_of_warp][rows_of_lane];
  std::uint32_t d_o_bits[tokens_of_warp][rows_of_lane];
  float du[tokens_of_warp][rows_of_lane];
  const element_type e_type = Form::erases ? element_type::f32 : in.value.type();
  const element_type d_o_type = p.d_o.values.type();
  const auto for_values = [&](int first, auto&& f) {
#pragma unroll
    for (int i = 0; i < tokens_of_warp; ++i) {
#pragma unroll
      for (int j = 0; j < rows_of_lane; ++j) {
        f(i, j, warp + i * warps, first + 32 * j + lane);
      }
    }
  };
  const auto load_bits_of = [&](std::uint32_t(&bits)[tokens_of_warp][rows_of_lane], const any_element_view<4>& from,
                                std::int64_t from_token, int first) {
    const char* const base = from.address(b, from_token, head, block_row);
    const std::int64_t token_stride = from.stride(1);
    const std::int64_t row_stride = from.stride(3);
    const auto load = [&]<class Bits>(Bits) {
      for_values(first, [&](int i, int j, int t, int row) {
        const bool there = from.given() && t < n && row < block_rows;
        bits[i][j] = there ? reinterpret_cast<const Bits*>(base)[t * token_stride + row * row_stride] : Bits{};
      });
    };
    if (bytes_of(from.type()) == 4) {
      load(std::uint32_t{});
    } else {
      load(std::uint16_t{});
    }
  };
  const auto load_values = [&](int first) {
    for_values(first, [&](int i, int j, int t, int row) {
      const bool there = t < n && row < block_rows;
      const std::int64_t at = row_of_token(t) * dv + block_row + row;
      du[i][j] = there ? p.d_written[at] : 0.0f;
      if constexpr (Form::erases) e_bits[i][j] = there ? __float_as_uint(p.error[at]) : 0u;
    });
    if constexpr (!Form::erases) load_bits_of(e_bits, in.value, t0, first);
    load_bits_of(d_o_bits, p.d_o.values, t0 - p.d_o.first, first);
  };
#pragma unroll 1
  for (; head < first_head + p.heads_together; ++head) {
    if (head > first_head) __syncthreads();  // what the head before left is used up
    // To the compiler these change: else it would keep all addresses made from them in registers, from head to head.
    asm volatile("" : "+r"(warp), "+r"(lane));
    if (warp * columns < dk) fetch_states(warp * columns, 0);
    load_values(0);
    if (tid < T) {
      gate own = {1.0f, 0.0f};
      if (tid < n) own = p.form.gate_of(p.form.load_gate(b, t0 + tid, head), p.form.numbers_of(head));
      sm.alpha[tid] = own.alpha;
      sm.write[tid] = own.write;
    }
    if (head == first_head) {
      const std::int64_t group = in.group_of(head);
      constexpr int together = Padded <= 128 ? T / warps : 512 / Padded;  // rows whose loads are under way at once
      stage_rows<Padded, threads, key_rows<Padded>, together>(in.key, in, b, t0, group, n, T, k);
      stage_rows<Padded, threads, key_rows<Padded>, together>(in.query, in, b, t0, group, n, T, q);
    }
    __syncthreads();

    float of_write[tokens_of_warp] = {};
#pragma unroll 1
    for (int first = 0; first < rows; first += 32 * rows_of_lane) {
      if (first > 0) load_values(first);
      for_values(first, [&](int i, int j, int t, int row) {
        if (row >= rows) return;
        const float write = sm.write[t];
        const float e = from_bits(e_bits[i][j], e_type);
        const float d_out = from_bits(d_o_bits[i][j], d_o_type);
        const int place = t * pitch + rows_of_four::place(row);
        of_write[i] = fmaf(du[i][j], e, of_write[i]);
        u[place] = write * e;
        if constexpr (Form::erases) w[place] = write * du[i][j];
        d_o[place] = d_out;
        if (!p.d_value.given() || t >= n || row >= block_rows) return;
        float d_value = write * du[i][j];
        if constexpr (Form::finishes) d_value = fmaf(p.form.skip_of(head, block_row + row), d_out, d_value);
        p.d_value.store(d_value, b, t0 + t, head, block_row + row);
      });
    }
#pragma unroll
    for (int i = 0; i < tokens_of_warp; ++i) {
      const float sum = sum_in_group<32>(of_write[i]);
      if (lane == 0) sm.of_write[warp + i * warps] = sum;
    }
    float alpha[T];
#pragma unroll
    for (int r = 0; r < T; ++r) alpha[r] = sm.alpha[r];
#pragma unroll 1
    for (int i = tid; i < T * T; i += threads) {
      const int t = i / T;
      const int s = i % T;
      float between = s <= t ? 1.0f : 0.0f;
#pragma unroll
      for (int r = 1; r < T; ++r) between *= r > s && r <= t ? alpha[r] : 1.0f;
      sm.decay[t][s] = between;
      if (t == T - 1) sm.to_end[s] = between;
      if (s == 0) sm.from_start[t] = between * alpha[0];
    }
    __syncthreads();
    if (warp == 0) multiply_tokens(d_o, u, pitch, rows, sm.products[0]);
    if (warp == 1 && head == first_head) multiply_tokens(q, k, key_pitch, Padded, sm.products[1]);
    if constexpr (Form::erases) {
      if (warp == 2) multiply_tokens(w, u, pitch, rows, sm.products[2]);
      if (warp == 3 && head == first_head) multiply_tokens(k, k, key_pitch, Padded, sm.products[3]);
    }
    __syncthreads();
    for (int i = tid; i < T * T; i += threads) {
      const int t = i / T;
      const int s = i % T;
      // Where t comes before s it is not the zero of D that makes nothing of the product, which may not be finite.
      const float read = s <= t ? in.scale * sm.decay[t][s] * sm.products[0][t][s] : 0.0f;
      float pair = read * sm.products[1][t][s];
      if constexpr (Form::erases) {
        const int late = t > s ? t : s;
        const int early = t > s ? s : t;
        const float erased = late != early ? -sm.decay[late][early] * sm.products[2][late][early] : 0.0f;
        sm.among_keys[t * T + rows_of_four::place(s)] = erased;
        pair = fmaf(erased, sm.products[3][t][s], pair);
      }
      sm.by_query[t * T + rows_of_four::place(s)] = read;
      sm.by_key[s * T + rows_of_four::place(t)] = read;
      sm.pairs[t][s] = s < t ? pair : 0.0f;
    }
    __syncthreads();

    const float read_by[2] = {in.scale * sm.from_start[g], in.scale * sm.from_start[g + 8]};
    const float erased_by[2] = {-sm.from_start[g], -sm.from_start[g + 8]};
    const float kept_by[2] = {sm.to_end[g], sm.to_end[g + 8]};
    float with_state[2] = {};  // of tokens g and g + 8
    float with_end[2] = {};
    float end_state = 0.0f;
#pragma unroll 1
    for (int column = warp * columns; column < dk; column += warps * columns) {
      float dq[count][4] = {};
      float dk_of_state[count][4] = {};
      float dk_of_end[count][4] = {};
#pragma unroll 1
      for (int row = 0; row < rows; row += 16) {
        float S[2][count][2];
        float G[2][count][2];
        __pipeline_wait_prior(0);
        __syncwarp();
        // Of rows c and c + 8 in column g; rows c + 4 and c + 12 lie 64 floats behind.
        const float* const state = staged + c * 16 + g * 2;
#pragma unroll
        for (int j = 0; j < count; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float2 x = *reinterpret_cast<const float2*>(state + j * 128 + i * 64);
            const float2 y = *reinterpret_cast<const float2*>(state + of_state + j * 128 + i * 64);
            S[i][j][0] = x.x, S[i][j][1] = x.y;
            G[i][j][0] = y.x, G[i][j][1] = y.y;
          }
        }
        __syncwarp();
        if (row + 16 < rows) {
          fetch_states(column, row + 16);
        } else if (column + warps * columns < dk) {
          fetch_states(column + warps * columns, 0);
        }
        sixteen_columns of_read(d_o + row, pitch);
        of_read.scale(read_by[0], read_by[1]);
        add_products(dq, of_read, S[0], S[1]);
        if constexpr (Form::erases) {
          sixteen_columns of_erased(w + row, pitch);
          of_erased.scale(erased_by[0], erased_by[1]);
          add_products(dk_of_state, of_erased, S[0], S[1]);
        }
        sixteen_columns of_written(u + row, pitch);
        of_written.scale(kept_by[0], kept_by[1]);
        add_products(dk_of_end, of_written, G[0], G[1]);
#pragma unroll
        for (int j = 0; j < count; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) end_state = fmaf(S[i / 2][j][i % 2], G[i / 2][j][i % 2], end_state);
        }
      }
      // The sums of tokens g and g + 8 are those of columns 2c and 2c + 1.
#pragma unroll
      for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (g + i / 2 * 8) * key_pitch + rows_of_four::place(column + j * 8 + 2 * c + i % 2);
          with_state[i / 2] = fmaf(dq[j][i], q[at], with_state[i / 2]);
          if constexpr (Form::erases) with_state[i / 2] = fmaf(dk_of_state[j][i], k[at], with_state[i / 2]);
          with_end[i / 2] = fmaf(dk_of_end[j][i], k[at], with_end[i / 2]);
          dk_of_end[j][i] += dk_of_state[j][i];
        }
      }
      float of_keys[2][count][2];
      float of_queries[2][count][2];
#pragma unroll
      for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = c + i / 2 * 4 + i % 2 * 8;
          const int at = t * key_pitch + rows_of_four::place(column + j * 8 + g);
          of_keys[i / 2][j][i % 2] = k[at];
          of_queries[i / 2][j][i % 2] = q[at];
        }
      }
      add_products(dq, sixteen_columns(sm.by_query, T), of_keys[0], of_keys[1]);
      add_products(dk_of_end, sixteen_columns(sm.by_key, T), of_queries[0], of_queries[1]);
      if constexpr (Form::erases) {
        add_products(dk_of_end, sixteen_columns(sm.among_keys, T), of_keys[0], of_keys[1]);
      }
      const auto store = [&](float* to, const float(&sums)[count][4]) {
        if (to == nullptr) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int t = g + half * 8;
          if (t >= n) continue;
          float* const row = to + partial(t) * dk;
#pragma unroll
          for (int j = 0; j < count; ++j) {
            const int at = column + j * 8 + 2 * c;
            if (dk % 2 == 0) {
              if (at < dk) *reinterpret_cast<float2*>(row + at) = make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
            } else {
              if (at < dk) row[at] = sums[j][2 * half];
              if (at + 1 < dk) row[at + 1] = sums[j][2 * half + 1];
            }
          }
        }
      };
      store(p.d_query, dq);
      store(p.d_key, dk_of_end);
    }
    if (p.d_gate == nullptr) continue;

#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int apart = 2; apart > 0; apart /= 2) {
        with_state[half] += __shfl_xor_sync(0xffffffffu, with_state[half], apart);
        with_end[half] += __shfl_xor_sync(0xffffffffu, with_end[half], apart);
      }
      if (c == 0) {
        sm.with_state[warp][g + half * 8] = with_state[half];
        sm.with_end[warp][g + half * 8] = with_end[half];
      }
    }
    end_state = sum_in_group<32>(end_state);
    if (lane == 0) sm.end_state[warp] = end_state;
    __syncthreads();
    // The decay of token r is in every D that reaches from before r to r or beyond: of pairs s < r <= t, of tokens from
    // r on with S, of those before r with G, and of S with G. Sixteen threads have one r.
    static_assert(threads % T == 0 && 32 % T == 0);
    for (int i = tid; i < T * T; i += threads) {
      const int r = i / T;
      const int s = i % T;
      float x = 0.0f;
#pragma unroll
      for (int t = 0; t < T; ++t) x += s < r && r <= t ? sm.pairs[t][s] : 0.0f;
#pragma unroll
      for (int from = 0; from < warps; ++from) x += s < r ? sm.with_end[from][s] : sm.with_state[from][s];
      x = sum_in_group<T>(x);
      if (s != 0 || r >= n) continue;
#pragma unroll
      for (int from = 0; from < warps; ++from) x = fmaf(sm.from_start[T - 1], sm.end_state[from], x);
      *reinterpret_cast<float2*>(p.d_gate + partial(r) * 2) = make_float2(x, sm.of_write[r]);
    }
  }
}

/// Enqueues the gradients of all tiles. `Shapes` are those that may be met.
template <class Shapes, class Form>
POLYSTATE_HIDDEN status launch_tile_gradients(const char* name, const on_cuda& exec, tile_gradient_params<Form> p) {
  return with_padded<Shapes>(name, p.in.dk(), [&](auto padded) {
    const std::int64_t heads = p.in.heads();
    const std::int64_t parts = p.items.tiles(gradient_tile::T) * tiles_of(p.in.dv(), p.rows);
    p.heads_together =
        choose_heads_together(parts * heads, heads / p.in.key.extent(2), limits_of(exec).multiprocessors);
    const grid g{.blocks = parts * (heads / p.heads_together),
                 .threads = gradient_tile::threads,
                 .shared_bytes = gradient_tile::bytes(padded, p.in.dv(), p.rows, Form::erases)};
    return launch(name, exec, g, recurrence_tile_gradient_kernel<Form, padded>, p);
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
