// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernel of the recurrences with matrix states. A warp keeps sixteen rows of a state in registers and walks
/// along its item's tokens, eight at a time: the products of all eight keys and queries with the state at their start
/// are made at once on tensor cores, in the accuracy of float, and what the eight do to each other is a matrix a chunk.
/// The walk is one chain of dependences from the first token to the last, so all else is off it: other warps of the
/// block fetch the tiles of tokens, turn them into the fragments and matrices that the walk needs, one tile ahead, and
/// store outputs, one tile behind.

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

/// What a forward pass keeps for the backward one; null where it is not wanted.
struct recording {
  float* states = nullptr;  ///< before every record_tokens tokens of an item: [tile][head], as policy.hpp has it
  float* error = nullptr;   ///< e_t, in forms that erase: [token][head][dv]
  float* o = nullptr;       ///< what finish() takes: [token][head][dv]
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
  int key_buffers = 1;  ///< or 2, if shared memory has room: set by launch_forward()
};

/// Shared memory of a block. Behind it lie the rows of tiles as they come from memory: keys and queries, if there is
/// room two buffers, of this tile and the next, and four of values and, in forms with an output gate, of z: of two
/// tiles before as well.
template <bool Erases, int Padded, int Walkers>
struct alignas(16) forward_tile : walk_shape<Erases, Padded, Walkers> {
  using Shape = walk_shape<Erases, Padded, Walkers>;
  static constexpr int T = Shape::T;
  static constexpr int chunks = Shape::chunks;
  static constexpr int fragments = Shape::fragments;
  static constexpr int walkers = Shape::Split::walkers;

  float4 keys_over_columns[2][chunks][Erases ? fragments : 1];
  float4 queries_over_columns[2][chunks][fragments];
  float4 keys_over_rows[2][chunks][fragments];
  float o[2][T * Shape::out_pitch];
  chunk_system chunk[2][chunks];
  float4 parts[2][walkers][Shape::Split::column_warps > 1 ? 2 * 32 : 1];  ///< of sums over a state's columns

  POLYSTATE_HOST_DEVICE static constexpr std::size_t bytes(int element_bytes, bool has_z, int key_buffers) {
    const int raw =
        2 * key_buffers * Shape::key_bytes(element_bytes) + (has_z ? 8 : 4) * Shape::value_bytes(element_bytes);
    return sizeof(forward_tile) + static_cast<std::size_t>(raw);
  }
};

