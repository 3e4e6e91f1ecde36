// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the recurrences with matrix states are cut over threads: host code without CUDA. A state is (dv, dk); its rows
/// are independent of each other once q, k, decay and write strength are known.

#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/macros.hpp>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/tiling.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// dk is padded with zeros to the next of these; each has kernels of its own.
using key_dims = int_list<32, 64, 128, 256, 512>;

constexpr int padded_key_dim(std::int64_t dk) {
  for (const int padded : key_dims::values) {
    if (dk <= padded) return padded;
  }
  return 0;
}

/// Padded key dims that a call may meet, and the most rows that its states may have.
template <class KeyDims, int MostRows>
struct state_shapes : KeyDims {
  static constexpr int most_rows = MostRows;
};
using any_shape = state_shapes<key_dims, (std::numeric_limits<int>::max)()>;

/// Those of a call: numbers `Key` and `Value` of the caller's dims are dk and dv, or any where there are none such.
template <class Dims, int Key, int Value>
using shapes_of =
    state_shapes<std::conditional_t<(Key < Dims::size),
                                    int_list<padded_key_dim(Dims::values[Key < Dims::size ? Key : 0])>, key_dims>,
                 (Value < Dims::size ? Dims::values[Value < Dims::size ? Value : 0] : any_shape::most_rows)>;
/// Of moments, whose states have rows for Sigma and for mu: number `Index` of the caller's dims is dr.
template <class Dims, int Index>
using moment_shapes_of = shapes_of<Dims, Index, Dims::size>;

