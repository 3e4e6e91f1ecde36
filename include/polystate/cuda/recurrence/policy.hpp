// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the recurrences with matrix states are cut over threads: host code without CUDA. A state is (dv, dk); its rows
/// are independent of each other once q, k, decay and write strength are known.

#include <polystate/core/dispatch.hpp>
#include <polystate/core/macros.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstdint>

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

/// A group of `lanes` neighbouring threads holds `rows` rows of a state, `columns` numbers of each row a thread, in
/// registers. Four rows a thread use each k and q read from shared memory four times.
struct split {
  int lanes;
  int columns;
  static constexpr int rows = 4;
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int warp_rows() const { return 32 / lanes * rows; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int block_rows() const { return warps * warp_rows(); }
};

/// Of the kernels that walk along time: groups of at least 8, so that few rows fill many threads.
POLYSTATE_HOST_DEVICE constexpr split split_over_time(int padded) {
  return padded <= 128 ? split{8, padded / 8} : split{padded / 16, 16};
}

/// Of the step: `columns` hold whole 16-byte accesses of any state type.
POLYSTATE_HOST_DEVICE constexpr split split_of_step(int padded) {
  return padded == 32 ? split{4, 8} : split_over_time(padded);
}

/// Tokens that are staged in shared memory together, and those of them that are handled at once.
POLYSTATE_HOST_DEVICE constexpr int tile_tokens(int padded) { return padded <= 128 ? 16 : 8; }
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