template <class Form, int Padded, int Walkers, class Items>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(tensor_split<Padded, Walkers, Form::erases>::threads, 1)
    recurrence_fwd_kernel(const __grid_constant__ forward_params<Form, Items> p) {
  using Split = tensor_split<Padded, Walkers, Form::erases>;
  using Tile = forward_tile<Form::erases, Padded, Walkers>;
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

  const element_type type = in.value.type();
  const int element_bytes = bytes_of(type);
  char* const raw_k = reinterpret_cast<char*>(shared_memory) + sizeof(Tile);
  char* const raw_q = raw_k + p.key_buffers * Tile::key_bytes(element_bytes);
  char* const raw_v = raw_q + p.key_buffers * Tile::key_bytes(element_bytes);
  char* const raw_z = raw_v + 4 * Tile::value_bytes(element_bytes);
  const auto buffer_of = [&](char* raw, int buffer) { return raw + buffer * Tile::value_bytes(element_bytes); };
  const auto after = [](int buffer, int tiles) { return (buffer + tiles) % 4; };
  const auto tokens_at = [&](std::int64_t t0) { return static_cast<int>(tokens.end - t0 < T ? tokens.end - t0 : T); };
  clear_shared_rows(raw_k,
                    reinterpret_cast<char*>(shared_memory) + Tile::bytes(element_bytes, in.z.given(), p.key_buffers));
  const bool reads = in.out.given() || p.record.o != nullptr;  // else the walk is about states alone
  const bool ends = p.items.ends(item);
  const bool starts = p.items.starts(item);
  const any_element_view<4>& state_from = starts ? p.initial_state : p.carry_in;
  const any_element_view<4>& state_to = ends ? p.final_state : p.carry_out;

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
    key_fetch keys(in.key, in.whole_rows, b, tokens.begin, group, 0, dk, carrier);
    key_fetch queries(in.query, in.whole_rows, b, tokens.begin, group, 0, dk, carrier);
    // If they have no warps of their own: where nothing is erased, the solvers have less to do and fetch the values.
    const bool moves_values = Split::storing == 0 && Form::erases == (carrier >= 0);
    const int mover = thread % carrying;
    value_fetch values(in.value, in.whole_values, b, tokens.begin, head, block_row, block_rows, mover);
    value_fetch gates(in.z, in.whole_values, b, tokens.begin, head, block_row, block_rows, mover);
    const auto fetch_values = [&](std::int64_t t0, int buffer) {
      const int n = tokens_at(t0);
      values.next(in.value, n, buffer_of(raw_v, buffer));
      if constexpr (Form::finishes) gates.next(in.z, n, buffer_of(raw_z, buffer));
    };
    const auto fetch = [&](std::int64_t t0, int buffer) {
      const int n = tokens_at(t0);
      const int of_keys = (buffer & (p.key_buffers - 1)) * Tile::key_bytes(element_bytes);
      if (carrier >= 0) {
        keys.next(in.key, n, raw_k + of_keys);
        queries.next(in.query, n, raw_q + of_keys);
      }
      if (moves_values) fetch_values(t0, buffer);
      __pipeline_commit();
    };
    // The tile from t0 on, which has been fetched to value buffer `buffer`, and the fetch of the one behind it. All
    // call `meanwhile`, those early that do not solve.
    const auto prepare = [&](std::int64_t t0, int buffer, int parity, auto&& meanwhile) {
      const int n = tokens_at(t0);
      __pipeline_wait_prior(0);
      sync_first_threads<1, preparing_keys>();  // the tile is here, and the one before it used up
      chunk_products products;
      gate own = {1.0f, 0.0f};  // beyond the item: the bias of a gate must not show there
      if (solves && warp * M + g < n) own = p.form.gate_of(next_gate, numbers);
      const auto fetch_next = [&] {
        if (t0 + T >= tokens.end) return;
        fetch(t0 + T, after(buffer, 1));
        load_gate(t0 + T);
      };
      if (p.key_buffers > 1) fetch_next();
      with_element(type, [&]<class E>(E) {
        const int of_keys = (buffer & (p.key_buffers - 1)) * Tile::key_bytes(element_bytes);
        const E* const rows = reinterpret_cast<const E*>(raw_k + of_keys);
        if (solves) {
          const int first = warp * M * Tile::key_pitch;
          if (Form::erases || reads || in.normalize) {
            products = multiply_chunk<Form::erases, true, Form::normalizes, Padded>(
                rows + first, reinterpret_cast<const E*>(raw_q + of_keys) + first, Tile::key_pitch,
                sm.keys_over_columns[parity][warp], sm.queries_over_columns[parity][warp]);
          }
        } else {
          constexpr int solvers = Split::solving / 32;
          transpose_chunks<Padded, Tile::chunks>(rows, Tile::key_pitch, warp - solvers, preparing_keys / 32 - solvers,
                                                 sm.keys_over_rows[parity]);
        }
      });
      meanwhile();
      if (p.key_buffers == 1) {
        sync_first_threads<1, preparing_keys>();
        fetch_next();
      }
      if (solves) solve_chunk<Form::erases, true>(products, own, in, sm.chunk[parity][warp]);
    };
    // Four neighbouring rows of a token at a time.
    constexpr int out_lanes = Tile::rows / 4;
    const int out_row = storer % out_lanes * 4;
    float skip[4] = {};
    if constexpr (Form::finishes) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (storer >= 0 && out_row + r < block_rows) skip[r] = p.form.skip_of(head, block_row + out_row + r);
      }
    }
    // Of the tile's tokens first .. last-1.
    const auto store_out = [&](std::int64_t t0, int buffer, int parity, int first, int last) {
      if (!reads || storer < 0 || out_row >= block_rows) return;
      const int n = min(tokens_at(t0), last);
#pragma unroll 1
      for (int t = first + storer / out_lanes; t < n; t += carrying / out_lanes) {
        const float4 o = *reinterpret_cast<const float4*>(&sm.o[parity][t * Tile::out_pitch + out_row]);
        if (p.record.o != nullptr) {
          store_row_part(p.record.o + (p.items.token_index(b, t0 + t) * heads + head) * dv, block_row + out_row, dv, o);
          continue;
        }
        float y[4] = {o.x, o.y, o.z, o.w};
        if constexpr (Form::finishes) {
          const int at = (t * Tile::value_pitch + out_row) * element_bytes;
          const float4 value = load_four(buffer_of(raw_v, buffer) + at, type);
          const float v[4] = {value.x, value.y, value.z, value.w};
          float z[4] = {};
          if (in.z.given()) {
            const float4 of_gate = load_four(buffer_of(raw_z, buffer) + at, type);
            z[0] = of_gate.x, z[1] = of_gate.y, z[2] = of_gate.z, z[3] = of_gate.w;
          }
#pragma unroll
          for (int r = 0; r < 4; ++r) y[r] = p.form.finish(y[r], v[r], z[r], skip[r]);
        }
        if (in.whole_out) {
          store_four(in.out.address(b, t0 + t, head, block_row + out_row), in.out.type(),
                     make_float4(y[0], y[1], y[2], y[3]));
        } else {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            if (out_row + r < block_rows) in.out.store(y[r], b, t0 + t, head, block_row + out_row + r);
          }
        }
      }
    };

    const std::int64_t last = tokens.begin + tiles_of(tokens.size(), T) * T;
    int buffer = 3;
    int parity = 1;
    // While a tile is walked along, that behind it is prepared, and outputs of the one before are stored.
    const auto meet_walkers = [&](std::int64_t t0) {
      if (t0 < tokens.begin) return;
      // The walkers wait behind __syncthreads(), but racecheck takes what the solvers wrote for unordered without this.
      sync_first_threads<15, preparing>();
      __syncthreads();
    };
    if constexpr (Split::storing > 0) {
      if (storer >= 0) {
        if (tokens.begin < tokens.end) fetch_values(tokens.begin, 0);
        for (std::int64_t t0 = tokens.begin - T; t0 <= last; t0 += T, buffer = after(buffer, 1), parity ^= 1) {
          __pipeline_commit();
          __pipeline_wait_prior(1);  // the values of tile t0 are here
          meet_walkers(t0);
          if (t0 + 2 * T < tokens.end) fetch_values(t0 + 2 * T, after(buffer, 2));
          if (t0 > tokens.begin) store_out(t0 - T, after(buffer, 3), parity ^ 1, 0, T);
        }
        return;
      }
    }
    if (tokens.begin < tokens.end) {
      fetch(tokens.begin, 0);
      load_gate(tokens.begin);
    }
    for (std::int64_t t0 = tokens.begin - T; t0 <= last; t0 += T, buffer = after(buffer, 1), parity ^= 1) {
      meet_walkers(t0);
      // Half of the outputs while the solvers multiply, half while they solve.
      int stored = t0 > tokens.begin && Split::storing == 0 ? 0 : T;
      if (t0 + T < tokens.end) {
        prepare(t0 + T, after(buffer, 1), parity ^ 1, [&] {
          if (stored == 0) store_out(t0 - T, after(buffer, 3), parity ^ 1, 0, T / 2);
          stored = max(stored, T / 2);
        });
      }
      if (Split::storing == 0) store_out(t0 - T, after(buffer, 3), parity ^ 1, stored, T);
    }
    return;
  }

  // The others walk: this warp has the block's rows from first_row on, and the columns from first_column on.
  const int walker = (thread - preparing) / 32;
  const int first_row = walker / Split::column_warps * Split::warp_rows;
  const int first_column = walker % Split::column_warps * Split::columns;
  const int row = first_row + g;  // this thread's, and row + 8
  const bool works = first_row < block_rows;
  const std::int64_t silent_from = p.items.silent_from(item);
  state_fragments<Split::columns> S;
  S.load(state_from, starts ? item : p.items.carry_row(item), head, block_row + first_row, first_column, dv, dk);

  const auto record_state = [&](std::int64_t t) {
    const std::int64_t tile = p.items.first_tile(item, record_tokens) + (t - tokens.begin) / record_tokens;
    const std::int64_t rows = (tile * heads + head) * recorded_rows(dv) + block_row + first_row;
    S.record(reinterpret_cast<float4*>(p.record.states + rows * Padded) + first_column * 4);
  };
  // Of tokens t and t + 1 and rows row and row + 8, as matrices of sums lie.
  const auto record_error = [&](std::int64_t t, int there, const float(&e)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i % 2 >= there || row + i / 2 * 8 >= block_rows) continue;
      p.record.error[(p.items.token_index(b, t + i % 2) * heads + head) * dv + block_row + row + i / 2 * 8] = e[i];
    }
  };
  // `Exact`: keys and queries have 11 bits.
  const auto walk = [&]<bool Exact>(std::bool_constant<Exact>, std::int64_t t0, int buffer, int parity) {
    const int n = tokens_at(t0);
#pragma unroll 1
    for (int chunk = 0; chunk * M < n; ++chunk) {
      if (p.record.states != nullptr && (t0 + chunk * M - tokens.begin) % record_tokens == 0) {
        record_state(t0 + chunk * M);
      }
      const chunk_system& system = sm.chunk[parity][chunk];
      const int t = chunk * M + 2 * c;  // of the tile: this thread's tokens are t and t + 1
      constexpr int fragments_of_column = 2;
      const int fragment = first_column * fragments_of_column;
      const float4* const queries = sm.queries_over_columns[parity][chunk] + fragment;
      float with_key[4] = {};
      float with_query[4] = {};
      if constexpr (Form::erases) {
        S.template multiply<Exact>(sm.keys_over_columns[parity][chunk] + fragment, with_key, queries, with_query);
      } else {
        if (reads) S.template multiply<Exact>(queries, with_query);
      }
      if (reads) S.mend_infinities(queries, with_query);
      if constexpr (Split::column_warps > 1) {
        sum_over_column_warps<Split>(sm.parts[(Tile::chunks > 1 ? chunk : parity) % 2], walker, with_key, with_query);
      }
      float v[4];
      with_element(type, [&]<class E>(E) {
        const E* const values = reinterpret_cast<const E*>(buffer_of(raw_v, buffer)) + t * Tile::value_pitch + row;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          v[i] = static_cast<float>(values[i % 2 * Tile::value_pitch + i / 2 * 8]);
          if constexpr (!Items::all_write) v[i] = t0 + t + i % 2 < silent_from ? v[i] : 0.0f;
        }
      });
      const float2 forget = *reinterpret_cast<const float2*>(&system.forget[2 * c]);
      const float2 read = *reinterpret_cast<const float2*>(&system.read[2 * c]);
      const float2 write = *reinterpret_cast<const float2*>(&system.write[2 * c]);
      const float2 end = *reinterpret_cast<const float2*>(&system.end[2 * c]);
      float e[4];
      float u[4];
      float at_end[4];
      float from_chunk[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        e[i] = Form::erases ? v[i] - (i % 2 == 0 ? forget.x : forget.y) * with_key[i] : v[i];
      }
      if constexpr (Form::erases) {
        const float right[4] = {e[0], e[1], e[2], e[3]};
        multiply_causal(e, right, system.solve);
        if (p.record.error != nullptr && first_column == 0) record_error(t0 + t, n - t, e);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Not write * e where nothing is written, also beyond the last token: e is not finite where the state is not.
        const float strength = i % 2 == 0 ? write.x : write.y;
        u[i] = t + i % 2 < n && strength != 0.0f ? strength * e[i] : 0.0f;
        at_end[i] = (i % 2 == 0 ? end.x : end.y) * u[i];
      }
      S.template decay_and_add<Exact>(system.decay, at_end, sm.keys_over_rows[parity][chunk] + fragment);
      if (first_column != 0 || !reads) continue;
      multiply_causal(from_chunk, u, system.query_key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float from_state = (i % 2 == 0 ? read.x : read.y) * with_query[i];
        sm.o[parity][(t + i % 2) * Tile::out_pitch + row + i / 2 * 8] = from_state + from_chunk[i];
      }
    }
  };

  int buffer = 0;
  int parity = 0;
  for (std::int64_t t0 = tokens.begin; t0 < tokens.end; t0 += T, buffer = after(buffer, 1), parity ^= 1) {
    __syncthreads();
    if (!works) continue;
    if (element_bytes == 2) {
      walk(std::true_type{}, t0, buffer, parity);
    } else {
      walk(std::false_type{}, t0, buffer, parity);
    }
  }
  __syncthreads();
  if (state_to.given() && works) {
    S.store(state_to, ends ? item : p.items.carry_row(item), head, block_row + first_row, first_column, dv, dk);
  }
}

