// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Backward kernels of the recurrences with matrix states. The forward pass over a window of tokens is run again and
/// keeps a state a tile; then the tiles are walked backwards, four tokens at a time: with S the state at a chunk's
/// start and G the derivative of the state at its end, all that the four tokens need are products with S and G and what
/// they do to each other. docs/gated_delta_rule.md derives it.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form>
struct backward_params {
  shared_operands in;  ///< its `out` is the output's derivative; may be absent
  Form form;
  work_items items;
  any_element_view<4> d_final_state, d_initial_state;  ///< (items, heads, dv, dk)
  any_element_view<4> carry_in, carry_out;             ///< (carried, heads, dv, dk)
  recording record;
  any_element_view<4> d_value, d_z;  ///< (B, T, heads, dv)
  // What a block's rows add to sums over rows, [row tile][token][head]..; null where it is not wanted.
  float* d_query = nullptr;  ///< [dk], of the normalised row
  float* d_key = nullptr;    ///< [dk], likewise
  float* d_gate = nullptr;   ///< of log alpha and of write
  float* d_skip = nullptr;   ///< [item][head][dv], added up over the windows
};

/// Row arrays of a tile in shared memory: the four tokens of a chunk lie together.
template <int Padded>
struct alignas(16) backward_tile {
  static constexpr split Split = split_over_time(Padded);
  static constexpr int T = tile_tokens(Padded);
  static constexpr int chunks = T / chunk_tokens;
  static constexpr int rows = Split.block_rows();
  static constexpr int sums = 32;

  float k[T * Padded];
  float q[T * Padded];
  float columns[split::warps][chunk_tokens * Padded];
  float4 value[chunks * rows];
  float4 z[chunks * rows];
  float4 d_out[chunks * rows];
  float4 error[chunks * rows];
  float4 erased[chunks * rows];
  float4 read[chunks * rows];
  float4 written[chunks * rows];  ///< end(s) u_s
  float4 by_out[rows];            ///< scale D(t) do_t
  float4 by_write[rows];          ///< -D(t) write_t du_t in forms that erase
  chunk_numbers chunk[chunks];
  float alpha[T];
  float write[T];
  float dots[split::warps][Split.warp_rows() * chunk_tokens];
  float sum[split::warps][sums];
};

/// The sums over a block's rows that a chunk needs, by their place among the 32 that the lanes of a warp end with.
struct row_sums {
  static constexpr int M = chunk_tokens;
  static constexpr int of_write = 0;                               ///< du_t . e_t
  static constexpr int write_out = of_write + M;                   ///< u_s . do_t, s <= t, at upto(t, s)
  static constexpr int write_write = write_out + M * (M + 1) / 2;  ///< u_s . write_t du_t, s < t, at below(t, s)
  static constexpr int write_end = write_write + M * (M - 1) / 2;  ///< u_s . G k_s
  static constexpr int with_state = write_end + M;                 ///< what token t has to do with S
  static constexpr int end_state = with_state + M;                 ///< <G, S>
  static constexpr int count = 32;
  static_assert(end_state < count);
};

/// Sums a[4 t + i], the products of a thread's rows, over the groups of a warp. A thread ends with Count * Lanes / 32
/// of the sums, from the returned index on.
template <int Lanes, int Apart, int Left, int Count>
__device__ int sum_over_groups(float (&a)[Count], int lane_of_warp) {
  if constexpr (Apart < Lanes) {
    return 0;
  } else {
    constexpr int half_of_them = Left / 2;
    const bool upper = (lane_of_warp & Apart) != 0;
#pragma unroll
    for (int i = 0; i < half_of_them; ++i) {
      const float give = upper ? a[i] : a[i + half_of_them];
      const float keep = upper ? a[i + half_of_them] : a[i];
      a[i] = keep + __shfl_xor_sync(0xffffffffu, give, Apart);
    }
    return (upper ? half_of_them : 0) + sum_over_groups<Lanes, Apart / 2, half_of_them>(a, lane_of_warp);
  }
}

