// SPDX-License-Identifier: Apache-2.0

// half and bfloat16 against Eigen's, bit for bit, and against the definition of rounding.

#include "core/eigen_peer.hpp"

#include <polystate/core/element.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace polystate::testing {
namespace {

template <class T>
class Element : public ::testing::Test {};
using element_types = ::testing::Types<half, bfloat16>;
TYPED_TEST_SUITE(Element, element_types);

TYPED_TEST(Element, EveryValueToFloatAndBack) {
  for (std::uint32_t b = 0; b <= 0xffff; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const TypeParam x = TypeParam::from_bits(bits);
    const auto y = std::bit_cast<typename peer<TypeParam>::type>(bits);
    const float f = x;
    if (std::isnan(static_cast<float>(y))) {
      ASSERT_TRUE(std::isnan(f)) << b;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(f)))) << b;  // NaN is kept
      ASSERT_EQ(std::signbit(static_cast<float>(TypeParam(f))), std::signbit(f)) << b;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f), std::bit_cast<std::uint32_t>(static_cast<float>(y))) << b;
    ASSERT_EQ(TypeParam(f).bits, bits);
    ASSERT_EQ(TypeParam(static_cast<double>(f)).bits, bits);
  }
}

// Between every two neighbours: the midpoint goes to the even one, a float's step beside it to the nearer
// one.
TYPED_TEST(Element, RoundsToNearestEven) {
  const std::uint16_t infinity = TypeParam(std::numeric_limits<float>::infinity()).bits;
  for (std::uint16_t b = 0; b < infinity; ++b) {
    const double low = static_cast<double>(TypeParam::from_bits(b));
    const auto next = static_cast<std::uint16_t>(b + 1);
    // past the largest value, the neighbour would be where the exponent says, were there no infinity
    const double step = next < infinity
                            ? static_cast<double>(TypeParam::from_bits(next)) - low
                            : low - static_cast<double>(TypeParam::from_bits(static_cast<std::uint16_t>(b - 1)));
    const double middle = low + step / 2;
    const std::uint16_t even = (b & 1) == 0 ? b : next;
    for (const int sign : {1, -1}) {
      const auto expect = [&](double x, std::uint16_t want) {
        const auto bits = static_cast<std::uint16_t>(want | (sign < 0 ? 0x8000 : 0));
        ASSERT_EQ(TypeParam(sign * x).bits, bits) << x;
        const auto f = static_cast<float>(x);
        if (static_cast<double>(f) == x) {
          ASSERT_EQ(TypeParam(static_cast<float>(sign) * f).bits, bits) << x;
          ASSERT_EQ(eigen_bits<TypeParam>(static_cast<float>(sign) * f), bits) << x;
        }
      };
      expect(middle, even);
      const auto f = static_cast<float>(middle);
      if (static_cast<double>(f) == middle) {
        expect(std::nextafter(f, 0.0f), b);
        expect(std::nextafter(f, std::numeric_limits<float>::infinity()), next);
      }
      // from double no rounding happens twice, however close to the midpoint
      expect(std::nextafter(middle, 0.0), b);
      expect(std::nextafter(middle, std::numeric_limits<double>::infinity()), next);
    }
  }
}

TYPED_TEST(Element, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(TypeParam(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-infinity)), -infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(1e300)), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-1e300)), -infinity);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000);
  EXPECT_EQ(TypeParam(-1e-300).bits, 0x8000);
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::nan("")))));
}

TEST(ElementTypes, SumsAndNames) {
  static_assert(std::is_same_v<acc_t<half>, float> && std::is_same_v<acc_t<double>, double>);
  static_assert(std::is_same_v<compute_t<bfloat16>, double> && std::is_same_v<compute_t<long double>, long double>);
  EXPECT_STREQ(element_name<bfloat16>, "bf16");
  EXPECT_STREQ(element_name<long double>, "scalar");
}

}  // namespace
}  // namespace polystate::testing
