// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forward kernel of selective_scan whose lanes lie along time, for few channels and long sequences: a warp works on
/// two channels, each lane on some successive tokens, one state after the other. A lane's decays stay in registers
/// between the pass that gives the state after its tokens and, once a prefix over the lanes has given the state before
/// them, the pass that gives the outputs: no decay is computed twice.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/selective_scan/time_tile.cuh>
#include <polystate/cuda/selective_scan/time_walk.cuh>
#include <polystate/selective_scan.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

template <class Data>
struct time_forward_params {
  tensor_view<const Data, 3> u, delta, z;
  tensor_view<Data, 3> y;
  tensor_view<const Data, 4> B, C;
  tensor_view<const float, 2> A;
  tensor_view<const float, 1> D, delta_bias;
  any_element_view<3> initial_state, final_state;
  sequences all;
  bool delta_softplus = false;
  time_schedule schedule;

  handoff passing{};               ///< cut::stream
  float* records = nullptr;        ///< (S, D, N), cut::stream: the state where a tile is cut
  float* piece_states = nullptr;   ///< (pieces, S, D, N), cut::split: before the join states after a piece that began
                                   ///< at zero (the first: at the initial state), after it states before a piece
  float* piece_lengths = nullptr;  ///< (pieces, S, D), cut::split: the sum of dt over a piece
  bool joined = false;             ///< whether piece_states hold the states before a piece
  float* checkpoints = nullptr;    ///< (checkpoints, D, N), optional: the state before every 2^checkpoint_shift lanes
  int checkpoint_shift = 0;        ///< of lanes between two checkpoints, log2
};

template <class Data, int Warps, int Steps>
struct time_forward_tile {
  using data = Data;
  static constexpr int warps = Warps;
  static constexpr int lanes = time_lanes;
  static constexpr int steps = Steps;
  using tile = time_tile<Data, warps, lanes, steps>;
  using operands = state_operands<Data, warps, lanes, steps>;

  struct shared {
    Data raw[2][3][tile::elements];  // u, then y; delta; z
    typename operands::shared states[2];
    int number;
    alignas(16) float h[1];  // (channels, N): behind this struct
  };
  static std::size_t shared_bytes(std::int64_t N) {
    return sizeof(shared) + static_cast<std::size_t>(tile::channels) * static_cast<std::size_t>(N) * sizeof(float);
  }
};

template <class Data>
using wide_time_forward = time_forward_tile<Data, time_warps, time_forward_steps<Data>>;
template <class Data>
using compact_time_forward = time_forward_tile<Data, compact_time_warps, compact_time_forward_steps>;

