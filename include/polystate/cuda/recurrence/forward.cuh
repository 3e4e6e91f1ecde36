// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernel of the recurrences with matrix states. A group of threads keeps four rows of a state in registers and
/// walks along its item's tokens, four at a time: the dot products of all four with the state at their start are summed
/// over the group together, and what the four do to each other is a 4 x 4 triangular system a row.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// What a forward pass keeps for the backward one; nothing where `states` is null.
struct recording {
  float4* states = nullptr;  ///< at each tile's start: [tile][head][row tile][register][thread]
  float* read = nullptr;     ///< scale D(t) S q_t of each token, S its chunk's first state: [token][head][dv]
  float* error = nullptr;    ///< e_t, in forms that erase
  float* erased = nullptr;   ///< D(t) S k_t, likewise
};

/// `Items` are those of work_items.hpp, or others that answer the same questions.
template <class Form, class Items = work_items>
struct forward_params {
  shared_operands in;  ///< out may be absent
  Form form;
  Items items;
  any_element_view<4> initial_state, final_state;  ///< (items, heads, dv, dk)
  any_element_view<4> carry_in, carry_out;         ///< (carried, heads, dv, dk)
  recording record;
};

/// Shared memory of a block. Behind it lie the rows of a tile as they come from memory: keys, queries, and two buffers
/// of values and, in forms with an output gate, of z.
template <int Padded>
struct alignas(16) forward_tile {
  static constexpr split Split = split_over_time(Padded);
  static constexpr int T = tile_tokens(Padded);
  static constexpr int chunks = T / chunk_tokens;
  static constexpr int rows = Split.block_rows();

  float k[T * Padded];
  float q[T * Padded];
  float o[T * rows];
  chunk_numbers chunk[chunks];
  float alpha[T];
  float write[T];
  float dots[split::warps][Split.warp_rows() * 2 * chunk_tokens];
  float u[split::warps][Split.warp_rows() * chunk_tokens];

  static std::size_t bytes(int element_bytes, bool has_z) {
    const int raw = 2 * T * Padded + (has_z ? 4 : 2) * T * rows;
    return sizeof(forward_tile) + static_cast<std::size_t>(raw) * static_cast<std::size_t>(element_bytes);
  }
};

/// One row over a chunk: e, u and o from the dot products with the state at its start.
template <bool Erases>
__device__ void solve_row(const chunk_numbers& c, const float (&dots)[(Erases ? 2 : 1) * chunk_tokens],
                          const float (&v)[chunk_tokens], float (&e)[chunk_tokens], float (&u)[chunk_tokens],
                          float (&o)[chunk_tokens]) {
  constexpr int M = chunk_tokens;
#pragma unroll
  for (int t = 0; t < M; ++t) {
    e[t] = v[t];
    if constexpr (Erases) {
      e[t] = fmaf(-c.decay[t], dots[t], e[t]);
#pragma unroll
      for (int s = 0; s < t; ++s) e[t] = fmaf(-c.key_key[chunk_numbers::below(t, s)], u[s], e[t]);
    }
    u[t] = c.write[t] * e[t];
    float sum = c.read[t] * dots[(Erases ? M : 0) + t];
#pragma unroll
    for (int s = 0; s <= t; ++s) sum = fmaf(c.query_key[chunk_numbers::upto(t, s)], u[s], sum);
    o[t] = sum;
  }
}

template <class Form, int Padded, class Items>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(split::threads, 3)
    recurrence_fwd_kernel(const __grid_constant__ forward_params<Form, Items> p) {
  using Tile = forward_tile<Padded>;
  constexpr split Split = Tile::Split;
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = split::rows;
  constexpr int M = chunk_tokens;
  constexpr int dots_per_row = Form::erases ? 2 * M : M;
  constexpr int threads = split::threads;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const shared_operands& in = p.in;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % L;
  const int group_row = tid % 32 / L * R;  // of the warp's rows
  const int dv = in.dv();
  const int dk = in.dk();
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, Tile::rows));
  const int block_row = static_cast<int>(blockIdx.x % row_tiles) * Tile::rows;
  const int block_rows = min(Tile::rows, dv - block_row);
  const auto heads = static_cast<unsigned>(in.heads());
  const std::int64_t head = blockIdx.x / row_tiles % heads;
  const std::int64_t item = blockIdx.x / row_tiles / heads;
  if (!p.items.active(item)) return;
  const token_range tokens = p.items[item];
  const std::int64_t silent_from = p.items.silent_from(item);
  const std::int64_t b = tokens.batch;
  const std::int64_t group = in.group_of(head);
  const int warp_row = warp * Split.warp_rows();
  const bool works = warp_row < block_rows;

  const element_type type = in.value.type();
  const int element_bytes = bytes_of(type);
  char* const raw_k = reinterpret_cast<char*>(shared_memory) + sizeof(Tile);
  char* const raw_q = raw_k + Tile::T * Padded * element_bytes;
  char* const raw_v = raw_q + Tile::T * Padded * element_bytes;
  char* const raw_z = raw_v + 2 * Tile::T * Tile::rows * element_bytes;
  const auto buffer_of = [&](char* raw, int buffer) { return raw + buffer * Tile::T * Tile::rows * element_bytes; };

  float S[R][C];
  const bool starts = p.items.starts(item);
  load_rows<L>(S, starts ? p.initial_state : p.carry_in, starts ? item : p.items.carry_row(item), head,
               block_row + warp_row + group_row, dv, dk, lane);

  const head_numbers numbers = p.form.numbers_of(head);
  gate_inputs next_gate;
  const auto tokens_at = [&](std::int64_t t0) {
    return static_cast<int>(tokens.end - t0 < Tile::T ? tokens.end - t0 : Tile::T);
  };
  const auto fetch = [&](std::int64_t t0, int buffer) {
    const int n = tokens_at(t0);
    fetch_rows<threads>(in.key, in.whole_rows, b, t0, n, group, 0, dk, raw_k, Padded);
    fetch_rows<threads>(in.query, in.whole_rows, b, t0, n, group, 0, dk, raw_q, Padded);
    fetch_rows<threads>(in.value, in.whole_values, b, t0, n, head, block_row, block_rows, buffer_of(raw_v, buffer),
                        Tile::rows);
    if (in.z.given()) {
      fetch_rows<threads>(in.z, in.whole_values, b, t0, n, head, block_row, block_rows, buffer_of(raw_z, buffer),
                          Tile::rows);
    }
    __pipeline_commit();
    if (tid < n) next_gate = p.form.load_gate(b, t0 + tid, head);
  };
  // Four neighbouring rows of a token at a time.
  const auto store_out = [&](std::int64_t t0, int buffer) {
    if (!in.out.given()) return;
    const int n = tokens_at(t0);
    for (int i = tid; i < n * (Tile::rows / 4); i += threads) {
      const int t = i / (Tile::rows / 4);
      const int row = i % (Tile::rows / 4) * 4;
      const int at = t * Tile::rows + row;
      if (row >= block_rows) continue;
      const float4 o4 = *reinterpret_cast<const float4*>(&sm.o[at]);
      float y[4] = {o4.x, o4.y, o4.z, o4.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (row + r >= block_rows) continue;
        const float v = load_element(buffer_of(raw_v, buffer), type, at + r);
        const float z = in.z.given() ? load_element(buffer_of(raw_z, buffer), type, at + r) : 0.0f;
        y[r] = p.form.finish(y[r], v, z, head, block_row + row + r);
      }
      if (in.whole_out) {
        store_four(in.out.address(b, t0 + t, head, block_row + row), type, make_float4(y[0], y[1], y[2], y[3]));
      } else {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (row + r < block_rows) in.out.store(y[r], b, t0 + t, head, block_row + row + r);
        }
      }
    }
  };

  if (tokens.begin < tokens.end) fetch(tokens.begin, 0);
  int buffer = 0;
  for (std::int64_t t0 = tokens.begin; t0 < tokens.end; t0 += Tile::T, buffer ^= 1) {
    const int n = tokens_at(t0);
    __pipeline_wait_prior(0);
    __syncthreads();  // the tile is here, the one before is done
    if (t0 != tokens.begin) store_out(t0 - Tile::T, buffer ^ 1);
    convert_rows<Padded, Tile::T, threads>(raw_k, type, in, n, sm.k);
    convert_rows<Padded, Tile::T, threads>(raw_q, type, in, n, sm.q);
    if (tid < Tile::T) {
      // Beyond the item nothing decays and nothing is written: the bias of a gate must not show there.
      const gate g = tid < n ? p.form.gate_of(next_gate, numbers) : gate{1.0f, 0.0f};
      sm.alpha[tid] = g.alpha;
      sm.write[tid] = g.write;
    }
    __syncthreads();  // the rows as they came from memory are used up
    if (t0 + Tile::T < tokens.end) fetch(t0 + Tile::T, buffer ^ 1);
    fill_chunks<Form::erases, Padded, Tile::chunks, threads>(sm.k, sm.q, sm.alpha, sm.write, in.scale, sm.chunk);
    __syncthreads();

    if (p.record.states != nullptr) {
      const std::int64_t tile = p.items.first_tile(item, Tile::T) + (t0 - tokens.begin) / Tile::T;
      float4* const to =
          p.record.states + ((tile * heads + head) * row_tiles + block_row / Tile::rows) * (R * C / 4) * threads;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < C; i += 4) {
          to[(r * C + i) / 4 * threads + tid] = make_float4(S[r][i], S[r][i + 1], S[r][i + 2], S[r][i + 3]);
        }
      }
    }
    const char* const values = buffer_of(raw_v, buffer);
