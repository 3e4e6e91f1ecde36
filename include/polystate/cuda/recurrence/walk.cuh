// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the kernels that walk along tokens, forward.cuh and reverse.cuh, have in common: the shape of their tiles, a
/// block's place in the problem, and how its warps meet.

#include <polystate/cuda/recurrence/chunk_system.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Sizes of a block's tile of tokens. Rows in shared memory are padded against bank conflicts.
template <bool Erases, int Padded, int Walkers>
struct walk_shape {
  using Split = tensor_split<Padded, Walkers, Erases>;
  static constexpr int M = chunk_system::M;
  static constexpr int T = Split::tile_tokens;
  static constexpr int chunks = T / M;
  static constexpr int rows = Split::block_rows;
  static constexpr int fragments = fragments_of_chunk(Padded);
  static constexpr int key_pitch = Padded + 8;
  static constexpr int value_pitch = rows + 8;
  static constexpr int out_pitch = rows + 4;

  /// Of a buffer.
  POLYSTATE_HOST_DEVICE static constexpr int key_bytes(int element_bytes) { return T * key_pitch * element_bytes; }
  POLYSTATE_HOST_DEVICE static constexpr int value_bytes(int element_bytes) { return T * value_pitch * element_bytes; }
};

/// The rows of a head of an item that this block has.
struct walk_place {
  std::int64_t item;
  std::int64_t head;
  unsigned heads;
  int row;   ///< the first of them
  int rows;  ///< how many are there
};
__device__ inline walk_place place_of_block(const shared_operands& in, int block_rows) {
  const int dv = in.dv();
  const auto tiles = static_cast<unsigned>(tiles_of(dv, block_rows));
  const auto heads = static_cast<unsigned>(in.heads());
  const int row = static_cast<int>(blockIdx.x % tiles) * block_rows;
  return {blockIdx.x / tiles / heads, blockIdx.x / tiles % heads, heads, row, min(block_rows, dv - row)};
}

/// Writes zeros from `from` up to `end`, 16 bytes a thread, and waits for all: what lies beyond dk and dv in the rows
/// of shared memory stays zero.
__device__ inline void clear_shared_rows(char* from, const char* end) {
  constexpr int vector = sizeof(uint4);
  const int threads = static_cast<int>(blockDim.x);
  for (char* x = from + static_cast<int>(threadIdx.x) * vector; x < end; x += threads * vector) {
    *reinterpret_cast<uint4*>(x) = uint4{};
  }
  __syncthreads();
}

/// The sums of all warps that share rows, each of which has `sums` for its columns: one or two float[4]. `parts` are
/// theirs side by side; no call uses those of the one before.
template <class Split, class... Four>
__device__ void sum_over_column_warps(float4 (*parts)[2 * 32], int walker, Four&... sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int which = 0;
  ((parts[walker][32 * which++ + lane] = make_float4(sums[0], sums[1], sums[2], sums[3])), ...);
  const int row_group = walker / Split::column_warps;
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(2 + row_group), "n"(32 * Split::column_warps) : "memory");
  which = 0;
  const auto add_up = [&](float(&sum)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < Split::column_warps; ++w) {
      const float4 a = parts[row_group * Split::column_warps + w][32 * which + lane];
      sum[0] += a.x, sum[1] += a.y, sum[2] += a.z, sum[3] += a.w;
    }
    ++which;
  };
  (add_up(sums), ...);
}

/// x to elements first .. first + 3 of a row of `count` floats, those that are there.
__device__ inline void store_row_part(float* row, int first, int count, const float4& x) {
  if (count % 4 == 0) {
    *reinterpret_cast<float4*>(row + first) = x;
    return;
  }
  const float each[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < count) row[first + i] = each[i];
  }
}

/// Waits for the first `Threads` threads of the block, which all call this. A barrier has one number of threads: those
/// of sum_over_column_warps() are numbered from 2 on.
template <int Barrier, int Threads>
__device__ void sync_first_threads() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(Barrier), "n"(Threads) : "memory");
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