/// How the kernel runs for so many states of dv rows. `element_bytes`: of q, k and v.
template <class Form, int Padded>
walk_choice choose_forward(std::int64_t states, std::int64_t dv, int element_bytes, bool has_z,
                           const device_limits& limits) {
  return choose_walk<Padded>(states, dv, limits, [&](auto walkers, int key_buffers) {
    using Tile = forward_tile<Form::erases, Padded, walkers>;
    static_assert(walkers > 4 || Tile::bytes(4, Form::finishes, 1) <= sm_80_shared_memory);
    static_assert(walkers != least_walkers<Padded> || Padded > 256 ||
                  Tile::bytes(4, Form::finishes, 1) <= least_shared_memory);
    return Tile::bytes(element_bytes, has_z, key_buffers);
  });
}

/// Enqueues the outputs and the final states. `Shapes` are those that may be met.
template <class Shapes, class Form, class Items>
POLYSTATE_HIDDEN status launch_forward(const char* name, const on_cuda& exec, forward_params<Form, Items> p) {
  const std::int64_t states = p.items.size() * p.in.heads();
  return with_padded<Shapes>(name, p.in.dk(), [&](auto padded) {
    const walk_choice choice =
        choose_forward<Form, padded>(states, p.in.dv(), bytes_of(p.in.value.type()), p.in.z.given(), limits_of(exec));
    p.key_buffers = choice.key_buffers;
    return with_walkers<padded, Shapes::most_rows>(choice.walkers, [&](auto walkers) {
      using Split = tensor_split<padded, walkers, Form::erases>;
      const grid g{.blocks = states * tiles_of(p.in.dv(), Split::block_rows),
                   .threads = Split::threads,
                   .shared_bytes = choice.shared_bytes};
      return launch(name, exec, g, recurrence_fwd_kernel<Form, padded, walkers, Items>, p);
    });
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
