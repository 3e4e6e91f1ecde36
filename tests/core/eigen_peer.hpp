// SPDX-License-Identifier: Apache-2.0
#pragma once

// Eigen's half and bfloat16 beside ours.

#include <polystate/core/element.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <cstring>

namespace polystate::testing {

static_assert(sizeof(half) == sizeof(Eigen::half) && alignof(half) == alignof(Eigen::half));
static_assert(sizeof(bfloat16) == sizeof(Eigen::bfloat16) && alignof(bfloat16) == alignof(Eigen::bfloat16));
static_assert(static_cast<float>(half(1.5f)) == 1.5f && static_cast<float>(bfloat16(-2.0f)) == -2.0f,
              "usable in constant expressions");

template <class T>
struct peer;
template <>
struct peer<half> {
  using type = Eigen::half;
};
template <>
struct peer<bfloat16> {
  using type = Eigen::bfloat16;
};

template <class T>
std::uint16_t eigen_bits(float x) {
  const auto y = static_cast<typename peer<T>::type>(x);
  std::uint16_t bits;
  std::memcpy(&bits, &y, sizeof(bits));
  return bits;
}

}  // namespace polystate::testing
