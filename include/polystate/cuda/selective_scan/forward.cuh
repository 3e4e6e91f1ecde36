// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernel of selective_scan. A few neighbouring threads own one channel, its states stay in registers, and time
/// runs serially over tiles staged in shared memory: no prefix over time is needed where channels fill the chip.

#include <polystate/core/sequences.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/selective_scan/policy.hpp>
#include <polystate/cuda/selective_scan/tile_view.cuh>
#include <polystate/cuda/vector.cuh>
#include <polystate/selective_scan.hpp>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

template <class Data>
struct forward_params {
  tensor_view<const Data, 3> u, delta, z;
  tensor_view<Data, 3> y;
  tensor_view<const Data, 4> B, C;
  tensor_view<const float, 2> A;
  tensor_view<const float, 1> D, delta_bias;
  any_element_view<3> initial_state, final_state;
  sequences all;
  bool delta_softplus = false;
  bool quads = false;  ///< four states of A and of the states are one access
  forward_schedule schedule;
};

template <class Data, class State>
forward_params<Data> make_params(const selective_scan_args<Data, State>& args, const forward_schedule& schedule) {
  return {.u = args.u,
          .delta = args.delta,
          .z = args.z,
          .y = args.y,
          .B = args.B,
          .C = args.C,
          .A = args.A,
          .D = args.D,
          .delta_bias = args.delta_bias,
          .initial_state = any_element_view<3>(args.initial_state),
          .final_state = any_element_view<3>(args.final_state),
          .all = sequences(args.u.extent(0), args.u.extent(1), args.cu_seqlens),
          .delta_softplus = args.delta_softplus,
          .quads = in_quads(args.A) && in_quads(args.initial_state) && in_quads(args.final_state),
          .schedule = schedule};
}

/// Shared memory of a block. A tile's u, delta, z come in as vectors of Data, double buffered; dt and dt*u of it are
/// kept as floats, channel by channel, and the outputs take dt's place.
template <class Data, int Lanes, int States>
struct tile {
  static constexpr split Split{Lanes, States};
  static constexpr int V = vector_elements<Data>;
  static constexpr int threads = threads_of(Split);
  static constexpr int channels = channels_of(Split);
  static constexpr int tokens = tile_tokens_of(Split);
  static constexpr int N = Split.capacity();
  static constexpr int vectors = channels * tokens / V;

  // 4 floats of padding a channel and 4 more every 8 channels: the prelude's stores, 8 channels of one token or 8
  // tokens of one channel a thread, and the scan's 16-byte reads then meet different banks in either layout.
  static constexpr int pitch = tokens + 4;
  static constexpr int floats = channels * pitch + (channels + 7) / 8 * 4;
  static constexpr int BC_pitch = N + 4;

  vector<Data> raw[2][3][vectors];  // u, delta, z
  alignas(16) float dt[floats];     // then y
  alignas(16) float du[floats];
  alignas(16) float B[tokens * BC_pitch];
  alignas(16) float C[tokens * BC_pitch];
  alignas(16) float D[channels];
  alignas(16) float bias[channels];

  __device__ static int at(int channel, int t) { return channel * pitch + (channel >> 3 << 2) + t; }
};

/// Where the elements of vector i of a tile lie: V neighbouring channels of one token, or V tokens of one channel.
template <class Data, int Lanes, int States, bool AlongTime>
struct vector_place {
  using Tile = tile<Data, Lanes, States>;
  int channel;
  int t;

  __device__ explicit vector_place(int i) {
    if constexpr (AlongTime) {
      channel = i / (Tile::tokens / Tile::V);
      t = i % (Tile::tokens / Tile::V) * Tile::V;
    } else {
      channel = i % (Tile::channels / Tile::V) * Tile::V;
      t = i / (Tile::channels / Tile::V);
    }
  }
  __device__ int channel_of(int k) const { return AlongTime ? channel : channel + k; }
  __device__ int t_of(int k) const { return AlongTime ? t + k : t; }
};

__device__ inline void put_four(float* x, float4 v) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; }

