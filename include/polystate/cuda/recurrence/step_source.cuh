// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the step's kernel has states, keys and queries from: registers or shared memory. Either way fetch_..() asks
/// for them, commit() ends what belongs together, wait() waits for all of it, and take_..() hands over what a thread
/// needs, after which the next may be fetched. Gates, values and the like are few, and always come to registers.

#include <polystate/cuda/recurrence/step_rows.cuh>
#include <polystate/cuda/vector.cuh>

#include <cuda_pipeline.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// A row in memory.
template <class T>
struct strided_row {
  const T* first;
  std::int64_t stride;  ///< between elements
};

/// Straight to registers: nothing is there sooner, but they are taken from then on.
template <class Data, class State, int Lanes, int Rows, int Columns, bool Whole>
class register_source {
 public:
  static constexpr int V = vector_elements<State>;
  static constexpr int shared_bytes = 0;

  __device__ register_source(void*, int thread) : lane_(thread % Lanes) {}

  __device__ void fetch_states(const strided_row<State>& from, std::int64_t row_stride, int rows, int dk) {
    load_state_rows<Lanes, Whole>(states_, from.first, row_stride, from.stride, rows, dk, lane_);
  }
  __device__ void fetch_token(const strided_row<Data>& key, const strided_row<Data>& query, int dk) {
    load_columns<Lanes, V, Whole>(key_, key.first, key.stride, dk, lane_);
    load_columns<Lanes, V, Whole>(query_, query.first, query.stride, dk, lane_);
  }
  __device__ void commit() const {}
  __device__ void wait() const {}
  __device__ vector<State> take_state(int r, int j, bool) const { return states_[r][j]; }
  __device__ void take_token(vector<Data, 4> (&key)[Columns / 4], vector<Data, 4> (&query)[Columns / 4], int) const {
#pragma unroll
    for (int j = 0; j < Columns / 4; ++j) key[j] = key_[j], query[j] = query_[j];
  }

 private:
  int lane_;
  vector<State> states_[Rows][Columns / V];
  vector<Data, 4> key_[Columns / 4];
  vector<Data, 4> query_[Columns / 4];
};

/// To shared memory, by 16-byte accesses, while a block works on what came before. Each thread brings its own part of
/// the states, and each warp its own copy of the key and the query, so that nobody waits for another warp.
template <class Data, class State, int Lanes, int Rows, int Columns, int Threads>
class shared_source {
 public:
  static constexpr int V = vector_elements<State>;
  static constexpr int padded = Lanes * Columns;
  static constexpr int row_vectors = padded / vector_elements<Data>;  ///< of a key
  static constexpr int state_bytes = Rows * Columns * Threads * static_cast<int>(sizeof(State));
  static constexpr int shared_bytes = state_bytes + Threads / 32 * 2 * padded * static_cast<int>(sizeof(Data));

  __device__ shared_source(void* shared, int thread)
      : states_(static_cast<vector<State>*>(shared) + thread),
        rows_(reinterpret_cast<Data*>(static_cast<char*>(shared) + state_bytes) + thread / 32 * 2 * padded),
        thread_(thread % 32) {}

  __device__ void fetch_states(const strided_row<State>& from, std::int64_t row_stride, int rows, int dk) {
    const State* row = from.first + lane() * V;
#pragma unroll
    for (int r = 0; r < Rows; ++r, row += row_stride) {
#pragma unroll
      for (int j = 0; j < Columns / V; ++j) {
        if (r < rows && step_column<Lanes, V>(j * V, lane()) < dk) {
          __pipeline_memcpy_async(states_ + (r * (Columns / V) + j) * Threads, row + j * (Lanes * V),
                                  sizeof(vector<State>));
        }
      }
    }
  }
  __device__ void fetch_token(const strided_row<Data>& key, const strided_row<Data>& query, int dk) {
    __syncwarp();  // the last token was taken
#pragma unroll
    for (int i = thread_; i < 2 * row_vectors; i += 32) {
      const int c = i % row_vectors * vector_elements<Data>;
      const Data* const from = i < row_vectors ? key.first : query.first;
      if (c < dk) {
        __pipeline_memcpy_async(rows_ + i * vector_elements<Data>, from + c, sizeof(vector<Data>));
      }
    }
  }
  __device__ void commit() const { __pipeline_commit(); }
  __device__ void wait() const {
    __pipeline_wait_prior(0);
    __syncwarp();  // for the other threads' parts of key and query
  }
  __device__ vector<State> take_state(int r, int j, bool there) const {
    return there ? states_[(r * (Columns / V) + j) * Threads] : vector<State>{};
  }
  __device__ void take_token(vector<Data, 4> (&key)[Columns / 4], vector<Data, 4> (&query)[Columns / 4], int dk) const {
    load_columns<Lanes, V, true>(key, rows_, 1, dk, lane());
    load_columns<Lanes, V, true>(query, rows_ + padded, 1, dk, lane());
  }

 private:
  [[nodiscard]] __device__ int lane() const { return thread_ % Lanes; }

  vector<State>* states_;  ///< this thread's first vector; its others are Threads apart
  Data* rows_;             ///< this warp's key, and behind it its query
  int thread_;             ///< of the warp
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
