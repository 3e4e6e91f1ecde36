// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernel of the recurrences with matrix states. Moving the states is all the work: a thread loads its columns of
/// its rows at once, 16 bytes an access, keeps them in registers over the call's tokens, and stores them. Keys and
/// queries come straight from memory too, so that no thread waits for others than those of its group, which own a row
/// together: the update in place needs no ordering between groups.

#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/vector.cuh>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form, class Data, class State>
struct step_params {
  using data = Data;  ///< elements of key, query, value, z and out
  shared_operands in;
  Form form;
  state_pool pool;
  tensor_view<State, 4> state;                ///< (slots, heads, dv, dk)
  tensor_view<State, 5> intermediate_states;  ///< (B, T, heads, dv, dk)
  bool whole = false;                         ///< 16-byte accesses along dk in all
  unsigned ahead = 0;                         ///< of the block for whose states a block asks early; 0: none
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

/// Columns of a thread: V neighbours of each access.
template <int Lanes, int V>
__device__ int step_column(int i, int lane) {
  return i / V * (Lanes * V) + lane * V + i % V;
}

/// A thread's columns of a row whose elements are `stride` apart, into vectors of zeros; addresses one after the other,
/// so that they take few registers.
template <int Lanes, int V, class T, int N, int Vectors>
__device__ void gather_columns(vector<T, N> (&x)[Vectors], const T* row, std::int64_t stride, int dk, int lane) {
  row += lane * V * stride;
#pragma unroll
  for (int i = 0; i < N * Vectors; ++i, row += i % V == 0 ? (Lanes * V - V + 1) * stride : stride) {
    if (step_column<Lanes, V>(i, lane) < dk) insert_element(x[i / N], i % N, *row);
  }
}

/// A thread's rows of a state as they lie in memory, zero where there is none. Nothing here waits for what it loads, so
/// that all of it is in flight at once: turning the elements into floats is left to the
/// caller.
template <int Lanes, bool Whole, class State, int Rows, int Vectors>
__device__ void load_state_rows(vector<State> (&x)[Rows][Vectors], const State* first, std::int64_t row_stride,
                                std::int64_t stride, int rows, int dk, int lane) {
  constexpr int V = vector_elements<State>;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int j = 0; j < Vectors; ++j) x[r][j] = {};
  }
  if constexpr (Whole) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int j = 0; j < Vectors; ++j) {
        const int c = step_column<Lanes, V>(j * V, lane);
        if (r < rows && c < dk) x[r][j] = load_vector(first + r * row_stride + c);
      }
    }
  } else {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (r < rows) gather_columns<Lanes, V>(x[r], first + r * row_stride, stride, dk, lane);
    }
  }
}

/// A thread's columns of a key or query as they lie in memory, likewise.
template <int Lanes, int V, bool Whole, class T, int Fours>
__device__ void load_columns(vector<T, 4> (&x)[Fours], const T* row, std::int64_t stride, int dk, int lane) {
#pragma unroll
  for (int j = 0; j < Fours; ++j) x[j] = {};
  if constexpr (Whole) {
#pragma unroll
    for (int j = 0; j < Fours; ++j) {
      const int c = step_column<Lanes, V>(j * 4, lane);
      if (c < dk) x[j] = load_vector<T, 4>(row + c);
    }
  } else {
    gather_columns<Lanes, V>(x, row, stride, dk, lane);
  }
}

/// What a row is multiplied by when it is normalised, from the columns that the threads of a group hold.
template <int Lanes, class T, int Fours>
__device__ float length_factor(const shared_operands& in, const vector<T, 4> (&x)[Fours]) {
  if (!in.normalize) return 1.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4 * Fours; ++i) {
    const auto y = static_cast<float>(element_of(x[i / 4], i % 4));
    squares = fmaf(y, y, squares);
  }
  return inverse_length(sum_in_group<Lanes>(squares), in.eps);
}

