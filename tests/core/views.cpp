// SPDX-License-Identifier: Apache-2.0

// tensor_view, packed sequences, grouped heads, pools of states, dispatch.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/core/tensor_view.hpp>

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace polystate {
namespace {

TEST(TensorView, RowMajorAndStrided) {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const tensor_view<int, 3> v(data.data(), {2, 3, 4});
  EXPECT_EQ(v(1, 2, 3), 23);
  EXPECT_EQ(v.size(), 24);
  const auto p = v.permuted({2, 0, 1});
  EXPECT_EQ(p.extent(0), 4);
  EXPECT_EQ(p(3, 1, 2), 23);
  EXPECT_EQ(v.select(1, 2)(1, 3), 23);
  EXPECT_EQ(v.slice(1, 1, 3)(1, 1, 3), 23);
  const tensor_view<int, 2> backwards(data.data() + 3, {2, 4}, {12, -1});
  EXPECT_EQ(backwards(1, 0), 15);
  EXPECT_EQ(backwards(1, 3), 12);
  const tensor_view<const int, 3> read_only = v;
  EXPECT_EQ(read_only.data(), data.data());
}

TEST(TensorView, AbsentIsNotEmpty) {
  int x = 0;
  EXPECT_FALSE((tensor_view<int, 2>{}));
  EXPECT_TRUE((tensor_view<int, 2>{nullptr, {0, 3}}));
  EXPECT_TRUE((tensor_view<int, 1>{&x, {0}}));
  // parts of an empty view keep its null pointer
  const tensor_view<int, 3> empty(nullptr, {2, 0, 3});
  EXPECT_EQ(empty.select(0, 1).data(), nullptr);
  EXPECT_EQ(empty.slice(0, 1, 2).data(), nullptr);
}

TEST(TensorView, OffsetsAre64Bit) {
  // bugs B001: the offset of (62, 4095, 32, 255) in (64, 4096, 33, 256), past 2^31.
  char* const base = nullptr;
  const tensor_view<char, 4> v(base, {64, 4096, 33, 256});
  const auto offset = 62 * v.stride(0) + 4095 * v.stride(1) + 32 * v.stride(2) + 255 * v.stride(3);
  EXPECT_EQ(offset, ((62LL * 4096 + 4095) * 33 + 32) * 256 + 255);
  EXPECT_GT(offset, std::int64_t{1} << 31);
}

TEST(Sequences, BatchAndPacked) {
  const sequences batch(3, 7, {});
  EXPECT_EQ(batch.size(), 3);
  EXPECT_EQ(batch[2].batch, 2);
  EXPECT_EQ(batch[2].size(), 7);

  const std::vector<std::int32_t> cu = {0, 3, 3, 3, 8, 8};
  const sequences packed(1, 8, {cu.data(), {6}});
  EXPECT_EQ(packed.size(), 5);
  EXPECT_EQ(packed[3].begin, 3);
  EXPECT_EQ(packed[3].end, 8);
  EXPECT_EQ(packed[1].size(), 0);
  for (const auto& [token, sequence] : {std::pair{0, 0}, {2, 0}, {3, 3}, {7, 3}}) {
    EXPECT_EQ(packed.of_token(token), sequence) << token;
  }
}

// Contents that validation refuses never lead outside 0 .. T.
TEST(Sequences, InvalidContentsAreClamped) {
  const std::vector<std::int32_t> cu = {-5, 9, 2, 1000};
  const sequences packed(1, 8, {cu.data(), {4}});
  for (std::int64_t s = 0; s < 3; ++s) {
    EXPECT_GE(packed[s].begin, 0);
    EXPECT_LE(packed[s].begin, packed[s].end);
    EXPECT_LE(packed[s].end, 8);
  }
}

TEST(GroupedHeads, ConsecutiveHeadsShare) {
  EXPECT_EQ(group_of_head(0, 6, 2), 0);
  EXPECT_EQ(group_of_head(2, 6, 2), 0);
  EXPECT_EQ(group_of_head(3, 6, 2), 1);
  EXPECT_EQ(group_of_head(5, 6, 6), 5);
}

TEST(StatePool, SlotsAndPadding) {
  const std::vector<std::int32_t> read = {2, -1, 0, 7}, write = {3, 1, -1, 0};
  const index_view r(read.data(), {4}), w(write.data(), {4});
  const state_pool pool(5, r, w);
  EXPECT_EQ(pool.write(0), 3);
  EXPECT_FALSE(pool.padding(0));
  EXPECT_TRUE(pool.padding(1));
  EXPECT_TRUE(pool.padding(2));
  EXPECT_TRUE(pool.padding(3)) << "an index outside the pool is taken as padding";
  EXPECT_EQ(state_pool(5, r, {}).write(0), 2);
  EXPECT_EQ(state_pool(5, {}, {}).write(4), 4);
}

TEST(Dispatch, ListsAndRanges) {
  using list = int_list<2, 3, 4>;
  int seen = 0;
  EXPECT_TRUE(dispatch(3, list{}, [&](auto v) { seen = decltype(v)::value; }));
  EXPECT_EQ(seen, 3);
  EXPECT_FALSE(dispatch(5, list{}, [&](auto) { FAIL(); }));
  EXPECT_FALSE(list::contains(std::int64_t{4} + (std::int64_t{1} << 32)));
  EXPECT_EQ(list::text(), "2, 3, 4");
  EXPECT_EQ((size_range{1, 8}.text()), "1 to 8");
  EXPECT_EQ(size_range{1}.text(), "at least 1");
}

TEST(Exec, VisitByName) {
  std::string seen;
  const auto record = [&](const auto& exec) {
    using Exec = std::remove_cvref_t<decltype(exec)>;
    seen = std::is_same_v<Exec, on_reference> ? "reference" : "cuda";
  };
  for (const std::string name : {"reference", "cuda"}) {
    EXPECT_TRUE(visit_exec(name, record));
    EXPECT_EQ(seen, name);
  }
  for (const char* name : {"gpu", "cpu", ""}) EXPECT_FALSE(visit_exec(name, record)) << name;
}

TEST(Status, MessageNamesOperatorArgumentAndDetail) {
  const status s{error_code::unsupported, "ssd", "B", "N = 300, supported: 1 to 256"};
  EXPECT_EQ(s.message(), "ssd: B: N = 300, supported: 1 to 256");
  EXPECT_EQ(status{}.message(), "ok");
  EXPECT_NO_THROW(raise_on_error({}));
  EXPECT_THROW(raise_on_error(s), argument_error);
  EXPECT_THROW(raise_on_error({error_code::cuda, "ssd", "", "out of memory"}), cuda_error);
  try {
    raise_on_error(s);
  } catch (const std::invalid_argument& e) {  // what a caller without our types sees
    EXPECT_EQ(std::string(e.what()), s.message());
  }
}

TEST(ArgumentChecks, TheFirstFaultIsKept) {
  float x = 0;
  argument_checks c("op");
  c.required("a", tensor_view<const float, 1>{&x, {1}}, {"N"})
      .required("b", tensor_view<const float, 1>{}, {"N"})
      .required("c", tensor_view<const float, 1>{}, {"N"});
  EXPECT_TRUE(c.failed());
  EXPECT_EQ(c.result().argument, "b");
  EXPECT_EQ(c.size("N"), 1);
}

}  // namespace
}  // namespace polystate
