// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward walk of the recurrences with matrix states: from an item's last token to its first it carries G, the
/// derivative of the state, eight tokens at a time, as forward.cuh carries the state and with the same warps. With the
/// numbers of chunk_system.cuh, G that of the state after the chunk, and do_t those of the read-outs,
///
///     du_s = D(7, s) G k_s + sum_{t>=s} scale D(t, s) (q_t.k_s) do_t - sum_{t>s} D(t, s) (k_t.k_s) write_t du_t
///     G   <- D(7) G + sum_t scale D(t) do_t q_t^T - sum_t D(t) write_t du_t k_t^T
///
/// the last sums only in forms that erase. The matrix of these equations is the transpose of the forward walk's. What
/// depends on more than G and du is left to tile_gradients.cuh, which needs no walk.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/chunk_system.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/row_fetch.cuh>
#include <polystate/cuda/recurrence/state_fragments.cuh>
#include <polystate/cuda/recurrence/walk.cuh>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// The derivatives of the read-outs: the caller's of the output, or what finish() made of them for a window of tokens.
struct read_out_gradient {
  any_element_view<4> values;  ///< (B, T or window, heads, dv); may be absent
  std::int64_t first = 0;      ///< the token that its row 0 is of
  bool whole = false;          ///< 16-byte accesses along dv
};

template <class Form>
struct reverse_params {
  shared_operands in;
  Form form;
  work_items items;
  read_out_gradient d_o;
  any_element_view<4> d_final_state, d_initial_state;  ///< (items, heads, dv, dk)
  any_element_view<4> carry_in, carry_out;             ///< (carried, heads, dv, dk)
  float* d_states = nullptr;   ///< after every record_tokens tokens of an item: [tile][head], as policy.hpp has it
  float* d_written = nullptr;  ///< du_t: [token][head][dv]
  int key_buffers = 1;         ///< or 2, if shared memory has room: set by launch_reverse()
};

/// Shared memory of a block, as forward_tile. Behind it lie keys and queries, as there, and three buffers of do: of
/// this tile, the next, and the one behind that.
template <bool Erases, int Padded, int Walkers>
struct alignas(16) reverse_tile : walk_shape<Erases, Padded, Walkers> {
  using Shape = walk_shape<Erases, Padded, Walkers>;
  static constexpr int T = Shape::T;
  static constexpr int chunks = Shape::chunks;
  static constexpr int fragments = Shape::fragments;
  static constexpr int walkers = Shape::Split::walkers;

  float4 keys_over_columns[2][chunks][fragments];
  float4 queries_over_rows[2][chunks][fragments];
  float4 keys_over_rows[2][chunks][Erases ? fragments : 1];
  float du[2][T * Shape::out_pitch];
  chunk_system chunk[2][chunks];
  float4 parts[2][walkers][Shape::Split::column_warps > 1 ? 2 * 32 : 1];  ///< of sums over a state's columns

  POLYSTATE_HOST_DEVICE static constexpr std::size_t bytes(int of_key, int of_d_o, int key_buffers) {
    return sizeof(reverse_tile) +
           static_cast<std::size_t>(2 * key_buffers * Shape::key_bytes(of_key) + 3 * Shape::value_bytes(of_d_o));
  }
};