template <int Lanes, bool Whole, class State, int Rows, int Columns>
__device__ void store_state_rows(const float (&S)[Rows][Columns], State* first, std::int64_t row_stride,
                                 std::int64_t stride, int rows, int dk, int lane) {
  constexpr int V = vector_elements<State>;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (r >= rows) continue;
#pragma unroll
    for (int j = 0; j < Columns; j += V) {
      const int c = step_column<Lanes, V>(j, lane);
      float x[V];
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = S[r][j + i];
      const vector<State> rounded = round_to_vector<State>(x);
      if constexpr (Whole) {
        if (c < dk) store_vector(first + r * row_stride + c, rounded);
      } else {
        State* at = first + r * row_stride + c * stride;
#pragma unroll
        for (int i = 0; i < V; ++i, at += stride) {
          if (c + i < dk) *at = element_of(rounded, i);
        }
      }
    }
  }
}

/// How many blocks ahead a block asks for states: as many as run at once, or half of them where states have four bytes,
/// so that what was asked for is still in the cache. Both were measured.
constexpr int blocks_ahead(int rows, std::size_t state_bytes, int multiprocessors) {
  return step_blocks(rows) * multiprocessors / (state_bytes == 4 ? 2 : 1);
}

/// Asks for a block's rows of a state, `Rows` from `first` on, of which `there` exist, to be brought to the L2 cache.
template <int Threads, int Rows, int Padded, class State>
__device__ void fetch_to_cache(const State* first, std::int64_t row_stride, int there, int dk) {
  constexpr int line = 128 / static_cast<int>(sizeof(State));
  constexpr int lines = Padded > line ? Padded / line : 1;
#pragma unroll
  for (int i = 0; i < Rows * lines; i += Threads) {
    const int row = (i + static_cast<int>(threadIdx.x)) / lines;
    const int column = (i + static_cast<int>(threadIdx.x)) % lines * line;
    if (row < there && column < dk) asm volatile("prefetch.global.L2 [%0];" ::"l"(first + row * row_stride + column));
  }
}

