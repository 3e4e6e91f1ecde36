// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the kernels whose lanes lie along time share chunks of time among blocks. Plain arithmetic, for host and device.

#include <polystate/core/macros.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// How tiles, each a sequence's tile of channels, are cut over blocks.
enum class cut {
  whole,   ///< a block a tile: chunks of a tile follow each other in one block
  stream,  ///< equal shares of all chunks; a tile cut in two hands its state from one block to the next
  split    ///< `pieces` blocks a tile at once, whose states are joined by a pass of its own
};

/// Chunks first .. end-1 of one tile, numbered in the order of the walk.
struct piece {
  std::int64_t tile = 0;
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// The part of `tiles` x `chunks` units that block `block` of `blocks` walks under cut::stream. With tiles >= blocks a
/// share is at least a tile long, so that a tile lies in at most two blocks.
struct stream_share {
  std::int64_t chunks = 1;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  stream_share() = default;
  POLYSTATE_HOST_DEVICE stream_share(std::int64_t tiles, std::int64_t chunks_of_tile, std::int64_t block,
                                     std::int64_t blocks)
      : chunks(chunks_of_tile),
        begin(share_start(tiles * chunks_of_tile, block, blocks)),
        end(share_start(tiles * chunks_of_tile, block + 1, blocks)) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t pieces() const {
    return begin == end ? 0 : (end - 1) / chunks - begin / chunks + 1;
  }
  /// Pieces from the last tile to the first: the start of a tile, which another block waits for, comes before the end
  /// of a tile, which waits for another block. A block never waits before it has published.
  [[nodiscard]] POLYSTATE_HOST_DEVICE piece operator[](std::int64_t i) const {
    const std::int64_t tile = (end - 1) / chunks - i;
    const std::int64_t start = tile * chunks;
    const std::int64_t first = begin > start ? begin - start : 0;
    return {tile, first, end < start + chunks ? end - start : chunks};
  }

 private:
  static POLYSTATE_HOST_DEVICE std::int64_t share_start(std::int64_t units, std::int64_t block, std::int64_t blocks) {
    return units / blocks * block + units % blocks * block / blocks;
  }
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
