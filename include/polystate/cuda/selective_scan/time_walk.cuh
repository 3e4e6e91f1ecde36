// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the kernels whose lanes lie along time share besides their tiles: which pieces of time a block walks, how a
/// tile's numbers pass from one block to the next, and prefixes over the lanes of a channel.

#include <polystate/core/sequences.hpp>
#include <polystate/cuda/compiler.cuh>
#include <polystate/cuda/selective_scan/time_policy.hpp>
#include <polystate/cuda/selective_scan/time_schedule.hpp>

#include <cuda/atomic>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// A tile: a sequence, a group, and its channels first .. end-1.
struct channel_tile {
  std::int64_t row;
  token_range tokens;
  std::int64_t group;
  std::int64_t first;
  std::int64_t end;
};

template <class Params>
__device__ channel_tile tile_of(const Params& p, std::int64_t index) {
  const time_schedule& s = p.schedule;
  const std::int64_t tile = index % s.group_tiles;
  const std::int64_t rest = index / s.group_tiles;
  const std::int64_t group = rest % p.B.extent(2);
  const std::int64_t row = rest / p.B.extent(2);
  const std::int64_t first = group * s.group_channels + tile * s.tile_channels;
  const std::int64_t group_end = (group + 1) * s.group_channels;
  const std::int64_t end = first + s.tile_channels;
  return {row, p.all[row], group, first, end < group_end ? end : group_end};
}

/// One flag a tile and a counter of blocks, zero before the launch.
///
/// Blocks take their numbers in the order in which they start, so a block waits only for blocks that have started.
struct handoff {
  int* started = nullptr;
  int* published = nullptr;  ///< (tiles)

  /// The block's number; every thread calls it, `shared` is one int of shared memory.
  [[nodiscard]] __device__ int take_number(int& shared) const {
    if (threadIdx.x == 0) shared = atomicAdd(started, 1);
    __syncthreads();
    const int number = shared;
    __syncthreads();
    return number;
  }
  /// Makes what this block wrote visible to the block that waits for the tile.
  __device__ void publish(std::int64_t tile) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      ::cuda::atomic_ref<int, ::cuda::thread_scope_device>(published[tile]).store(1, ::cuda::memory_order_release);
    }
  }
  __device__ void wait(std::int64_t tile) const {
    if (threadIdx.x == 0) {
      const ::cuda::atomic_ref<int, ::cuda::thread_scope_device> flag(published[tile]);
      while (flag.load(::cuda::memory_order_acquire) == 0) __nanosleep(100);
    }
    __syncthreads();
  }
};

/// The pieces of time that this block walks, in their order. Every thread makes one; `shared` is one int of shared
/// memory.
class block_pieces {
 public:
  template <class Params>
  __device__ block_pieces(const Params& p, int& shared) {
    const time_schedule& s = p.schedule;
    const std::int64_t block = s.how == cut::stream ? p.passing.take_number(shared) : blockIdx.x;
    stream_ = s.how == cut::stream;
    if (stream_) {
      share_ = stream_share(s.tiles, s.chunks, block, s.blocks);
    } else if (s.how == cut::split) {
      const std::int64_t k = block % s.pieces;
      const std::int64_t end = (k + 1) * s.piece_chunks;
      only_ = {block / s.pieces, k * s.piece_chunks, end < s.chunks ? end : s.chunks};
    } else {
      const std::int64_t T = s.packed ? tile_of(p, block).tokens.size() : 0;
      only_ = {block, 0, s.packed ? (T + s.chunk_tokens - 1) / s.chunk_tokens : s.chunks};
    }
  }
  [[nodiscard]] __device__ int size() const { return stream_ ? static_cast<int>(share_.pieces()) : 1; }
  [[nodiscard]] __device__ piece operator[](int i) const { return stream_ ? share_[i] : only_; }

 private:
  bool stream_;
  stream_share share_;
  piece only_;
};

/// Growth over several tokens (A > 0), cut off where it overflows: times a state of 0 it is 0 then, as token by token.
/// A NaN is hidden here, and shows in the states of the same tokens.
__device__ inline float finite(float decay) { return fminf(decay, 3.4028234664e38f); }

/// x <- decay * (x of the lane before) + x, composed over the `Lanes` lanes of a channel: afterwards each holds the
/// state after its tokens, given that lane 0's x took the state before them in and that its decay is 0 now, so that
/// nothing comes from before it. decay is used up.
template <int Lanes>
__device__ void scan_lanes_up(float& x, float& decay) {
#pragma unroll
  for (int apart = 1; apart < Lanes; apart *= 2) {
    // A lane without one so far before it gets its own numbers, and its decay is 0 by then.
    x = fmaf(decay, __shfl_up_sync(0xffffffffu, x, apart, Lanes), x);
    decay = finite(decay * __shfl_up_sync(0xffffffffu, decay, apart, Lanes));
  }
}
/// The same from the last lane to the first.
template <int Lanes>
__device__ void scan_lanes_down(float& x, float& decay) {
#pragma unroll
  for (int apart = 1; apart < Lanes; apart *= 2) {
    x = fmaf(decay, __shfl_down_sync(0xffffffffu, x, apart, Lanes), x);
    decay = finite(decay * __shfl_down_sync(0xffffffffu, decay, apart, Lanes));
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
