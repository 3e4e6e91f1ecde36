// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernel of selective_scan: memory bound, so each thread moves four neighbouring states of a channel at a time,
/// several such accesses in flight.
/// One group of threads owns a channel of a batch row: the update in place needs no ordering between groups.

#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/selective_scan/policy.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector_access.hpp>
#include <polystate/selective_scan.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

struct step_tiles {
  static constexpr int threads = 128;
  static constexpr int states = 4;  ///< of an access
  static constexpr int most_tokens = static_cast<int>(selective_scan_limits::step_tokens.max);
};

/// Accesses of the state that a thread has in flight. One token leaves registers for more, and what a thread does once
/// for a channel then counts less.
POLYSTATE_HOST_DEVICE constexpr int accesses_of(std::int64_t tokens) { return tokens == 1 ? 4 : 2; }

template <class Data, class State>
struct step_params {
  selective_scan_step_args<Data, State> op;
  state_pool pool;
  int lanes = 1;       ///< threads of a channel, a power of two
  int channels = 1;    ///< of a block
  int tiles = 0;       ///< blocks of a row
  bool quads = false;  ///< four states are one access in every operand that has them
};

template <class Data, class State>
step_params<Data, State> make_params(const selective_scan_step_args<Data, State>& args) {
  const int lanes = power_of_two(tiles_of(args.A.extent(1), accesses_of(args.u.extent(1)) * step_tiles::states), 32);
  const int channels = step_tiles::threads / lanes;
  return {.op = args,
          .pool = state_pool(args.state.extent(0), args.read_indices, args.write_indices),
          .lanes = lanes,
          .channels = channels,
          .tiles = static_cast<int>(tiles_of(args.u.extent(2), channels)),
          .quads = in_quads(args.state) && in_quads(args.intermediate_states) && in_quads(args.A) && in_quads(args.B) &&
                   in_quads(args.C)};
}

/// Four numbers as they lie in memory.
template <class T>
struct alignas(step_tiles::states * sizeof(T)) quad {
  T value[step_tiles::states];
};

/// Four of `count` numbers from index n on; what lies beyond is 0. Kept as they are until they are used: a conversion
/// would wait for them, and the next load for it.
template <class T, bool Quads>
__device__ quad<T> load_quad(const T* from, std::int64_t stride, int n, int count) {
  quad<T> q = {};
  if constexpr (Quads) {
    if (n < count) q = *reinterpret_cast<const quad<T>*>(from + n);
  } else {
#pragma unroll
    for (int k = 0; k < step_tiles::states; ++k) {
      if (n + k < count) q.value[k] = from[(n + k) * stride];
    }
  }
  return q;
}
template <class T, bool Quads>
__device__ void store_quad(const float (&x)[step_tiles::states], T* to, std::int64_t stride, int n, int count) {
  quad<T> q;
#pragma unroll
  for (int k = 0; k < step_tiles::states; ++k) q.value[k] = static_cast<T>(x[k]);
  if constexpr (Quads) {
    if (n < count) *reinterpret_cast<quad<T>*>(to + n) = q;
  } else {
#pragma unroll
    for (int k = 0; k < step_tiles::states; ++k) {
      if (n + k < count) to[(n + k) * stride] = q.value[k];
    }
  }
}

/// At most `Tokens`.
template <class Data, class State, int Tokens, bool Quads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(step_tiles::threads)
    selective_scan_step_kernel(const __grid_constant__ step_params<Data, State> p) {
  constexpr int S = step_tiles::states;
  constexpr int Q = accesses_of(Tokens);
  constexpr float log2_e = 1.44269504088896341f;
  const auto& op = p.op;
  const std::int64_t D = op.u.extent(2);
  const int N = static_cast<int>(op.A.extent(1));
  const int T = static_cast<int>(op.u.extent(1));
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & (p.lanes - 1);
  const auto tiles = static_cast<unsigned>(p.tiles);
  const std::int64_t b = blockIdx.x / tiles;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % tiles) * p.channels + tid / p.lanes;
  // Groups beyond the last channel take part in the exchange of sums, and write nothing.
  const bool real = first < D;
  const std::int64_t d = real ? first : 0;
  const bool padding = p.pool.padding(b);
  const bool works = real && !padding;
  const std::int64_t g = op.B.extent(2) == 1 ? 0 : group_of_head(d, D, op.B.extent(2));
  const State* const read = works ? &op.state(p.pool.read(b), d, 0) : nullptr;
  State* const written = works ? &op.state(p.pool.write(b), d, 0) : nullptr;
  const int pitch = p.lanes * S;  // from a thread's access to its next

  // Everything that the first token needs is asked for before anything is used.
  quad<State> h_in[Q] = {};
  quad<float> A_in[Q] = {};
