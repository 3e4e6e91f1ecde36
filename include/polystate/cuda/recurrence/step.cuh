// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernel of the recurrences with matrix states. Moving the states is all the work: a block loads its rows of one
/// head's state at once, 16 bytes an access, keeps them in registers over the call's tokens, and stores them.
/// One group of threads owns a row, so the update in place needs no ordering between groups.

#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/vector.cuh>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

template <class Form, class State>
struct step_params {
  shared_operands in;
  Form form;
  state_pool pool;
  tensor_view<State, 4> state;                ///< (slots, heads, dv, dk)
  tensor_view<State, 5> intermediate_states;  ///< (B, T, heads, dv, dk)
  bool whole = false;                         ///< 16-byte accesses along dk in both
};

template <class Form, class State>
step_params<Form, State> make_step_params(const shared_operands& in, const Form& form, const state_pool& pool,
                                          const tensor_view<State, 4>& state,
                                          const tensor_view<State, 5>& intermediate_states) {
  return {.in = in,
          .form = form,
          .pool = pool,
          .state = state,
          .intermediate_states = intermediate_states,
          .whole = vectorisable(state, 3) && vectorisable(intermediate_states, 4)};
}

/// Columns of a thread: V neighbours of each access.
template <int Lanes, int V>
__device__ int step_column(int i, int lane) {
  return i / V * (Lanes * V) + lane * V + i % V;
}

template <class State, int Lanes, int Columns>
__device__ void load_state_row(float (&S)[Columns], const State* row, std::int64_t stride, bool whole, int dk,
                               int lane) {
  constexpr int V = vector_elements<State>;
#pragma unroll
  for (int j = 0; j < Columns; j += V) {
    const int c = step_column<Lanes, V>(j, lane);
    vector<State> x = {};
    if (whole) {
      if (row != nullptr && c < dk) x = load_vector(row + c);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (row != nullptr && c + i < dk) insert_element(x, i, row[(c + i) * stride]);
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) S[j + i] = static_cast<float>(element_of(x, i));
  }
}

template <class State, int Lanes, int Columns>
__device__ void store_state_row(const float (&S)[Columns], State* row, std::int64_t stride, bool whole, int dk,
                                int lane) {
  constexpr int V = vector_elements<State>;
#pragma unroll
  for (int j = 0; j < Columns; j += V) {
    const int c = step_column<Lanes, V>(j, lane);
    float x[V];
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = S[j + i];
    const vector<State> rounded = round_to_vector<State>(x);
    if (whole) {
      if (c < dk) store_vector(row + c, rounded);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (c + i < dk) row[(c + i) * stride] = element_of(rounded, i);
      }
    }
  }
}

template <class Form, class State, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(split::threads)
    recurrence_step_kernel(const __grid_constant__ step_params<Form, State> p) {
  constexpr split Split = split_of_step(Padded);
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = split::rows;
  constexpr int V = vector_elements<State>;
  constexpr int rows = Split.block_rows();
  constexpr int threads = split::threads;
  static_assert(C % V == 0 && L >= R);
  extern __shared__ float step_memory[];  // T rows of k and of q (Padded), of v and of z (rows), of alpha and write

  const shared_operands& in = p.in;
  const int T = static_cast<int>(in.value.extent(1));
  float* const k = step_memory;
  float* const q = k + T * Padded;
  float* const values = q + T * Padded;
  float* const z = values + T * rows;
  float* const alpha = z + T * rows;
  float* const write = alpha + T;

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
    for (int i = tid; i < T * rows; i += threads) {
      if (block_row + i % rows < dv) in.out.store(0.0f, b, i / rows, head, block_row + i % rows);
    }
    return;
  }

  float S[R][C];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = block_row + first_row + r;
    const State* const from = row < dv ? &p.state(p.pool.read(b), head, row, 0) : nullptr;
    load_state_row<State, L>(S[r], from, p.state.stride(3), p.whole, dk, lane);
  }

  stage_rows<Padded, threads>(in.key, in, b, 0, group, T, T, k);
  stage_rows<Padded, threads>(in.query, in, b, 0, group, T, T, q);
  for (int i = tid; i < T * rows; i += threads) {
    const int row = block_row + i % rows;
    values[i] = row < dv ? in.value.load(b, i / rows, head, row) : 0.0f;
    z[i] = row < dv && in.z.given() ? in.z.load(b, i / rows, head, row) : 0.0f;
  }
  if (tid < T) {
    const gate g = p.form.gate_of(p.form.load_gate(b, tid, head), p.form.numbers_of(head));
    alpha[tid] = g.alpha;
    write[tid] = g.write;
  }
  __syncthreads();

#pragma unroll 1
  for (int t = 0; t < T; ++t) {
    float row_of[C];  // k, then q
    const auto load_row = [&](const float* from) {
#pragma unroll
      for (int i = 0; i < C; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(from + t * Padded + step_column<L, V>(i, lane));
        row_of[i] = x.x, row_of[i + 1] = x.y, row_of[i + 2] = x.z, row_of[i + 3] = x.w;
      }
    };
    float u[R];
    float dot[R];
    const auto multiply = [&] {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        dot[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < C; ++i) dot[r] = fmaf(S[r][i], row_of[i], dot[r]);
      }
    };
    load_row(k);
#pragma unroll
    for (int r = 0; r < R; ++r) u[r] = values[t * rows + first_row + r];
    if constexpr (Form::erases) {
      multiply();
#pragma unroll
      for (int r = 0; r < R; ++r) u[r] = fmaf(-alpha[t], sum_in_group<L>(dot[r]), u[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      u[r] *= write[t];
#pragma unroll
      for (int i = 0; i < C; ++i) S[r][i] = fmaf(u[r], row_of[i], alpha[t] * S[r][i]);
    }
    load_row(q);
    multiply();
    // A lane ends with the sums of R / min(L, R) = 1 row.
    static_assert(R == 4);
    const int r = sum_over_lanes<L>(dot, lane);
    const int row = first_row + r;
    if (lane % (L / R) == 0 && block_row + row < dv) {
      const int at = t * rows + row;
      in.out.store(p.form.finish(in.scale * dot[0], values[at], z[at], head, block_row + row), b, t, head,
                   block_row + row);
    }
    if (p.intermediate_states.data() == nullptr) continue;
#pragma unroll
    for (int i = 0; i < R; ++i) {
      if (block_row + first_row + i >= dv) continue;
      store_state_row<State, L>(S[i], &p.intermediate_states(b, t, head, block_row + first_row + i, 0),
                                p.intermediate_states.stride(4), p.whole, dk, lane);
    }
  }

#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (block_row + first_row + r >= dv) continue;
    store_state_row<State, L>(S[r], &p.state(p.pool.write(b), head, block_row + first_row + r, 0), p.state.stride(3),
                              p.whole, dk, lane);
  }
}

/// Enqueues the outputs and the new states.
template <class KeyDims, class Form, class State>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, const step_params<Form, State>& p) {
  const std::int64_t T = p.in.value.extent(1);
  if (T == 0) return {};
  status s;
  const bool found = dispatch(padded_key_dim(p.in.dk()), KeyDims{}, [&](auto padded) {
    constexpr int rows = split_of_step(padded).block_rows();
    const grid g{.blocks = p.in.value.extent(0) * p.in.heads() * tiles_of(p.in.dv(), rows),
                 .threads = split::threads,
                 .shared_bytes = static_cast<std::size_t>(T * (2 * padded + 2 * rows + 2)) * sizeof(float)};
    s = launch(name, exec, g, recurrence_step_kernel<Form, State, padded>, p);
  });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(p.in.dk())};
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
