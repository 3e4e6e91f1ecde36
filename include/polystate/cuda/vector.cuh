// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// 16 or 8 bytes of elements in registers: loads, stores, and the way to and from float.

#include <polystate/core/element.hpp>
#include <polystate/cuda/compiler.cuh>
#include <polystate/cuda/vector_access.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// N elements as they lie in memory, 16 bytes or 8, the first in the low bits of word[0].
template <class Data, int N = vector_elements<Data>>
struct vector {
  static constexpr int words = N * static_cast<int>(sizeof(Data)) / 4;
  static_assert(words == 4 || words == 2, "one access of 16 or 8 bytes");
  std::uint32_t word[words];
};

/// Reads an aligned vector.
template <class Data, int N = vector_elements<Data>>
__device__ vector<Data, N> load_vector(const Data* from) {
  if constexpr (vector<Data, N>::words == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return {{v.x, v.y}};
  }
}

/// The same for memory that nothing writes while the kernel runs.
template <class Data, int N = vector_elements<Data>>
__device__ vector<Data, N> load_vector_read_only(const Data* from) {
  if constexpr (vector<Data, N>::words == 4) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  } else {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    return {{v.x, v.y}};
  }
}

/// Writes an aligned vector.
template <class Data, int N>
__device__ void store_vector(Data* to, const vector<Data, N>& v) {
  if constexpr (vector<Data, N>::words == 4) {
    *reinterpret_cast<uint4*>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(v.word[0], v.word[1]);
  }
}

/// Element i; a compile-time constant after unrolling, or the vector moves to local memory.
template <class Data, int N>
__device__ Data element_of(const vector<Data, N>& v, int i) {
  if constexpr (sizeof(Data) == 4) {
    return __builtin_bit_cast(Data, v.word[i]);
  } else {
    return Data::from_bits(static_cast<std::uint16_t>(v.word[i / 2] >> (16 * (i % 2))));
  }
}

/// Sets element i, zero before, of a vector.
template <class Data, int N>
__device__ void insert_element(vector<Data, N>& v, int i, Data x) {
  if constexpr (sizeof(Data) == 4) {
    v.word[i] = __builtin_bit_cast(std::uint32_t, x);
  } else {
    v.word[i / 2] |= static_cast<std::uint32_t>(x.bits) << (16 * (i % 2));
  }
}

/// Reads a vector whose elements are `stride` apart.
template <class Data, int N = vector_elements<Data>>
__device__ vector<Data, N> gather_vector(const Data* from, std::int64_t stride) {
  vector<Data, N> v = {};
#pragma unroll
  for (int i = 0; i < N; ++i) insert_element(v, i, from[i * stride]);
  return v;
}

/// Writes a vector to elements that are `stride` apart.
template <class Data, int N>
__device__ void scatter_vector(Data* to, std::int64_t stride, const vector<Data, N>& v) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i * stride] = element_of(v, i);
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

template <class Data, int N>
__device__ vector<Data, N> round_to_vector(const float (&x)[N]) {
  vector<Data, N> v;
#pragma unroll
  for (int i = 0; i < vector<Data, N>::words; ++i) {
    if constexpr (sizeof(Data) == 4) {
      v.word[i] = __builtin_bit_cast(std::uint32_t, x[i]);
    } else {
      v.word[i] = round_pair<Data>(x[2 * i], x[2 * i + 1]);
    }
  }
  return v;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
