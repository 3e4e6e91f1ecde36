// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which kernel runs a convolution, and how its work is cut into blocks. Host code without CUDA.

#include <polystate/causal_conv1d.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector_access.hpp>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// Tap counts with CUDA kernels of their own; any other W >= 1 runs the general kernels. Adding one adds 3
/// kernels per element type.
using causal_conv1d_fast_widths = int_list<2, 3, 4>;

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d {

/// The fast widths that a call may meet: the caller's fixed W, if it is one, or all.
template <class Dims>
struct fast_widths {
  using list = causal_conv1d_fast_widths;
};
template <int W>
struct fast_widths<dims<W>> {
  using list = std::conditional_t<causal_conv1d_fast_widths::contains(W), int_list<W>, int_list<>>;
};
template <class Dims>
using widths_of = typename fast_widths<Dims>::list;

/// Forward and backward, layout by layout, and step: one kernel each for every fast width; and for any width the three,
/// the final states, the weights' gradient and the ends of the sequences.
inline constexpr int kernels_per_type = 5 * causal_conv1d_fast_widths::size + 6;
static_assert(kernels_per_type <= 21, "compile time: keep new options at run time");

/// Blocks below are what __launch_bounds__ asks to fit on a multiprocessor, of 32-bit data as many as fit without
/// spills. Times are of an H200 at B 8, D 4096, T 2048, W 4 in bfloat16, where a copy of the same bytes takes 66 us for
/// the forward.
struct tiles {
  static constexpr int threads = 128;
  static constexpr int lanes = 32;

  /// Channel-last: rows of x that a thread loads ahead of the ones in use. 4 rows x 16 bytes x 512 resident
  /// threads keep 32 KiB in flight on a multiprocessor, what 4.8 TB/s times 0.8 us asks for.
  static constexpr int rows_ahead = 4;
  static constexpr int channel_last_blocks = 4;
  /// Channel-last: tokens of a thread at most. The W-1 rows before a run are read again, and the weights once
  /// a run: 75 us with 64, 77 us with 32.
  static constexpr int longest_run = 64;

  /// Channel-first: vectors that a thread loads ahead while it walks: 70 us, and 79 us where it loads 4 and no more.
  static constexpr int vectors_ahead = 4;
  template <class Data>
  static constexpr int channel_first_blocks = sizeof(Data) == 2 ? 8 : 6;
  /// Channel-first: tokens that a row of lanes walks along, at most: 16 chunks of 32 vectors of floats, 8 of 16-bit
  /// data. The kernels have a bit of a word for each chunk.
  static constexpr int longest_walk = 2048;

  /// General: tokens of a thread, sharing each element that they load.
  static constexpr int general_run = 4;

  /// Backward, channel-last: channels of a thread. The sums of W+1 gradients and the W-1 gradients that later tokens
  /// hand back leave no registers for more: 8 channels take 165 us, 4 take 126 us.
  static constexpr int backward_channels = 4;
  static constexpr int backward_rows_ahead = 4;
  template <class Data>
  static constexpr int backward_channel_last_blocks = sizeof(Data) == 2 ? 4 : 3;
  /// The W-1 tokens behind a run are computed again, and a block adds up its sums once: 150 us with 32, 126 with 128.
  static constexpr int longest_backward_run = 256;

  /// Backward, channel-first: 28 warps of 2 vectors ahead, 126 us, against 20 warps of 4, 150 us.
  static constexpr int backward_vectors_ahead = 2;
  template <class Data>
  static constexpr int backward_channel_first_blocks = sizeof(Data) == 2 ? 7 : 5;

  /// Blocks from which on runs get longer; by a number of its own, and not the device's, so that the gradients summed
  /// over time have the same bits everywhere. 4 blocks on each of 128 multiprocessors.
  static constexpr int enough_backward_blocks = 512;
  /// Partial sums of the weights' gradient: rows, each of D (W+1), at most, and at most so many blocks.
  static constexpr int most_rows = 1024;
  static constexpr int most_backward_blocks = 8192;
  /// General: taps whose gradients one thread sums.
  static constexpr int tap_chunk = 8;
  static constexpr int sum_threads = 256;
};

/// By the operands (B, T, D) that a pass reads and writes: x and y, or x, d_y and d_x.
enum class kernel_kind {
  channel_last,   ///< D has stride 1 in all: a thread owns neighbouring channels and walks along time
  channel_first,  ///< T has stride 1 in all: the lanes of a row own a channel and walk along time together
  general         ///< any strides and widths: a thread owns a short run of one channel
};

/// How a problem is cut into tiles. A block covers channels x tokens of one batch entry. Its threads are `lanes` side
/// by side along the inner index (channels, or time if time_is_inner), and threads / lanes groups along the other.
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

  /// Tiles of the general kernels.
  void cut_in_runs(bool along_time) {
    const int groups = tiles::threads / lanes;
    time_is_inner = along_time;
    block_channels = along_time ? groups : lanes;
    block_tokens = (along_time ? lanes : groups) * run;
  }
  void cover(std::int64_t B, std::int64_t T, std::int64_t D) {
    channel_tiles = tiles_of(D, block_channels);
    time_tiles = tiles_of(T, block_tokens);
    blocks = B * channel_tiles * time_tiles;
  }
};