/// Outputs: y and final states. Otherwise states alone: those after pieces, or checkpoints.
template <class Shape, bool Outputs>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(32 * Shape::warps)
    selective_scan_time_forward_kernel(const __grid_constant__ time_forward_params<typename Shape::data> p) {
  using Data = typename Shape::data;
  using Tile = typename Shape::tile;
  using Operands = typename Shape::operands;
  using order = typename Operands::order;
  constexpr int L = Shape::lanes;
  constexpr int K = Shape::steps;
  extern __shared__ uint4 shared_memory[];
  auto& sm = *reinterpret_cast<typename Shape::shared*>(shared_memory);

  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % L;
  const int channel = tid / L;
  const int N = static_cast<int>(p.A.extent(1));
  const int state_groups = (N + Operands::states - 1) / Operands::states;
  const std::int64_t channels = p.u.extent(2);
  const Tile tile(p.schedule.moves.access);

  const block_pieces pieces(p, sm.number);
  for (int i = 0; i < pieces.size(); ++i) {
    const piece part = pieces[i];
    const channel_tile here = tile_of(p, part.tile);
    const std::int64_t d = here.first + channel;
    const bool has_channel = d < here.end;
    const float D = has_channel && p.D.data() != nullptr ? p.D(d) : 0.0f;
    const float bias = has_channel && p.delta_bias.data() != nullptr ? p.delta_bias(d) : 0.0f;
    const std::int64_t k = p.schedule.how == cut::split ? part.first / p.schedule.piece_chunks : 0;
    const std::int64_t rows = p.all.size();
    const auto place = [&](int chunk) {
      return tile_place{here.tokens.batch, here.tokens.begin + static_cast<std::int64_t>(chunk) * Tile::tokens,
                        here.tokens.end, here.first, here.end};
    };
    const auto fetch = [&](int chunk) {
      if (chunk < part.end) {
        auto& raw = sm.raw[chunk & 1];
        tile.fetch(raw[0], p.u, place(chunk));
        tile.fetch(raw[1], p.delta, place(chunk));
        if constexpr (Outputs) tile.fetch(raw[2], p.z, place(chunk));
      }
      __pipeline_commit();
    };

    const auto first = static_cast<int>(part.first);
    const auto end = static_cast<int>(part.end);
    float* checkpoint = nullptr;
    if (!Outputs && p.checkpoints != nullptr && has_channel && lane % (1 << p.checkpoint_shift) == 0) {
      checkpoint =
          p.checkpoints + (first_checkpoint(p.schedule, here.row, p.u.extent(1), here.tokens.begin) * channels + d) * N;
    }

    // States before the piece.
    if (part.first != 0 && p.schedule.how == cut::stream) p.passing.wait(part.tile);
    const int held = static_cast<int>(here.end - here.first) * N;
    for (int i = tid; i < held; i += Tile::threads) {
      const std::int64_t c = here.first + i / N;
      const int n = i % N;
      float h = 0.0f;
      if (part.first == 0) {
        if (p.initial_state.given()) h = p.initial_state.load(here.row, c, n);
      } else if (p.schedule.how == cut::stream) {
        h = p.records[(here.row * channels + c) * N + n];
      } else if (p.joined) {
        h = p.piece_states[((k * rows + here.row) * channels + c) * N + n];
      }
      sm.h[i] = h;
    }

    Operands next;
    fetch(first);
    if (first < end) {
      next.load(p, here.group, 0, place(first));
      next.store(sm.states[0], p.schedule.moves.BC_along_time);
    }
    __pipeline_wait_prior(0);
    __syncthreads();

    int stage = 0;
    float length = 0.0f;  // the sum of dt of the lane's tokens
    for (int chunk = first; chunk < end; ++chunk) {
      // The buffer of the next chunk still holds the outputs of the one before this.
      if (Outputs && chunk > first) tile.copy_out(p.y, sm.raw[(chunk + 1) & 1][0], place(chunk - 1));
      fetch(chunk + 1);

      auto& raw = sm.raw[chunk & 1];
      float dt[K];
      float du[K];
      float y[K];
      tile.read(du, raw[0], channel, lane);
      tile.read(dt, raw[1], channel, lane);
      const int left = tokens_left<K>(place(chunk), lane);
      float lane_length = 0.0f;
#pragma unroll
      for (int j = 0; j < K; ++j) {
        dt[j] += bias;
        if (p.delta_softplus) dt[j] = softplus<Data>(dt[j]);
        // Beyond the sequence dt is 0: the states stay as they are.
        if (j >= left) dt[j] = 0.0f;
        lane_length += dt[j];
        du[j] *= dt[j];
        y[j] = 0.0f;
      }
      length += lane_length;

      for (int g = 0; g < state_groups; ++g, stage ^= 1) {
        const bool last_group = g + 1 == state_groups;
        const bool more = !last_group || chunk + 1 < end;
        if (more)
          next.load(p, here.group, last_group ? 0 : (g + 1) * Operands::states, place(chunk + (last_group ? 1 : 0)));
        const auto& from = sm.states[stage];
        const int states = N - g * Operands::states < Operands::states ? N - g * Operands::states : Operands::states;
#pragma unroll 1
        for (int n = 0; n < states; ++n) {
          const float A = from.A[channel * Operands::states + n];
          float& carried = sm.h[channel * N + g * Operands::states + n];
          float e[K];
          float x[K];
          float after = 0.0f;
#pragma unroll
          for (int j = 0; j < K; j += 4) {
            float B[4];
            read_quad(B, from.B + n * order::pitch + order::of_quad(lane, j / 4));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              e[j + i] = exp2_approximate(dt[j + i] * A);
              x[j + i] = du[j + i] * B[i];
              after = fmaf(e[j + i], after, x[j + i]);
            }
          }
          float decay = finite(exp2_approximate(lane_length * A));
          float h = 0.0f;
          if (lane == 0) {
            h = carried;
            after = fmaf(decay, h, after);
            decay = 0.0f;
          }
          scan_lanes_up<L>(after, decay);
          const float before = __shfl_up_sync(0xffffffffu, after, 1, L);
          if (lane != 0) h = before;
          __syncwarp();  // lane 0 has read what the last one writes
          if (lane == L - 1 && has_channel) carried = after;
          if constexpr (Outputs) {
#pragma unroll
            for (int j = 0; j < K; j += 4) {
              float C[4];
              read_quad(C, from.C + n * order::pitch + order::of_quad(lane, j / 4));
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                h = fmaf(e[j + i], h, x[j + i]);
                y[j + i] = fmaf(C[i], h, y[j + i]);
              }
            }
          } else if (checkpoint != nullptr && left > 0) {
            const int at = (chunk * L + lane) >> p.checkpoint_shift;
            checkpoint[at * channels * N + g * Operands::states + n] = h;
          }
        }
        if (more) next.store(sm.states[stage ^ 1], p.schedule.moves.BC_along_time);
        if (last_group) {
          if constexpr (Outputs) {
            float u[K];
            tile.read(u, raw[0], channel, lane);
#pragma unroll
            for (int j = 0; j < K; ++j) y[j] = fmaf(D, u[j], y[j]);
            if (p.z.data() != nullptr) {
              float z[K];
              tile.read(z, raw[2], channel, lane);
#pragma unroll
              for (int j = 0; j < K; ++j) y[j] *= silu<Data>(z[j]);
            }
            tile.write(raw[0], y, channel, lane);
          }
          __pipeline_wait_prior(0);
        }
        __syncthreads();
      }
    }
    if (Outputs && first < end) tile.copy_out(p.y, sm.raw[(end + 1) & 1][0], place(end - 1));

    // States after the piece.
    const bool at_end = first >= end || place(end).t >= here.tokens.end;
    for (int i = tid; i < held; i += Tile::threads) {
      const std::int64_t c = here.first + i / N;
      const int n = i % N;
      const std::int64_t at = (here.row * channels + c) * N + n;
      if (!Outputs && p.schedule.how == cut::split && !p.joined) {
        p.piece_states[k * rows * channels * N + at] = sm.h[i];
      } else if (!at_end && p.schedule.how == cut::stream) {
        p.records[at] = sm.h[i];
      } else if (Outputs && at_end && p.final_state.given()) {
        p.final_state.store(sm.h[i], here.row, c, n);
      }
    }
    if (!Outputs && p.schedule.how == cut::split && !p.joined) {
#pragma unroll
      for (int apart = L / 2; apart > 0; apart /= 2) length += __shfl_xor_sync(0xffffffffu, length, apart, L);
      if (lane == 0 && has_channel) p.piece_lengths[(k * rows + here.row) * channels + d] = length;
    }
    if (!at_end && p.schedule.how == cut::stream) p.passing.publish(part.tile);
    __syncthreads();  // the next piece writes sm.h
  }
}

/// Enqueues the kernel over the blocks of its schedule.
template <class Shape, bool Outputs>
POLYSTATE_HIDDEN status launch_time_forward(const char* name, const on_cuda& exec,
                                            const time_forward_params<typename Shape::data>& p) {
  const grid g{
      .blocks = p.schedule.blocks, .threads = Shape::tile::threads, .shared_bytes = Shape::shared_bytes(p.A.extent(1))};
  return launch(name, exec, g, selective_scan_time_forward_kernel<Shape, Outputs>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
