// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernel of the recurrences with matrix states. Moving the states is all the work: a thread loads its columns of
/// its rows at once, 16 bytes an access, keeps them in registers over the call's tokens, and stores them. No thread
/// waits for others than those of its group, which own a row together, or of its warp: the update in place needs no
/// ordering between them. The states are cut into pieces, one or, where they are many and small, several a block.

#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/step_rows.cuh>
#include <polystate/cuda/recurrence/step_source.cuh>
#include <polystate/cuda/vector.cuh>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form, class Data, class State>
struct step_params {
  using data = Data;  ///< elements of key, query, value, z and out
  shared_operands in;
  Form form;
  state_pool pool;
  tensor_view<State, 4> state;                ///< (slots, heads, dv, dk)
  tensor_view<State, 5> intermediate_states;  ///< (B, T, heads, dv, dk)
  bool whole = false;                         ///< 16-byte accesses along dk in all
  step_pieces pieces = {};
  unsigned ahead = 0;  ///< of the piece for whose states a block that has but one asks early; 0: none
};

template <class Data, class Form, class State>
step_params<Form, Data, State> make_step_params(const shared_operands& in, const Form& form, const state_pool& pool,
                                                const tensor_view<State, 4>& state,
                                                const tensor_view<State, 5>& intermediate_states) {
  return {.in = in,
          .form = form,
          .pool = pool,
          .state = state,
          .intermediate_states = intermediate_states,
          .whole = in.whole_rows && vectorisable(state, 3) && vectorisable(intermediate_states, 4)};
}

/// What a token brings beside key and query, as a thread needs it and as it lies in memory.
template <class Data, int Rows>
struct step_token {
  Data v[Rows];
  Data z;  ///< this and `skip` are of the row whose output the thread makes
  float skip;
  gate_inputs of_gate;
  head_numbers of_head;
};

template <class Data, class State, int Padded, int Rows, bool Whole, bool Streams>
struct step_source_of {
  static constexpr row_split<Rows> Split = split_of_step<Rows>(Padded);
  using type = std::conditional_t<Streams, shared_source<Data, State, Split.lanes, Rows, Split.columns, Split.threads>,
                                  register_source<Data, State, Split.lanes, Rows, Split.columns, Whole>>;
};

/// `Streams`: blocks have several pieces, and bring the next one while they work on one.
template <class Form, class Data, class State, int Padded, int Rows, bool Whole, bool Streams>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(row_split<Rows>::threads, step_blocks(Rows))
    recurrence_step_kernel(const __grid_constant__ step_params<Form, Data, State> p) {
  constexpr row_split<Rows> Split = split_of_step<Rows>(Padded);
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = Split.rows;
  constexpr int V = vector_elements<State>;
  constexpr int block_rows = Split.block_rows();
  static_assert(C % V == 0 && C % 4 == 0 && L >= R && (Whole || !Streams));
  extern __shared__ uint4 shared_memory[];

  const shared_operands& in = p.in;
  const auto tokens = static_cast<unsigned>(in.value.extent(1));
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % L;
  const int mine = lane / (L / R);  // of the thread's rows the one that sum_over_lanes() leaves it
  const int dv = in.dv();
  const int dk = in.dk();
  const auto first_row = [&](const step_piece& of) {  // this thread's
    return static_cast<int>(of.tile) * block_rows + tid / L * R;
  };

  typename step_source_of<Data, State, Padded, R, Whole, Streams>::type source(shared_memory, tid);
  step_token<Data, R> fetched;
  const auto fetch_token = [&](const step_piece& of, unsigned t) {
    const unsigned head = p.pieces.head(of);
    const int row = first_row(of);
    source.fetch_token({address_of<const Data>(in.key, of.b, t, of.group, 0), in.key.stride(3)},
                       {address_of<const Data>(in.query, of.b, t, of.group, 0), in.query.stride(3)}, dk);
    const auto* v = address_of<const Data>(in.value, of.b, t, head, row);
#pragma unroll
    for (int r = 0; r < R; ++r, v += in.value.stride(3)) {
      fetched.v[r] = Data{};
      if (row + r < dv) fetched.v[r] = *v;
    }
    fetched.z = Data{};
    fetched.skip = 0.0f;
    if (Form::finishes && row + mine < dv) {
      if (in.z.given()) fetched.z = *address_of<const Data>(in.z, of.b, t, head, row + mine);
      fetched.skip = p.form.skip_of(head, row + mine);
    }
    fetched.of_gate = p.form.load_gate(of.b, t, head);
    fetched.of_head = p.form.numbers_of(head);
  };
  // Rows of states from this thread's first on; may be more than R. Padding has none.
  const auto states_of = [&](const step_piece& of) { return p.pool.padding(of.b) ? 0 : dv - first_row(of); };
  const auto place_in = [&](std::int64_t slot, const step_piece& of, int row) {
    return &p.state(slot > 0 ? slot : 0, p.pieces.head(of), row, 0);
  };
  const auto fetch_states = [&](const step_piece& of) {
    source.fetch_states({place_in(p.pool.read(of.b), of, first_row(of)), p.state.stride(3)}, p.state.stride(2),
                        states_of(of), dk);
  };

  step_piece here = p.pieces[blockIdx.x];
  const step_piece stride = p.pieces[gridDim.x];
  fetch_token(here, 0);  // before states, whose slots may have to be looked up
  fetch_states(here);
  source.commit();
  // Registers bound what a multiprocessor's blocks have under way; the L2 cache takes more.
  if (Whole && !Streams && p.ahead > 0 && blockIdx.x + p.ahead < gridDim.x) {
    const step_piece later = p.pieces[blockIdx.x + p.ahead];
    const int row = static_cast<int>(later.tile) * block_rows;
    fetch_to_cache<Split.threads, block_rows, Padded>(place_in(p.pool.read(later.b), later, row), p.state.stride(2),
                                                      p.pool.padding(later.b) ? 0 : dv - row, dk);
  }
#pragma unroll 1
  for (unsigned piece = blockIdx.x;; piece += gridDim.x) {
    const bool more = Streams && piece + gridDim.x < p.pieces.count();
    const step_piece next = p.pieces.sum(here, stride);
    const unsigned head = p.pieces.head(here);
    const int row = first_row(here);
    const int states = states_of(here);
    float S[R][C];
    source.wait();
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int j = 0; j < C; j += V) {
        const vector<State> x = source.take_state(r, j / V, r < states && step_column<L, V>(j, lane) < dk);
#pragma unroll
        for (int i = 0; i < V; ++i) S[r][j + i] = static_cast<float>(element_of(x, i));
      }
    }
    float dot[R];
    const auto multiply = [&](const vector<Data, 4>(&x)[C / 4]) {
#pragma unroll
      for (int r = 0; r < R; ++r) dot[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const auto y = static_cast<float>(element_of(x[i / 4], i % 4));
#pragma unroll
        for (int r = 0; r < R; ++r) dot[r] = fmaf(S[r][i], y, dot[r]);
      }
    };
