// SPDX-License-Identifier: Apache-2.0

// Which CUDA kernel scans, and how its work is cut: host code. Views lie at addresses that are never read.

#include <polystate/cuda/selective_scan/policy.hpp>
#include <polystate/cuda/selective_scan/time_policy.hpp>
#include <polystate/cuda/selective_scan/time_schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <set>
#include <type_traits>
#include <vector>

namespace polystate::testing {
namespace {

namespace scan = polystate_detail::cuda::scan;
using polystate_detail::cuda::tiles_of;
using scan::access;
using scan::cut;

template <class T, int Rank>
tensor_view<T, Rank> at(const std::int64_t (&extents)[Rank], const std::int64_t (&strides)[Rank],
                        std::uintptr_t address = 1 << 20) {
  return {reinterpret_cast<T*>(address), extents, strides};
}

struct shape {
  std::int64_t B = 2, T = 2048, D = 128, G = 1, N = 16;
  std::int64_t sequences = 0;  ///< packed ones; 0: none are packed
  bool channel_first = false;  ///< memory order of u, delta, z and y
  bool time_last = false;      ///< and of B and C

  [[nodiscard]] std::int64_t rows() const { return sequences > 0 ? sequences : B; }
};

template <class Data = bfloat16>
selective_scan_args<Data> args_of(const shape& s) {
  const auto tokens = [&]<class T>(T*) {
    return s.channel_first ? at<T, 3>({s.B, s.T, s.D}, {s.T * s.D, 1, s.T})
                           : at<T, 3>({s.B, s.T, s.D}, {s.T * s.D, s.D, 1});
  };
  const std::int64_t GN = s.G * s.N;
  const auto grouped = s.time_last ? at<const Data, 4>({s.B, s.T, s.G, s.N}, {s.T * GN, 1, s.N * s.T, s.T})
                                   : at<const Data, 4>({s.B, s.T, s.G, s.N}, {s.T * GN, GN, s.N, 1});
  selective_scan_args<Data> a{.u = tokens(static_cast<const Data*>(nullptr)),
                              .delta = tokens(static_cast<const Data*>(nullptr)),
                              .A = at<const float, 2>({s.D, s.N}, {s.N, 1}),
                              .B = grouped,
                              .C = grouped,
                              .z = tokens(static_cast<const Data*>(nullptr)),
                              .y = tokens(static_cast<Data*>(nullptr))};
  if (s.sequences > 0) a.cu_seqlens = at<const std::int32_t, 1>({s.sequences + 1}, {1});
  return a;
}

constexpr int H200 = 132;

template <class Data = bfloat16>
scan::forward_schedule schedule_of(const shape& s, int multiprocessors = H200, bool batch_invariant = false) {
  return scan::choose_schedule(args_of<Data>(s), s.rows(), multiprocessors, batch_invariant);
}
template <class Data = bfloat16>
bool along_time(const shape& s, bool batch_invariant = false) {
  return scan::chooses_time(args_of<Data>(s), schedule_of<Data>(s, H200, batch_invariant), s.rows(), batch_invariant);
}
scan::time_schedule time_schedule_of(const shape& s, int slots, bool batch_invariant, bool may_split) {
  return scan::choose_time_schedule(args_of(s), {}, 32, 256, slots, batch_invariant, may_split);
}

// Each N has the fewest states that hold it, and of their splits the one with the fewest lanes that fills the chip.
TEST(SelectiveScanPolicy, SplitsHoldTheStatesAndFillTheChip) {
  for (std::int64_t N = 1; N <= selective_scan_limits::cuda_N.max; ++N) {
    for (const std::int64_t B : {1, 8, 64}) {
      for (const std::int64_t D : {1, 40, 1024, 5120}) {
        const shape s{.B = B, .T = 64, .D = D, .N = N};
        const auto chosen = schedule_of(s);
        ASSERT_GE(chosen.lanes.capacity(), N);
        const auto fills = [&](const scan::split& split) {
          return B * tiles_of(D, scan::channels_of(split)) * scan::threads_of(split) >= 3 * H200 * 128;
        };
        EXPECT_EQ(chosen.fills, fills(chosen.lanes));
        for (const auto& other : scan::splits) {
          if (other.capacity() < N) continue;
          EXPECT_LE(chosen.lanes.capacity(), other.capacity());
          if (other.capacity() != chosen.lanes.capacity() || !fills(other)) continue;
          EXPECT_TRUE(chosen.fills) << "N " << N << ": another split fills the chip";
          EXPECT_LE(chosen.lanes.lanes, other.lanes) << "N " << N << ", D " << D;
        }
      }
    }
  }
  for (const auto& split : scan::splits) {
    EXPECT_EQ(32 % split.lanes, 0) << "a channel's lanes are of one warp";
    EXPECT_EQ(scan::threads_of(split) % 32, 0);
    EXPECT_LE(scan::threads_of(split), 512);
  }
}

// Every channel of every group of every sequence is in one block.
TEST(SelectiveScanPolicy, BlocksCoverTheProblem) {
  for (const std::int64_t B : {1, 3, 70000}) {
    for (const std::int64_t G : {1, 3}) {
      for (const std::int64_t group_channels : {1, 5, 64, 65, 4096}) {
        for (const std::int64_t N : {4, 16, 100}) {
          const shape s{.B = B, .T = 8, .D = G * group_channels, .G = G, .N = N};
          const auto chosen = schedule_of(s);
          EXPECT_EQ(chosen.group_channels, group_channels);
          EXPECT_EQ(chosen.group_tiles, tiles_of(group_channels, scan::channels_of(chosen.lanes)));
          EXPECT_EQ(chosen.blocks, B * G * chosen.group_tiles);
        }
      }
    }
  }
  EXPECT_EQ(schedule_of({.B = 0}).blocks, 0);
  EXPECT_EQ(schedule_of({.D = 0}).blocks, 0);
  EXPECT_EQ(schedule_of({.D = 0, .G = 0}).blocks, 0);
  EXPECT_GT(schedule_of({.T = 0}).blocks, 0) << "the states of no tokens are written too";
  EXPECT_EQ(schedule_of({.B = 1, .sequences = 5}).blocks, 5 * schedule_of({.B = 1}).blocks);
}

TEST(SelectiveScanPolicy, VectorsWhereAllOperandsAllowThem) {
  EXPECT_EQ(schedule_of({}).moves.access, access::channel_vectors);
  EXPECT_EQ(schedule_of({.channel_first = true}).moves.access, access::time_vectors);
  EXPECT_EQ(schedule_of({.D = 132}).moves.access, access::channel_elements);
  EXPECT_EQ(schedule_of({.T = 2052, .channel_first = true}).moves.access, access::time_elements);
  // Eight channels would straddle two groups of 12, eight tokens two sequences.
  EXPECT_EQ(schedule_of({.D = 24, .G = 2}).moves.access, access::channel_elements);
  EXPECT_EQ(schedule_of({.D = 32, .G = 2}).moves.access, access::channel_vectors);
  EXPECT_EQ(schedule_of({.B = 1, .sequences = 2}).moves.access, access::channel_vectors);
  EXPECT_EQ(schedule_of({.B = 1, .sequences = 2, .channel_first = true}).moves.access, access::time_elements);

  const auto access_of = [](const auto& a) { return scan::choose_access(a, a.u, a.delta, a.z, a.y).access; };
  auto a = args_of({});
  a.z = {};
  EXPECT_EQ(access_of(a), access::channel_vectors) << "an absent operand hinders none";
  a = args_of({});
  a.z = at<const bfloat16, 3>({2, 2048, 128}, {2048 * 128, 128, 1}, (1 << 20) + 2);
  EXPECT_EQ(access_of(a), access::channel_elements) << "a misaligned one does";
  a = args_of({});
  a.y = at<bfloat16, 3>({2, 2048, 128}, {2048 * 128, 1, 2048});
  EXPECT_EQ(access_of(a), access::channel_elements) << "two orders have no common vector";

  EXPECT_TRUE(schedule_of({}).moves.BC_whole);
  EXPECT_FALSE(schedule_of({}).moves.BC_along_time);
  EXPECT_TRUE(schedule_of({.time_last = true}).moves.BC_whole);
  EXPECT_TRUE(schedule_of({.time_last = true}).moves.BC_along_time);
  EXPECT_FALSE(schedule_of({.N = 20}).moves.BC_whole);
  EXPECT_TRUE(schedule_of<float>({.N = 20}).moves.BC_whole);
  EXPECT_FALSE(schedule_of({.B = 1, .sequences = 2, .time_last = true}).moves.BC_whole);
}

/// The largest tile of any kernel.
template <class Data>
struct largest_tile {
  std::int64_t tokens = scan::time_forward_chunk<Data>;
  std::int64_t channels = scan::time_warps * 32 / scan::time_lanes;
  std::int64_t states = 1;

