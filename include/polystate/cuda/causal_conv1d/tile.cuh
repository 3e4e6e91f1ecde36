// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where a block, and in the general kernels a thread, starts.

#include <polystate/cuda/causal_conv1d/policy.hpp>
#include <polystate/cuda/compiler.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// Where a block starts.
struct tile_origin {
  std::int64_t batch;
  std::int64_t t;
  std::int64_t d;
};

/// Blocks that follow one another are neighbours along the inner index. A grid has fewer than 2^31 blocks, so
/// the divisions are 32 bits wide.
__device__ inline tile_origin origin_of_block(const forward_schedule& s) {
  const auto channel_tiles = static_cast<unsigned>(s.channel_tiles);
  const auto time_tiles = static_cast<unsigned>(s.time_tiles);
  const unsigned inner_tiles = s.time_is_inner ? time_tiles : channel_tiles;
  const unsigned outer_tiles = s.time_is_inner ? channel_tiles : time_tiles;
  const unsigned inner = blockIdx.x % inner_tiles;
  const unsigned rest = blockIdx.x / inner_tiles;
  const unsigned outer = rest % outer_tiles;
  return {rest / outer_tiles, (s.time_is_inner ? inner : outer) * s.block_tokens,
          (s.time_is_inner ? outer : inner) * s.block_channels};
}

/// The channel of a thread of the general kernels, and the first token of its run.
struct run_origin {
  std::int64_t t;
  std::int64_t d;
};

__device__ inline run_origin origin_of_run(const forward_schedule& s, const tile_origin& tile) {
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int group = static_cast<int>(threadIdx.x) / s.lanes;
  return {tile.t + (s.time_is_inner ? lane : group) * tiles::general_run, tile.d + (s.time_is_inner ? group : lane)};
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d
