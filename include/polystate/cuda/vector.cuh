// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// 16 bytes of elements in registers: loads, stores, and the way to and from float.

#include <polystate/core/element.hpp>
#include <polystate/cuda/vector_access.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda {

/// vector_elements<Data> elements as they lie in memory, the first in the low bits of word[0].
template <class Data>
struct vector {
  std::uint32_t word[vector_bytes / sizeof(std::uint32_t)];
};

/// Reads 16 aligned bytes.
template <class Data>
__device__ vector<Data> load_vector(const Data* from) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

/// The same for memory that nothing writes while the kernel runs.
template <class Data>
__device__ vector<Data> load_vector_read_only(const Data* from) {
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
}

/// Writes 16 aligned bytes.
template <class Data>
__device__ void store_vector(Data* to, const vector<Data>& v) {
  *reinterpret_cast<uint4*>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

/// Element i; a compile-time constant after unrolling, or the vector moves to local memory.
template <class Data>
__device__ Data element_of(const vector<Data>& v, int i) {
  if constexpr (sizeof(Data) == 4) {
    return __builtin_bit_cast(Data, v.word[i]);
  } else {
    return Data::from_bits(static_cast<std::uint16_t>(v.word[i / 2] >> (16 * (i % 2))));
  }
}

/// Sets element i, zero before, of a vector.
template <class Data>
__device__ void insert_element(vector<Data>& v, int i, Data x) {
  if constexpr (sizeof(Data) == 4) {
    v.word[i] = __builtin_bit_cast(std::uint32_t, x);
  } else {
    v.word[i / 2] |= static_cast<std::uint32_t>(x.bits) << (16 * (i % 2));
  }
}

/// Reads a vector whose elements are `stride` apart.
template <class Data>
__device__ vector<Data> gather_vector(const Data* from, std::int64_t stride) {
  vector<Data> v = {};
#pragma unroll
  for (int i = 0; i < vector_elements<Data>; ++i) insert_element(v, i, from[i * stride]);
  return v;
}

/// Writes a vector to elements that are `stride` apart.
template <class Data>
__device__ void scatter_vector(Data* to, std::int64_t stride, const vector<Data>& v) {
#pragma unroll
  for (int i = 0; i < vector_elements<Data>; ++i) to[i * stride] = element_of(v, i);
}

/// Two floats rounded to nearest even into one word, `low` in its low half: one instruction.
template <class Data>
__device__ std::uint32_t round_pair(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<Data, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<Data, half>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

template <class Data>
__device__ vector<Data> round_to_vector(const float (&x)[vector_elements<Data>]) {
  vector<Data> v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(Data) == 4) {
      v.word[i] = __builtin_bit_cast(std::uint32_t, x[i]);
    } else {
      v.word[i] = round_pair<Data>(x[2 * i], x[2 * i + 1]);
    }
  }
  return v;
}

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda
