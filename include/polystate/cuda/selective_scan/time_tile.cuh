// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tiles of channels x tokens in shared memory, for the kernels whose lanes lie along time: a lane owns `Steps`
/// successive tokens of one channel, `Lanes` neighbouring lanes a tile's tokens of it, a warp 32 / Lanes channels.

#include <polystate/cuda/selective_scan/tile_view.cuh>
#include <polystate/cuda/selective_scan/time_policy.hpp>
#include <polystate/cuda/vector.cuh>

#include <cuda_pipeline.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// The tokens of a lane's, at most Steps, that lie inside the sequence; none or fewer if not positive.
template <int Steps>
__device__ int tokens_left(const tile_place& p, int lane) {
  const std::int64_t left = p.t_end - p.t - lane * Steps;
  return left < Steps ? static_cast<int>(left) : Steps;
}

template <class Data, int Warps, int Lanes, int Steps>
struct time_tile {
  static constexpr int V = vector_elements<Data>;
  static constexpr int threads = 32 * Warps;
  static constexpr int channels_of_warp = 32 / Lanes;
  static constexpr int channels = Warps * channels_of_warp;
  static constexpr int tokens = Lanes * Steps;
  static constexpr int vectors = channels * tokens / V;
  static_assert(Steps % V == 0 && channels % V == 0);

  // A vector of padding after each lane's tokens, or after each channel's: lanes then meet different banks.
  static constexpr int by_token = tokens * channels + Lanes * V;
  static constexpr int by_channel = channels * (tokens + V);
  static constexpr int elements = by_token > by_channel ? by_token : by_channel;

  bool along_time;  ///< elements of a channel are neighbours, or elements of a token
  bool whole;       ///< vectors are single accesses of global memory

  __device__ explicit time_tile(access a)
      : along_time(a == access::time_vectors || a == access::time_elements),
        whole(a == access::time_vectors || a == access::channel_vectors) {}

  [[nodiscard]] __device__ int at(int c, int t) const {
    return along_time ? c * (tokens + V) + t : t * channels + t / Steps * V + c;
  }

  /// Enqueues the copy of an operand's tile; a thread copies the vectors that copy_out() gives to it.
  __device__ void fetch(Data* to, const tensor_view<const Data, 3>& from, const tile_place& p) const {
    if (from.data() == nullptr) return;
    if (whole) {
      const tile_view<const Data> view(from, p);
      const int t_end = p.tokens(tokens);
      const int c_end = p.channels(channels);
      for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
        int c = 0;
        int t = 0;
        place_of(i, c, t);
        auto* const vector_to = reinterpret_cast<vector<Data>*>(to + at(c, t));
        if (t < t_end && c < c_end) {
          __pipeline_memcpy_async(vector_to, view.at(t, c), sizeof(vector<Data>));
        } else {
          *vector_to = {};
        }
      }
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
      int c = 0;
      int t = 0;
      place_of(i, c, t);
      vector<Data> gathered = {};
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const std::int64_t tk = p.t + (along_time ? t + k : t);
        const std::int64_t ck = p.c + (along_time ? c : c + k);
        if (tk < p.t_end && ck < p.c_end) insert_element(gathered, k, from(p.batch, tk, ck));
      }
      *reinterpret_cast<vector<Data>*>(to + at(c, t)) = gathered;
    }
  }

  /// Writes a tile to an operand. Its elements were put here by other threads: a barrier lies between.
  __device__ void copy_out(const tensor_view<Data, 3>& to, const Data* from, const tile_place& p) const {
    if (to.data() == nullptr) return;
    if (whole) {
      const tile_view<Data> view(to, p);
      const int t_end = p.tokens(tokens);
      const int c_end = p.channels(channels);
      for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
        int c = 0;
        int t = 0;
        place_of(i, c, t);
        if (t < t_end && c < c_end) {
          store_vector(view.at(t, c), *reinterpret_cast<const vector<Data>*>(from + at(c, t)));
        }
      }
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
      int c = 0;
      int t = 0;
      place_of(i, c, t);
      const vector<Data> v = *reinterpret_cast<const vector<Data>*>(from + at(c, t));
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const std::int64_t tk = p.t + (along_time ? t + k : t);
        const std::int64_t ck = p.c + (along_time ? c : c + k);
        if (tk < p.t_end && ck < p.c_end) to(p.batch, tk, ck) = element_of(v, k);
      }
    }
  }

  /// The elements of a lane.
  __device__ void read(float (&x)[Steps], const Data* from, int channel, int lane) const {
    if (along_time) {
#pragma unroll
      for (int j = 0; j < Steps; j += V) {
        const vector<Data> v = *reinterpret_cast<const vector<Data>*>(from + first_of(channel, lane) + j);
#pragma unroll
        for (int k = 0; k < V; ++k) x[j + k] = static_cast<float>(element_of(v, k));
      }
    } else {
#pragma unroll
      for (int j = 0; j < Steps; ++j) x[j] = static_cast<float>(from[first_of(channel, lane) + j * channels]);
    }
  }
  __device__ void write(Data* to, const float (&x)[Steps], int channel, int lane) const {
    if (along_time) {
#pragma unroll
      for (int j = 0; j < Steps; j += V) {
        float part[V];
#pragma unroll
        for (int k = 0; k < V; ++k) part[k] = x[j + k];
        *reinterpret_cast<vector<Data>*>(to + first_of(channel, lane) + j) = round_to_vector<Data>(part);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Steps; ++j) to[first_of(channel, lane) + j * channels] = static_cast<Data>(x[j]);
    }
  }

 private:
  /// The place of a lane's first token.
  [[nodiscard]] __device__ int first_of(int channel, int lane) const {
    return along_time ? channel * (tokens + V) + lane * Steps : lane * (Steps * channels + V) + channel;
  }
  __device__ void place_of(int i, int& c, int& t) const {
    if (along_time) {
      c = i / (tokens / V);
      t = i % (tokens / V) * V;
    } else {
      c = i % (channels / V) * V;
      t = i / (channels / V);
    }
  }
};

