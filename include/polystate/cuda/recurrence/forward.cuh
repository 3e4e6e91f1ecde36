// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernel of the recurrences with matrix states. A group of threads keeps rows of a state in registers and
/// walks along its item's tokens, four at a time: the dot products of all four with the state at their start are summed
/// over the group together, and what the four do to each other is a 4 x 4 triangular system a row. The walk is one
/// chain of dependences from the first token to the last, so all else is off it: other threads of the block fetch the
/// tiles of tokens, turn them into the numbers that the walk needs, one tile ahead, and store outputs, one tile behind.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// Shared memory of a block. Behind it lie the rows of a tile as they come from memory: keys, queries, and three
/// buffers of values and, in forms with an output gate, of z: of the tile before, this one, and the next.
template <int Padded, int Rows>
struct alignas(16) forward_tile {
  static constexpr row_split<Rows> Split = split_over_time<Rows>(Padded);
  static constexpr int T = tile_tokens(Padded);
  static constexpr int chunks = T / chunk_tokens;
  static constexpr int rows = Split.block_rows();
  static constexpr int preparing = preparing_threads(Rows);
  static constexpr int threads = preparing + Split.threads;

  float rows_of[2][2 * T * Padded];  ///< keys, then queries
  float o[2][T * rows];
  chunk_numbers chunk[2][chunks];
  float alpha[T];
  float write[T];
  float dots[Split.warps][Split.warp_rows() * 2 * chunk_tokens];
  float u[Split.warps][Split.warp_rows() * chunk_tokens];

  static std::size_t bytes(int element_bytes, bool has_z) {
    const int raw = 2 * T * Padded + (has_z ? 6 : 3) * T * rows;
    return sizeof(forward_tile) + static_cast<std::size_t>(raw) * static_cast<std::size_t>(element_bytes);
  }
};

/// One row over a chunk: e and u from the dot products with the state at its start.
template <bool Erases>
__device__ void solve_row(const chunk_numbers& c, const float (&dots)[(Erases ? 2 : 1) * chunk_tokens],
                          const float (&v)[chunk_tokens], float (&e)[chunk_tokens], float (&u)[chunk_tokens]) {
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
  }
}

/// Its o_t, from those and S q_t.
template <int Count>
__device__ float read_row(const chunk_numbers& c, float state_query, const float (&u)[Count], int t) {
  float sum = c.read[t] * state_query;
#pragma unroll
  for (int s = 0; s <= t; ++s) sum = fmaf(c.query_key[chunk_numbers::upto(t, s)], u[s], sum);
  return sum;
}