/// A number of each element's channel, in shared memory: of V channels, or V times of one.
template <bool AlongTime, int V>
__device__ void per_channel(float (&x)[V], const float* from) {
  if constexpr (AlongTime) {
#pragma unroll
    for (int k = 0; k < V; ++k) x[k] = *from;
  } else {
#pragma unroll
    for (int k = 0; k < V; k += 4) {
      put_four(x + k, *reinterpret_cast<const float4*>(from + k));
    }
  }
}

/// The block's place: a sequence, a group, and its channels first .. end-1.
struct block_place {
  std::int64_t row;
  token_range tokens;
  std::int64_t group;
  std::int64_t first;
  std::int64_t end;
};

template <class Params>
__device__ block_place place_of_block(const Params& p, int channels) {
  const forward_schedule& s = p.schedule;
  const auto tiles = static_cast<unsigned>(s.group_tiles);
  const unsigned rest = blockIdx.x / tiles;
  const auto groups = static_cast<unsigned>(p.B.extent(2));
  const std::int64_t group = rest % groups;
  const std::int64_t row = rest / groups;
  const std::int64_t first = group * s.group_channels + static_cast<std::int64_t>(blockIdx.x % tiles) * channels;
  const std::int64_t group_end = (group + 1) * s.group_channels;
  return {row, p.all[row], group, first, first + channels < group_end ? first + channels : group_end};
}

/// Sums four values over the `Lanes` threads of a channel. Each thread ends with 4 / min(Lanes, 4) of the sums, from
/// the returned index on; where Lanes exceeds 4, threads of a subgroup hold the same one.
template <int Lanes>
__device__ int sum_over_lanes(float (&a)[4], int lane) {
  constexpr unsigned all = 0xffffffffu;
  int first = 0;
  if constexpr (Lanes >= 2) {
    constexpr int apart = Lanes / 2;
    const bool upper = (lane & apart) != 0;
    const float give0 = upper ? a[0] : a[2];
    const float give1 = upper ? a[1] : a[3];
    a[0] = (upper ? a[2] : a[0]) + __shfl_xor_sync(all, give0, apart);
    a[1] = (upper ? a[3] : a[1]) + __shfl_xor_sync(all, give1, apart);
    first = upper ? 2 : 0;
  }
  if constexpr (Lanes >= 4) {
    constexpr int apart = Lanes / 4;
    const bool upper = (lane & apart) != 0;
    const float give = upper ? a[0] : a[1];
    a[0] = (upper ? a[1] : a[0]) + __shfl_xor_sync(all, give, apart);
    first += upper ? 1 : 0;
  }
#pragma unroll
  for (int apart = Lanes / 8; apart > 0; apart /= 2) a[0] += __shfl_xor_sync(all, a[0], apart);
  return first;
}

