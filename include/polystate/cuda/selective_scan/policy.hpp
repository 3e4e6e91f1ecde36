// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which kernel runs a selective scan, and how its work is cut into blocks. Host code without CUDA.

#include <polystate/core/dispatch.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector_access.hpp>
#include <polystate/selective_scan.hpp>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// How the N states of a channel lie over threads: `lanes` neighbouring threads with `states` each, in registers. Fewer
/// lanes read less shared memory for each state and sum less; more lanes fill the chip with fewer channels.
struct split {
  int lanes;
  int states;
  [[nodiscard]] constexpr int capacity() const { return lanes * states; }
};

/// The splits with a kernel, by capacity; within one from the fewest lanes on. Adding one adds a kernel per type.
inline constexpr split splits[] = {{1, 8}, {2, 8}, {16, 1}, {4, 8}, {8, 8}, {16, 4}, {16, 8}, {32, 8}};

/// The least capacity of a split that holds N states; 0 if none does.
constexpr int capacity_for(std::int64_t N) {
  for (const split& candidate : splits) {
    if (candidate.capacity() >= N) return candidate.capacity();
  }
  return 0;
}

/// Whether a call can use a split of the lanes: any if N is a run-time value, else the splits of N's capacity.
template <class Dims>
constexpr bool may_meet(const split& lanes) {
  return Dims::size == 0 || lanes.capacity() == capacity_for(Dims::values[0]);
}

/// A block has lanes x channels threads and walks along time in tiles. Every block fetches all of B and C, so the more
/// lanes a channel has, the more channels share that work.
constexpr int channels_of(const split& s) {
  if (s.lanes <= 2) return 64;
  return s.lanes < 16 ? 128 / s.lanes : (s.lanes == 16 ? 32 : 8);
}
constexpr int threads_of(const split& s) { return s.lanes * channels_of(s); }
/// Tokens of a tile: B and C of a tile are kept as floats, capacity x tokens each.
constexpr int tile_tokens_of(const split& s) { return s.capacity() <= 64 ? 32 : (s.capacity() <= 128 ? 16 : 8); }

/// How u, delta, z and y are accessed.
enum class access {
  channel_vectors,   ///< 16 bytes along channels
  time_vectors,      ///< 16 bytes along time
  channel_elements,  ///< one by one, neighbouring threads along channels
  time_elements      ///< one by one, neighbouring threads along time
};

/// How a call moves its operands.
struct operand_access {
  scan::access access = scan::access::channel_elements;
  bool BC_along_time = false;  ///< whether a vector of B and C is of V tokens, not of V states
  bool BC_whole = false;       ///< whether it is one access
};

struct forward_schedule {
  split lanes{1, 8};
  operand_access moves;
  bool fills = false;               ///< whether the blocks fill the chip
  std::int64_t group_channels = 0;  ///< channels that share B and C
  std::int64_t group_tiles = 0;     ///< blocks across them
  std::int64_t blocks = 0;
};

/// `moved`: the (B, T, D) operands that are read or written.
template <class Data, class State, class... Moved>
[[nodiscard]] operand_access choose_access(const selective_scan_args<Data, State>& args, const Moved&... moved) {
  const auto magnitude = [](std::int64_t stride) { return stride < 0 ? -stride : stride; };
  // Kernels address the elements of a tile, at most this large, by 32-bit offsets from its first.
  const auto near = [&](const auto& view, std::int64_t tokens, std::int64_t columns) {
    constexpr int last = std::remove_reference_t<decltype(view)>::rank - 1;
    return magnitude(view.stride(1)) < (std::int64_t{1} << 30) / tokens &&
           magnitude(view.stride(last)) < (std::int64_t{1} << 30) / columns;
  };
  const auto vectors_along = [&](int dim) { return ((vectorisable(moved, dim) && near(moved, 256, 128)) && ...); };
  const std::int64_t G = args.B.extent(2);
  const std::int64_t group_channels = G == 0 ? 0 : args.u.extent(2) / G;
  operand_access a;
  // A vector must not straddle two groups, nor, where sequences are packed along time, two sequences.
  if (vectors_along(2) && group_channels % vector_elements<Data> == 0) {
    a.access = access::channel_vectors;
  } else if (vectors_along(1) && !args.cu_seqlens) {
    a.access = access::time_vectors;
  } else {
    a.access =
        magnitude(args.u.stride(1)) < magnitude(args.u.stride(2)) ? access::time_elements : access::channel_elements;
  }
  a.BC_along_time = magnitude(args.B.stride(1)) < magnitude(args.B.stride(3));
  a.BC_whole = near(args.B, 256, 256) && near(args.C, 256, 256) &&
               (a.BC_along_time ? !args.cu_seqlens && vectorisable(args.B, 1) && vectorisable(args.C, 1)
                                : vectorisable(args.B, 3) && vectorisable(args.C, 3));
  return a;
}

/// How selective_scan() cuts the work. The split, and with it the order of the sums, depends on the number of sequences
/// unless the call is batch invariant.
template <class Data, class State>
[[nodiscard]] forward_schedule choose_schedule(const selective_scan_args<Data, State>& args, std::int64_t sequences,
                                               int multiprocessors, bool batch_invariant) {
  forward_schedule s;
  const std::int64_t D = args.u.extent(2);
  const std::int64_t N = args.A.extent(1);
  const std::int64_t G = args.B.extent(2);
  if (D == 0 || sequences == 0) return s;
  s.group_channels = D / G;
  const auto blocks = [&](const split& lanes, std::int64_t rows) {
    return rows * G * tiles_of(s.group_channels, channels_of(lanes));
  };
  // Four blocks of 128 threads on each multiprocessor hide each other's latencies; among the splits that hold N the one
  // with the fewest lanes that still gives three quarters of them, else the one with the most.
  const std::int64_t enough = 3 * static_cast<std::int64_t>(multiprocessors) * 128;
  for (const split& candidate : splits) {
    if (candidate.capacity() != capacity_for(N)) continue;
    s.lanes = candidate;
    s.fills = blocks(candidate, batch_invariant ? 1 : sequences) * threads_of(candidate) >= enough;
    if (s.fills) break;
  }
  s.moves = choose_access(args, args.u, args.delta, args.z, args.y);
  s.group_tiles = tiles_of(s.group_channels, channels_of(s.lanes));
  s.blocks = blocks(s.lanes, sequences);
  return s;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
