// SPDX-License-Identifier: Apache-2.0

// How the CUDA kernels of the delta family and ssd are cut over threads: host code.

#include <polystate/core/sequences.hpp>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polystate::testing {
namespace {

namespace rec = polystate_detail::cuda::recurrence;

TEST(RecurrencePolicy, KeyDimsArePaddedToTheNextKernel) {
  EXPECT_EQ(rec::padded_key_dim(1), 32);
  EXPECT_EQ(rec::padded_key_dim(32), 32);
  EXPECT_EQ(rec::padded_key_dim(33), 64);
  EXPECT_EQ(rec::padded_key_dim(512), 512);
  EXPECT_EQ(rec::padded_key_dim(513), 0);
}

template <class Split>
void expect_whole(const Split& s, int padded) {
  EXPECT_EQ(s.lanes * s.columns, padded);
  EXPECT_EQ(32 % s.lanes, 0);
  EXPECT_EQ(s.columns % 4, 0);
  EXPECT_EQ(s.block_rows() * s.lanes, s.threads * s.rows);
}

TEST(RecurrencePolicy, GroupsHoldWholeRows) {
  for (const int padded : rec::key_dims::values) {
    expect_whole(rec::split_over_time<2>(padded), padded);
    expect_whole(rec::split_over_time<4>(padded), padded);
    expect_whole(rec::split_of_step<2>(padded), padded);
    expect_whole(rec::split_of_step<4>(padded), padded);
    // Whole 16-byte accesses of 2-byte states.
    EXPECT_EQ(rec::split_of_step<4>(padded).columns % 8, 0);
  }
}

// The groups of a row are the same for every number of rows, and so are the bits of its sums.
TEST(RecurrencePolicy, RowsOfAThreadChangeNoSum) {
  for (const int padded : rec::key_dims::values) {
    EXPECT_EQ(rec::split_over_time<2>(padded).lanes, rec::split_over_time<4>(padded).lanes);
    EXPECT_EQ(rec::split_of_step<2>(padded).lanes, rec::split_of_step<4>(padded).lanes);
  }
}

template <int Padded, int Walkers, bool Erases = true>
void expect_tensor_split() {
  using split = rec::tensor_split<Padded, Walkers, Erases>;
  EXPECT_EQ(split::columns * split::column_warps, Padded);
  EXPECT_LE(split::columns, 128);
  EXPECT_EQ(split::columns % 32, 0);  // fragments are added two by two
  EXPECT_EQ(split::walkers % split::column_warps, 0);
  EXPECT_EQ(split::tile_tokens % split::chunk_tokens, 0);
  EXPECT_EQ(rec::record_tokens % split::chunk_tokens, 0);  // a recorded state is a chunk's first
  EXPECT_LE(split::solving + split::carrying, split::preparing_keys);
  EXPECT_EQ(split::preparing_keys + split::storing, split::preparing);
  EXPECT_EQ(split::block_rows % split::warp_rows, 0);
  EXPECT_EQ(rec::recorded_rows(1) % split::warp_rows, 0);
  EXPECT_EQ(rec::least_gradient_rows % split::warp_rows, 0);
}

TEST(RecurrencePolicy, WalkersHoldWholeRows) {
  expect_tensor_split<32, 4>();
  expect_tensor_split<64, 8>();
  expect_tensor_split<128, 2>();
  expect_tensor_split<128, 4>();
  expect_tensor_split<128, 8>();
  expect_tensor_split<128, 2, false>();
  expect_tensor_split<128, 4, false>();
  expect_tensor_split<256, 1>();
  expect_tensor_split<256, 4>();
  expect_tensor_split<512, 8>();
}

// state_fragments sums every 64 columns for themselves, so that what a warp has may only be a multiple of them.
TEST(RecurrencePolicy, WalkersOfABlockChangeNoSum) {
  EXPECT_EQ((rec::tensor_split<128, 2, true>::columns % 64), 0);
  EXPECT_EQ((rec::tensor_split<128, 4, true>::columns), (rec::tensor_split<128, 8, true>::columns));
  EXPECT_EQ((rec::tensor_split<256, 4, true>::columns), (rec::tensor_split<256, 8, true>::columns));
  EXPECT_EQ((rec::tensor_split<256, 4, true>::columns), (rec::tensor_split<256, 1, true>::columns));
  EXPECT_EQ((rec::tensor_split<512, 4, true>::columns), (rec::tensor_split<512, 8, true>::columns));
}

TEST(RecurrencePolicy, AsFewWalkAsFillTheMultiprocessors) {
  constexpr rec::walker_room all;
  constexpr rec::walker_room four = {.eight = false};
  constexpr rec::walker_room none = {.four = false, .eight = false};
  EXPECT_EQ(rec::choose_walkers<128>(4, 128, 132, all), 2);   // 16 blocks of 32 rows
  EXPECT_EQ(rec::choose_walkers<128>(33, 128, 132, all), 2);  // as many as multiprocessors
  EXPECT_EQ(rec::choose_walkers<128>(34, 128, 132, all), 4);
  EXPECT_EQ(rec::choose_walkers<128>(66, 128, 132, all), 4);  // as many blocks of 64 rows
  EXPECT_EQ(rec::choose_walkers<128>(67, 128, 132, all), 8);
  EXPECT_EQ(rec::choose_walkers<128>(67, 128, 132, four), 4);
  EXPECT_EQ(rec::choose_walkers<128>(8 * 16, 128, 132, all), 8);
  EXPECT_EQ(rec::choose_walkers<128>(8 * 48, 64, 132, all), 4);  // no rows for eight
  EXPECT_EQ(rec::choose_walkers<64>(4, 64, 132, all), 4);
  EXPECT_EQ(rec::choose_walkers<256>(6, 512, 132, all), 4);
  EXPECT_EQ(rec::choose_walkers<256>(600, 512, 132, all), 8);
  EXPECT_EQ(rec::choose_walkers<256>(600, 512, 132, none), 1);  // short tiles
  EXPECT_EQ(rec::choose_walkers<512>(600, 512, 132, none), 4);  // check() refuses
}

TEST(RecurrencePolicy, WalkersAreOnesThatThereAre) {
  for (const std::int64_t states : {1, 33, 34, 66, 67, 1000}) {
    int called = 0;
    const status s = rec::with_walkers<128>(rec::choose_walkers<128>(states, 128, 132, {}), [&](auto walkers) {
      called = walkers;
      return status{};
    });
    EXPECT_TRUE(s.ok());
    EXPECT_EQ(called, rec::choose_walkers<128>(states, 128, 132, {}));
  }
}

TEST(RecurrencePolicy, RecordedPlacesAreAllDifferent) {
  for (const int padded : rec::key_dims::values) {
    constexpr int rows = 32;
    std::vector<bool> taken(static_cast<std::size_t>(rows * padded));
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < padded; ++column) {
        const auto place = static_cast<std::size_t>(rec::place_in_record(padded, row, column));
        ASSERT_LT(place, taken.size());
        ASSERT_FALSE(taken[place]);
        taken[place] = true;
      }
    }
  }
}

