// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the kernels whose lanes lie along time cut a selective scan. Host code without CUDA.

#include <polystate/cuda/selective_scan/policy.hpp>
#include <polystate/cuda/selective_scan/time_schedule.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/selective_scan.hpp>

#include <algorithm>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// Warps of a block, lanes of a channel, and tokens of a lane, in the forward: a chunk of 256 tokens, of float 128.
/// Compact blocks are for devices with less shared memory than that takes.
inline constexpr int time_warps = 16;
inline constexpr int time_lanes = 16;
inline constexpr int compact_time_warps = 4;
inline constexpr int compact_time_forward_steps = 8;
template <class Data>
inline constexpr int time_forward_steps = sizeof(Data) == 4 ? 8 : 16;
template <class Data>
inline constexpr int time_forward_chunk = time_lanes* time_forward_steps<Data>;

/// Lanes of a channel in the backward, few for short sequences, and tokens of a lane. The first are used above
/// time_backward_short tokens, or N above time_backward_short_N, where the second's shared memory ends.
inline constexpr int time_backward_warps = 16;
inline constexpr int time_backward_lanes[] = {16, 4};
inline constexpr int compact_time_backward_lanes = 8;
template <class Data>
inline constexpr int time_backward_steps = sizeof(Data) == 4 ? 4 : 8;
inline constexpr std::int64_t time_backward_short = 96;
inline constexpr std::int64_t time_backward_short_N = 64;

struct time_schedule {
  operand_access moves;
  cut how = cut::whole;
  bool packed = false;
  std::int64_t group_channels = 0;  ///< channels that share B and C
  std::int64_t tile_channels = 0;
  std::int64_t group_tiles = 0;  ///< tiles across a group
  std::int64_t tiles = 0;        ///< of all sequences and groups
  std::int64_t chunk_tokens = 0;
  std::int64_t chunks = 0;             ///< of a sequence, where they are not packed
  std::int64_t pieces = 1;             ///< cut::split: of a tile
  std::int64_t piece_chunks = 0;       ///< cut::split: of a piece but for the last
  std::int64_t checkpoint_tokens = 1;  ///< tokens between two checkpoints, a divisor or a multiple of a chunk
  std::int64_t blocks = 0;
};

/// Checkpoints of the sequence before the one that begins at token `begin`: each sequence has room for its own.
POLYSTATE_HOST_DEVICE inline std::int64_t first_checkpoint(const time_schedule& s, std::int64_t row, std::int64_t T,
                                                           std::int64_t begin) {
  return s.packed ? row + begin / s.checkpoint_tokens : row * ((T + s.checkpoint_tokens - 1) / s.checkpoint_tokens);
}

/// Whether selective_scan() puts lanes along time: where lanes with eight states each would leave the chip idle, and
/// sequences, packed ones in the mean, have two chunks at least. The mean tells one sequence about the others, so a
/// batch-invariant call of packed sequences does without.
template <class Data, class State>
[[nodiscard]] bool chooses_time(const selective_scan_args<Data, State>& args, const forward_schedule& s,
                                std::int64_t rows, bool batch_invariant) {
  if ((s.fills && s.lanes.states >= 8) || rows == 0 || args.u.size() == 0) return false;
  const std::int64_t T = args.u.extent(1);
  if (!args.cu_seqlens) return T >= 2 * time_forward_chunk<Data>;
  return !batch_invariant && T / rows >= 2 * time_forward_chunk<Data>;
}

/// How sequences are cut into tiles of `tile_channels` and chunks of `chunk_tokens`, where `slots` blocks run at a
/// time. May split: whether a join of pieces is offered. The number of pieces, and with it the order of sums, depends
/// on the number of sequences unless the call is batch invariant.
template <class Data, class State>
[[nodiscard]] time_schedule choose_time_schedule(const selective_scan_args<Data, State>& args,
                                                 const operand_access& moves, std::int64_t tile_channels,
                                                 std::int64_t chunk_tokens, int slots, bool batch_invariant,
                                                 bool may_split) {
  time_schedule s;
  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  const std::int64_t D = args.u.extent(2);
  const std::int64_t G = args.B.extent(2);
  s.moves = moves;
  s.packed = all.packed();
  s.group_channels = G == 0 ? 0 : D / G;
  s.tile_channels = tile_channels;
  s.group_tiles = tiles_of(s.group_channels, tile_channels);
  s.chunk_tokens = chunk_tokens;
  s.chunks = tiles_of(args.u.extent(1), chunk_tokens);
  s.checkpoint_tokens = chunk_tokens;
  const std::int64_t row_tiles = G * s.group_tiles;
  s.tiles = all.size() * row_tiles;
  s.blocks = s.tiles;
  if (s.packed || s.chunks == 0 || s.tiles == 0) return s;
  // Pieces but the last are walked twice, the first time for the state after them: from three pieces on it pays.
  const std::int64_t pieces = (std::min)(slots / (batch_invariant ? row_tiles : s.tiles), s.chunks / 2);
  if (may_split && pieces >= 3) {
    s.how = cut::split;
    s.piece_chunks = tiles_of(s.chunks, pieces);
    s.pieces = tiles_of(s.chunks, s.piece_chunks);
    s.blocks = s.tiles * s.pieces;
  } else if (s.tiles > slots && s.tiles % slots != 0) {
    s.how = cut::stream;
    s.blocks = slots;
  }
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