/// Steps in the same places of all lanes are neighbours, so that the lanes' 16-byte reads meet no bank twice.
template <int Lanes, int Steps>
struct lane_order {
  static constexpr int quad_pitch = Lanes * 4 + 4;
  static constexpr int pitch = (Steps / 4 * quad_pitch + 7) / 8 * 8 + 4;  ///< floats of one state
  __device__ static int at(int t) {
    const int step = t % Steps;
    return step / 4 * quad_pitch + t / Steps * 4 + step % 4;
  }
  __device__ static int of_quad(int lane, int quad) { return quad * quad_pitch + lane * 4; }
};

/// B and C of some successive states of a group, and A of a tile's channels, for a tile's tokens: as floats in shared
/// memory, zero beyond N and the sequence. load() takes the next tile's into registers while this one is worked on,
/// store() puts them down.
template <class Data, int Warps, int Lanes, int Steps>
struct state_operands {
  using Tile = time_tile<Data, Warps, Lanes, Steps>;
  using order = lane_order<Lanes, Steps>;
  static constexpr int states = 16;
  static constexpr int V = Tile::V;
  static constexpr int vectors = 2 * states * Tile::tokens / V;  // B's, then C's
  static constexpr int each = (vectors + Tile::threads - 1) / Tile::threads;
  static constexpr int A_each = Tile::channels * states / Tile::threads;

  struct shared {
    float B[states * order::pitch];
    float C[states * order::pitch];
    float A[Tile::channels * states];  ///< in units of log2, so that a decay is one exp2
  };

  vector<Data> BC[each];
  float A[A_each];

  template <class Params>
  __device__ void load(const Params& p, std::int64_t group, int first_state, const tile_place& place) {
    constexpr float log2_e = 1.44269504088896341f;
    const int N = static_cast<int>(p.A.extent(1));
    const int tid = static_cast<int>(threadIdx.x);
    const int t_end = place.tokens(Tile::tokens);
#pragma unroll
    for (int j = 0; j < A_each; ++j) {
      const std::int64_t d = place.c + (j * Tile::threads + tid) / states;
      const int n = first_state + tid % states;
      A[j] = d < place.c_end && n < N ? p.A(d, n) * log2_e : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int t = 0;
      int n = 0;
      place_of(j, p.schedule.moves.BC_along_time, t, n);
      n += first_state;
      BC[j] = {};
      const int i = j * Tile::threads + tid;
      const auto& from = i < vectors / 2 ? p.B : p.C;
      if (i >= vectors || from.data() == nullptr) continue;
      if (p.schedule.moves.BC_whole) {
        if (n < N && t < t_end) {
          BC[j] = load_vector_read_only(&from(place.batch, place.t, group, 0) +
                                        (t * static_cast<int>(from.stride(1)) + n * static_cast<int>(from.stride(3))));
        }
        continue;
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int nk = p.schedule.moves.BC_along_time ? n : n + k;
        const std::int64_t tk = place.t + (p.schedule.moves.BC_along_time ? t + k : t);
        if (nk < N && tk < place.t_end) insert_element(BC[j], k, from(place.batch, tk, group, nk));
      }
    }
  }

  __device__ void store(shared& to, bool BC_along_time) const {
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int j = 0; j < A_each; ++j) to.A[j * Tile::threads + tid] = A[j];
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int i = j * Tile::threads + tid;
      if (i >= vectors) continue;
      int t = 0;
      int n = 0;
      place_of(j, BC_along_time, t, n);
      float* const state = (i < vectors / 2 ? to.B : to.C) + n * order::pitch;
      if (BC_along_time) {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
          *reinterpret_cast<float4*>(state + order::at(t + k)) =
              make_float4(static_cast<float>(element_of(BC[j], k)), static_cast<float>(element_of(BC[j], k + 1)),
                          static_cast<float>(element_of(BC[j], k + 2)), static_cast<float>(element_of(BC[j], k + 3)));
        }
      } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          state[k * order::pitch + order::at(t)] = static_cast<float>(element_of(BC[j], k));
        }
      }
    }
  }

 private:
  __device__ static void place_of(int j, bool along_time, int& t, int& n) {
    const int i = (j * Tile::threads + static_cast<int>(threadIdx.x)) % (vectors / 2);
    if (along_time) {
      n = i / (Tile::tokens / V);
      t = i % (Tile::tokens / V) * V;
    } else {
      n = i % (states / V) * V;
      t = i / (states / V);
    }
  }
};

/// Four successive floats of a lane.
__device__ inline void read_quad(float (&x)[4], const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