/// columns[t][c] = sum over a warp's rows of w[r][t] S[r][c] (+ x[r][t] G[r][c])
template <int Lanes, bool Two, int Columns, int Rows>
__device__ void multiply_columns(const float (&S)[Rows][Columns], const float4 (&w)[Rows],
                                 const float (&G)[Rows][Columns], const float4 (&x)[Rows], int lane, int lane_of_warp,
                                 float* columns) {
  constexpr int M = chunk_tokens;
  constexpr int padded = Lanes * Columns;
  constexpr int kept = 4 * M * Lanes / 32;
  static_assert(kept % 4 == 0);
#pragma unroll
  for (int j = 0; j < Columns; j += 4) {
    float a[4 * M];
#pragma unroll
    for (int i = 0; i < 4 * M; ++i) a[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const float by[M] = {w[r].x, w[r].y, w[r].z, w[r].w};
      const float by_G[M] = {x[r].x, x[r].y, x[r].z, x[r].w};
#pragma unroll
      for (int t = 0; t < M; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[4 * t + i] = fmaf(by[t], S[r][j + i], a[4 * t + i]);
          if constexpr (Two) a[4 * t + i] = fmaf(by_G[t], G[r][j + i], a[4 * t + i]);
        }
      }
    }
    const int first = sum_over_groups<Lanes, 16, 4 * M>(a, lane_of_warp);
#pragma unroll
    for (int i = 0; i < kept; i += 4) {
      *reinterpret_cast<float4*>(columns + (first + i) / 4 * padded + j * Lanes + lane * 4) =
          make_float4(a[i], a[i + 1], a[i + 2], a[i + 3]);
    }
  }
}

