// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An operand whose element type is known at run time: for what a kernel touches once, so that its type multiplies no
/// kernels.

#include <polystate/core/element.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda {

enum class element_type { f32, f16, bf16 };

template <class T>
inline constexpr element_type element_type_of = std::is_same_v<T, float>  ? element_type::f32
                                                : std::is_same_v<T, half> ? element_type::f16
                                                                          : element_type::bf16;

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

  [[nodiscard]] __device__ bool given() const { return view_.data() != nullptr; }

  template <class... Index>
  [[nodiscard]] __device__ float load(Index... index) const {
    const std::int64_t i = offset(index...);
    switch (type_) {
      case element_type::f32:
        return reinterpret_cast<const float*>(view_.data())[i];
      case element_type::f16:
        return static_cast<float>(reinterpret_cast<const half*>(view_.data())[i]);
      default:
        return static_cast<float>(reinterpret_cast<const bfloat16*>(view_.data())[i]);
    }
  }
  template <class... Index>
  __device__ void store(float x, Index... index) const {
    const std::int64_t i = offset(index...);
    switch (type_) {
      case element_type::f32:
        reinterpret_cast<float*>(view_.data())[i] = x;
        break;
      case element_type::f16:
        reinterpret_cast<half*>(view_.data())[i] = half(x);
        break;
      default:
        reinterpret_cast<bfloat16*>(view_.data())[i] = bfloat16(x);
    }
  }

 private:
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

}  // namespace polystate::inline POLYSTATE_ABI::detail::inline POLYSTATE_BUILD::cuda