/// Calls f with the padded key dim as a compile-time number. `Shapes` are those that may be met.
template <class Shapes, class F>
status with_padded(const char* name, std::int64_t dk, F&& f) {
  status s;
  const bool found = dispatch(padded_key_dim(dk), Shapes{}, [&](auto padded) { s = f(padded); });
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

/// How the kernels that walk cut states of a padded key dim. Warps that walk have sixteen rows each and at most 128
/// columns, so that what is summed over columns one after the other stays short. Of four others a warp a chunk works
/// out the chunk's numbers, and the rest bring keys and queries. Values come and outputs go by those four as well, or,
/// in a form without erasure, whose walk is short and whose outputs may have to be finished, by two more, unless eight
/// warps walk. `Walkers` is 8, 4, 2 or 1: 2 stands for four warps with half of 128 columns each, 1 for four with 256
/// columns and tiles of 8 tokens, for devices with little shared memory.
template <int Padded, int Walkers, bool Erases>
struct tensor_split {
  static constexpr bool halves = Walkers == 2;
  static constexpr bool short_tiles = Walkers == 1;
  static_assert((!halves || Padded == 128) && (!short_tiles || Padded == 256));
  static constexpr int walkers = halves || short_tiles ? 4 : Walkers;
  static constexpr int columns = halves ? 64 : Padded < 128 ? Padded : 128;
  static constexpr int column_warps = Padded / columns;
  static constexpr int warp_rows = 16;
  static constexpr int block_rows = walkers / column_warps * warp_rows;
  static constexpr int chunk_tokens = 8;
  static constexpr int tile_tokens = Padded <= 256 && !short_tiles ? 16 : 8;
  static constexpr int solving = 32 * tile_tokens / chunk_tokens;
  static constexpr int carrying = 64;
  static constexpr int preparing_keys = 2 * carrying;  ///< the last of them carry
  static constexpr int storing = Walkers <= 4 && !Erases ? carrying : 0;
  static constexpr int preparing = preparing_keys + storing;
  static constexpr int threads = preparing + 32 * walkers;
};

/// Four warps that walk fit into the shared memory of sm_80; with dk up to 128, and in short tiles 256, into that of
/// sm_86, sm_89 and sm_120.
inline constexpr std::size_t sm_80_shared_memory = std::size_t{163} << 10;
inline constexpr std::size_t least_shared_memory = std::size_t{99} << 10;

/// What `Walkers` may be: halves of fewer columns than 128 are not worth a kernel, only 256 columns have short tiles,
/// and eight need rows.
template <int Padded, int MostRows = any_shape::most_rows>
struct walker_counts_of {
  static constexpr bool eight = MostRows > tensor_split<Padded, 4, true>::block_rows;
  using list = std::conditional_t<eight, int_list<4, 8>, int_list<4>>;
};
template <int MostRows>
struct walker_counts_of<128, MostRows> {
  static constexpr bool eight = MostRows > tensor_split<128, 4, true>::block_rows;
  using list = std::conditional_t<eight, int_list<2, 4, 8>, int_list<2, 4>>;
};
template <int MostRows>
struct walker_counts_of<256, MostRows> {
  static constexpr bool eight = MostRows > tensor_split<256, 4, true>::block_rows;
  using list = std::conditional_t<eight, int_list<1, 4, 8>, int_list<1, 4>>;
};
template <int Padded, int MostRows = any_shape::most_rows>
using walker_counts = typename walker_counts_of<Padded, MostRows>::list;

/// The kernel with the least shared memory that any problem may run with: it decides whether a device takes a key dim.
template <int Padded>
inline constexpr int least_walkers = walker_counts<Padded>::contains(1) ? 1 : 4;

/// Warps that walk for which shared memory has room.
struct walker_room {
  bool four = true;
  bool eight = true;
};

/// Warps that walk: eight share what the others prepare, and fill the tensor cores, where there are rows for them and
/// blocks enough for all multiprocessors. A chunk takes the fewer warps the less time, as long as all their blocks run
/// at once. `states` counts items times heads.
template <int Padded>
constexpr int choose_walkers(std::int64_t states, std::int64_t dv, int multiprocessors, walker_room room) {
  constexpr int rows = tensor_split<Padded, 4, true>::block_rows;
  if (walker_counts<Padded>::contains(2) && states * tiles_of(dv, rows / 2) <= multiprocessors) return 2;
  if (!room.four) return least_walkers<Padded>;
  return room.eight && dv > rows && states * tiles_of(dv, rows) > multiprocessors ? 8 : 4;
}

/// Calls f with such a number as a compile-time one. `MostRows` bounds dv.
template <int Padded, int MostRows = any_shape::most_rows, class F>
status with_walkers(int walkers, F&& f) {
  status s;
  const auto call = [&](auto of_kernel) { s = f(of_kernel); };
  static_cast<void>(dispatch(walkers, walker_counts<Padded, MostRows>{}, call));
  return s;
}

/// How a kernel that walks runs.
struct walk_choice {
  int walkers = 0;
  int key_buffers = 1;  ///< or 2, if shared memory has room
  std::size_t shared_bytes = 0;
};

/// `bytes(std::integral_constant<int, walkers>, key_buffers)`: shared memory of a block. The choice fits the
/// limit if the kernel of least_walkers fits it.
template <int Padded, class Bytes>
walk_choice choose_walk(std::int64_t states, std::int64_t dv, const device_limits& limits, Bytes&& bytes) {
  const auto fits = [&](auto walkers, int key_buffers) { return bytes(walkers, key_buffers) <= limits.shared_bytes; };
  const walker_room room = {.four = fits(std::integral_constant<int, 4>{}, 1),
                            .eight = fits(std::integral_constant<int, 8>{}, 1)};
  walk_choice choice;
  choice.walkers = choose_walkers<Padded>(states, dv, limits.multiprocessors, room);
  static_cast<void>(dispatch(choice.walkers, walker_counts<Padded>{}, [&](auto walkers) {
    choice.key_buffers = fits(walkers, 2) ? 2 : 1;
    choice.shared_bytes = bytes(walkers, choice.key_buffers);
  }));
  return choice;
}

/// The backward pass keeps the state before every record_tokens tokens of an item, and the derivative of the one after
/// them: of each (tile, head) the rows, padded to whole sixteens, of padded columns.
inline constexpr int record_tokens = 16;
POLYSTATE_HOST_DEVICE constexpr int recorded_rows(int dv) { return static_cast<int>(tiles_of(dv, 16)) * 16; }

/// Rows of a state that a block of tile_gradients.cuh has: as many as shared memory takes, a power of two.
inline constexpr int most_gradient_rows = 256;
inline constexpr int least_gradient_rows = 16;

/// Heads that such a block works through: what it makes of keys and queries serves all heads of a group, as long as
/// `blocks`, those of one head each, leave enough for all multiprocessors. `shared` heads have a group.
constexpr int choose_heads_together(std::int64_t blocks, std::int64_t shared, int multiprocessors) {
  for (int together = 4; together > 1; --together) {
    if (shared % together == 0 && blocks / together >= std::int64_t{8} * multiprocessors) return together;
  }
  return 1;
}

/// Where a recorded state's element lies, in floats from the start of its rows: sixteen rows lie together, and in them
/// eight columns, as state_fragments::record() leaves them. Rows r and r + 8 of a column are neighbours.
POLYSTATE_HOST_DEVICE constexpr int place_in_record(int padded, int row, int column) {
  const int thread = row % 8 * 4 + column % 8 / 2;
  return row / 16 * (16 * padded) + (column / 8 * 32 + thread) * 4 + column % 2 * 2 + row / 8 % 2;
}

/// Of the step: `columns` hold whole 16-byte accesses of any state type.
template <int Rows>
POLYSTATE_HOST_DEVICE constexpr row_split<Rows> split_of_step(int padded) {
  return padded == 32 ? row_split<Rows>{4, 8} : split_over_time<Rows>(padded);
}

/// Blocks of the step's kernel that a multiprocessor holds at once, at least: more make it slower, for want of
/// registers and since more of memory is then read and written at once.
POLYSTATE_HOST_DEVICE constexpr int step_blocks(int rows) { return rows == 4 ? 3 : 4; }

/// Whether a block with many states works through several pieces, or has one and asks early for another's: measured on
/// the H200. Small states take less time to move, and hide less of the rest.
constexpr bool step_streams(std::size_t state_bytes) { return state_bytes == 2; }

/// A piece of a step's states: of a head of a batch row, the rows that a block holds at once. Unsigned, since an
/// address is then made of fewer operations.
struct step_piece {
  unsigned tile;    ///< of the head's rows
  unsigned member;  ///< the head's number in its group
  unsigned group;
  unsigned b;
};
/// All pieces in their order, tiles first. A block that takes every n-th adds the piece at n: divisions are slow.
class step_pieces {
 public:
  step_pieces() = default;
  constexpr step_pieces(std::int64_t rows, std::int64_t heads, std::int64_t groups, std::int64_t tiles)
      : count_(static_cast<unsigned>(rows * heads * tiles)),
        tiles_(static_cast<unsigned>(tiles)),
        members_(static_cast<unsigned>(heads / groups)),
        groups_(static_cast<unsigned>(groups)) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr unsigned count() const { return count_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr unsigned head(const step_piece& of) const {
    return of.group * members_ + of.member;
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr step_piece operator[](unsigned i) const {
    return {i % tiles_, i / tiles_ % members_, i / tiles_ / members_ % groups_, i / tiles_ / members_ / groups_};
  }
  /// (*this)[i + j] from a = (*this)[i] and b = (*this)[j].
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr step_piece sum(const step_piece& a, const step_piece& b) const {
    step_piece r = {a.tile + b.tile, a.member + b.member, a.group + b.group, a.b + b.b};
    if (r.tile >= tiles_) r.tile -= tiles_, ++r.member;
    if (r.member >= members_) r.member -= members_, ++r.group;
    if (r.group >= groups_) r.group -= groups_, ++r.b;
    return r;
  }

 private:
  unsigned count_ = 0;
  unsigned tiles_ = 1;
  unsigned members_ = 1;
  unsigned groups_ = 1;
};

/// Four rows share what a thread does for a token once; two where few states would leave multiprocessors idle.
/// `states` counts batch rows times heads.
constexpr int choose_step_rows(std::int64_t states, std::int64_t dv, int padded, int multiprocessors) {
  const std::int64_t blocks = states * tiles_of(dv, split_of_step<4>(padded).block_rows());
  return blocks < std::int64_t{step_blocks(4)} * multiprocessors ? 2 : 4;
}

/// A backward pass works window by window, so that its memory does not grow with the number of tokens times the state:
/// about window_bytes for the window, but no less than makes the states kept at windows' starts as many as those in
/// one.
inline constexpr std::int64_t window_bytes = std::int64_t{512} << 20;

/// Tokens of a window, a multiple of 64. `token_bytes` is what a window keeps of a token of every batch entry.
constexpr std::int64_t window_tokens(std::int64_t time, std::int64_t token_bytes) {
  constexpr std::int64_t step = 64;
  std::int64_t root = step;
  while (root * root < record_tokens * time) root += step;
  const std::int64_t by_memory = token_bytes > 0 ? window_bytes / token_bytes / step * step : time;
  const std::int64_t tokens = by_memory > root ? by_memory : root;
  return tokens < time ? tokens : (time > 0 ? time : 1);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