template <class Data, int Lanes, int States, bool AlongTime>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(threads_of(split{Lanes, States}),
                                                   512 / threads_of(split{Lanes, States}))
    selective_scan_fwd_kernel(const __grid_constant__ forward_params<Data> p) {
  using Tile = tile<Data, Lanes, States>;
  using place_type = vector_place<Data, Lanes, States, AlongTime>;
  constexpr int V = Tile::V;
  constexpr int S = States;
  constexpr float log2_e = 1.44269504088896341f;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const int tid = static_cast<int>(threadIdx.x);
  const block_place place = place_of_block(p, Tile::channels);
  const std::int64_t b = place.tokens.batch;
  const int N = static_cast<int>(p.A.extent(1));
  const int channel = tid / Lanes;  // the one that this thread scans
  const int lane = tid % Lanes;
  const int first_state = lane * S;
  const std::int64_t d = place.first + channel;
  const bool has_channel = d < place.end;
  const bool whole =
      p.schedule.moves.access == access::channel_vectors || p.schedule.moves.access == access::time_vectors;

  float h[S];
  float A[S];  // in units of log2, so that a decay is one exp2
#pragma unroll
  for (int n = 0; n < S; ++n) A[n] = h[n] = 0.0f;
  if (has_channel) {
    if (S % 4 == 0 && p.quads) {
#pragma unroll
      for (int n = 0; n + 3 < S; n += 4) {
        if (first_state + n >= N) break;
        put_four(A + n, *reinterpret_cast<const float4*>(&p.A(d, first_state + n)));
        if (!p.initial_state.given()) continue;
        put_four(h + n, load_four(p.initial_state.address(place.row, d, first_state + n), p.initial_state.type()));
      }
    } else {
#pragma unroll
      for (int n = 0; n < S; ++n) {
        if (first_state + n >= N) break;
        A[n] = p.A(d, first_state + n);
        if (p.initial_state.given()) h[n] = p.initial_state.load(place.row, d, first_state + n);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < S; ++n) A[n] *= log2_e;
  if (tid < Tile::channels) {
    const std::int64_t c = place.first + tid;
    sm.D[tid] = p.D.data() != nullptr && c < place.end ? p.D(c) : 0.0f;
    sm.bias[tid] = p.delta_bias.data() != nullptr && c < place.end ? p.delta_bias(c) : 0.0f;
  }

  const auto tile_at = [&](std::int64_t t0) { return tile_place{b, t0, place.tokens.end, place.first, place.end}; };
  // Each thread fetches, turns into dt and dt*u, and in the end outputs the same vectors, so that what it fetched needs
  // no barrier.
  const auto fetch = [&](std::int64_t t0, int buffer) {
    const tile_place here = tile_at(t0);
    const int t_end = here.tokens(Tile::tokens);
    const int c_end = here.channels(Tile::channels);
#pragma unroll
    for (int which = 0; which < 3; ++which) {
      const tensor_view<const Data, 3>& from = which == 0 ? p.u : (which == 1 ? p.delta : p.z);
      if (from.data() == nullptr) continue;
      const tile_view<const Data> view(from, here);
      for (int i = tid; i < Tile::vectors; i += Tile::threads) {
        const place_type v(i);
        vector<Data>& to = sm.raw[buffer][which][i];
        if (whole) {
          if (v.t < t_end && v.channel < c_end) {
            __pipeline_memcpy_async(&to, view.at(v.t, v.channel), sizeof to);
          } else {
            to = {};
          }
        } else {
          vector<Data> gathered = {};
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const int tk = v.t_of(k);
            const int ck = v.channel_of(k);
            if (tk < t_end && ck < c_end) insert_element(gathered, k, from(b, t0 + tk, place.first + ck));
          }
          to = gathered;
        }
      }
    }
    __pipeline_commit();
  };
  // B and C of a tile, vectors of V states or of V tokens; those of the next tile wait in registers while this one is
  // scanned.
  constexpr int BC_vectors = 2 * Tile::tokens * Tile::N / V;  // B's, then C's
  constexpr int BC_each = (BC_vectors + Tile::threads - 1) / Tile::threads;
  vector<Data> BC[BC_each];
  const auto BC_place = [&](int j, int& t, int& n) {
    const int i = (j * Tile::threads + tid) % (BC_vectors / 2);
    if (p.schedule.moves.BC_along_time) {
      n = i / (Tile::tokens / V);
      t = i % (Tile::tokens / V) * V;
    } else {
      n = i % (Tile::N / V) * V;
      t = i / (Tile::N / V);
    }
  };
  const auto fetch_BC = [&](std::int64_t t0) {
    const int t_end = tile_at(t0).tokens(Tile::tokens);
#pragma unroll
    for (int j = 0; j < BC_each; ++j) {
      int t = 0;
      int n = 0;
      BC_place(j, t, n);
      BC[j] = {};
      const bool mine = j * Tile::threads + tid < BC_vectors;
      const auto& from = j * Tile::threads + tid < BC_vectors / 2 ? p.B : p.C;
      if (p.schedule.moves.BC_whole) {
        if (mine && n < N && t < t_end) {
          BC[j] = load_vector_read_only(&from(b, t0, place.group, 0) +
                                        (t * static_cast<int>(from.stride(1)) + n * static_cast<int>(from.stride(3))));
        }
        continue;
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int nk = p.schedule.moves.BC_along_time ? n : n + k;
        const int tk = p.schedule.moves.BC_along_time ? t + k : t;
        if (mine && nk < N && tk < t_end) insert_element(BC[j], k, from(b, t0 + tk, place.group, nk));
      }
    }
  };
  const auto store_BC = [&] {
#pragma unroll
    for (int j = 0; j < BC_each; ++j) {
      if (j * Tile::threads + tid >= BC_vectors) continue;
      int t = 0;
      int n = 0;
      BC_place(j, t, n);
      float* to = (j * Tile::threads + tid < BC_vectors / 2 ? sm.B : sm.C) + t * Tile::BC_pitch + n;
      if (p.schedule.moves.BC_along_time) {
#pragma unroll
        for (int k = 0; k < V; ++k) to[k * Tile::BC_pitch] = static_cast<float>(element_of(BC[j], k));
      } else {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
          *reinterpret_cast<float4*>(to + k) =
              make_float4(static_cast<float>(element_of(BC[j], k)), static_cast<float>(element_of(BC[j], k + 1)),
                          static_cast<float>(element_of(BC[j], k + 2)), static_cast<float>(element_of(BC[j], k + 3)));
        }
      }
    }
  };

  fetch(place.tokens.begin, 0);
  fetch_BC(place.tokens.begin);
  __syncthreads();  // D and bias
  int buffer = 0;
  for (std::int64_t t0 = place.tokens.begin; t0 < place.tokens.end; t0 += Tile::tokens, buffer ^= 1) {
    store_BC();
    fetch(t0 + Tile::tokens, buffer ^ 1);
    fetch_BC(t0 + Tile::tokens);
    __pipeline_wait_prior(1);
    const int left = tile_at(t0).tokens(Tile::tokens);
    const int c_end = tile_at(t0).channels(Tile::channels);

    for (int i = tid; i < Tile::vectors; i += Tile::threads) {
      const place_type v(i);
      const vector<Data> u = sm.raw[buffer][0][i];
      const vector<Data> delta = sm.raw[buffer][1][i];
      float dt[V];
      float du[V];
      float bias[V];
      per_channel<AlongTime>(bias, sm.bias + v.channel);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        dt[k] = static_cast<float>(element_of(delta, k)) + bias[k];
        if (p.delta_softplus) dt[k] = softplus<Data>(dt[k]);
        // Beyond the sequence dt is 0: the states stay as they are, and must not see softplus of the bias.
        if (v.t_of(k) >= left) dt[k] = 0.0f;
        du[k] = dt[k] * static_cast<float>(element_of(u, k));
      }
      if constexpr (AlongTime) {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
          const int at = Tile::at(v.channel, v.t + k);
          *reinterpret_cast<float4*>(&sm.dt[at]) = make_float4(dt[k], dt[k + 1], dt[k + 2], dt[k + 3]);
          *reinterpret_cast<float4*>(&sm.du[at]) = make_float4(du[k], du[k + 1], du[k + 2], du[k + 3]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          sm.dt[Tile::at(v.channel + k, v.t)] = dt[k];
          sm.du[Tile::at(v.channel + k, v.t)] = du[k];
        }
      }
    }
    __syncthreads();

#pragma unroll 1
    for (int t = 0; t < left; t += 4) {
      const int at = Tile::at(channel, t);
      const float4 dt4 = *reinterpret_cast<const float4*>(&sm.dt[at]);
      const float4 du4 = *reinterpret_cast<const float4*>(&sm.du[at]);
      const float dt[4] = {dt4.x, dt4.y, dt4.z, dt4.w};
      const float du[4] = {du4.x, du4.y, du4.z, du4.w};
      float y[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float B[S];
        float C[S];
        const float* from_B = &sm.B[(t + j) * Tile::BC_pitch + first_state];
        const float* from_C = &sm.C[(t + j) * Tile::BC_pitch + first_state];
        if constexpr (S % 4 == 0) {
#pragma unroll
          for (int n = 0; n < S; n += 4) {
            const float4 B4 = *reinterpret_cast<const float4*>(from_B + n);
            const float4 C4 = *reinterpret_cast<const float4*>(from_C + n);
            B[n] = B4.x, B[n + 1] = B4.y, B[n + 2] = B4.z, B[n + 3] = B4.w;
            C[n] = C4.x, C[n + 1] = C4.y, C[n + 2] = C4.z, C[n + 3] = C4.w;
          }
        } else {
#pragma unroll
          for (int n = 0; n < S; ++n) B[n] = from_B[n], C[n] = from_C[n];
        }
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < S; ++n) {
          h[n] = fmaf(exp2_approximate(dt[j] * A[n]), h[n], du[j] * B[n]);
          sum = fmaf(C[n], h[n], sum);
        }
        y[j] = sum;
      }
      const int first = sum_over_lanes<Lanes>(y, lane);
      // The channel's threads, all of one warp, have read dt of these tokens: y may take its place.
      if constexpr (Lanes > 1) __syncwarp();
      if constexpr (Lanes == 1) {
        *reinterpret_cast<float4*>(&sm.dt[at]) = make_float4(y[0], y[1], y[2], y[3]);
      } else if constexpr (Lanes == 2) {
        *reinterpret_cast<float2*>(&sm.dt[at + first]) = make_float2(y[0], y[1]);
      } else {
        if (lane % (Lanes / 4) == 0) sm.dt[at + first] = y[0];
      }
    }
    __syncthreads();

    for (int i = tid; i < Tile::vectors; i += Tile::threads) {
      const place_type v(i);
      const vector<Data> u = sm.raw[buffer][0][i];
      float y[V];
      float D[V];
      per_channel<AlongTime>(D, sm.D + v.channel);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        y[k] = fmaf(D[k], static_cast<float>(element_of(u, k)), sm.dt[Tile::at(v.channel_of(k), v.t_of(k))]);
      }
      if (p.z.data() != nullptr) {
        const vector<Data> z = sm.raw[buffer][2][i];
#pragma unroll
        for (int k = 0; k < V; ++k) y[k] *= silu<Data>(static_cast<float>(element_of(z, k)));
      }
      const vector<Data> rounded = round_to_vector<Data>(y);
      if (whole) {
        if (v.t < left && v.channel < c_end) {
          store_vector(tile_view<Data>(p.y, tile_at(t0)).at(v.t, v.channel), rounded);
        }
      } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const int t = v.t_of(k);
          const int c = v.channel_of(k);
          if (t < left && c < c_end) p.y(b, t0 + t, place.first + c) = element_of(rounded, k);
        }
      }
    }
  }

  if (!p.final_state.given() || !has_channel) return;
  if (S % 4 == 0 && p.quads) {
#pragma unroll
    for (int n = 0; n + 3 < S; n += 4) {
      if (first_state + n >= N) break;
      store_four(p.final_state.address(place.row, d, first_state + n), p.final_state.type(),
                 make_float4(h[n], h[n + 1], h[n + 2], h[n + 3]));
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < S; ++n) {
    if (first_state + n < N) p.final_state.store(h[n], place.row, d, first_state + n);
  }
}

