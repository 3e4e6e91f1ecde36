// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the recurrences with matrix states are cut over threads: host code without CUDA. A state is (dv, dk); its rows
/// are independent of each other once q, k, decay and write strength are known.

#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/macros.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// dk is padded with zeros to the next of these; each has kernels of its own.
using key_dims = int_list<32, 64, 128, 256, 512>;

constexpr int padded_key_dim(std::int64_t dk) {
  for (const int padded : key_dims::values) {
    if (dk <= padded) return padded;
  }
  return 0;
}

/// The padded key dims that a call may meet: the one of the caller's fixed dims, or all.
template <class Dims>
struct key_dims_of {
  using list = key_dims;
};
template <int Dk, int Dv>
struct key_dims_of<dims<Dk, Dv>> {
  using list = int_list<padded_key_dim(Dk)>;
};

/// Calls f with the padded key dim as a compile-time number. `KeyDims` are those that may be met.
template <class KeyDims, class F>
status with_padded(const char* name, std::int64_t dk, F&& f) {
  status s;
  const bool found = dispatch(padded_key_dim(dk), KeyDims{}, [&](auto padded) { s = f(padded); });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(dk)};
}

/// A group of `lanes` neighbouring threads holds `rows` rows of a state, `columns` numbers of each row a thread, in
/// registers. The more rows a thread has, the more often it uses each k and q that it reads from shared memory; the
/// fewer, the more threads share the work. A row's sums are the same bits whatever the number.
template <int Rows>
struct row_split {
  int lanes;
  int columns;
  static constexpr int rows = Rows;
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int warp_rows() const { return 32 / lanes * rows; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int block_rows() const { return warps * warp_rows(); }
};
using split = row_split<4>;

/// Of the kernels that walk along time: groups of at least 8, so that few rows fill many threads.
template <int Rows = split::rows>
POLYSTATE_HOST_DEVICE constexpr row_split<Rows> split_over_time(int padded) {
  return padded <= 128 ? row_split<Rows>{8, padded / 8} : row_split<Rows>{padded / 16, 16};
}

/// Blocks of the forward kernel that a multiprocessor holds at once.
inline constexpr int forward_blocks = 2;

/// Rows of a thread in it: two where all blocks then run at once; four where they would not, or where the states are
/// recorded for the backward pass, which reads them in that layout. `states` counts items times heads.
constexpr int choose_forward_rows(std::int64_t states, std::int64_t dv, int padded, int multiprocessors, bool records) {
  const std::int64_t blocks = states * tiles_of(dv, split_over_time<2>(padded).block_rows());
  return !records && blocks <= std::int64_t{forward_blocks} * multiprocessors ? 2 : 4;
}

/// Threads of a block that prepare the next tile while its other threads walk along this one.
POLYSTATE_HOST_DEVICE constexpr int preparing_threads(int rows) { return rows == 4 ? 64 : 128; }

/// Of the step: `columns` hold whole 16-byte accesses of any state type.
template <int Rows>
POLYSTATE_HOST_DEVICE constexpr row_split<Rows> split_of_step(int padded) {
  return padded == 32 ? row_split<Rows>{4, 8} : split_over_time<Rows>(padded);
}

/// Blocks of the step's kernel that a multiprocessor holds at once, at least.
POLYSTATE_HOST_DEVICE constexpr int step_blocks(int rows) { return rows == 4 ? 4 : 5; }

/// Four rows share what a thread does for a token once; two where few states would leave multiprocessors idle.
/// `states` counts batch rows times heads.
constexpr int choose_step_rows(std::int64_t states, std::int64_t dv, int padded, int multiprocessors) {
  const std::int64_t blocks = states * tiles_of(dv, split_of_step<4>(padded).block_rows());
  return blocks < std::int64_t{step_blocks(4)} * multiprocessors ? 2 : 4;
}

/// Tokens that are staged in shared memory together, and those of them that are handled at once.
POLYSTATE_HOST_DEVICE constexpr int tile_tokens(int padded) { return padded <= 128 ? 16 : padded == 256 ? 8 : 4; }
inline constexpr int chunk_tokens = 4;

/// A backward pass works window by window, so that its memory does not grow with the number of tokens times the state:
/// about window_bytes for the window, but no less than makes the states kept at windows' starts as many as those in
/// one.
inline constexpr std::int64_t window_bytes = std::int64_t{256} << 20;

/// Tokens of a window, a multiple of 64. `token_bytes` is what a window keeps of a token of every batch entry.
constexpr std::int64_t window_tokens(std::int64_t time, std::int64_t token_bytes, int tile) {
  constexpr std::int64_t step = 64;
  std::int64_t root = step;
  while (root * root < tile * time) root += step;
  const std::int64_t by_memory = token_bytes > 0 ? window_bytes / token_bytes / step * step : time;
  const std::int64_t tokens = by_memory > root ? by_memory : root;
  return tokens < time ? tokens : (time > 0 ? time : 1);
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda::recurrence