template <class Form, int Padded, int Walkers>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tensor_split<Padded, Walkers, Form::erases>::threads, 1)
    recurrence_reverse_kernel(const __grid_constant__ reverse_params<Form> p) {
  using Split = tensor_split<Padded, Walkers, Form::erases>;
  using Tile = reverse_tile<Form::erases, Padded, Walkers>;
  constexpr int M = Tile::M;
  constexpr int T = Tile::T;
  constexpr int preparing = Split::preparing;
  constexpr int preparing_keys = Split::preparing_keys;
  constexpr int carrying = Split::carrying;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const shared_operands& in = p.in;
  const int thread = static_cast<int>(threadIdx.x);
  const int g = thread % 32 / 4;  // as in tensor_core.cuh
  const int c = thread % 4;
  const int dv = in.dv();
  const int dk = in.dk();
  const auto [item, head, heads, block_row, block_rows] = place_of_block(in, Tile::rows);
  if (!p.items.active(item)) return;
  const token_range tokens = p.items[item];
  const std::int64_t b = tokens.batch;
  const std::int64_t last_tile = tokens.begin + (tiles_of(tokens.size(), T) - 1) * T;  // before begin if there is none

  const element_type key_type = in.key.type();
  const element_type d_o_type = p.d_o.values.type();
  char* const raw_k = reinterpret_cast<char*>(shared_memory) + sizeof(Tile);
  char* const raw_q = raw_k + p.key_buffers * Tile::key_bytes(bytes_of(key_type));
  char* const raw_d_o = raw_q + p.key_buffers * Tile::key_bytes(bytes_of(key_type));
  const auto d_o_buffer = [&](int buffer) { return raw_d_o + buffer * Tile::value_bytes(bytes_of(d_o_type)); };
  const auto after = [](int buffer) { return (buffer + 1) % 3; };
  const auto tokens_at = [&](std::int64_t t0) { return static_cast<int>(tokens.end - t0 < T ? tokens.end - t0 : T); };
  clear_shared_rows(raw_k, reinterpret_cast<char*>(shared_memory) +
                               Tile::bytes(bytes_of(key_type), bytes_of(d_o_type), p.key_buffers));

  if (thread < preparing) {
    const std::int64_t group = in.group_of(head);
    const int warp = thread / 32;
    const bool solves = thread < Split::solving;  // else it transposes or carries
    const int carrier = thread - (preparing_keys - carrying);
    const int storer = Split::storing > 0 ? thread - preparing_keys : carrier;
    const head_numbers numbers = p.form.numbers_of(head);
    gate_inputs next_gate;  // of the chunk's token g
    const auto load_gate = [&](std::int64_t t0) {
      const std::int64_t t = t0 + warp * M + g;
      if (solves && t < tokens.end) next_gate = p.form.load_gate(b, t, head);
    };
    using key_fetch = row_fetch<carrying, Padded, Tile::key_pitch, T>;
    using value_fetch = row_fetch<carrying, Tile::rows, Tile::value_pitch, T>;
    key_fetch keys(in.key, in.whole_rows, b, last_tile, group, 0, dk, carrier, -1);
    key_fetch queries(in.query, in.whole_rows, b, last_tile, group, 0, dk, carrier, -1);
    value_fetch d_outs(p.d_o.values, p.d_o.whole, b, last_tile - p.d_o.first, head, block_row, block_rows, storer, -1);
    const auto fetch = [&](std::int64_t t0, int buffer, int parity) {
      const int n = tokens_at(t0);
      const int of_keys = (parity & (p.key_buffers - 1)) * Tile::key_bytes(bytes_of(key_type));
      if (carrier >= 0) {
        keys.next(in.key, n, raw_k + of_keys);
        queries.next(in.query, n, raw_q + of_keys);
        if (Split::storing == 0) d_outs.next(p.d_o.values, n, d_o_buffer(buffer));
      }
      __pipeline_commit();
    };
    // The tile from t0 on, which has been fetched to buffer `buffer` of do, and the fetch of the one before it.
    const auto prepare = [&](std::int64_t t0, int buffer, int parity) {
      const int n = tokens_at(t0);
      __pipeline_wait_prior(0);
      sync_first_threads<1, preparing_keys>();  // the tile is here, and the one behind it used up
      chunk_products products;
      gate own = {1.0f, 0.0f};  // beyond the item: the bias of a gate must not show there
      if (solves && warp * M + g < n) own = p.form.gate_of(next_gate, numbers);
      const auto fetch_next = [&] {
        if (t0 <= tokens.begin) return;
        fetch(t0 - T, after(buffer), parity ^ 1);
        load_gate(t0 - T);
      };
      if (p.key_buffers > 1) fetch_next();
      with_element(key_type, [&]<class E>(E) {
        const int of_keys = (parity & (p.key_buffers - 1)) * Tile::key_bytes(bytes_of(key_type));
        const E* const keys_here = reinterpret_cast<const E*>(raw_k + of_keys);
        const E* const queries_here = reinterpret_cast<const E*>(raw_q + of_keys);
        if (solves) {
          const int first = warp * M * Tile::key_pitch;
          products = multiply_chunk<true, false, Form::normalizes, Padded>(
              keys_here + first, queries_here + first, Tile::key_pitch, sm.keys_over_columns[parity][warp], nullptr);
        } else {
          constexpr int solvers = Split::solving / 32;
          transpose_chunks<Padded, Tile::chunks>(queries_here, Tile::key_pitch, warp - solvers,
                                                 preparing_keys / 32 - solvers, sm.queries_over_rows[parity]);
          if constexpr (Form::erases) {
            transpose_chunks<Padded, Tile::chunks>(keys_here, Tile::key_pitch, warp - solvers,
                                                   preparing_keys / 32 - solvers, sm.keys_over_rows[parity]);
          }
        }
      });
      if (p.key_buffers == 1) {
        sync_first_threads<1, preparing_keys>();
        fetch_next();
      }
      if (solves) solve_chunk<Form::erases, false>(products, own, in, sm.chunk[parity][warp]);
    };
    constexpr int out_lanes = Tile::rows / 4;
    const int out_row = storer % out_lanes * 4;
    const auto store_du = [&](std::int64_t t0, int parity) {
      if (storer < 0 || out_row >= block_rows) return;
      const int n = tokens_at(t0);
#pragma unroll 1
      for (int t = storer / out_lanes; t < n; t += carrying / out_lanes) {
        store_row_part(p.d_written + (p.items.token_index(b, t0 + t) * heads + head) * dv, block_row + out_row, dv,
                       *reinterpret_cast<const float4*>(&sm.du[parity][t * Tile::out_pitch + out_row]));
      }
    };

    int buffer = 2;
    int parity = 1;
    const auto meet_walkers = [&](std::int64_t t0) {  // as in forward.cuh
      if (t0 > last_tile) return;
      sync_first_threads<15, preparing>();
      __syncthreads();
    };
    if constexpr (Split::storing > 0) {
      if (storer >= 0) {
        if (tokens.size() > 0) d_outs.next(p.d_o.values, tokens_at(last_tile), d_o_buffer(0));
        for (std::int64_t t0 = last_tile + T; t0 >= tokens.begin - T; t0 -= T, buffer = after(buffer), parity ^= 1) {
          __pipeline_commit();
          __pipeline_wait_prior(1);  // what belongs to tile t0 is here
          meet_walkers(t0);
          if (t0 > tokens.begin + T) d_outs.next(p.d_o.values, T, d_o_buffer(after(after(buffer))));
          if (t0 < last_tile) store_du(t0 + T, parity ^ 1);
        }
        return;
      }
    }
    if (tokens.size() > 0) {
      fetch(last_tile, 0, 0);
      load_gate(last_tile);
    }
    for (std::int64_t t0 = last_tile + T; t0 >= tokens.begin - T; t0 -= T, buffer = after(buffer), parity ^= 1) {
      meet_walkers(t0);
      if (t0 > tokens.begin) prepare(t0 - T, after(buffer), parity ^ 1);
      if (Split::storing == 0 && t0 < last_tile) store_du(t0 + T, parity ^ 1);
    }
    return;
  }

  // The others walk: this warp has the block's rows from first_row on, and the columns from first_column on.
  const int walker = (thread - preparing) / 32;
  const int first_row = walker / Split::column_warps * Split::warp_rows;
  const int first_column = walker % Split::column_warps * Split::columns;
  const int row = first_row + g;  // this thread's, and row + 8
  const bool works = first_row < block_rows;
  const bool ends = p.items.ends(item);
  state_fragments<Split::columns> G;
  G.load(ends ? p.d_final_state : p.carry_in, ends ? item : p.items.carry_row(item), head, block_row + first_row,
         first_column, dv, dk);

  // Tiles, chunks and states are counted in 32 bits: few registers are left.
  const auto tiles = static_cast<int>(tiles_of(tokens.size(), T));
  const auto last_chunk = static_cast<int>(tiles_of(tokens.size(), M)) - 1;
  const std::int64_t apart = heads * std::int64_t{recorded_rows(dv)} * (Padded / 4);
  auto record = reinterpret_cast<float4*>(p.d_states) + first_column * 4 +
                (p.items.first_tile(item, record_tokens) + last_chunk * M / record_tokens) * apart +
                (head * recorded_rows(dv) + block_row + first_row) * (Padded / 4);
  // `Exact`: keys and queries have 11 bits.
  const auto walk = [&]<bool Exact>(std::bool_constant<Exact>, int tile, int buffer, int parity) {
    const int n = tile == tiles - 1 ? static_cast<int>(tokens.size() - std::int64_t{tile} * T) : T;
#pragma unroll 1
    for (int chunk = (n - 1) / M; chunk >= 0; --chunk) {
      constexpr int of_record = record_tokens / M;
      const int index = tile * Tile::chunks + chunk;
      if (index % of_record == of_record - 1 || index == last_chunk) {
        G.record(record);
        record -= apart;
      }
      const chunk_system& system = sm.chunk[parity][chunk];
      const int t = chunk * M + 2 * c;  // of the tile: this thread's tokens are t and t + 1
      constexpr int fragments_of_column = 2;
      const int fragment = first_column * fragments_of_column;
      float with_key[4];
      G.template multiply<Exact>(sm.keys_over_columns[parity][chunk] + fragment, with_key);
      if constexpr (Split::column_warps > 1) {
        sum_over_column_warps<Split>(sm.parts[(Tile::chunks > 1 ? chunk : parity) % 2], walker, with_key);
      }
      float d_o[4];
      with_element(d_o_type, [&]<class E>(E) {
        const E* const values = reinterpret_cast<const E*>(d_o_buffer(buffer)) + t * Tile::value_pitch + row;
#pragma unroll
        for (int i = 0; i < 4; ++i) d_o[i] = static_cast<float>(values[i % 2 * Tile::value_pitch + i / 2 * 8]);
      });
      const float2 read = *reinterpret_cast<const float2*>(&system.read[2 * c]);
      const float2 end = *reinterpret_cast<const float2*>(&system.end[2 * c]);
      float du[4];
      float by_query[4];
      multiply_causal<true>(du, d_o, system.query_key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        by_query[i] = (i % 2 == 0 ? read.x : read.y) * d_o[i];
        // Not beyond the last token, where 0 k is NaN if G is infinite.
        du[i] = t + i % 2 < n ? fmaf(i % 2 == 0 ? end.x : end.y, with_key[i], du[i]) : 0.0f;
      }
      G.template decay_and_add<Exact>(system.decay, by_query, sm.queries_over_rows[parity][chunk] + fragment);
      if constexpr (Form::erases) {
        const float2 forget = *reinterpret_cast<const float2*>(&system.forget[2 * c]);
        const float2 write = *reinterpret_cast<const float2*>(&system.write[2 * c]);
        float dw[4];  // write du
        float by_key[4];
        float right[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) right[i] = (i % 2 == 0 ? write.x : write.y) * du[i];
        multiply_causal<true>(dw, right, system.solve);
#pragma unroll
        for (int i = 0; i < 4; ++i) by_key[i] = (i % 2 == 0 ? -forget.x : -forget.y) * dw[i];
        G.template decay_and_add<Exact>(1.0f, by_key, sm.keys_over_rows[parity][chunk] + fragment);
        multiply_causal<true>(right, dw, system.key_key);
#pragma unroll
        for (int i = 0; i < 4; ++i) du[i] -= right[i];
      }
      if (first_column != 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) sm.du[parity][(t + i % 2) * Tile::out_pitch + row + i / 2 * 8] = du[i];
    }
  };

  int buffer = 0;
  for (int tile = tiles - 1, parity = 0; tile >= 0; --tile, buffer = after(buffer), parity ^= 1) {
    __syncthreads();
    if (!works) continue;
    if (bytes_of(key_type) == 2) {
      walk(std::true_type{}, tile, buffer, parity);
    } else {
      walk(std::false_type{}, tile, buffer, parity);
    }
  }
  __syncthreads();
  const bool starts = p.items.starts(item);
  const any_element_view<4>& to = starts ? p.d_initial_state : p.carry_out;
  if (to.given() && works) {
    G.store(to, starts ? item : p.items.carry_row(item), head, block_row + first_row, first_column, dv, dk);
  }
}