template <class Form, int Padded, int Rows, class Items>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(forward_tile<Padded, Rows>::threads, forward_blocks)
    recurrence_fwd_kernel(const __grid_constant__ forward_params<Form, Items> p) {
  using Tile = forward_tile<Padded, Rows>;
  constexpr auto Split = Tile::Split;
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = Rows;
  constexpr int M = chunk_tokens;
  constexpr int T = Tile::T;
  constexpr int dots_per_row = Form::erases ? 2 * M : M;
  constexpr int preparing = Tile::preparing;
  constexpr bool may_record = R == split::rows;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const shared_operands& in = p.in;
  const int thread = static_cast<int>(threadIdx.x);
  const bool prepares = thread < preparing;  // else it walks
  const int tid = thread - preparing;        // among those that walk
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
  const bool works = !prepares && warp_row < block_rows;

  const element_type type = in.value.type();
  const int element_bytes = bytes_of(type);
  char* const raw_k = reinterpret_cast<char*>(shared_memory) + sizeof(Tile);
  char* const raw_q = raw_k + T * Padded * element_bytes;
  char* const raw_v = raw_q + T * Padded * element_bytes;
  char* const raw_z = raw_v + 3 * T * Tile::rows * element_bytes;
  const auto buffer_of = [&](char* raw, int buffer) { return raw + buffer * T * Tile::rows * element_bytes; };
  const auto after = [](int buffer) { return buffer == 2 ? 0 : buffer + 1; };
  const auto tokens_at = [&](std::int64_t t0) { return static_cast<int>(tokens.end - t0 < T ? tokens.end - t0 : T); };

  const head_numbers numbers = p.form.numbers_of(head);
  gate_inputs next_gate;
  const auto fetch = [&](std::int64_t t0, int buffer) {
    const int n = tokens_at(t0);
    fetch_rows<preparing>(in.key, in.whole_rows, b, t0, n, group, 0, dk, raw_k, Padded);
    fetch_rows<preparing>(in.query, in.whole_rows, b, t0, n, group, 0, dk, raw_q, Padded);
    fetch_rows<preparing>(in.value, in.whole_values, b, t0, n, head, block_row, block_rows, buffer_of(raw_v, buffer),
                          Tile::rows);
    if (in.z.given()) {
      fetch_rows<preparing>(in.z, in.whole_values, b, t0, n, head, block_row, block_rows, buffer_of(raw_z, buffer),
                            Tile::rows);
    }
    __pipeline_commit();
    if (thread < n) next_gate = p.form.load_gate(b, t0 + thread, head);
  };
  // The tile from t0 on, which has been fetched to value buffer `buffer`, and the fetch of the one behind it.
  const auto prepare = [&](std::int64_t t0, int buffer, int parity) {
    const int n = tokens_at(t0);
    float* const rows_of = sm.rows_of[parity];
    __pipeline_wait_prior(0);
    sync_first_threads<preparing>();  // the tile is here, and outputs that share the buffer behind it are stored
    convert_rows<Padded, T, preparing>(raw_k, type, in, n, rows_of);
    if (thread < T) {
      // Beyond the item nothing decays and nothing is written: the bias of a gate must not show there.
      const gate g = thread < n ? p.form.gate_of(next_gate, numbers) : gate{1.0f, 0.0f};
      sm.alpha[thread] = g.alpha;
      sm.write[thread] = g.write;
    }
    sync_first_threads<preparing>();  // the rows as they came from memory are used up
    if (t0 + T < tokens.end) fetch(t0 + T, after(buffer));
    fill_chunks<Form::erases, Padded, Tile::chunks, preparing>(rows_of, rows_of + T * Padded, sm.alpha, sm.write,
                                                               in.scale, sm.chunk[parity]);
  };
  // Four neighbouring rows of a token at a time.
  const auto store_out = [&](std::int64_t t0, int buffer, int parity) {
    if (!in.out.given()) return;
    const int n = tokens_at(t0);
    for (int i = thread; i < n * (Tile::rows / 4); i += preparing) {
      const int t = i / (Tile::rows / 4);
      const int row = i % (Tile::rows / 4) * 4;
      const int at = t * Tile::rows + row;
      if (row >= block_rows) continue;
      const float4 o4 = *reinterpret_cast<const float4*>(&sm.o[parity][at]);
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

  float S[R][C];
  const auto record_states = [&](std::int64_t t0) {
    const std::int64_t tile = p.items.first_tile(item, T) + (t0 - tokens.begin) / T;
    float4* const to =
        p.record.states + ((tile * heads + head) * row_tiles + block_row / Tile::rows) * (R * C / 4) * Split.threads;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < C; i += 4) {
        to[(r * C + i) / 4 * Split.threads + tid] = make_float4(S[r][i], S[r][i + 1], S[r][i + 2], S[r][i + 3]);
      }
    }
  };
  const auto walk = [&](std::int64_t t0, int buffer, int parity) {
    const int n = tokens_at(t0);
    const char* const values = buffer_of(raw_v, buffer);
    float* const o = sm.o[parity];
#pragma unroll 1
    for (int chunk = 0; chunk * M < n; ++chunk) {
      const chunk_numbers& c = sm.chunk[parity][chunk];
      const float* const k = sm.rows_of[parity] + chunk * M * Padded;
      const float* const q = k + T * Padded;
      const float* const keys[M] = {k, k + Padded, k + 2 * Padded, k + 3 * Padded};
      const int row = tid % 32;  // of the warp's: what this thread solves
      const int at = chunk * M * Tile::rows + warp_row + row;
      float v[M] = {};
      if (row < Split.warp_rows()) {
        with_element(type, [&]<class E>(E) {
#pragma unroll
          for (int t = 0; t < M; ++t) {
            // Beyond the tile's last token or row the buffer holds nothing: 0 times what lies there may be NaN.
            const bool there = chunk * M + t < n && warp_row + row < block_rows;
            const bool written = Items::all_write || t0 + chunk * M + t < silent_from;
            const auto x = static_cast<float>(reinterpret_cast<const E*>(values)[at + t * Tile::rows]);
            v[t] = there && written ? x : 0.0f;
          }
        });
      }
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
      if (row < Split.warp_rows()) {
        float e[M];
        float u[M];
        float dots[dots_per_row];
#pragma unroll
        for (int i = 0; i < dots_per_row; i += 4) {
          const float4 d = *reinterpret_cast<const float4*>(&sm.dots[warp][row * dots_per_row + i]);
          dots[i] = d.x, dots[i + 1] = d.y, dots[i + 2] = d.z, dots[i + 3] = d.w;
        }
        solve_row<Form::erases>(c, dots, v, e, u);
        float written[M];
#pragma unroll
        for (int t = 0; t < M; ++t) {
          written[t] = chunk * M + t < n ? u[t] : 0.0f;  // not write * e, which is NaN where the state is infinite
        }
        *reinterpret_cast<float4*>(&sm.u[warp][row * M]) =
            make_float4(c.end[0] * written[0], c.end[1] * written[1], c.end[2] * written[2], c.end[3] * written[3]);
#pragma unroll
        for (int t = 0; t < M; ++t) {
          const float state_query = dots[(Form::erases ? M : 0) + t];
          o[at + t * Tile::rows] = read_row(c, state_query, u, t);
          if constexpr (may_record) {
            if (p.record.states == nullptr || chunk * M + t >= n || warp_row + row >= block_rows) continue;
            const std::int64_t to =
                (p.items.token_index(b, t0 + chunk * M + t) * heads + head) * dv + block_row + warp_row + row;
            p.record.read[to] = c.read[t] * state_query;
            if constexpr (Form::erases) {
              p.record.error[to] = e[t];
              p.record.erased[to] = c.decay[t] * dots[t];
            }
          }
        }
      }
      __syncwarp();
      float4 w[R];
#pragma unroll
      for (int r = 0; r < R; ++r) w[r] = *reinterpret_cast<const float4*>(&sm.u[warp][(group_row + r) * M]);
      add_rows<L>(S, c.decay[M - 1], w, keys, lane);
    }
  };

  const bool any = tokens.begin < tokens.end;
  if (prepares) {
    if (any) {
      fetch(tokens.begin, 0);
      prepare(tokens.begin, 0, 0);
    }
  } else {
    const bool starts = p.items.starts(item);
    load_rows<L>(S, starts ? p.initial_state : p.carry_in, starts ? item : p.items.carry_row(item), head,
                 block_row + warp_row + group_row, dv, dk, lane);
  }
  int buffer = 0;
  int parity = 0;
  for (std::int64_t t0 = tokens.begin; t0 < tokens.end; t0 += T, buffer = after(buffer), parity ^= 1) {
    __syncthreads();  // this tile is prepared, the one before is walked along
    if (prepares) {
      if (t0 != tokens.begin) store_out(t0 - T, after(after(buffer)), parity ^ 1);
      if (t0 + T < tokens.end) prepare(t0 + T, after(buffer), parity ^ 1);
    } else {
      if constexpr (may_record) {
        if (p.record.states != nullptr) record_states(t0);
      }
      if (works) walk(t0, buffer, parity);
    }
  }

  if (any) {
    __syncthreads();
    if (prepares) store_out(tokens.begin + (tokens.size() - 1) / T * T, after(after(buffer)), parity ^ 1);
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
  const std::int64_t states = p.items.size() * p.in.heads();
  return with_padded<KeyDims>(name, p.in.dk(), [&](auto padded) {
    const auto launch_rows = [&](auto rows) {
      using Tile = forward_tile<padded, rows>;
      const grid g{.blocks = states * tiles_of(p.in.dv(), Tile::rows),
                   .threads = Tile::threads,
                   .shared_bytes = Tile::bytes(bytes_of(p.in.value.type()), p.in.z.given()),
                   .most_shared_bytes = Tile::bytes(bytes_of(element_type::f32), true)};
      return launch(name, exec, g, recurrence_fwd_kernel<Form, padded, rows, Items>, p);
    };
    const bool records = p.record.states != nullptr;
    return choose_forward_rows(states, p.in.dv(), padded, multiprocessor_count(), records) == 2
               ? launch_rows(std::integral_constant<int, 2>{})
               : launch_rows(std::integral_constant<int, 4>{});
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