#pragma unroll 1
    for (int chunk = 0; chunk * M < n && works; ++chunk) {
      const chunk_numbers& c = sm.chunk[chunk];
      const float* const k = sm.k + chunk * M * Padded;
      const float* const q = sm.q + chunk * M * Padded;
      const float* const keys[M] = {k, k + Padded, k + 2 * Padded, k + 3 * Padded};
      {
        float dots[R * dots_per_row];
        if constexpr (Form::erases) {
          const float* const rows[2 * M] = {keys[0], keys[1],    keys[2],        keys[3],
                                            q,       q + Padded, q + 2 * Padded, q + 3 * Padded};
          multiply_rows<L>(S, rows, lane, dots);
        } else {
          const float* const rows[M] = {q, q + Padded, q + 2 * Padded, q + 3 * Padded};
          multiply_rows<L>(S, rows, lane, dots);
        }
        constexpr int kept = R * dots_per_row >= L ? R * dots_per_row / L : 1;
        constexpr int copies = R * dots_per_row >= L ? 1 : L / (R * dots_per_row);
        const int first = group_row * dots_per_row + sum_over_lanes<L>(dots, lane);
        if (lane % copies == 0) {
#pragma unroll
          for (int i = 0; i < kept; ++i) sm.dots[warp][first + i] = dots[i];
        }
      }
      __syncwarp();
      const int row = tid % 32;
      if (row < Split.warp_rows()) {
        float v[M];
        float e[M];
        float u[M];
        float o[M];
#pragma unroll
        for (int t = 0; t < M; ++t) {
          const int at = (chunk * M + t) * Tile::rows + warp_row + row;
          // Beyond the tile's last token or row the buffer holds nothing: 0 times what lies there may be NaN.
          const bool there = chunk * M + t < n && warp_row + row < block_rows;
          const bool written = Items::all_write || t0 + chunk * M + t < silent_from;
          v[t] = there && written ? load_element(values, type, at) : 0.0f;
        }
        float dots[dots_per_row];
#pragma unroll
        for (int i = 0; i < dots_per_row; i += 4) {
          const float4 d = *reinterpret_cast<const float4*>(&sm.dots[warp][row * dots_per_row + i]);
          dots[i] = d.x, dots[i + 1] = d.y, dots[i + 2] = d.z, dots[i + 3] = d.w;
        }
        solve_row<Form::erases>(c, dots, v, e, u, o);
#pragma unroll
        for (int t = 0; t < M; ++t) {
          sm.o[(chunk * M + t) * Tile::rows + warp_row + row] = o[t];
          if (chunk * M + t >= n) {
            u[t] = 0.0f;  // not write * e, which is NaN where the state is infinite
          } else if (p.record.states != nullptr && warp_row + row < block_rows) {
            const std::int64_t at =
                (p.items.token_index(b, t0 + chunk * M + t) * heads + head) * dv + block_row + warp_row + row;
            p.record.read[at] = c.read[t] * dots[(Form::erases ? M : 0) + t];
            if constexpr (Form::erases) {
              p.record.error[at] = e[t];
              p.record.erased[at] = c.decay[t] * dots[t];
            }
          }
        }
        *reinterpret_cast<float4*>(&sm.u[warp][row * M]) =
            make_float4(c.end[0] * u[0], c.end[1] * u[1], c.end[2] * u[2], c.end[3] * u[3]);
      }
      __syncwarp();
      float4 w[R];
#pragma unroll
      for (int r = 0; r < R; ++r) w[r] = *reinterpret_cast<const float4*>(&sm.u[warp][(group_row + r) * M]);
      add_rows<L>(S, c.decay[M - 1], w, keys, lane);
    }
  }

  if (tokens.begin < tokens.end) {
    __syncthreads();
    const std::int64_t last = tokens.begin + (tokens.size() - 1) / Tile::T * Tile::T;
    store_out(last, buffer ^ 1);
  }
  const bool ends = p.items.ends(item);
  const any_element_view<4>& to = ends ? p.final_state : p.carry_out;
  if (to.given() && works) {
    store_rows<L>(S, to, ends ? item : p.items.carry_row(item), head, block_row + warp_row + group_row, dv, dk, lane);
  }
}

/// Enqueues the outputs and the final states. `KeyDims` are the padded key dims that may be met.
template <class KeyDims, class Form, class Items>
POLYSTATE_HIDDEN status launch_forward(const char* name, const on_cuda& exec, const forward_params<Form, Items>& p) {
  status s;
  const bool found = dispatch(padded_key_dim(p.in.dk()), KeyDims{}, [&](auto padded) {
    using Tile = forward_tile<padded>;
    const grid g{.blocks = p.items.size() * p.in.heads() * tiles_of(p.in.dv(), Tile::rows),
                 .threads = split::threads,
                 .shared_bytes = Tile::bytes(bytes_of(p.in.value.type()), p.in.z.given()),
                 .most_shared_bytes = Tile::bytes(bytes_of(element_type::f32), true)};
    s = launch(name, exec, g, recurrence_fwd_kernel<Form, padded, Items>, p);
  });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(p.in.dk())};
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