TEST(RecurrencePolicy, HeadsTogetherDivideTheirGroup) {
  EXPECT_EQ(rec::choose_heads_together(100000, 48, 132), 4);
  EXPECT_EQ(rec::choose_heads_together(100000, 6, 132), 3);
  EXPECT_EQ(rec::choose_heads_together(100000, 10, 132), 2);
  EXPECT_EQ(rec::choose_heads_together(100000, 7, 132), 1);
  EXPECT_EQ(rec::choose_heads_together(3000, 48, 132), 2);  // blocks for all multiprocessors come first
  EXPECT_EQ(rec::choose_heads_together(1000, 48, 132), 1);
}

// Every tile of every item in every window has a number of its own below the bound, and leads back to its item.
TEST(RecurrencePolicy, TilesLeadBackToTheirItems) {
  const std::vector<std::int32_t> starts = {0, 2, 2, 35, 36, 36, 100};
  const index_view cu_seqlens(starts.data(), {static_cast<std::int64_t>(starts.size())});
  for (const sequences& all : {sequences(1, 100, cu_seqlens), sequences(3, 100, {}), sequences(1, 1, {})}) {
    const std::int64_t time = all.packed() ? 100 : all[0].end;
    for (const std::int64_t window : {std::int64_t{24}, std::int64_t{64}, time}) {
      for (std::int64_t first = 0; first < time; first += window) {
        const rec::work_items items(all, time, first, first + window < time ? first + window : time);
        std::vector<bool> taken(static_cast<std::size_t>(items.tiles(rec::record_tokens)));
        for (std::int64_t item = 0; item < items.size(); ++item) {
          for (std::int64_t t = 0; t < items[item].size(); t += rec::record_tokens) {
            const std::int64_t tile = items.first_tile(item, rec::record_tokens) + t / rec::record_tokens;
            ASSERT_LT(static_cast<std::size_t>(tile), taken.size());
            EXPECT_FALSE(taken[static_cast<std::size_t>(tile)]);
            taken[static_cast<std::size_t>(tile)] = true;
            EXPECT_EQ(items.item_of_tile(tile, rec::record_tokens), item);
          }
        }
      }
    }
  }
}

TEST(RecurrencePolicy, FewStatesTakeShortSteps) {
  EXPECT_EQ(rec::choose_step_rows(32, 128, 128, 132), 2);
  EXPECT_EQ(rec::choose_step_rows(64 * 32, 128, 128, 132), 4);
}

TEST(RecurrencePolicy, PiecesOfAStepAddUp) {
  for (const auto& [rows, heads, groups, tiles] :
       std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1}, {3, 6, 2, 5}, {2, 4, 4, 1}, {5, 8, 1, 2}}) {
    const rec::step_pieces pieces(rows, heads, groups, tiles);
    ASSERT_EQ(pieces.count(), rows * heads * tiles);
    unsigned expected = 0;
    for (unsigned b = 0; b < rows; ++b) {
      for (unsigned head = 0; head < heads; ++head) {
        for (unsigned tile = 0; tile < tiles; ++tile, ++expected) {
          const rec::step_piece piece = pieces[expected];
          EXPECT_EQ(piece.b, b);
          EXPECT_EQ(pieces.head(piece), head);
          EXPECT_EQ(piece.group, group_of_head(head, heads, groups));
          EXPECT_EQ(piece.tile, tile);
        }
      }
    }
    for (unsigned i = 0; i < pieces.count(); ++i) {
      for (unsigned j = 0; i + j < pieces.count(); ++j) {
        const rec::step_piece sum = pieces.sum(pieces[i], pieces[j]);
        const rec::step_piece want = pieces[i + j];
        EXPECT_TRUE(sum.tile == want.tile && sum.member == want.member && sum.group == want.group && sum.b == want.b);
      }
    }
  }
}

}  // namespace
}  // namespace polystate::testing
