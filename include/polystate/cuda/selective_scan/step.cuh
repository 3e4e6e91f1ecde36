// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Step kernel of selective_scan: memory bound, so each thread moves four neighbouring states of a channel at a time.
/// One group of threads owns a channel of a batch row: the update in place needs no ordering between groups.

#include <polystate/core/state_pool.hpp>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/selective_scan/policy.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/selective_scan.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::scan {

struct step_tiles {
  static constexpr int threads = 128;
  static constexpr int states = 4;  ///< of a thread at a time
  static constexpr int most_tokens = static_cast<int>(selective_scan_limits::step_tokens.max);
};

template <class Data, class State>
struct step_params {
  selective_scan_step_args<Data, State> op;
  state_pool pool;
  int lanes = 1;       ///< threads of a channel, a power of two
  bool whole = false;  ///< four states are one aligned access
};

template <class Data, class State>
step_params<Data, State> make_params(const selective_scan_step_args<Data, State>& args) {
  constexpr auto bytes = static_cast<std::int64_t>(step_tiles::states * sizeof(State));
  const auto whole = [&](const auto& view, int rank) {
    if (view.size() == 0) return true;
    bool aligned = view.stride(rank - 1) == 1 && view.extent(rank - 1) % step_tiles::states == 0 &&
                   reinterpret_cast<std::uintptr_t>(view.data()) % static_cast<std::uintptr_t>(bytes) == 0;
    for (int i = 0; i + 1 < rank; ++i) aligned = aligned && view.stride(i) % step_tiles::states == 0;
    return aligned;
  };
  return {.op = args,
          .pool = state_pool(args.state.extent(0), args.read_indices, args.write_indices),
          .lanes = power_of_two(tiles_of(args.A.extent(1), step_tiles::states), 32),
          .whole = whole(args.state, 3) && whole(args.intermediate_states, 4)};
}

/// Four states as they lie in memory.
template <class State>
struct alignas(step_tiles::states * sizeof(State)) state_quad {
  State value[step_tiles::states];
};

template <class Data, class State>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(step_tiles::threads)
    selective_scan_step_kernel(const __grid_constant__ step_params<Data, State> p) {
  constexpr int S = step_tiles::states;
  constexpr float log2_e = 1.44269504088896341f;
  const auto& op = p.op;
  const std::int64_t D = op.u.extent(2);
  const int N = static_cast<int>(op.A.extent(1));
  const int T = static_cast<int>(op.u.extent(1));
  const std::int64_t item =
      (static_cast<std::int64_t>(blockIdx.x) * step_tiles::threads + static_cast<int>(threadIdx.x)) / p.lanes;
  const int lane = static_cast<int>(threadIdx.x) % p.lanes;
  // Groups beyond the last channel take part in the exchange of sums, and write nothing.
  const bool real = item < op.u.extent(0) * D;
  const std::int64_t b = real ? item / D : 0;
  const std::int64_t d = real ? item % D : 0;
  const bool padding = p.pool.padding(b);
  const bool works = real && !padding;
  const std::int64_t g = group_of_head(d, D, op.B.extent(2));

  float u[step_tiles::most_tokens];
  float dt[step_tiles::most_tokens];
  float sum[step_tiles::most_tokens];
#pragma unroll
  for (int t = 0; t < step_tiles::most_tokens; ++t) {
    sum[t] = 0.0f;
    u[t] = 0.0f;
    dt[t] = 0.0f;
    if (t < T && works) {
      u[t] = static_cast<float>(op.u(b, t, d));
      dt[t] = static_cast<float>(op.delta(b, t, d));
      if (op.delta_bias.data() != nullptr) dt[t] += op.delta_bias(d);
      if (op.delta_softplus) dt[t] = softplus<Data>(dt[t]);
    }
  }

  for (int n0 = lane * S; works && n0 < N; n0 += p.lanes * S) {
    float h[S];
    float A[S];
    if (p.whole) {
      const auto quad = *reinterpret_cast<const state_quad<State>*>(&op.state(p.pool.read(b), d, n0));
#pragma unroll
      for (int k = 0; k < S; ++k) h[k] = static_cast<float>(quad.value[k]);
    } else {
#pragma unroll
      for (int k = 0; k < S; ++k) {
        h[k] = n0 + k < N ? static_cast<float>(op.state(p.pool.read(b), d, n0 + k)) : 0.0f;
      }
    }
#pragma unroll
    for (int k = 0; k < S; ++k) A[k] = n0 + k < N ? op.A(d, n0 + k) * log2_e : 0.0f;

    const auto store = [&](State* to, std::int64_t stride) {
      state_quad<State> quad;
#pragma unroll
      for (int k = 0; k < S; ++k) quad.value[k] = static_cast<State>(h[k]);
      if (p.whole) {
        *reinterpret_cast<state_quad<State>*>(to) = quad;
      } else {
#pragma unroll
        for (int k = 0; k < S; ++k) {
          if (n0 + k < N) to[k * stride] = quad.value[k];
        }
      }
    };
#pragma unroll
    for (int t = 0; t < step_tiles::most_tokens; ++t) {
      if (t >= T) break;
#pragma unroll
      for (int k = 0; k < S; ++k) {
        if (n0 + k >= N) continue;
        const float B = static_cast<float>(op.B(b, t, g, n0 + k));
        const float C = static_cast<float>(op.C(b, t, g, n0 + k));
        h[k] = fmaf(exp2_approximate(dt[t] * A[k]), h[k], dt[t] * u[t] * B);
        sum[t] = fmaf(C, h[k], sum[t]);
      }
      if (op.intermediate_states.data() != nullptr) {
        store(&op.intermediate_states(b, t, d, n0), op.intermediate_states.stride(3));
      }
    }
    store(&op.state(p.pool.write(b), d, n0), op.state.stride(2));
  }

#pragma unroll
  for (int t = 0; t < step_tiles::most_tokens; ++t) {
    if (t >= T) break;
    for (int apart = p.lanes / 2; apart > 0; apart /= 2) sum[t] += __shfl_xor_sync(0xffffffffu, sum[t], apart);
    if (!real || lane != 0) continue;
    float y = 0.0f;
    if (!padding) {
      y = op.D.data() != nullptr ? fmaf(op.D(d), u[t], sum[t]) : sum[t];
      if (op.z.data() != nullptr) y *= silu<Data>(static_cast<float>(op.z(b, t, d)));
    }
    op.y(b, t, d) = static_cast<Data>(y);
  }
}

template <class Data, class State>
POLYSTATE_HIDDEN status launch_step(const char* name, const on_cuda& exec, const step_params<Data, State>& p) {
  const std::int64_t threads = p.op.u.extent(1) == 0 ? 0 : p.op.u.extent(0) * p.op.u.extent(2) * p.lanes;
  const grid g{.blocks = tiles_of(threads, step_tiles::threads), .threads = step_tiles::threads};
  return launch(name, exec, g, selective_scan_step_kernel<Data, State>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::scan
