// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which tokens share a segment, for the kernels of segment_moments, routing and multi_state. Tokens of all batch
/// entries are counted through: token n is token n % T of batch entry n / T. Segments of all sequences likewise, as
/// `slots`, in the order of their tokens; a slot may stay empty where sequences are packed, since the host knows only a
/// bound of their number. So all segments are packed sequences of one entry, whose cu_seqlens is segment_table::begins.
///
///     segmentation s = make_segmentation(separation, all, B, T);
///     segment_table table = carve(carver, s);
///     launch_segment_table(name, exec, s, table, max_visible);

#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/workspace.cuh>
#include <polystate/separation.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments {

/// Segments of m tokens, or those of `boundaries`, in every sequence. Host and device; reads contents on the device
/// only.
struct segmentation {
  sequences all;
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t m = 1;       ///< tokens of a segment, where there are no boundaries
  index_view boundaries{};  ///< (L+1), not with packed sequences
  std::int64_t most = 0;    ///< segments of one sequence, at most; exactly where sequences are not packed
  bool divides_by_count = false;

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t tokens() const { return batch * time; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t slots() const {
    return all.packed() ? all.size() + time / m : batch * most;
  }

  /// The first slot of a sequence.
  [[nodiscard]] __device__ std::int64_t first_slot(std::int64_t sequence) const {
    return all.packed() ? sequence + all[sequence].begin / m : sequence * most;
  }
  /// The sequence that a slot belongs to: the last one whose first slot is not behind it.
  [[nodiscard]] __device__ std::int64_t sequence_of(std::int64_t slot) const {
    if (!all.packed()) return slot / most;
    std::int64_t low = 0;
    std::int64_t high = all.size() - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (first_slot(middle) <= slot) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  /// Boundary l, clamped into the tokens.
  [[nodiscard]] __device__ std::int64_t boundary(std::int64_t l) const {
    const std::int64_t t = boundaries(l);
    return t < 0 ? 0 : (t > time ? time : t);
  }
  /// Tokens of the sequence's segment l, counted in its batch entry; empty behind the last one.
  [[nodiscard]] __device__ token_range segment(std::int64_t sequence, std::int64_t l) const {
    token_range range = all[sequence];
    if (boundaries) {
      const std::int64_t end = boundary(l + 1);
      range.begin = boundary(l);
      range.end = end < range.begin ? range.begin : end;
      return range;
    }
    const std::int64_t before = l <= range.size() / m ? l * m : range.size();  // m may be as large as it likes
    range.begin += before < range.size() ? before : range.size();
    if (range.size() > m) range.end = range.begin + m;
    return range;
  }
  /// The segment, counted in its sequence, that holds token t of its batch entry.
  [[nodiscard]] __device__ std::int64_t segment_of(std::int64_t sequence, std::int64_t t) const {
    if (!boundaries) {
      const std::int64_t since = t - all[sequence].begin;
      return since < 0 ? 0 : since / m;
    }
    std::int64_t low = 0;
    std::int64_t high = most - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (boundary(middle) <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  /// What divide_by::m divides a segment by.
  [[nodiscard]] __device__ float length(std::int64_t l) const {
    return boundaries ? static_cast<float>(boundary(l + 1) - boundary(l)) : static_cast<float>(m);
  }
};

inline segmentation make_segmentation(const separation::uniform& s, const sequences& all, std::int64_t batch,
                                      std::int64_t time) {
  segmentation r;
  r.all = all;
  r.batch = batch;
  r.time = time;
  r.m = s.m;
  r.most = s.count(time);
  return r;
}
inline segmentation make_segmentation(const separation::boundaries& s, const sequences& all, std::int64_t batch,
                                      std::int64_t time) {
  segmentation r;
  r.all = all;
  r.batch = batch;
  r.time = time;
  r.boundaries = s.boundaries;
  r.most = s.count(time);
  return r;
}

/// Slots that a token sees, first to current; its own is the last one.
struct visible_slots {
  std::int32_t first;
  std::int32_t current;
  std::int32_t origin;  ///< first slot of the sequence
  [[nodiscard]] __device__ int size() const { return current - first + 1; }
};

/// What segmentation says, on the device.
struct segment_table {
  std::int32_t* begins = nullptr;    ///< (slots + 1), first token
  std::int32_t* last = nullptr;      ///< (slots), last slot of the sequence
  std::int32_t* entry = nullptr;     ///< (slots), index L of outputs; -1 for an empty slot of packed sequences
  float* divisor = nullptr;          ///< (slots), of the ended segment
  visible_slots* visible = nullptr;  ///< (tokens)

  /// All segments as packed sequences.
  [[nodiscard]] sequences segments(const segmentation& s) const {
    return {1, s.tokens(), index_view(begins, {s.slots() + 1})};
  }
};

inline segment_table carve(workspace_carver& from, const segmentation& s) {
  segment_table t;
  t.begins = from.take<std::int32_t>(s.slots() + 1);
  t.last = from.take<std::int32_t>(s.slots());
  t.entry = from.take<std::int32_t>(s.slots());
  t.divisor = from.take<float>(s.slots());
  t.visible = from.take<visible_slots>(s.tokens());
  return t;
}

/// What a token's running moments are divided by.
[[nodiscard]] __device__ inline float running_divisor(const segment_table& table, bool counts, std::int64_t token) {
  const std::int32_t slot = table.visible[token].current;
  return counts ? static_cast<float>(token - table.begins[slot] + 1) : table.divisor[slot];
}

/// Tokens and slots are counted in 32 bits.
inline status check_segmentation(const char* name, const segmentation& s) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)() - 1;
  if (s.tokens() <= most && s.slots() <= most) return {};
  return {error_code::unsupported, name, "T",
          std::to_string(s.tokens()) + " tokens in " + std::to_string(s.slots()) + " segments, supported: up to " +
              std::to_string(most) + " of each"};
}

struct segment_table_params {
  segmentation s;
  segment_table to;
  std::int64_t max_visible = 0;  ///< 0: all
  tail_rows tail{};              ///< rows of tokens, to be cleared where no sequence holds them
};

inline constexpr int table_threads = 256;

/// One thread a slot and a token.
template <int Threads>  // a template, so that units share it
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    segment_table_kernel(const __grid_constant__ segment_table_params p) {
  const segmentation& s = p.s;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t slots = s.slots();
  if (i < slots) {
    const std::int64_t sequence = s.sequence_of(i);
    const std::int64_t first = s.first_slot(sequence);
    const std::int64_t l = i > first ? i - first : 0;
    const token_range tokens = s.segment(sequence, l);
    p.to.begins[i] = static_cast<std::int32_t>(tokens.batch * s.time + tokens.begin);
    const std::int64_t last = s.all.packed() ? first + s.all[sequence].size() / s.m : first + s.most - 1;
    p.to.last[i] = static_cast<std::int32_t>(last < slots ? last : slots - 1);
    p.to.divisor[i] = s.divides_by_count ? static_cast<float>(tokens.size()) : s.length(l);
    p.to.entry[i] = !s.all.packed() ? static_cast<std::int32_t>(l) : (tokens.size() > 0 ? 0 : -1);
  }
  if (i == slots) p.to.begins[i] = static_cast<std::int32_t>(s.tokens());
  if (i < s.tokens()) {
    const std::int64_t b = i / s.time;
    const std::int64_t t = i % s.time;
    const std::int64_t sequence = s.all.packed() ? s.all.of_token(t) : b;
    const std::int64_t first = s.first_slot(sequence);
    std::int64_t current = first + s.segment_of(sequence, t);
    if (current >= slots) current = slots - 1;
    const std::int64_t oldest = current + 1 - p.max_visible;
    p.to.visible[i] = {static_cast<std::int32_t>(p.max_visible > 0 && oldest > first ? oldest : first),
                       static_cast<std::int32_t>(current), static_cast<std::int32_t>(first)};
  }
}

inline constexpr int entry_threads = 1024;

/// Entries of packed sequences: the number of segments before each. One block; any others clear the tail.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    segment_entry_kernel(const __grid_constant__ segment_table_params p) {
  if (blockIdx.x > 0) {
    clear_tail({p.s.all, p.tail}, blockIdx.x - 1, gridDim.x - 1);
    return;
  }
  __shared__ int in_warp[Threads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t slots = p.s.slots();
  int before = 0;
  for (std::int64_t from = 0; from < slots; from += Threads) {
    const std::int64_t i = from + threadIdx.x;
    const bool used = i < slots && p.to.entry[i] >= 0;
    const unsigned in_use = __ballot_sync(0xffffffffu, used);
    if (lane == 0) in_warp[warp] = __popc(in_use);
    __syncthreads();
    int here = before + __popc(in_use & ((1u << lane) - 1));
    for (int w = 0; w < Threads / 32; ++w) {
      before += in_warp[w];
      if (w < warp) here += in_warp[w];
    }
    if (used) p.to.entry[i] = here;
    __syncthreads();  // the counts are used up
  }
}

/// Fills the table.
inline POLYSTATE_HIDDEN status launch_segment_table(const char* name, const cuda_policy auto& exec,
                                                    const segmentation& s, const segment_table& to,
                                                    std::int64_t max_visible) {
  const segment_table_params p = {.s = s, .to = to, .max_visible = max_visible};
  const std::int64_t items = s.tokens() > s.slots() ? s.tokens() : s.slots();
  if (items == 0) return {};
  status r = launch(name, exec, grid{.blocks = tiles_of(items + 1, table_threads), .threads = table_threads},
                    segment_table_kernel<table_threads>, p);
  if (!r.ok() || !s.all.packed()) return r;
  return launch(name, exec, grid{.blocks = 1, .threads = entry_threads}, segment_entry_kernel<entry_threads>, p);
}

/// Clears rows of tokens that no sequence holds, if sequences are packed. The table's entries stay: the kernel is the
/// one that has made them, so that a layer has one kernel fewer.
template <class... Rows>
POLYSTATE_HIDDEN status launch_clear_tail(const char* name, const cuda_policy auto& exec, const segmentation& s,
                                          const segment_table& table, const Rows&... rows) {
  if (!s.all.packed() || s.tokens() == 0) return {};
  segment_table_params p = {.s = s, .to = table};
  (p.tail.add(rows), ...);
  return launch(name, exec, grid{.blocks = 1 + clear_tail_blocks, .threads = entry_threads},
                segment_entry_kernel<entry_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::moments