template <int M>
__device__ void unpack(const float4& from, float (&to)[M]) {
  static_assert(M == 4);
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

template <class Form, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(split::threads, 2)
    recurrence_bwd_kernel(const __grid_constant__ backward_params<Form> p) {
  using Tile = backward_tile<Padded>;
  constexpr split Split = Tile::Split;
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = split::rows;
  constexpr int M = chunk_tokens;
  constexpr int threads = split::threads;
  constexpr int warps = split::warps;
  constexpr int warp_rows = Split.warp_rows();
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const shared_operands& in = p.in;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane_of_warp = tid % 32;
  const int lane = tid % L;
  const int dv = in.dv();
  const int dk = in.dk();
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, Tile::rows));
  const auto row_tile = blockIdx.x % row_tiles;
  const int block_row = static_cast<int>(row_tile) * Tile::rows;
  const int block_rows = min(Tile::rows, dv - block_row);
  const auto heads = static_cast<unsigned>(in.heads());
  const std::int64_t head = blockIdx.x / row_tiles % heads;
  const std::int64_t item = blockIdx.x / row_tiles / heads;
  if (!p.items.active(item)) return;
  const token_range tokens = p.items[item];
  const std::int64_t b = tokens.batch;
  const std::int64_t group = in.group_of(head);
  const int first_row = warp * warp_rows + lane_of_warp / L * R;  // of the block's rows, this thread's
  const int own_row = warp * warp_rows + lane_of_warp;            // the one whose four tokens this thread solves
  const bool solves = lane_of_warp < warp_rows && own_row < block_rows;
  const head_numbers numbers = p.form.numbers_of(head);
  // Of the window's tokens, summed over row tiles later.
  const std::int64_t window_tokens = p.items.token_count();
  const auto partial = [&](std::int64_t t) {
    return (row_tile * window_tokens + p.items.token_index(b, t)) * heads + head;
  };

  float G[R][C];
  const bool ends = p.items.ends(item);
  load_rows<L>(G, ends ? p.d_final_state : p.carry_in, ends ? item : p.items.carry_row(item), head,
               block_row + first_row, dv, dk, lane);

  float skip_sum = 0.0f;
  for (std::int64_t tile = tiles_of(tokens.size(), Tile::T) - 1; tile >= 0; --tile) {
    const std::int64_t t0 = tokens.begin + tile * Tile::T;
    const int n = static_cast<int>(tokens.end - t0 < Tile::T ? tokens.end - t0 : Tile::T);
    __syncthreads();  // the tile before is used up
    stage_rows<Padded, threads>(in.key, in, b, t0, group, n, Tile::T, sm.k);
    stage_rows<Padded, threads>(in.query, in, b, t0, group, n, Tile::T, sm.q);
    for (int i = tid; i < Tile::T * Tile::rows; i += threads) {
      const int t = i / Tile::rows;
      const int row = i % Tile::rows;
      const bool real = t < n && row < block_rows;
      const int at = (t / M * Tile::rows + row) * M + t % M;
      const std::int64_t of = (p.items.token_index(b, t0 + t) * heads + head) * dv + block_row + row;
      const auto put = [&](float4* array, float x) { reinterpret_cast<float*>(array)[at] = x; };
      put(sm.value, real ? in.value.load(b, t0 + t, head, block_row + row) : 0.0f);
      put(sm.z, real && in.z.given() ? in.z.load(b, t0 + t, head, block_row + row) : 0.0f);
      put(sm.d_out, real && in.out.given() ? in.out.load(b, t0 + t, head, block_row + row) : 0.0f);
      put(sm.read, real ? p.record.read[of] : 0.0f);
      if constexpr (Form::erases) {
        put(sm.error, real ? p.record.error[of] : 0.0f);
        put(sm.erased, real ? p.record.erased[of] : 0.0f);
      }
    }
    if (tid < Tile::T) {
      const gate g = tid < n ? p.form.gate_of(p.form.load_gate(b, t0 + tid, head), numbers) : gate{1.0f, 0.0f};
      sm.alpha[tid] = g.alpha;
      sm.write[tid] = g.write;
    }
    __syncthreads();
    fill_chunks<Form::erases, Padded, Tile::chunks, threads>(sm.k, sm.q, sm.alpha, sm.write, in.scale, sm.chunk);
    __syncthreads();
    const auto error_of = [&](int chunk, int row) {
      if constexpr (Form::erases) {
        return sm.error[chunk * Tile::rows + row];
      } else {
        return sm.value[chunk * Tile::rows + row];
      }
    };
    for (int i = tid; i < Tile::chunks * Tile::rows; i += threads) {
      const chunk_numbers& c = sm.chunk[i / Tile::rows];
      const float4 e = error_of(i / Tile::rows, i % Tile::rows);
      sm.written[i] = make_float4(c.end[0] * (c.write[0] * e.x), c.end[1] * (c.write[1] * e.y),
                                  c.end[2] * (c.write[2] * e.z), c.end[3] * (c.write[3] * e.w));
    }
    __syncthreads();

    const auto of_row = [&](const float4* array, float4(&w)[R]) {
#pragma unroll
      for (int r = 0; r < R; ++r) w[r] = array[first_row + r];
    };
    const std::int64_t recorded = p.items.first_tile(item, Tile::T) + tile;
    const float* const states =
        p.record.states + ((recorded * heads + head) * row_tiles + row_tile) * (std::int64_t{Tile::rows} * Padded) +
        place_in_record(Padded, first_row, 0);
#pragma unroll 1
    for (int chunk = (n - 1) / M; chunk >= 0; --chunk) {
      const chunk_numbers& c = sm.chunk[chunk];
      const float* const k = sm.k + chunk * M * Padded;
      const float* const q = sm.q + chunk * M * Padded;
      const float* const keys[M] = {k, k + Padded, k + 2 * Padded, k + 3 * Padded};
      const float* const queries[M] = {q, q + Padded, q + 2 * Padded, q + 3 * Padded};

      float S[R][C];  // at the chunk's start
#pragma unroll
      for (int r = 0; r < R; ++r) {
        // A thread's four rows are of the same eight. Nobody records rows beyond the last.
        const float* const row = states + place_in_record(Padded, r, lane * 4);
#pragma unroll
        for (int i = 0; i < C; ++i) {
          S[r][i] = first_row + r < block_rows ? row[place_in_record(Padded, 0, i / 4 * (L * 4) + i % 4)] : 0.0f;
        }
      }
#pragma unroll 1
      for (int before = 0; before < chunk; ++before) {
        const float* const x = sm.k + before * M * Padded;
        const float* const rows[M] = {x, x + Padded, x + 2 * Padded, x + 3 * Padded};
        float4 w[R];
        of_row(sm.written + before * Tile::rows, w);
        add_rows<L>(S, sm.chunk[before].decay[M - 1], w, rows, lane);
      }

      {
        float dots[R * M];  // G k_s
        multiply_rows<L>(G, keys, lane, dots);
        constexpr int kept = R * M >= L ? R * M / L : 1;
        constexpr int copies = R * M >= L ? 1 : L / (R * M);
        const int first = (lane_of_warp / L * R) * M + sum_over_lanes<L>(dots, lane);
        if (lane % copies == 0) {
#pragma unroll
          for (int i = 0; i < kept; ++i) sm.dots[warp][first + i] = dots[i];
        }
      }
      __syncwarp();

      float sums[row_sums::count];
#pragma unroll
      for (int i = 0; i < row_sums::count; ++i) sums[i] = 0.0f;
      if (lane_of_warp < warp_rows) {
        const int at = chunk * Tile::rows + own_row;
        float Gk[M], v[M], z[M], d_out[M], e[M], read[M], erased[M], u[M], d_o[M], du[M], w[M];
        unpack(*reinterpret_cast<const float4*>(&sm.dots[warp][lane_of_warp * M]), Gk);
        unpack(sm.value[at], v);
        unpack(sm.z[at], z);
        unpack(sm.d_out[at], d_out);
        unpack(sm.read[at], read);
        unpack(error_of(chunk, own_row), e);
        if constexpr (Form::erases) unpack(sm.erased[at], erased);
        output_gradient d[M];
#pragma unroll
        for (int t = 0; t < M; ++t) {
          u[t] = c.write[t] * e[t];
          float o = read[t];
#pragma unroll
          for (int s = 0; s <= t; ++s) o = fmaf(c.query_key[chunk_numbers::upto(t, s)], u[s], o);
          d[t] = {.d_o = 0.0f, .d_value = 0.0f, .d_z = 0.0f, .d_skip = 0.0f};
          if (solves) d[t] = p.form.finish_backward(o, v[t], z[t], d_out[t], head, block_row + own_row);
          d_o[t] = d[t].d_o;
          skip_sum += d[t].d_skip;
        }
#pragma unroll
        for (int s = M - 1; s >= 0; --s) {
          float x = c.end[s] * Gk[s];
#pragma unroll
          for (int t = s; t < M; ++t) {
            x = fmaf(c.query_key[chunk_numbers::upto(t, s)], d_o[t], x);
            if constexpr (Form::erases) {
              if (t > s) x = fmaf(-c.key_key[chunk_numbers::below(t, s)], w[t], x);
            }
          }
          du[s] = x;
          w[s] = c.write[s] * x;
        }
#pragma unroll
        for (int t = 0; t < M; ++t) {
          sums[row_sums::of_write + t] = du[t] * e[t];
          sums[row_sums::write_end + t] = u[t] * Gk[t];
          sums[row_sums::with_state + t] = d_o[t] * read[t];
          if constexpr (Form::erases) sums[row_sums::with_state + t] -= w[t] * erased[t];
#pragma unroll
          for (int s = 0; s <= t; ++s) {
            sums[row_sums::write_out + chunk_numbers::upto(t, s)] = u[s] * d_o[t];
            if constexpr (Form::erases) {
              if (s < t) sums[row_sums::write_write + chunk_numbers::below(t, s)] = u[s] * w[t];
            }
          }
          if (!solves || chunk * M + t >= n) continue;
          const std::int64_t time = t0 + chunk * M + t;
          if (p.d_value.given()) p.d_value.store(w[t] + d[t].d_value, b, time, head, block_row + own_row);
          if (p.d_z.given()) p.d_z.store(d[t].d_z, b, time, head, block_row + own_row);
        }
        sm.by_out[own_row] =
            make_float4(c.read[0] * d_o[0], c.read[1] * d_o[1], c.read[2] * d_o[2], c.read[3] * d_o[3]);
        sm.by_write[own_row] =
            Form::erases ? make_float4(-c.decay[0] * w[0], -c.decay[1] * w[1], -c.decay[2] * w[2], -c.decay[3] * w[3])
                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      if (p.d_gate != nullptr) {
        float product = 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int i = 0; i < C; ++i) product = fmaf(G[r][i], S[r][i], product);
        }
        sums[row_sums::end_state] = product;
      }
      const int which = sum_over_lanes<32>(sums, lane_of_warp);
      sm.sum[warp][which] = sums[0];
      __syncwarp();

      const auto sum_of = [&](int i) {
        float x = 0.0f;
#pragma unroll
        for (int w = 0; w < warps; ++w) x += sm.sum[w][i];
        return x;
      };
      const auto decay_between = [&](int t, int s) {  // D(t, s)
        float x = 1.0f;
        for (int r = s + 1; r <= t; ++r) x *= sm.alpha[chunk * M + r];
        return x;
      };
      // Four columns of a token at a time: the block's rows' products with S and G, and what the tokens of the chunk
      // owe each other.
      const auto finish_rows = [&](float* to, auto&& rest) {
        __syncthreads();
        for (int i = tid; i < M * (Padded / 4); i += threads) {
          const int t = i / (Padded / 4);
          const int column = i % (Padded / 4) * 4;
          if (chunk * M + t >= n || column >= dk) continue;
          float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          const auto add = [&](float factor, const float* row) {
            const float4 y = *reinterpret_cast<const float4*>(row + column);
            x[0] = fmaf(factor, y.x, x[0]);
            x[1] = fmaf(factor, y.y, x[1]);
            x[2] = fmaf(factor, y.z, x[2]);
            x[3] = fmaf(factor, y.w, x[3]);
          };
#pragma unroll
          for (int w = 0; w < warps; ++w) add(1.0f, sm.columns[w] + t * Padded);
          rest(t, add);
          float* const target = to + partial(t0 + chunk * M + t) * dk + column;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (column + j < dk) target[j] = x[j];
          }
        }
        __syncthreads();
      };
      float4 by_out[R];
      float4 by_write[R];
      of_row(sm.by_out, by_out);
      of_row(sm.by_write, by_write);
      if (p.d_query != nullptr) {
        multiply_columns<L, false>(S, by_out, S, by_out, lane, lane_of_warp, sm.columns[warp]);
        finish_rows(p.d_query, [&](int t, auto&& add) {
          for (int s = 0; s <= t; ++s) {
            add(in.scale * decay_between(t, s) * sum_of(row_sums::write_out + chunk_numbers::upto(t, s)),
                k + s * Padded);
          }
        });
      }
      if (p.d_key != nullptr) {
        float4 written[R];
        of_row(sm.written + chunk * Tile::rows, written);
        if constexpr (Form::erases) {
          multiply_columns<L, true>(S, by_write, G, written, lane, lane_of_warp, sm.columns[warp]);
        } else {
          multiply_columns<L, false>(G, written, G, written, lane, lane_of_warp, sm.columns[warp]);
        }
        finish_rows(p.d_key, [&](int s, auto&& add) {
          for (int t = s; t < M; ++t) {
            add(in.scale * decay_between(t, s) * sum_of(row_sums::write_out + chunk_numbers::upto(t, s)),
                q + t * Padded);
          }
          if constexpr (Form::erases) {
            for (int t = s + 1; t < M; ++t) {
              add(-decay_between(t, s) * sum_of(row_sums::write_write + chunk_numbers::below(t, s)), k + t * Padded);
            }
            for (int r = 0; r < s; ++r) {
              add(-decay_between(s, r) * sum_of(row_sums::write_write + chunk_numbers::below(s, r)), k + r * Padded);
            }
          }
        });
      }
      if (p.d_gate != nullptr) {
        __syncthreads();  // the sums
        if (tid < M && chunk * M + tid < n) {
          const int r = tid;
          // The decay of token r is in every D that reaches from before r to r or beyond.
          float x = c.decay[M - 1] * sum_of(row_sums::end_state);
          for (int s = 0; s < r; ++s) x = fmaf(c.end[s], sum_of(row_sums::write_end + s), x);
          for (int t = r; t < M; ++t) {
            x += sum_of(row_sums::with_state + t);
            for (int s = 0; s < r; ++s) {
              const int upto = chunk_numbers::upto(t, s);
              x = fmaf(c.query_key[upto], sum_of(row_sums::write_out + upto), x);
              if constexpr (Form::erases) {
                const int below = chunk_numbers::below(t, s);
                x = fmaf(-c.key_key[below], sum_of(row_sums::write_write + below), x);
              }
            }
          }
          float* const to = p.d_gate + partial(t0 + chunk * M + r) * 2;
          to[0] = x;
          to[1] = sum_of(row_sums::of_write + r);
        }
        __syncthreads();
      }
      add_rows<L>(G, c.decay[M - 1], by_out, queries, lane);
      if constexpr (Form::erases) add_rows<L>(G, 1.0f, by_write, keys, lane);
    }
  }

  const bool starts = p.items.starts(item);
  const any_element_view<4>& to = starts ? p.d_initial_state : p.carry_out;
  if (to.given()) {
    store_rows<L>(G, to, starts ? item : p.items.carry_row(item), head, block_row + first_row, dv, dk, lane);
  }
  if (p.d_skip != nullptr && solves) p.d_skip[(item * heads + head) * dv + block_row + own_row] += skip_sum;
}