/// Enqueues y and the final states.
template <class Dims = dims<>, class Data>
POLYSTATE_HIDDEN status launch_forward(const char* name, const on_cuda& exec, const forward_params<Data>& p) {
  status s;
  const auto launch_split = [&]<std::size_t Choice>() {
    constexpr int Lanes = splits[Choice].lanes;
    constexpr int States = splits[Choice].states;
    if constexpr (!may_meet<Dims>(splits[Choice])) {
      return false;
    } else {
      if (Lanes != p.schedule.lanes.lanes || States != p.schedule.lanes.states) return false;
      const grid g{.blocks = p.schedule.blocks,
                   .threads = threads_of(splits[Choice]),
                   .shared_bytes = sizeof(tile<Data, Lanes, States>)};
      const bool along_time =
          p.schedule.moves.access == access::time_vectors || p.schedule.moves.access == access::time_elements;
      s = launch(name, exec, g,
                 along_time ? selective_scan_fwd_kernel<Data, Lanes, States, true>
                            : selective_scan_fwd_kernel<Data, Lanes, States, false>,
                 p);
      return true;
    }
  };
  [&]<std::size_t... Choices>(std::index_sequence<Choices...>) {
    static_cast<void>((launch_split.template operator()<Choices>() || ...));
  }
  (std::make_index_sequence<sizeof(splits) / sizeof(splits[0])>{});
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
