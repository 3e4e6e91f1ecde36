// SPDX-License-Identifier: Apache-2.0

// All 2^32 floats, label long.

#include "core/eigen_peer.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <thread>
#include <vector>

namespace polystate::testing {
namespace {

template <class T>
class ElementLong : public ::testing::Test {};
using element_types = ::testing::Types<half, bfloat16>;
TYPED_TEST_SUITE(ElementLong, element_types);

TYPED_TEST(ElementLong, EveryFloatAgainstEigen) {
  std::vector<std::thread> threads;
  std::vector<std::uint64_t> wrong(2, 0);
  for (std::uint32_t part = 0; part < 2; ++part) {
    threads.emplace_back([&, part] {
      for (std::uint64_t b = part; b <= 0xffffffffu; b += 2) {
        const auto f = std::bit_cast<float>(static_cast<std::uint32_t>(b));
        const TypeParam x(f);
        const bool same = f != f ? static_cast<float>(x) != static_cast<float>(x) : x.bits == eigen_bits<TypeParam>(f);
        if (!same) ++wrong[part];
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong[0] + wrong[1], 0u);
}

}  // namespace
}  // namespace polystate::testing