  largest_tile() {
    const auto add = [&](std::int64_t t, std::int64_t c) {
      tokens = std::max(tokens, t);
      channels = std::max(channels, c);
    };
    for (const auto& split : scan::splits) {
      add(scan::tile_tokens_of(split), scan::channels_of(split));
      states = std::max<std::int64_t>(states, split.capacity());
    }
    for (const int lanes : scan::time_backward_lanes) {
      add(lanes * scan::time_backward_steps<Data>, scan::time_backward_warps * 32 / lanes);
    }
  }
};

// bugs B005, B007: kernels address whole vectors by 32-bit offsets within a tile; wider strides go element by element.
template <class Data>
void offsets_within_tiles() {
  const largest_tile<Data> tile;
  std::vector<std::int64_t> strides;
  for (int bit = 10; bit < 40; ++bit) {
    for (const std::int64_t near : {-16, 0, 16}) strides.push_back((std::int64_t{1} << bit) + near);
  }
  std::int64_t whole = 0;
  for (const std::int64_t magnitude : strides) {
    for (const std::int64_t stride : {magnitude, -magnitude}) {
      SCOPED_TRACE(::testing::Message() << "stride " << stride);
      const auto fits = [&](std::int64_t last) { return std::abs(last) < std::int64_t{1} << 31; };
      for (const bool channel_first : {false, true}) {
        auto a = args_of<Data>({});
        const auto order = [&](auto& view, std::int64_t wide) {
          using T = std::remove_pointer_t<decltype(view.data())>;
          view = channel_first ? at<T, 3>({2, 2048, 128}, {0, 1, wide}) : at<T, 3>({2, 2048, 128}, {0, wide, 1});
        };
        order(a.u, 2048);
        order(a.delta, 2048);
        order(a.z, stride);  // one of them is enough
        order(a.y, 2048);
        const bool vectors = scan::choose_access(a, a.u, a.delta, a.z, a.y).access <= access::time_vectors;
        const std::int64_t last = channel_first ? (tile.channels - 1) * magnitude + tile.tokens
                                                : (tile.tokens - 1) * magnitude + tile.channels;
        EXPECT_TRUE(!vectors || fits(last)) << (channel_first ? "channels" : "tokens");
        whole += vectors;
        EXPECT_TRUE(vectors || magnitude > 1 << 20) << "strides of real tensors";
      }
      for (const bool time_last : {false, true}) {
        auto a = args_of<Data>({});
        a.C = time_last ? at<const Data, 4>({2, 2048, 1, 16}, {0, 1, 0, stride})
                        : at<const Data, 4>({2, 2048, 1, 16}, {0, stride, 0, 1});
        if (time_last) a.B = a.C;
        const bool vectors = scan::choose_access(a, a.u).BC_whole;
        const std::int64_t last =
            time_last ? (tile.states - 1) * magnitude + tile.tokens : (tile.tokens - 1) * magnitude + tile.states;
        EXPECT_TRUE(!vectors || fits(last)) << (time_last ? "states" : "tokens of B and C");
        EXPECT_TRUE(vectors || magnitude > 1 << 20);
      }
    }
  }
  EXPECT_GT(whole, 0);
}
TEST(SelectiveScanPolicy, OffsetsWithinTilesHave32Bits) {
  offsets_within_tiles<bfloat16>();
  offsets_within_tiles<float>();
}

// Lanes along time where channels do not fill the chip and sequences are long.
TEST(SelectiveScanPolicy, LanesAlongTimeForFewChannels) {
  EXPECT_FALSE(along_time({.B = 8, .T = 2048, .D = 4096})) << "channels fill the chip";
  EXPECT_TRUE(along_time({.B = 1, .T = 16384, .D = 5120})) << "only with one state a lane would they";
  EXPECT_TRUE(along_time({.B = 1, .T = 16384, .D = 8}));
  EXPECT_TRUE(along_time({.B = 1, .T = 512, .D = 8}));
  EXPECT_FALSE(along_time({.B = 1, .T = 511, .D = 8})) << "less than two chunks";
  EXPECT_TRUE(along_time<float>({.B = 1, .T = 256, .D = 8}));
  EXPECT_FALSE(along_time<float>({.B = 1, .T = 255, .D = 8}));

  EXPECT_TRUE(along_time({.B = 1, .T = 2048, .D = 8, .sequences = 4}));
  EXPECT_FALSE(along_time({.B = 1, .T = 2048, .D = 8, .sequences = 5})) << "by their mean length";
  EXPECT_FALSE(along_time({.B = 1, .T = 2048, .D = 8, .sequences = 1}, true))
      << "the mean tells a sequence about the others";

  for (const shape& empty : {shape{.B = 0}, shape{.T = 0}, shape{.D = 0}, shape{.D = 0, .G = 0}}) {
    EXPECT_FALSE(along_time(empty));
  }
}

// The number of sequences changes neither kernel nor split nor pieces: no order of sums.
TEST(SelectiveScanPolicy, BatchInvariance) {
  std::int64_t changes = 0;
  for (const std::int64_t T : {64, 600, 5000, 100000}) {
    for (const std::int64_t D : {1, 40, 512, 5120}) {
      for (const std::int64_t N : {3, 16, 64}) {
        const auto plan = [&](std::int64_t B, bool batch_invariant) {
          const shape s{.B = B, .T = T, .D = D, .N = N};
          const auto by_states = schedule_of(s, H200, batch_invariant);
          const auto by_time = time_schedule_of(s, H200, batch_invariant, true);
          return std::vector<std::int64_t>{by_states.lanes.lanes, by_states.lanes.states,
                                           along_time(s, batch_invariant), by_time.pieces, by_time.piece_chunks};
        };
        const auto alone = plan(1, true);
        for (const std::int64_t B : {2, 7, 64, 1000}) {
          EXPECT_EQ(plan(B, true), alone) << "B " << B << ", T " << T << ", D " << D << ", N " << N;
          changes += plan(B, false) != alone;
        }
      }
    }
  }
  EXPECT_GT(changes, 0) << "other calls take what fits the batch";
}

// What a block of cut::stream walks, each chunk once; as whole tiles and at most a part of one at either end.
TEST(SelectiveScanPolicy, StreamSharesCoverEveryChunkOnce) {
  for (const std::int64_t chunks : {1, 2, 3, 7, 64}) {
    for (const std::int64_t blocks : {1, 2, 5, 132}) {
      for (const std::int64_t tiles : {blocks, blocks + 1, 2 * blocks - 1, 2 * blocks + 1, 7 * blocks + 3}) {
        SCOPED_TRACE(::testing::Message() << tiles << " tiles of " << chunks << " chunks over " << blocks << " blocks");
        std::vector<int> walks(static_cast<std::size_t>(tiles * chunks));
        std::vector<std::set<std::int64_t>> blocks_of(static_cast<std::size_t>(tiles));
        std::int64_t least = tiles * chunks;
        std::int64_t most = 0;
        for (std::int64_t block = 0; block < blocks; ++block) {
          const scan::stream_share share(tiles, chunks, block, blocks);
          std::int64_t size = 0;
          for (std::int64_t i = 0; i < share.pieces(); ++i) {
            const scan::piece part = share[i];
            ASSERT_TRUE(0 <= part.tile && part.tile < tiles);
            ASSERT_TRUE(0 <= part.first && part.first < part.end && part.end <= chunks);
            for (std::int64_t k = part.first; k < part.end; ++k) {
              ++walks[static_cast<std::size_t>(part.tile * chunks + k)];
            }
            blocks_of[static_cast<std::size_t>(part.tile)].insert(block);
            size += part.end - part.first;
          }
          least = std::min(least, size);
          most = std::max(most, size);
        }
        EXPECT_TRUE(std::all_of(walks.begin(), walks.end(), [](int n) { return n == 1; }));
        for (const auto& of : blocks_of) EXPECT_LE(of.size(), 2u);
        EXPECT_LE(most - least, 1) << "equal shares";
      }
    }
  }
  EXPECT_EQ(scan::stream_share(0, 5, 0, 3).pieces(), 0);
  EXPECT_EQ(scan::stream_share(4, 0, 1, 3).pieces(), 0);
}

// A tile's later part waits for its start. Blocks get their numbers in the order in which they start; one slot alone,
// in which a block begins when the one before is done, is the hardest case, and must not wait for ever.
TEST(SelectiveScanPolicy, StreamsNeverWaitForWhatHasNotStarted) {
  for (const std::int64_t chunks : {1, 2, 3, 7, 64}) {
    for (const std::int64_t blocks : {1, 2, 5, 132}) {
      for (const std::int64_t tiles : {blocks, blocks + 1, 2 * blocks - 1, 7 * blocks + 3}) {
        SCOPED_TRACE(::testing::Message() << tiles << " tiles of " << chunks << " chunks over " << blocks << " blocks");
        std::vector<bool> published(static_cast<std::size_t>(tiles));
        for (std::int64_t block = 0; block < blocks; ++block) {
          const scan::stream_share share(tiles, chunks, block, blocks);
          bool waited = false;
          for (std::int64_t i = 0; i < share.pieces(); ++i) {
            const scan::piece part = share[i];
            const auto tile = static_cast<std::size_t>(part.tile);
            if (part.first != 0) {
              EXPECT_TRUE(published[tile]) << "block " << block << " waits for tile " << part.tile;
              waited = true;
            }
            if (part.end != chunks) {
              EXPECT_FALSE(waited) << "block " << block << " holds up another while it waits itself";
              published[tile] = true;
            }
          }
        }
      }
    }
  }
}

// Pieces of cut::split, or a block a tile, or a stream where whole tiles would leave blocks idle.
TEST(SelectiveScanPolicy, TilesAreCutToFillTheChip) {
  std::set<cut> cuts;
  for (const std::int64_t B : {1, 2, 7, 300}) {
    for (const std::int64_t T : {1, 256, 257, 600, 5000, 100000}) {
      for (const std::int64_t D : {1, 40, 2048, 5120}) {
        for (const bool batch_invariant : {false, true}) {
          for (const bool may_split : {false, true}) {
            const shape p{.B = B, .T = T, .D = D};
            const auto s = time_schedule_of(p, H200, batch_invariant, may_split);
            SCOPED_TRACE(::testing::Message() << "B " << B << ", T " << T << ", D " << D << ", batch invariant "
                                              << batch_invariant << ", may split " << may_split);
            cuts.insert(s.how);
            EXPECT_EQ(s.group_tiles, tiles_of(D, s.tile_channels));
            EXPECT_EQ(s.tiles, B * s.group_tiles);
            EXPECT_EQ(s.chunks, tiles_of(T, s.chunk_tokens));
            if (s.how == cut::split) {
              EXPECT_TRUE(may_split);
              EXPECT_GE(s.pieces, 3) << "two are walked no faster than one";
              EXPECT_GE(s.piece_chunks, 2);
              EXPECT_EQ(s.blocks, s.tiles * s.pieces);
              EXPECT_TRUE(batch_invariant || s.blocks <= H200);
              EXPECT_GE(s.pieces * s.piece_chunks, s.chunks);
              EXPECT_LT((s.pieces - 1) * s.piece_chunks, s.chunks) << "no piece is empty";
            } else if (s.how == cut::stream) {
              EXPECT_EQ(s.blocks, H200);
              EXPECT_GT(s.tiles, s.blocks) << "a tile lies in at most two blocks";
            } else {
              EXPECT_EQ(s.blocks, s.tiles);
            }
            EXPECT_EQ(s.pieces > 1, s.how == cut::split);
          }
        }
      }
    }
  }
  EXPECT_EQ(cuts.size(), 3u) << "the problems must reach every cut";

  // The device reads how long packed sequences are.
  EXPECT_EQ(time_schedule_of({.B = 1, .T = 100000, .D = 8, .sequences = 2}, H200, false, true).how, cut::whole);
  for (const shape& empty : {shape{.B = 0}, shape{.T = 0}, shape{.D = 0}, shape{.D = 0, .G = 0}}) {
    const auto s = time_schedule_of(empty, H200, false, true);
    EXPECT_EQ(s.how, cut::whole);
    EXPECT_EQ(s.blocks, empty.B * empty.G * tiles_of(empty.D, 32));
  }
}

// Sequences keep their checkpoints apart, and within (sequences + T / tokens), whatever their lengths.
TEST(SelectiveScanPolicy, CheckpointsOfPackedSequences) {
  std::mt19937 rng(71);
  for (int repeat = 0; repeat < 500; ++repeat) {
    const std::int64_t between = std::vector<std::int64_t>{16, 32, 64, 128}[rng() % 4];
    std::vector<std::int64_t> lengths(1 + rng() % 20);
    for (auto& length : lengths) {
      length = std::vector<std::int64_t>{0, 1, between - 1, between, between + 1, 3 * between, 1000}[rng() % 7];
    }
    std::int64_t T = 0;
    for (const std::int64_t length : lengths) T += length;
    scan::time_schedule s;
    s.packed = true;
    s.checkpoint_tokens = between;
    std::int64_t free = 0;
    std::int64_t begin = 0;
    for (std::size_t row = 0; row < lengths.size(); ++row) {
      const std::int64_t first = scan::first_checkpoint(s, static_cast<std::int64_t>(row), T, begin);
      ASSERT_GE(first, free) << "sequence " << row << " of " << lengths.size() << ", " << between << " tokens";
      free = first + tiles_of(lengths[row], between);
      begin += lengths[row];
    }
    EXPECT_LE(free, static_cast<std::int64_t>(lengths.size()) + T / between);
  }
}

TEST(SelectiveScanPolicy, CheckpointsOfBatchEntries) {
  for (const std::int64_t T : {1, 64, 65, 1000}) {
    scan::time_schedule s;
    s.checkpoint_tokens = 64;
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(scan::first_checkpoint(s, row, T, 0), row * tiles_of(T, 64));
    }
  }
}

// The forward leaves the states before the backward's chunks: each of those begins with one of its lanes.
template <class Data>
void chunks_meet() {
  for (const int lanes : scan::time_backward_lanes) {
    const int chunk = lanes * scan::time_backward_steps<Data>;
    EXPECT_EQ(scan::time_forward_chunk<Data> % chunk, 0);
    const int lanes_apart = chunk / scan::time_forward_steps<Data>;
    EXPECT_EQ(lanes_apart * scan::time_forward_steps<Data>, chunk);
    EXPECT_EQ(lanes_apart & (lanes_apart - 1), 0) << "a power of two";
  }
}
TEST(SelectiveScanPolicy, ChunksOfForwardAndBackwardMeet) {
  chunks_meet<bfloat16>();
  chunks_meet<float>();
}

}  // namespace
}  // namespace polystate::testing