/// The kernel that the width, and strides and alignments of operands (B, T, D), allow. An absent operand allows any.
template <class... Views>
[[nodiscard]] kernel_kind choose_kernel(std::int64_t width, const Views&... views) {
  if (!causal_conv1d_fast_widths::contains(width)) return kernel_kind::general;
  if ((vectorisable(views, 2) && ...)) return kernel_kind::channel_last;
  if ((vectorisable(views, 1) && ...)) return kernel_kind::channel_first;
  return kernel_kind::general;
}
template <class Data>
[[nodiscard]] kernel_kind choose_kernel(const causal_conv1d_args<Data>& args) {
  return choose_kernel(args.weight.extent(1), args.x, args.y);
}
template <class Data>
[[nodiscard]] kernel_kind choose_kernel(const causal_conv1d_args<Data>& args, const causal_conv1d_grads<Data>& grads) {
  return choose_kernel(args.weight.extent(1), args.x, grads.d_y, grads.d_x);
}

/// Whether neighbouring threads of the general kernels take neighbouring tokens and not channels: the index
/// that lies closer together in memory, if it is long enough to occupy them.
template <class... Views>
[[nodiscard]] bool time_is_inner(std::int64_t T, std::int64_t D, const Views&... views) {
  const auto distance = [&](int dim) {
    const auto magnitude = [](std::int64_t s) { return static_cast<double>(s < 0 ? -s : s); };
    return (magnitude(views.stride(dim)) + ...);
  };
  constexpr std::int64_t enough = 8;
  if ((T < enough) != (D < enough)) return D < enough;
  return distance(1) < distance(2);
}
template <class Data>
[[nodiscard]] bool time_is_inner(const causal_conv1d_args<Data>& args) {
  return time_is_inner(args.x.extent(1), args.x.extent(2), args.x, args.y);
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
  const auto cut = [&] { s.cover(B, T, D); };
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
      s.block_channels = tiles::threads / s.lanes;
      for (s.run = tiles::longest_walk;; s.run /= 2) {
        s.block_tokens = s.run;
        cut();
        if (s.run <= s.lanes * V || (s.run / 2 < T && s.blocks >= 8 * static_cast<std::int64_t>(multiprocessors))) {
          break;
        }
      }
      break;
    case kernel_kind::general:
      s.cut_in_runs(time_is_inner(args));
      cut();
      break;
  }
  return s;
}

/// The backward's tiles, one above the other, are shared out among the blocks of a tile of channels, each of which sums
/// the gradients of the weights over its own and writes them to a row of partial sums.
struct backward_schedule {
  forward_schedule tiling;
  std::int64_t tasks = 0;   ///< tiles of each tile of channels: time_tiles of each batch entry
  std::int64_t rows = 0;    ///< of the partial sums
  std::int64_t chunks = 1;  ///< general: of taps, each with blocks of its own
  std::int64_t blocks = 0;
};

/// How causal_conv1d_backward() cuts the work, by the operands alone: the order of the sums over time depends on it.
template <class Data>
[[nodiscard]] backward_schedule choose_schedule(const causal_conv1d_args<Data>& args,
                                                const causal_conv1d_grads<Data>& grads) {
  constexpr int V = vector_elements<Data>;
  const std::int64_t B = args.x.extent(0);
  const std::int64_t T = args.x.extent(1);
  const std::int64_t D = args.x.extent(2);
  const std::int64_t W = args.weight.extent(1);

  backward_schedule s;
  if (B == 0 || T == 0 || D == 0) return s;
  forward_schedule& t = s.tiling;
  t.kernel = choose_kernel(args, grads);
  const auto long_enough = [&](std::int64_t shortest) {
    t.cover(B, T, D);
    return t.run <= shortest || (t.block_tokens / 2 < T && t.blocks >= tiles::enough_backward_blocks);
  };
  switch (t.kernel) {
    case kernel_kind::channel_last:
      t.lanes = power_of_two(D / tiles::backward_channels, tiles::lanes);
      t.block_channels = t.lanes * tiles::backward_channels;
      t.run = tiles::longest_backward_run;
      do {
        t.block_tokens = tiles::threads / t.lanes * t.run;
      } while (!long_enough(2 * tiles::backward_rows_ahead) && (t.run /= 2) > 0);
      break;
    case kernel_kind::channel_first:
      t.time_is_inner = true;
      t.lanes = power_of_two(T / V, tiles::lanes);
      t.block_channels = tiles::threads / t.lanes;
      t.run = tiles::longest_walk;
      do {
        t.block_tokens = t.run;
      } while (!long_enough(t.lanes * V) && (t.run /= 2) > 0);
      break;
    case kernel_kind::general:
      t.cut_in_runs(time_is_inner(T, D, args.x, grads.d_y, grads.d_x));
      t.cover(B, T, D);
      s.chunks = tiles_of(W, tiles::tap_chunk);
      break;
  }
  s.tasks = B * t.time_tiles;
  s.rows = tiles::most_backward_blocks / t.channel_tiles;
  if (s.rows < 1) s.rows = 1;
  if (s.rows > tiles::most_rows) s.rows = tiles::most_rows;
  if (s.rows > s.tasks) s.rows = s.tasks;
  s.blocks = t.channel_tiles * s.chunks * s.rows;
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

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::conv1d

}  // namespace polystate::inline POLYSTATE_ABI
