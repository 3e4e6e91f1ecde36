// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which kernel runs a convolution, and how its work is cut into blocks. Host code without CUDA.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector_access.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI {

/// Tap counts with CUDA kernels of their own; any other W >= 1 runs the general kernels. Adding one adds 3
/// kernels per element type.
using causal_conv1d_fast_widths = int_list<2, 3, 4>;

namespace detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// Forward, layout by layout, and step: one kernel each for every fast width, and the three for any width.
inline constexpr int kernels_per_type = 3 * causal_conv1d_fast_widths::size + 3;
static_assert(kernels_per_type <= 12, "compile time: keep new options at run time");

struct tiles {
  static constexpr int threads = 128;
  static constexpr int lanes = 32;
  /// Channel-last: rows of x that a thread loads ahead of the ones in use. 4 rows x 16 bytes x 512 resident
  /// threads keep 32 KiB in flight on a multiprocessor, what 4.8 TB/s times 0.8 us asks for.
  static constexpr int rows_ahead = 4;
  /// Channel-last: tokens of a thread at most. The W-1 rows before a run are read again, and the weights once
  /// a run, so longer is cheaper.
  static constexpr int longest_run = 32;
  /// Channel-first: vectors of a thread, all loaded before the first is used.
  static constexpr int vectors = 4;
  /// General: tokens of a thread, sharing each element that they load.
  static constexpr int general_run = 4;
};

enum class kernel_kind {
  channel_last,   ///< D has stride 1 in x and y: a thread owns a vector of channels and slides along time
  channel_first,  ///< T has stride 1 in x and y: a thread owns vectors of tokens of one channel
  general         ///< any strides and widths: a thread owns a short run of one channel
};

/// A block covers channels x tokens of one batch entry. Its threads are `lanes` side by side along the inner
/// index (channels, or time if time_is_inner), and threads / lanes groups along the other.
struct forward_schedule {
  kernel_kind kernel = kernel_kind::general;
  bool time_is_inner = false;
  int lanes = tiles::lanes;      ///< a power of two
  int run = tiles::general_run;  ///< tokens that one thread walks through
  std::int64_t block_channels = 0;
  std::int64_t block_tokens = 0;
  std::int64_t channel_tiles = 0;
  std::int64_t time_tiles = 0;
  std::int64_t blocks = 0;
};

/// The kernel that the operands' widths, strides and alignments allow.
template <class Data>
[[nodiscard]] kernel_kind choose_kernel(const causal_conv1d_args<Data>& args) {
  if (!causal_conv1d_fast_widths::contains(args.weight.extent(1))) return kernel_kind::general;
  if (vectorisable(args.x, 2) && vectorisable(args.y, 2)) return kernel_kind::channel_last;
  if (vectorisable(args.x, 1) && vectorisable(args.y, 1)) return kernel_kind::channel_first;
  return kernel_kind::general;
}

/// Whether neighbouring threads of the general kernel take neighbouring tokens and not channels: the index
/// that lies closer together in memory, if it is long enough to occupy them.
template <class Data>
[[nodiscard]] bool time_is_inner(const causal_conv1d_args<Data>& args) {
  const auto distance = [&](int dim) {
    const auto magnitude = [](std::int64_t s) { return static_cast<double>(s < 0 ? -s : s); };
    return magnitude(args.x.stride(dim)) + magnitude(args.y.stride(dim));
  };
  constexpr std::int64_t enough = 8;
  const std::int64_t T = args.x.extent(1);
  const std::int64_t D = args.x.extent(2);
  if ((T < enough) != (D < enough)) return D < enough;
  return distance(1) < distance(2);
}

/// How causal_conv1d() cuts the work; no bit of the result depends on it.
template <class Data>
[[nodiscard]] forward_schedule choose_schedule(const causal_conv1d_args<Data>& args, int multiprocessors) {
  constexpr int V = vector_elements<Data>;
  const std::int64_t B = args.x.extent(0);
  const std::int64_t T = args.x.extent(1);
  const std::int64_t D = args.x.extent(2);

  forward_schedule s;
  if (B == 0 || T == 0 || D == 0) return s;
  s.kernel = choose_kernel(args);
  const auto cut = [&] {
    s.channel_tiles = tiles_of(D, s.block_channels);
    s.time_tiles = tiles_of(T, s.block_tokens);
    s.blocks = B * s.channel_tiles * s.time_tiles;
  };
  switch (s.kernel) {
    case kernel_kind::channel_last: {
      s.lanes = power_of_two(D / V, tiles::lanes);
      const int groups = tiles::threads / s.lanes;
      s.block_channels = s.lanes * V;
      // Four blocks fit on a multiprocessor; one round of them at least, before runs get longer.
      const std::int64_t enough_blocks = 4 * static_cast<std::int64_t>(multiprocessors);
      for (s.run = tiles::longest_run;; s.run /= 2) {
        s.block_tokens = groups * s.run;
        cut();
        if (s.run == tiles::rows_ahead || (s.block_tokens <= T && s.blocks >= enough_blocks)) break;
      }
      break;
    }
    case kernel_kind::channel_first:
      s.time_is_inner = true;
      s.lanes = power_of_two(T / V, tiles::lanes);
      s.run = V;
      s.block_channels = tiles::threads / s.lanes;
      s.block_tokens = s.lanes * V * tiles::vectors;
      cut();
      break;
    case kernel_kind::general: {
      const int groups = tiles::threads / s.lanes;
      s.time_is_inner = time_is_inner(args);
      s.block_channels = s.time_is_inner ? groups : s.lanes;
      s.block_tokens = (s.time_is_inner ? s.lanes : groups) * s.run;
      cut();
      break;
    }
  }
  return s;
}

/// A block of a step covers threads / lanes batch rows; its lanes lie along channels.
struct step_schedule {
  bool vectors = false;  ///< a thread owns a vector of channels, else one channel
  int lanes = tiles::lanes;
  std::int64_t channel_tiles = 0;
  std::int64_t blocks = 0;
};

template <class Data>
[[nodiscard]] step_schedule choose_schedule(const causal_conv1d_step_args<Data>& args) {
  constexpr int V = vector_elements<Data>;
  const std::int64_t B = args.x.extent(0);
  const std::int64_t D = args.x.extent(2);
  step_schedule s;
  if (B == 0 || D == 0) return s;
  s.vectors = causal_conv1d_fast_widths::contains(args.weight.extent(1)) && D % V == 0 && vectorisable(args.x, 2) &&
              vectorisable(args.y, 2);
  const int channels = s.vectors ? V : 1;
  s.lanes = power_of_two(D / channels, tiles::lanes);
  s.channel_tiles = tiles_of(D, s.lanes * channels);
  s.blocks = s.channel_tiles * tiles_of(B, tiles::threads / s.lanes);
  return s;
}

}  // namespace detail::inline POLYSTATE_BUILD::cuda::conv1d

}  // namespace polystate::inline POLYSTATE_ABI
