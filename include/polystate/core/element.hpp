// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Element types: half and bfloat16 for host and device, and the types that sums are kept in.

#include <polystate/core/macros.hpp>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

// Compiler builtins stand where std::bit_cast and std::is_constant_evaluated would: nvcc takes those for host
// only.

namespace polystate_rounding {

/// x as a float whose last bit records that rounding was inexact ("round to odd"), so that rounding the
/// result once more, to at most 22 bits, gives what rounding x directly would have given.
POLYSTATE_HOST_DEVICE constexpr float to_odd_float(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  auto bits = __builtin_bit_cast(std::uint32_t, nearest);
  const bool away_from_zero = (x < 0) ? back < x : back > x;
  if (away_from_zero) --bits;  // also takes infinity back to the largest float
  return __builtin_bit_cast(float, bits | 1u);
}

}  // namespace polystate_rounding

/// IEEE binary16 storage. Converts to float exactly and from float, double with round to nearest even; NaN
/// stays NaN. Same bits, size and alignment as CUDA's __half and Eigen::half.
struct half {
  std::uint16_t bits;

  half() = default;
  POLYSTATE_HOST_DEVICE constexpr explicit half(float x) : bits(from_float(x)) {}
  POLYSTATE_HOST_DEVICE constexpr explicit half(double x) : bits(from_float(polystate_rounding::to_odd_float(x))) {}
  POLYSTATE_HOST_DEVICE constexpr operator float() const { return to_float(bits); }

  /// The value with exactly these bits.
  POLYSTATE_HOST_DEVICE static constexpr half from_bits(std::uint16_t b) {
    half h{};
    h.bits = b;
    return h;
  }

 private:
  POLYSTATE_HOST_DEVICE static constexpr std::uint16_t from_float(float x) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) {
      std::uint16_t r;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
      return r;
    }
#endif
    const auto f = __builtin_bit_cast(std::uint32_t, x);
    const auto sign = static_cast<std::uint16_t>((f >> 16) & 0x8000u);
    const std::uint32_t magnitude = f & 0x7fffffffu;
    std::uint32_t r = 0;
    if (magnitude > 0x7f800000u) {
      r = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // quiet NaN, upper payload kept
    } else if (magnitude >= 0x477ff000u) {
      r = 0x7c00u;  // 65520 and above rounds to infinity
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 to 15
      r = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    } else if (magnitude > 0x33000000u) {  // subnormal: the mantissa shifted to units of 2^-24
      const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      const std::uint32_t shift = 126u - (magnitude >> 23);
      const std::uint32_t kept = mantissa >> shift;
      const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
      const std::uint32_t halfway = 1u << (shift - 1u);
      r = kept + ((rest > halfway || (rest == halfway && (kept & 1u))) ? 1u : 0u);
    }  // 2^-25 and below rounds to zero
    return static_cast<std::uint16_t>(sign | r);
  }

  POLYSTATE_HOST_DEVICE static constexpr float to_float(std::uint16_t b) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) {
      float r;
      asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(b));
      return r;
    }
#endif
    const std::uint32_t sign = (b & 0x8000u) << 16;
    const std::uint32_t exponent = (b >> 10) & 0x1fu;
    const std::uint32_t mantissa = b & 0x3ffu;
    if (exponent == 0x1fu) {
      const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
      return __builtin_bit_cast(float, sign | 0x7f800000u | (mantissa << 13) | quiet);
    }
    if (exponent != 0) return __builtin_bit_cast(float, sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact
    return sign != 0 ? -magnitude : magnitude;
  }
};

/// bfloat16 storage: the upper half of a float. Converts to float exactly and from float, double with round
/// to nearest even; NaN stays NaN. Same bits, size and alignment as CUDA's __nv_bfloat16 and Eigen::bfloat16.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  POLYSTATE_HOST_DEVICE constexpr explicit bfloat16(float x) : bits(from_float(x)) {}
  POLYSTATE_HOST_DEVICE constexpr explicit bfloat16(double x) : bits(from_float(polystate_rounding::to_odd_float(x))) {}
  POLYSTATE_HOST_DEVICE constexpr operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }

  /// The value with exactly these bits.
  POLYSTATE_HOST_DEVICE static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 h{};
    h.bits = b;
    return h;
  }

 private:
  POLYSTATE_HOST_DEVICE static constexpr std::uint16_t from_float(float x) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) {
      std::uint16_t r;
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
      return r;
    }
#endif
    const auto f = __builtin_bit_cast(std::uint32_t, x);
    if ((f & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((f >> 16) | 0x40u);
    return static_cast<std::uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
  }
};

static_assert(sizeof(half) == 2 && alignof(half) == 2 && std::is_trivially_copyable_v<half>);
static_assert(sizeof(bfloat16) == 2 && alignof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);

namespace polystate_detail {

template <class Data>
struct element {
  using acc = Data;
  using compute = Data;
  static constexpr const char* name = "scalar";
};
template <>
struct element<double> {
  using acc = double;
  using compute = double;
  static constexpr const char* name = "f64";
};
template <>
struct element<float> {
  using acc = float;
  using compute = double;
  static constexpr const char* name = "f32";
};
template <>
struct element<half> {
  using acc = float;
  using compute = double;
  static constexpr const char* name = "f16";
};
template <>
struct element<bfloat16> {
  using acc = float;
  using compute = double;
  static constexpr const char* name = "bf16";
};

}  // namespace polystate_detail

/// Type of sums, of parameters (weights, biases, A, D, gates) and, unless asked otherwise, of states beside
/// data of type Data: float for float, half and bfloat16; Data itself for double and any other scalar.
template <class Data>
using acc_t = typename polystate_detail::element<Data>::acc;

/// Type that on_reference computes in: double for double, float, half and bfloat16; any other scalar itself.
template <class Data>
using compute_t = typename polystate_detail::element<Data>::compute;

/// "f64", "f32", "f16", "bf16"; "scalar" for any other type.
template <class Data>
inline constexpr const char* element_name = polystate_detail::element<Data>::name;

}  // namespace polystate::inline POLYSTATE_ABI
