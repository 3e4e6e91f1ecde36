// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An operand whose element type is known at run time: for what a kernel touches once, so that its type multiplies no
/// kernels.

#include <polystate/core/element.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/vector.cuh>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

enum class element_type { f32, f16, bf16 };

template <class T>
inline constexpr element_type element_type_of = std::is_same_v<T, float>  ? element_type::f32
                                                : std::is_same_v<T, half> ? element_type::f16
                                                                          : element_type::bf16;

[[nodiscard]] POLYSTATE_HOST_DEVICE constexpr int bytes_of(element_type type) {
  return type == element_type::f32 ? 4 : 2;
}

/// Calls f with a zero of the type: for loops, which should ask for the type once.
template <class F>
__device__ void with_element(element_type type, F&& f) {
  if (type == element_type::f32) {
    f(0.0f);
  } else if (type == element_type::f16) {
    f(half{});
  } else {
    f(bfloat16{});
  }
}

/// Element i of an array.
[[nodiscard]] __device__ inline float load_element(const void* array, element_type type, std::int64_t i = 0) {
  switch (type) {
    case element_type::f32:
      return static_cast<const float*>(array)[i];
    case element_type::f16:
      return static_cast<float>(static_cast<const half*>(array)[i]);
    default:
      return static_cast<float>(static_cast<const bfloat16*>(array)[i]);
  }
}
/// The same in two parts: what lies in memory, which a thread need not wait for, and the number that it stands for.
[[nodiscard]] __device__ inline std::uint32_t load_bits(const void* array, element_type type, std::int64_t i = 0) {
  return type == element_type::f32 ? static_cast<const std::uint32_t*>(array)[i]
                                   : static_cast<const std::uint16_t*>(array)[i];
}
[[nodiscard]] __device__ inline float from_bits(std::uint32_t bits, element_type type) {
  if (type == element_type::f32) return __uint_as_float(bits);
  const auto two_bytes = static_cast<std::uint16_t>(bits);
  return type == element_type::f16 ? static_cast<float>(half::from_bits(two_bytes))
                                   : static_cast<float>(bfloat16::from_bits(two_bytes));
}
__device__ inline void store_element(void* array, element_type type, float x, std::int64_t i = 0) {
  switch (type) {
    case element_type::f32:
      static_cast<float*>(array)[i] = x;
      break;
    case element_type::f16:
      static_cast<half*>(array)[i] = half(x);
      break;
    default:
      static_cast<bfloat16*>(array)[i] = bfloat16(x);
  }
}

/// Four neighbours at an address that is a multiple of their size.
[[nodiscard]] __device__ inline float4 load_four(const void* at, element_type type) {
  if (type == element_type::f32) return *static_cast<const float4*>(at);
  const uint2 bits = *static_cast<const uint2*>(at);
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto one = static_cast<std::uint16_t>((i < 2 ? bits.x : bits.y) >> (16 * (i % 2)));
    x[i] = type == element_type::f16 ? static_cast<float>(half::from_bits(one))
                                     : static_cast<float>(bfloat16::from_bits(one));
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ inline void store_four(void* at, element_type type, float4 x) {
  if (type == element_type::f32) {
    *static_cast<float4*>(at) = x;
  } else if (type == element_type::f16) {
    *static_cast<uint2*>(at) = make_uint2(round_pair<half>(x.x, x.y), round_pair<half>(x.z, x.w));
  } else {
    *static_cast<uint2*>(at) = make_uint2(round_pair<bfloat16>(x.x, x.y), round_pair<bfloat16>(x.z, x.w));
  }
}

/// A view of float, half or bfloat16, read and written as float.
template <int Rank>
class any_element_view {
 public:
  any_element_view() = default;
  template <class T>
  explicit any_element_view(const tensor_view<T, Rank>& v) : type_(element_type_of<std::remove_const_t<T>>) {
    std::int64_t extents[Rank];
    std::int64_t strides[Rank];
    for (int i = 0; i < Rank; ++i) {
      extents[i] = v.extent(i);
      strides[i] = v.stride(i);
    }
    // Of bytes: only the address arithmetic of the view is used.
    view_ = {reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(v.data())), extents, strides};
  }

  [[nodiscard]] POLYSTATE_HOST_DEVICE bool given() const { return view_.data() != nullptr; }

  template <class... Index>
  [[nodiscard]] __device__ float load(Index... index) const {
    return load_element(view_.data(), type_, offset(index...));
  }
  /// For from_bits().
  template <class... Index>
  [[nodiscard]] __device__ std::uint32_t load_bits(Index... index) const {
    return cuda::load_bits(view_.data(), type_, offset(index...));
  }
  template <class... Index>
  __device__ void store(float x, Index... index) const {
    store_element(view_.data(), type_, x, offset(index...));
  }

  /// The view with index `dim` fixed to `index`.
  [[nodiscard]] __device__ any_element_view<Rank - 1> select(int dim, std::int64_t index) const {
    any_element_view<Rank - 1> r;
    r.view_ = view_.select(dim, index * bytes_of(type_));
    r.type_ = type_;
    return r;
  }

  [[nodiscard]] POLYSTATE_HOST_DEVICE element_type type() const { return type_; }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t extent(int i) const { return view_.extent(i); }
  /// In elements.
  [[nodiscard]] __device__ std::int64_t stride(int i) const { return view_.stride(i); }
  template <class... Index>
  [[nodiscard]] __device__ char* address(Index... index) const {
    return view_.data() + offset(index...) * bytes_of(type_);
  }

 private:
  template <int OtherRank>
  friend class any_element_view;

  template <class... Index>
  [[nodiscard]] __device__ std::int64_t offset(Index... index) const {
    const std::int64_t at[Rank] = {static_cast<std::int64_t>(index)...};
    std::int64_t sum = 0;
    for (int i = 0; i < Rank; ++i) sum += at[i] * view_.stride(i);
    return sum;
  }

  tensor_view<char, Rank> view_;
  element_type type_ = element_type::f32;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