#pragma unroll 1
    for (unsigned t = 0; t < tokens; ++t) {
      if (t > 0) source.wait();
      vector<Data, 4> k[C / 4];
      vector<Data, 4> q[C / 4];
      source.take_token(k, q, dk);
      const step_token<Data, R> now = fetched;
      if (t + 1 < tokens) {
        fetch_token(here, t + 1);
        source.commit();
      } else if (more) {
        fetch_token(next, 0);
        fetch_states(next);
        source.commit();
      }
      const gate g = p.form.gate_of(now.of_gate, now.of_head);
      const float of_key = length_factor<L>(in, k);
      const float of_query = in.scale * length_factor<L>(in, q);
      float u[R];
#pragma unroll
      for (int r = 0; r < R; ++r) u[r] = static_cast<float>(now.v[r]);
      if constexpr (Form::erases) {
        multiply(k);
#pragma unroll
        for (int r = 0; r < R; ++r) u[r] = fmaf(-g.alpha * of_key, sum_in_group<L>(dot[r]), u[r]);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) u[r] = g.write != 0.0f ? u[r] * (g.write * of_key) : 0.0f;  // u may be infinite
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const auto y = static_cast<float>(element_of(k[i / 4], i % 4));
#pragma unroll
        for (int r = 0; r < R; ++r) S[r][i] = fmaf(u[r], y, g.alpha * S[r][i]);
      }
      multiply(q);

      sum_over_lanes<L>(dot, lane);
      if (lane % (L / R) == 0 && row + mine < dv) {
        auto value = static_cast<float>(now.v[0]);
#pragma unroll
        for (int r = 1; r < R; ++r) value = mine == r ? static_cast<float>(now.v[r]) : value;
        const float o = p.form.finish(of_query * dot[0], value, static_cast<float>(now.z), now.skip);
        *address_of<Data>(in.out, here.b, t, head, row + mine) = static_cast<Data>(states > 0 ? o : 0.0f);
      }
      if (p.intermediate_states.data() != nullptr) {
        store_state_rows<L, Whole>(S, &p.intermediate_states(here.b, t, head, row, 0), p.intermediate_states.stride(3),
                                   p.intermediate_states.stride(4), states, dk, lane);
      }
    }
    store_state_rows<L, Whole>(S, place_in(p.pool.write(here.b), here, row), p.state.stride(2), p.state.stride(3),
                               states, dk, lane);
    if (!more) break;
    here = next;
  }
}

/// Enqueues the outputs and the new states.
template <class Shapes, class Form, class Data, class State>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, step_params<Form, Data, State> p) {
  if (p.in.value.extent(1) == 0) return {};
  return with_padded<Shapes>(name, p.in.dk(), [&](auto padded) {
    const std::int64_t states = p.in.value.extent(0) * p.in.heads();
    const int multiprocessors = limits_of(exec).multiprocessors;
    const auto launch_with = [&](auto rows, auto whole, auto streams) {
      constexpr row_split<rows> Split = split_of_step<rows>(padded);
      using Source = typename step_source_of<Data, State, padded, rows, whole, streams>::type;
      const std::int64_t tiles = tiles_of(p.in.dv(), Split.block_rows());
      p.pieces = step_pieces(p.in.value.extent(0), p.in.heads(), p.in.key.extent(2), tiles);
      if (rows == 4) p.ahead = static_cast<unsigned>(multiprocessors);
      return launch(name, exec,
                    {.blocks = streams ? (std::min)(states * tiles, std::int64_t{step_blocks(rows)} * multiprocessors)
                                       : states * tiles,
                     .threads = Split.threads,
                     .shared_bytes = Source::shared_bytes},
                    recurrence_step_kernel<Form, Data, State, padded, rows, whole, streams>, p);
    };
    constexpr std::integral_constant<int, 2> two;
    if (!p.whole) return launch_with(two, std::false_type{}, std::false_type{});
    if (choose_step_rows(states, p.in.dv(), padded, multiprocessors) == two) {
      return launch_with(two, std::true_type{}, std::false_type{});
    }
    return launch_with(std::integral_constant<int, 4>{}, std::true_type{},
                       std::bool_constant<step_streams(sizeof(State))>{});
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
