// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Backward kernel of selective_scan: lanes along time, as in time_forward.cuh, chunks from the last to the first. From
/// the state before a chunk a lane recomputes the states of its tokens and keeps them in registers, then a prefix from
/// the last lane to the first brings the gradient of the state after them.
///
/// dB and dC are sums over channels. The warps of a block work on different states at any time and change places
/// together, so that each adds its channels' terms to sums in shared memory that no other touches; the sums that a
/// group's tiles end with go to memory, and a second kernel adds those up. No order is left to chance.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/selective_scan/time_tile.cuh>
#include <polystate/cuda/selective_scan/time_walk.cuh>
#include <polystate/selective_scan.hpp>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// What a walk from the last chunk to the first carries, kept where it stops.
struct backward_records {
  float* dh = nullptr;    ///< (S, D, N): gradient of the state before the tokens walked
  float* dA = nullptr;    ///< (S, D, N)
  float* sums = nullptr;  ///< (S, D, 2): dD, ddelta_bias
};

template <class Data>
struct backward_params {
  tensor_view<const Data, 3> u, delta, z, d_y;
  tensor_view<Data, 3> d_u, d_delta, d_z;
  tensor_view<const Data, 4> B, C;
  tensor_view<const float, 2> A;
  tensor_view<const float, 1> D, delta_bias;
  any_element_view<3> initial_state, d_final_state;
  sequences all;
  bool delta_softplus = false;
  time_schedule schedule;
  int passes = 1;  ///< the tile's channels are walked in so many parts

  // The tokens of this launch, where sequences are not packed: of a long sequence one segment after the other, the last
  // first, so that the sums of dB and dC need not lie in memory for all of it.
  std::int64_t segment_begin = 0;
  std::int64_t segment_end = 0;
  bool continues = false;  ///< whether a later segment has been walked

  handoff passing{};
  backward_records records{};
  const float* checkpoints = nullptr;  ///< (checkpoints, D, N): the state before each chunk; absent: all are the first
  float* BC_sums = nullptr;            ///< (B, G, group_tiles, N, 2, segment), optional: dB, dC of each tile
};

template <class Data, int Warps, int Lanes>
struct backward_tile {
  using data = Data;
  static constexpr int warps = Warps;
  static constexpr int lanes = Lanes;
  static constexpr int steps = time_backward_steps<Data>;
  using tile = time_tile<Data, warps, lanes, steps>;
  using operands = state_operands<Data, warps, lanes, steps>;
  static_assert(operands::states >= warps, "at any time each warp has a state of its own");
  static constexpr int lane_pitch = 36;

  struct shared {
    Data raw[2][4][tile::elements];  // u, then d_u; delta, then d_delta; z, then d_z; d_y
    typename operands::shared states[2];
    alignas(16) float sums[operands::states][2][operands::order::pitch];  // dB, dC
    alignas(16) float dA[warps][operands::states][lane_pitch];            // of the lanes
    int number;
    alignas(16) float carried[1];  // dh (channels, N), dA (channels, N), dD and ddelta_bias (channels, 2)
  };
  static std::size_t shared_bytes(std::int64_t channels, std::int64_t N) {
    return sizeof(shared) + static_cast<std::size_t>(channels * (2 * N + 2)) * sizeof(float);
  }
};

template <class Data>
using wide_backward = backward_tile<Data, time_backward_warps, time_backward_lanes[0]>;
template <class Data>
using short_backward = backward_tile<Data, time_backward_warps, time_backward_lanes[1]>;
template <class Data>
using compact_backward = backward_tile<Data, compact_time_warps, compact_time_backward_lanes>;

/// Sums v over the `Channels` groups of `Lanes` lanes of a warp. Each lane ends with the sums of
/// max(1, Steps / Channels) successive elements in v[0], .., from the returned index on; the return is negative where
/// another lane has the same.
template <int Lanes, int Steps>
__device__ int sum_over_channels(float (&v)[Steps], int lane_of_warp) {
  int first = 0;
  int held = Steps;
  bool twin = false;
#pragma unroll
  for (int apart = 16; apart >= Lanes; apart /= 2) {
    const bool upper = (lane_of_warp & apart) != 0;
    if (held > 1) {
      held /= 2;
#pragma unroll
      for (int i = 0; i < Steps / 2; ++i) {
        if (i >= held) break;
        const float give = upper ? v[i] : v[i + held];
        v[i] = (upper ? v[i + held] : v[i]) + __shfl_xor_sync(0xffffffffu, give, apart);
      }
      first += upper ? held : 0;
    } else {
      v[0] += __shfl_xor_sync(0xffffffffu, v[0], apart);
      twin = twin || upper;
    }
  }
  return twin ? -1 : first;
}

