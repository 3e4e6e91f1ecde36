// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the kernels of multi_state are cut over threads and time: host code without CUDA.

#include <polystate/core/macros.hpp>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/vector_access.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// How a bank's state is read: `lanes` neighbouring threads take a row, `vectors` accesses of 16 bytes each, and `rows`
/// rows, so that four accesses of an entry are in flight.
struct bank_split {
  int elements;  ///< of one access
  int lanes;
  int vectors;
  int rows;
  static constexpr int threads = 256;

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int block_rows() const { return threads / lanes * rows; }
};

POLYSTATE_HOST_DEVICE constexpr bank_split split_of_bank(int padded, int element_bytes) {
  const int elements = static_cast<int>(vector_bytes) / element_bytes;
  const int lanes = padded / elements < 32 ? padded / elements : 32;
  const int vectors = padded / elements / lanes;
  return {elements, lanes, vectors, vectors >= 4 ? 1 : 4 / vectors};
}

/// Blocks that share the entries of one query, head and tile of rows: enough that `blocks` of each fill the device four
/// times over, but no more than there are entries.
constexpr int bank_shares(std::int64_t blocks, std::int64_t entries, int multiprocessors) {
  constexpr std::int64_t blocks_of_multiprocessor = 2 * 4;
  if (blocks <= 0 || entries <= 1) return 1;
  const std::int64_t wanted = tiles_of(multiprocessors * blocks_of_multiprocessor, blocks);
  return static_cast<int>(wanted < entries ? wanted : entries);
}

/// Up to so many queries a sequence a bank's states are streamed once for each; more share them through shared memory.
inline constexpr std::int64_t few_queries = 4;
/// From so many on the same holds of its moments.
inline constexpr std::int64_t many_queries = 32;

/// The tokens whose scores and weights are in memory at once, so that it does not grow with their number squared:
/// `entries` whole batch entries, or `time` tokens of one, a multiple of 64.
struct token_window {
  std::int64_t entries = 0;
  std::int64_t time = 0;
  static constexpr std::int64_t bytes = std::int64_t{256} << 20;

  [[nodiscard]] constexpr std::int64_t tokens() const { return entries * time; }
};

constexpr token_window window_of(std::int64_t batch, std::int64_t time, std::int64_t token_bytes) {
  constexpr std::int64_t step = 64;
  if (batch == 0 || time == 0) return {};
  const std::int64_t fit = token_bytes > 0 ? token_window::bytes / token_bytes : batch * time;
  if (fit >= time) return {fit / time < batch ? fit / time : batch, time};
  return {1, fit >= step ? fit / step * step : step};
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