/// From the row tiles' parts of dq and dk to the operands' gradients: summed over the heads of a group, and through the
/// normalisation. A warp has one row of one of the two.
struct row_gradient_params {
  shared_operands in;
  const float* part[2] = {};           ///< of query and key; null where not wanted
  any_element_view<4> d_query, d_key;  ///< (B, T, groups, dk)
  work_items items;
  std::int64_t batch = 0;
  std::int64_t row_tiles = 0;
};

template <int Threads>  // a template, so that units share it
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    recurrence_row_gradient_kernel(const __grid_constant__ row_gradient_params p) {
  constexpr int most = 512 / 32;
  const shared_operands& in = p.in;
  const int dk = in.dk();
  const std::int64_t groups = in.key.extent(2);
  const std::int64_t heads = in.heads();
  const std::int64_t shared = heads / groups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (Threads / 32) + static_cast<int>(threadIdx.x) / 32;
  const std::int64_t tokens = p.items.last() - p.items.first();
  const int which = static_cast<int>(row % 2);
  const std::int64_t group = row / 2 % groups;
  const std::int64_t t = row / 2 / groups % tokens;
  const std::int64_t b = row / 2 / groups / tokens;
  if (b >= p.batch || p.part[which] == nullptr) return;
  const std::int64_t time = p.items.first() + t;

  float dy[most];
#pragma unroll
  for (int i = 0; i < most; ++i) dy[i] = 0.0f;
  for (std::int64_t tile = 0; tile < p.row_tiles; ++tile) {
    for (std::int64_t h = group * shared; h < (group + 1) * shared; ++h) {
      const float* const from =
          p.part[which] + ((tile * p.items.token_count() + p.items.token_index(b, time)) * heads + h) * dk;
#pragma unroll
      for (int i = 0; i < most; ++i) {
        if (i * 32 + lane < dk) dy[i] += from[i * 32 + lane];
      }
    }
  }
  const any_element_view<4>& raw = which == 0 ? in.query : in.key;
  const any_element_view<4>& to = which == 0 ? p.d_query : p.d_key;
  if (in.normalize) {
    float x[most];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      x[i] = i * 32 + lane < dk ? raw.load(b, time, group, i * 32 + lane) : 0.0f;
      squares = fmaf(x[i], x[i], squares);
    }
    const float inverse = inverse_length(sum_in_group<32>(squares), in.eps);
    float along = 0.0f;  // y . dy
#pragma unroll
    for (int i = 0; i < most; ++i) {
      x[i] *= inverse;
      along = fmaf(x[i], dy[i], along);
    }
    along = sum_in_group<32>(along);
#pragma unroll
    for (int i = 0; i < most; ++i) dy[i] = (dy[i] - x[i] * along) * inverse;
  }