/// Adds the warp's terms to the sums of one state, which no other warp touches meanwhile.
template <class Tile, class Order, int Lanes, int Steps>
__device__ void add_to_sums(float* sums, float (&v)[Steps], int lane_of_warp) {
  constexpr int channels = 32 / Lanes;
  constexpr int held = Steps / channels > 1 ? Steps / channels : 1;
  const int first = sum_over_channels<Lanes, Steps>(v, lane_of_warp);
  const int lane = lane_of_warp % Lanes;
  if (first < 0) return;
  float* const at = sums + Order::at(lane * Steps + first);
  if constexpr (held >= 4) {
#pragma unroll
    for (int j = 0; j < held; j += 4) {
      auto& quad = *reinterpret_cast<float4*>(sums + Order::at(lane * Steps + first + j));
      const float4 sum = quad;
      quad = make_float4(sum.x + v[j], sum.y + v[j + 1], sum.z + v[j + 2], sum.w + v[j + 3]);
    }
  } else if constexpr (held == 2) {
    auto& pair = *reinterpret_cast<float2*>(at);
    const float2 sum = pair;
    pair = make_float2(sum.x + v[0], sum.y + v[1]);
  } else {
    *at += v[0];
  }
}

template <class Shape>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(32 * Shape::warps)
    selective_scan_bwd_kernel(const __grid_constant__ backward_params<typename Shape::data> p) {
  using Data = typename Shape::data;
  using Tile = typename Shape::tile;
  using Operands = typename Shape::operands;
  using order = typename Operands::order;
  constexpr int L = Shape::lanes;
  constexpr int K = Shape::steps;
  constexpr int states = Operands::states;
  constexpr float ln_2 = 0.693147180559945309f;
  extern __shared__ uint4 shared_memory[];
  auto& sm = *reinterpret_cast<typename Shape::shared*>(shared_memory);

  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % L;
  const int channel = tid / L;
  const int N = static_cast<int>(p.A.extent(1));
  const int state_groups = (N + states - 1) / states;
  const std::int64_t channels = p.u.extent(2);
  const Tile tile(p.schedule.moves.access);
  const auto tile_channels = static_cast<int>(p.schedule.tile_channels);
  float* const dh = sm.carried;
  float* const dA = dh + tile_channels * N;
  float* const dD = dA + tile_channels * N;

  for (int i = tid; i < states * 2 * order::pitch; i += Tile::threads) (&sm.sums[0][0][0])[i] = 0.0f;

  const block_pieces pieces(p, sm.number);
  for (int i = 0; i < pieces.size(); ++i) {
    const piece part = pieces[i];
    channel_tile here = tile_of(p, part.tile);
    if (!p.schedule.packed) here.tokens = {here.tokens.batch, p.segment_begin, p.segment_end};
    const auto chunks = static_cast<int>((here.tokens.size() + Tile::tokens - 1) / Tile::tokens);
    const int last_chunk = chunks - 1 - static_cast<int>(part.first);
    const int first_chunk = chunks - static_cast<int>(part.end);
    const std::int64_t checkpoint = first_checkpoint(p.schedule, here.row, p.u.extent(1), here.tokens.begin) +
                                    (p.schedule.packed ? 0 : p.segment_begin / Tile::tokens);
    // A step is a part of a chunk's channels.
    struct step_place {
      int chunk;
      int pass;
    };
    const auto next_step = [&](step_place s) {
      return s.pass + 1 < p.passes ? step_place{s.chunk, s.pass + 1} : step_place{s.chunk - 1, 0};
    };
    const auto place = [&](step_place s) {
      const std::int64_t first = here.first + s.pass * Tile::channels;
      return tile_place{here.tokens.batch, here.tokens.begin + static_cast<std::int64_t>(s.chunk) * Tile::tokens,
                        here.tokens.end, first, first + Tile::channels < here.end ? first + Tile::channels : here.end};
    };
    const auto fetch = [&](step_place s, int buffer) {
      if (s.chunk >= first_chunk) {
        auto& raw = sm.raw[buffer];
        tile.fetch(raw[0], p.u, place(s));
        tile.fetch(raw[1], p.delta, place(s));
        tile.fetch(raw[2], p.z, place(s));
        tile.fetch(raw[3], p.d_y, place(s));
      }
      __pipeline_commit();
    };
    const auto copy_out = [&](step_place s, int buffer) {
      const auto& raw = sm.raw[buffer];
      tile.copy_out(p.d_u, raw[0], place(s));
      tile.copy_out(p.d_delta, raw[1], place(s));
      tile.copy_out(p.d_z, raw[2], place(s));
    };

    // What the walk has carried so far.
    const bool starts = part.first == 0 && !p.continues;
    if (part.first != 0) p.passing.wait(part.tile);
    const int held = static_cast<int>(here.end - here.first);
    for (int i = tid; i < held * N; i += Tile::threads) {
      const std::int64_t c = here.first + i / N;
      const std::int64_t at = (here.row * channels + c) * N + i % N;
      const bool upstream = starts && p.d_final_state.given();
      dh[i] = upstream ? p.d_final_state.load(here.row, c, i % N) : (starts ? 0.0f : p.records.dh[at]);
      dA[i] = starts ? 0.0f : p.records.dA[at];
    }
    for (int i = tid; i < held * 2; i += Tile::threads) {
      dD[i] = starts ? 0.0f : p.records.sums[(here.row * channels + here.first) * 2 + i];
    }

    Operands next;
    step_place step{last_chunk, 0};
    step_place previous = step;
    const bool walks = last_chunk >= first_chunk;
    fetch(step, 0);
    if (walks) {
      next.load(p, here.group, 0, place(step));
      next.store(sm.states[0], p.schedule.moves.BC_along_time);
    }
    __pipeline_wait_prior(0);
    __syncthreads();

    int stage = 0;
    int buffer = 0;
    for (; step.chunk >= first_chunk; previous = step, step = next_step(step), buffer ^= 1) {
      const step_place following = next_step(step);
      // The next buffer still holds the outputs of the step before this.
      if (previous.chunk != step.chunk || previous.pass != step.pass) copy_out(previous, buffer ^ 1);
      fetch(following, buffer ^ 1);

      auto& raw = sm.raw[buffer];
      const tile_place now = place(step);
      const std::int64_t d = now.c + channel;
      const bool has_channel = d < now.c_end;
      const int c = static_cast<int>(now.c - here.first) + channel;  // of the tile
      const float D = has_channel && p.D.data() != nullptr ? p.D(d) : 0.0f;
      const float bias = has_channel && p.delta_bias.data() != nullptr ? p.delta_bias(d) : 0.0f;
      const int left = tokens_left<K>(now, lane);

      float dt[K];
      float du[K];  // dt * u
      float ds[K];  // gradient of the sum that the gate multiplies
      float s[K];   // C . h
      float q[K];   // sum over states of dh * B
      float r[K];   // and of dh * A * (the state that the token found, decayed)
      {
        tile.read(du, raw[0], channel, lane);
        tile.read(dt, raw[1], channel, lane);
        if (p.d_y.data() != nullptr) {
          tile.read(ds, raw[3], channel, lane);
        } else {
#pragma unroll
          for (int j = 0; j < K; ++j) ds[j] = 0.0f;
        }
        if (p.z.data() != nullptr) {
          float z[K];
          tile.read(z, raw[2], channel, lane);
#pragma unroll
          for (int j = 0; j < K; ++j) ds[j] *= silu<Data>(z[j]);
        }
      }
      float lane_length = 0.0f;
#pragma unroll
      for (int j = 0; j < K; ++j) {
        dt[j] += bias;
        if (p.delta_softplus) dt[j] = softplus<Data>(dt[j]);
        if (j >= left) dt[j] = 0.0f;
        lane_length += dt[j];
        du[j] *= dt[j];
        s[j] = 0.0f;
        q[j] = 0.0f;
        r[j] = 0.0f;
      }

      for (int g = 0; g < state_groups; ++g, stage ^= 1) {
        const bool last_group = g + 1 == state_groups;
        const bool more = !last_group || following.chunk >= first_chunk;
        if (more) next.load(p, here.group, last_group ? 0 : (g + 1) * states, place(last_group ? following : step));
        const auto& from = sm.states[stage];
        // The state before the chunk, of this warp's channels: lane i has state i, or states i, i + L, ..
        float start[states / L];
#pragma unroll
        for (int i = 0; i < states / L; ++i) {
          const int n = g * states + i * L + lane;
          start[i] = 0.0f;
          if (!has_channel || n >= N) continue;
          if (p.checkpoints != nullptr) {
            start[i] = p.checkpoints[((checkpoint + step.chunk) * channels + d) * N + n];
          } else if (p.initial_state.given()) {
            start[i] = p.initial_state.load(here.row, d, n);
          }
        }

#pragma unroll 1
        for (int i = 0; i < states; ++i) {
          const int n = (i + warp) % states;
          if (g * states + n < N) {
            const float A = from.A[channel * states + n];
            float picked = start[0];
#pragma unroll
            for (int k = 1; k < states / L; ++k) picked = n / L == k ? start[k] : picked;
            const float h_start = __shfl_sync(0xffffffffu, picked, n % L, L);
            const float decay_of_lane = finite(exp2_approximate(lane_length * A));

            float e[K];
            float eh[K];  // first dt * B * u, then the state that the token found, decayed
            float after = 0.0f;
#pragma unroll
            for (int j = 0; j < K; j += 4) {
              float B[4];
              read_quad(B, from.B + n * order::pitch + order::of_quad(lane, j / 4));
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                e[j + k] = exp2_approximate(dt[j + k] * A);
                eh[j + k] = du[j + k] * B[k];
                after = fmaf(e[j + k], after, eh[j + k]);
              }
            }
            float decay = decay_of_lane;
            if (lane == 0) {
              after = fmaf(decay, h_start, after);
              decay = 0.0f;
            }
            scan_lanes_up<L>(after, decay);
            float h = __shfl_up_sync(0xffffffffu, after, 1, L);
            if (lane == 0) h = h_start;

            float g_h[K];  // the output's part of the state's gradient
            float terms[K];
#pragma unroll
            for (int j = 0; j < K; j += 4) {
              float C[4];
              read_quad(C, from.C + n * order::pitch + order::of_quad(lane, j / 4));
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                const float x = eh[j + k];
                eh[j + k] = e[j + k] * h;
                h = eh[j + k] + x;
                s[j + k] = fmaf(C[k], h, s[j + k]);
                terms[j + k] = ds[j + k] * h;
                g_h[j + k] = ds[j + k] * C[k];
              }
            }
            add_to_sums<Tile, order, L>(sm.sums[n][1], terms, tid % 32);

            float& carried = dh[c * N + g * states + n];
            float found = g_h[K - 1];  // the gradient of the state that the lane found, decayed
#pragma unroll
            for (int j = K - 2; j >= 0; --j) found = fmaf(e[j + 1], found, g_h[j]);
            found *= e[0];
            decay = decay_of_lane;
            float grad = 0.0f;
            if (lane == L - 1) {
              if (has_channel) grad = carried;
              found = fmaf(decay, grad, found);
              decay = 0.0f;
            }
            scan_lanes_down<L>(found, decay);
            const float from_later = __shfl_down_sync(0xffffffffu, found, 1, L);
            if (lane != L - 1) grad = from_later;
            __syncwarp();  // the last lane has read what lane 0 writes
            if (lane == 0 && has_channel) carried = found;

            const float A_natural = A * ln_2;
            float dA_lane = 0.0f;
#pragma unroll
            for (int j = K - 4; j >= 0; j -= 4) {
              float B[4];
              read_quad(B, from.B + n * order::pitch + order::of_quad(lane, j / 4));
#pragma unroll
              for (int k = 3; k >= 0; --k) {
                grad = j + k == K - 1 ? grad + g_h[j + k] : fmaf(e[j + k + 1 < K ? j + k + 1 : 0], grad, g_h[j + k]);
                terms[j + k] = grad * du[j + k];
                q[j + k] = fmaf(grad, B[k], q[j + k]);
                const float w = grad * eh[j + k];
                r[j + k] = fmaf(w, A_natural, r[j + k]);
                dA_lane = fmaf(w, dt[j + k], dA_lane);
              }
            }
            add_to_sums<Tile, order, L>(sm.sums[n][0], terms, tid % 32);
            sm.dA[warp][n][tid % 32] = dA_lane;
          }
          __syncthreads();  // the states change hands
        }

        // dA of the warp's channels: one (channel, state) a lane at a time.
        for (int i = tid % 32; i < Tile::channels_of_warp * states; i += 32) {
          const int of_warp = i / states;
          const int n = i % states;
          float sum = 0.0f;
#pragma unroll
          for (int l = 0; l < L; ++l) sum += sm.dA[warp][n][of_warp * L + l];
          const int at = static_cast<int>(now.c - here.first) + warp * Tile::channels_of_warp + of_warp;
          if (at < held && g * states + n < N) dA[at * N + g * states + n] += sum;
        }
        if (more) next.store(sm.states[stage ^ 1], p.schedule.moves.BC_along_time);
        if (step.pass == p.passes - 1 && p.BC_sums != nullptr) {
          const std::int64_t segment = p.segment_end - p.segment_begin;
          const std::int64_t unit = (here.tokens.batch * p.B.extent(2) + here.group) * p.schedule.group_tiles +
                                    part.tile % p.schedule.group_tiles;
          for (int i = tid; i < states * 2 * Tile::tokens; i += Tile::threads) {
            const int t = i % Tile::tokens;
            const int which = i / Tile::tokens % 2;
            const int n = i / Tile::tokens / 2;
            float& sum = sm.sums[n][which][order::at(t)];
            if (now.t + t < now.t_end && g * states + n < N) {
              p.BC_sums[((unit * N + g * states + n) * 2 + which) * segment + now.t + t - p.segment_begin] = sum;
            }
            sum = 0.0f;
          }
        }
        if (last_group) {
          float u[K];
          float x[K];
          tile.read(u, raw[0], channel, lane);
          tile.read(x, raw[1], channel, lane);
          float sum_D = 0.0f;
          float sum_bias = 0.0f;
          float out[K];
          if (p.z.data() != nullptr) {
            float z[K];
            float d_y[K];
            tile.read(z, raw[2], channel, lane);
            tile.read(d_y, raw[3], channel, lane);
#pragma unroll
            for (int j = 0; j < K; ++j) {
              const float sum = fmaf(D, u[j], s[j]);
              out[j] = p.d_y.data() != nullptr ? d_y[j] * sum * silu_slope<Data>(z[j]) : 0.0f;
            }
            tile.write(raw[2], out, channel, lane);
          }
#pragma unroll
          for (int j = 0; j < K; ++j) {
            sum_D = fmaf(ds[j], u[j], sum_D);
            out[j] = fmaf(dt[j], q[j], ds[j] * D);
          }
          tile.write(raw[0], out, channel, lane);
#pragma unroll
          for (int j = 0; j < K; ++j) {
            out[j] = fmaf(u[j], q[j], r[j]);
            if (p.delta_softplus) out[j] *= sigmoid<Data>(x[j] + bias);
            if (j >= left) out[j] = 0.0f;
            sum_bias += out[j];
          }
          tile.write(raw[1], out, channel, lane);
#pragma unroll
          for (int apart = L / 2; apart > 0; apart /= 2) {
            sum_D += __shfl_xor_sync(0xffffffffu, sum_D, apart, L);
            sum_bias += __shfl_xor_sync(0xffffffffu, sum_bias, apart, L);
          }
          if (lane == 0 && has_channel) {
            dD[c * 2] += sum_D;
            dD[c * 2 + 1] += sum_bias;
          }
          __pipeline_wait_prior(0);
        }
        __syncthreads();
      }
    }
    if (walks) copy_out(previous, buffer ^ 1);

    for (int i = tid; i < held * N; i += Tile::threads) {
      const std::int64_t at = (here.row * channels + here.first) * N + i;
      p.records.dh[at] = dh[i];
      p.records.dA[at] = dA[i];
    }
    for (int i = tid; i < held * 2; i += Tile::threads) {
      p.records.sums[(here.row * channels + here.first) * 2 + i] = dD[i];
    }
    if (part.end < chunks && p.schedule.how == cut::stream) p.passing.publish(part.tile);
    __syncthreads();  // the next piece writes what this one has read
  }
}

template <class Shape>
POLYSTATE_HIDDEN status launch_backward(const char* name, const on_cuda& exec,
                                        const backward_params<typename Shape::data>& p) {
  const grid g{.blocks = p.schedule.blocks,
               .threads = Shape::tile::threads,
               .shared_bytes = Shape::shared_bytes(p.schedule.tile_channels, p.A.extent(1))};
  return launch(name, exec, g, selective_scan_bwd_kernel<Shape>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