#pragma unroll
  for (int i = 0; works && i < Q; ++i) {
    h_in[i] = load_quad<State, Quads>(read, op.state.stride(2), lane * S + i * pitch, N);
    A_in[i] = load_quad<float, Quads>(&op.A(d, 0), op.A.stride(1), lane * S + i * pitch, N);
  }
  Data u_of[Tokens] = {};
  Data delta[Tokens] = {};
  Data z[Tokens] = {};
#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
    if (t >= T || !works) continue;
    u_of[t] = op.u(b, t, d);
    delta[t] = op.delta(b, t, d);
    if (op.z.data() != nullptr) z[t] = op.z(b, t, d);
  }
  const float bias = works && op.delta_bias.data() != nullptr ? op.delta_bias(d) : 0.0f;
  const float skip = works && op.D.data() != nullptr ? op.D(d) : 0.0f;

  float u[Tokens];
  float dt[Tokens];
  float sum[Tokens];
  for (int n0 = lane * S; works && n0 < N; n0 += Q * pitch) {
    const bool is_first = n0 == lane * S;
    quad<Data> B_in[Q];
    quad<Data> C_in[Q];
    float h[Q][S];
    float A[Q][S];
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      const int n = n0 + i * pitch;
      if (T > 0) {
        B_in[i] = load_quad<Data, Quads>(&op.B(b, 0, g, 0), op.B.stride(3), n, N);
        C_in[i] = load_quad<Data, Quads>(&op.C(b, 0, g, 0), op.C.stride(3), n, N);
      }
      if (is_first) continue;
      h_in[i] = load_quad<State, Quads>(read, op.state.stride(2), n, N);
      A_in[i] = load_quad<float, Quads>(&op.A(d, 0), op.A.stride(1), n, N);
    }
    if (is_first) {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        u[t] = static_cast<float>(u_of[t]);
        dt[t] = static_cast<float>(delta[t]) + bias;
        if (op.delta_softplus) dt[t] = softplus<Data>(dt[t]);
        sum[t] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < Q; ++i) {
#pragma unroll
      for (int k = 0; k < S; ++k) {
        h[i][k] = static_cast<float>(h_in[i].value[k]);
        A[i][k] = A_in[i].value[k] * log2_e;
      }
    }
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      if (t >= T) break;
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        const int n = n0 + i * pitch;
        if (t > 0) {
          B_in[i] = load_quad<Data, Quads>(&op.B(b, t, g, 0), op.B.stride(3), n, N);
          C_in[i] = load_quad<Data, Quads>(&op.C(b, t, g, 0), op.C.stride(3), n, N);
        }
#pragma unroll
        for (int k = 0; k < S; ++k) {
          const float B = static_cast<float>(B_in[i].value[k]);
          h[i][k] = fmaf(exp2_approximate(dt[t] * A[i][k]), h[i][k], dt[t] * u[t] * B);
          sum[t] = fmaf(static_cast<float>(C_in[i].value[k]), h[i][k], sum[t]);
        }
        if (op.intermediate_states.data() != nullptr) {
          store_quad<State, Quads>(h[i], &op.intermediate_states(b, t, d, 0), op.intermediate_states.stride(3), n, N);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      store_quad<State, Quads>(h[i], written, op.state.stride(2), n0 + i * pitch, N);
    }
  }
  // Threads without a state of their own still take part in the sums.
  if (!works || lane * S >= N) {
#pragma unroll
    for (int t = 0; t < Tokens; ++t) sum[t] = 0.0f;
  }

#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
    if (t >= T) break;
    for (int apart = p.lanes / 2; apart > 0; apart /= 2) sum[t] += __shfl_xor_sync(0xffffffffu, sum[t], apart);
    if (!real || lane != 0) continue;
    float y = 0.0f;
    if (!padding) {
      y = fmaf(skip, static_cast<float>(u_of[t]), sum[t]);
      if (op.z.data() != nullptr) y *= silu<Data>(static_cast<float>(z[t]));
    }
    op.y(b, t, d) = static_cast<Data>(y);
  }
}

template <class Data, class State>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, const step_params<Data, State>& p) {
  // Without tokens too: a state that is written elsewhere than it was read moves.
  const grid g{.blocks = p.op.u.extent(0) * p.tiles, .threads = step_tiles::threads};
  return launch(name, exec, g,
                !p.quads                ? selective_scan_step_kernel<Data, State, step_tiles::most_tokens, false>
                : p.op.u.extent(1) == 1 ? selective_scan_step_kernel<Data, State, 1, true>
                                        : selective_scan_step_kernel<Data, State, step_tiles::most_tokens, true>,
                p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