template <class Form, class Data, class State, int Padded, int Rows, bool Whole>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(row_split<Rows>::threads, step_blocks(Rows))
    recurrence_step_kernel(const __grid_constant__ step_params<Form, Data, State> p) {
  constexpr row_split<Rows> Split = split_of_step<Rows>(Padded);
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = Split.rows;
  constexpr int V = vector_elements<State>;
  constexpr int rows = Split.block_rows();
  constexpr int threads = Split.threads;
  static_assert(C % V == 0 && C % 4 == 0 && L >= R);

  const shared_operands& in = p.in;
  const int tokens = static_cast<int>(in.value.extent(1));

  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % L;
  const int dv = in.dv();
  const int dk = in.dk();
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, rows));
  const int block_row = static_cast<int>(blockIdx.x % row_tiles) * rows;
  const auto heads = static_cast<unsigned>(in.heads());
  const std::int64_t head = blockIdx.x / row_tiles % heads;
  const std::int64_t b = blockIdx.x / row_tiles / heads;
  const std::int64_t group = in.group_of(head);
  const int first_row = tid / L * R;  // of the block's rows, this thread's

  if (p.pool.padding(b)) {
    for (int i = tid; i < tokens * rows; i += threads) {
      if (block_row + i % rows < dv) in.out.store(0.0f, b, i / rows, head, block_row + i % rows);
    }
    return;
  }

  const int rows_here = dv - block_row - first_row;  // of this thread's; may be more than R, or none
  const std::int64_t from = p.pool.read(b);
  const std::int64_t to = p.pool.write(b);
  vector<State> loaded[R][C / V];
  load_state_rows<L, Whole>(loaded, &p.state(from, head, block_row + first_row, 0), p.state.stride(2),
                            p.state.stride(3), rows_here, dk, lane);

  const head_numbers numbers = p.form.numbers_of(head);
  const bool gated = in.z.given();
  vector<Data, 4> k[C / 4];
  vector<Data, 4> q[C / 4];
  Data v[R];
  Data z[R];
  gate_inputs of_gate;
  const auto load_token = [&](int t) {
    load_columns<L, V, Whole>(k, reinterpret_cast<const Data*>(in.key.address(b, t, group, 0)), in.key.stride(3), dk,
                              lane);
    load_columns<L, V, Whole>(q, reinterpret_cast<const Data*>(in.query.address(b, t, group, 0)), in.query.stride(3),
                              dk, lane);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      v[r] = Data{};
      z[r] = Data{};
      if (r >= rows_here) continue;
      const int row = block_row + first_row + r;
      v[r] = *reinterpret_cast<const Data*>(in.value.address(b, t, head, row));
      if (gated) z[r] = *reinterpret_cast<const Data*>(in.z.address(b, t, head, row));
    }
    of_gate = p.form.load_gate(b, t, head);
  };
  load_token(0);
  // Registers bound what a multiprocessor's blocks have under way; the cache takes more.
  if (const unsigned next = blockIdx.x + p.ahead; Whole && p.ahead > 0 && next < gridDim.x) {
    const std::int64_t next_b = next / row_tiles / heads;
    const std::int64_t next_head = next / row_tiles % heads;
    const int next_row = static_cast<int>(next % row_tiles) * rows;
    if (!p.pool.padding(next_b)) {
      fetch_to_cache<threads, rows, Padded>(&p.state(p.pool.read(next_b), next_head, next_row, 0), p.state.stride(2),
                                            dv - next_row, dk);
    }
  }

  float S[R][C];
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < C; ++i) S[r][i] = static_cast<float>(element_of(loaded[r][i / V], i % V));
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
  for (int t = 0; t < tokens; ++t) {
    const gate g = p.form.gate_of(of_gate, numbers);
    const float of_key = length_factor<L>(in, k);
    const float of_query = in.scale * length_factor<L>(in, q);
    float u[R];
#pragma unroll
    for (int r = 0; r < R; ++r) u[r] = static_cast<float>(v[r]);
    if constexpr (Form::erases) {
      multiply(k);
#pragma unroll
      for (int r = 0; r < R; ++r) u[r] = fmaf(-g.alpha * of_key, sum_in_group<L>(dot[r]), u[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) u[r] *= g.write * of_key;
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const auto y = static_cast<float>(element_of(k[i / 4], i % 4));
#pragma unroll
      for (int r = 0; r < R; ++r) S[r][i] = fmaf(u[r], y, g.alpha * S[r][i]);
    }
    multiply(q);

    // A lane ends with the sum of one row.
    const int mine = sum_over_lanes<L>(dot, lane);
    if (lane % (L / R) == 0 && mine < rows_here) {
      auto value = static_cast<float>(v[0]);
      auto of_z = static_cast<float>(z[0]);
#pragma unroll
      for (int r = 1; r < R; ++r) {
        if (mine == r) value = static_cast<float>(v[r]), of_z = static_cast<float>(z[r]);
      }
      const int row = block_row + first_row + mine;
      in.out.store(p.form.finish(of_query * dot[0], value, of_z, p.form.skip_of(head, row)), b, t, head, row);
    }
    if (p.intermediate_states.data() != nullptr) {
      store_state_rows<L, Whole>(S, &p.intermediate_states(b, t, head, block_row + first_row, 0),
                                 p.intermediate_states.stride(3), p.intermediate_states.stride(4), rows_here, dk, lane);
    }
    if (t + 1 < tokens) load_token(t + 1);
  }
  store_state_rows<L, Whole>(S, &p.state(to, head, block_row + first_row, 0), p.state.stride(2), p.state.stride(3),
                             rows_here, dk, lane);
}

/// Enqueues the outputs and the new states.
template <class KeyDims, class Form, class Data, class State>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, step_params<Form, Data, State> p) {
  if (p.in.value.extent(1) == 0) return {};
  return with_padded<KeyDims>(name, p.in.dk(), [&](auto padded) {
    const std::int64_t states = p.in.value.extent(0) * p.in.heads();
    const auto grid_of = [&](const auto& split) {
      return grid{.blocks = states * tiles_of(p.in.dv(), split.block_rows()), .threads = split.threads};
    };
    if (!p.whole) {
      return launch(name, exec, grid_of(split_of_step<2>(padded)),
                    recurrence_step_kernel<Form, Data, State, padded, 2, false>, p);
    }
    const int rows = choose_step_rows(states, p.in.dv(), padded, multiprocessor_count());
    p.ahead = static_cast<unsigned>(blocks_ahead(rows, sizeof(State), multiprocessor_count()));
    if (rows == 2) {
      return launch(name, exec, grid_of(split_of_step<2>(padded)),
                    recurrence_step_kernel<Form, Data, State, padded, 2, true>, p);
    }
    return launch(name, exec, grid_of(split_of_step<4>(padded)),
                  recurrence_step_kernel<Form, Data, State, padded, 4, true>, p);
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