#pragma unroll
  for (int i = 0; i < most; ++i) {
    if (i * 32 + lane < dk) to.store(dy[i], b, time, group, i * 32 + lane);
  }
}

/// The same for the gates: a block has one head of one batch entry. `head_sums` are [batch][head] pairs, added up over
/// the windows, of forms whose gates share numbers among all tokens.
template <class Form>
struct gate_gradient_params {
  Form form;
  typename Form::gate_gradients to;
  const float* part = nullptr;
  float2* head_sums = nullptr;
  work_items items;
  std::int64_t heads = 0;
  std::int64_t row_tiles = 0;
};

template <class Form>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(split::threads)
    recurrence_gate_gradient_kernel(const __grid_constant__ gate_gradient_params<Form> p) {
  __shared__ float2 sums[split::warps];
  const std::int64_t b = blockIdx.x / static_cast<unsigned>(p.heads);
  const std::int64_t head = blockIdx.x % static_cast<unsigned>(p.heads);
  const int tid = static_cast<int>(threadIdx.x);
  const head_numbers numbers = p.form.numbers_of(head);
  float2 sum = make_float2(0.0f, 0.0f);
  for (std::int64_t t = p.items.first() + tid; t < p.items.last(); t += split::threads) {
    float2 d = make_float2(0.0f, 0.0f);
    for (std::int64_t tile = 0; tile < p.row_tiles; ++tile) {
      const float* const x = p.part + ((tile * p.items.token_count() + p.items.token_index(b, t)) * p.heads + head) * 2;
      d.x += x[0];
      d.y += x[1];
    }
    const float2 of_head = p.form.store_gate_gradient(p.to, d.x, d.y, b, t, head, numbers);
    sum.x += of_head.x;
    sum.y += of_head.y;
  }
  if (p.head_sums == nullptr) return;
  sum = make_float2(sum_in_group<32>(sum.x), sum_in_group<32>(sum.y));
  if (tid % 32 == 0) sums[tid / 32] = sum;
  __syncthreads();
  if (tid != 0) return;
  float2 total = p.head_sums[b * p.heads + head];
  for (int w = 0; w < split::warps; ++w) {
    total.x += sums[w].x;
    total.y += sums[w].y;
  }
  p.head_sums[b * p.heads + head] = total;
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