/// How the kernel runs for so many states of dv rows. Bytes of an element of q and k, and of the read-outs'
/// derivatives.
template <class Form, int Padded>
walk_choice choose_reverse(std::int64_t states, std::int64_t dv, int element_bytes, int d_o_bytes,
                           const device_limits& limits) {
  return choose_walk<Padded>(states, dv, limits, [&](auto walkers, int key_buffers) {
    using Tile = reverse_tile<Form::erases, Padded, walkers>;
    static_assert(walkers > 4 || Tile::bytes(4, 4, 1) <= sm_80_shared_memory);
    static_assert(walkers != least_walkers<Padded> || Padded > 256 || Tile::bytes(4, 4, 1) <= least_shared_memory);
    return Tile::bytes(element_bytes, d_o_bytes, key_buffers);
  });
}

/// Enqueues the walk. `Shapes` are those that may be met.
template <class Shapes, class Form>
POLYSTATE_HIDDEN status launch_reverse(const char* name, const on_cuda& exec, reverse_params<Form> p) {
  const std::int64_t states = p.items.size() * p.in.heads();
  return with_padded<Shapes>(name, p.in.dk(), [&](auto padded) {
    const walk_choice choice = choose_reverse<Form, padded>(states, p.in.dv(), bytes_of(p.in.key.type()),
                                                            bytes_of(p.d_o.values.type()), limits_of(exec));
    p.key_buffers = choice.key_buffers;
    return with_walkers<padded, Shapes::most_rows>(choice.walkers, [&](auto walkers) {
      using Split = tensor_split<padded, walkers, Form::erases>;
      const grid g{.blocks = states * tiles_of(p.in.dv(), Split::block_rows),
                   .threads = Split::threads,
                   .shared_bytes = choice.shared_bytes};
      return launch(name, exec, g, recurrence_reverse_kernel<Form, padded, walkers>, p);
    });
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
