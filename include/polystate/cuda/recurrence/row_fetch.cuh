// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Copies the rows of tile after tile of tokens, forwards or backwards, to shared memory as they lie in memory.

#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/vector.cuh>

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Of `Threads` threads, each of which has one. Rows have at most `Width` elements, a power of two, and are `Pitch`
/// apart; a tile has `Tokens`. 16 bytes at a time and asynchronously where `whole` says that the operand allows it: the
/// caller commits and waits.
template <int Threads, int Width, int Pitch, int Tokens>
class row_fetch {
 public:
  /// Elements first .. first + count-1 along dim 3 of a head's tokens, from t0 on; nothing where there is no operand.
  /// `thread` counts from 0 to Threads-1; `direction` is 1, or -1 where each tile lies before the last one.
  __device__ row_fetch(const any_element_view<4>& from, bool whole, std::int64_t b, std::int64_t t0, std::int64_t head,
                       int first, int count, int thread, int direction = 1)
      : whole_(whole), thread_(thread), count_(from.given() ? count : 0) {
    if (!from.given()) return;
    const int bytes = bytes_of(from.type());
    const std::int64_t token_bytes = from.stride(1) * bytes;
    source_ = from.address(b, t0, head, first);
    tile_bytes_ = direction * Tokens * token_bytes;
    if (!whole) return;
    constexpr int vector = static_cast<int>(vector_bytes);
    const int vectors = Width * bytes / vector;
    step_ = vectors < Threads ? Threads / vectors : 1;
    token_ = vectors < Threads ? thread / vectors : 0;
    const int column = (vectors < Threads ? thread % vectors : thread) * vector;
    source_ += token_ * token_bytes + column;
    step_bytes_ = step_ * token_bytes;
    at_ = token_ * (Pitch * bytes) + column;
    step_at_ = step_ * (Pitch * bytes);
    columns_left_ = count * bytes - column;
  }

  /// The next tile of the operand, of which `tokens` are there: zeros stand for the others.
  __device__ void next(const any_element_view<4>& from, int tokens, char* to) {
    constexpr int vector = static_cast<int>(vector_bytes);
    if (whole_) {
#pragma unroll 1
      for (int left = columns_left_, c = 0; left > 0; left -= Threads * vector, c += Threads * vector) {
        const char* x = source_ + c;
        char* y = to + at_ + c;
#pragma unroll 2
        for (int t = token_; t < Tokens; t += step_, x += step_bytes_, y += step_at_) {
          __pipeline_memcpy_async(y, x, vector_bytes, t < tokens ? 0 : vector_bytes);
        }
      }
    } else {
      const int bytes = bytes_of(from.type());
      const std::int64_t token_bytes = from.stride(1) * bytes;
      const std::int64_t element_bytes = from.stride(3) * bytes;
#pragma unroll 1
      for (int i = thread_; i < Tokens * count_; i += Threads) {
        const int t = i / count_;
        const int c = i % count_;
        const char* const x = source_ + t * token_bytes + c * element_bytes;
        char* const y = to + (t * Pitch + c) * bytes;
        if (bytes == 4) {
          *reinterpret_cast<std::uint32_t*>(y) = t < tokens ? *reinterpret_cast<const std::uint32_t*>(x) : 0u;
        } else {
          *reinterpret_cast<std::uint16_t*>(y) =
              t < tokens ? *reinterpret_cast<const std::uint16_t*>(x) : std::uint16_t{0};
        }
      }
    }
    source_ += tile_bytes_;
  }

 private:
  const char* source_ = nullptr;  ///< of the next tile; of whole ones, where this thread begins
  std::int64_t tile_bytes_ = 0;
  std::int64_t step_bytes_ = 0;  ///< between the tokens of which this thread moves something
  bool whole_;
  int thread_;
  int count_;
  int token_ = 0;
  int step_ = 1;
  int at_ = 0;  ///< in the tile's rows
  int step_at_ = 0;
  int columns_left_ = 0;  ///< bytes of a row from this thread's first on
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
