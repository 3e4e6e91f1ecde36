// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A view of somebody else's tensor: pointer, extents, strides.

#include <polystate/core/macros.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// Pointer, extents and strides; owns nothing. Strides are in elements, 64-bit, and may have any value:
/// memory order is their business, the order of the indices is the operator's. A default view means "not
/// given". An absent view is null with all extents 0; an empty one has an extent 0 and may be null too.
template <class T, int Rank>
class tensor_view {
  static_assert(Rank >= 1, "a tensor_view has at least one index");

 public:
  static constexpr auto count = static_cast<std::size_t>(Rank);  ///< of indices
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  static constexpr int rank = Rank;

  constexpr tensor_view() = default;

  /// Row-major: the last index is contiguous. Strides past 2^63 wrap: check() refuses such a shape.
  POLYSTATE_HOST_DEVICE constexpr tensor_view(T* data, const std::int64_t (&extents)[count]) : data_(data) {
    std::int64_t stride = 1;
    for (int i = Rank - 1; i >= 0; --i) {
      extents_[i] = extents[i];
      strides_[i] = stride;
      stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                         static_cast<std::uint64_t>(extents[i] > 0 ? extents[i] : 1));
    }
  }

  /// Any strides, in elements.
  POLYSTATE_HOST_DEVICE constexpr tensor_view(T* data, const std::int64_t (&extents)[count],
                                              const std::int64_t (&strides)[count])
      : data_(data) {
    for (int i = 0; i < Rank; ++i) {
      extents_[i] = extents[i];
      strides_[i] = strides[i];
    }
  }

  /// A view of T is a view of const T.
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_same_v<const U, T>) POLYSTATE_HOST_DEVICE
      constexpr tensor_view(const tensor_view<U, Rank>& other)
      : data_(other.data()) {
    for (int i = 0; i < Rank; ++i) {
      extents_[i] = other.extent(i);
      strides_[i] = other.stride(i);
    }
  }

  /// Whether the operand was given.
  POLYSTATE_HOST_DEVICE constexpr explicit operator bool() const {
    for (int i = 0; i < Rank; ++i) {
      if (extents_[i] != 0) return true;
    }
    return data_ != nullptr;
  }

  POLYSTATE_HOST_DEVICE constexpr T* data() const { return data_; }
  POLYSTATE_HOST_DEVICE constexpr std::int64_t extent(int i) const { return extents_[i]; }
  POLYSTATE_HOST_DEVICE constexpr std::int64_t stride(int i) const { return strides_[i]; }

  /// Number of elements.
  POLYSTATE_HOST_DEVICE constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (int i = 0; i < Rank; ++i) n *= extents_[i];
    return n;
  }

  /// The element at one index per dimension. Unchecked.
  template <class... Index>
  POLYSTATE_HOST_DEVICE constexpr T& operator()(Index... index) const {
    static_assert(sizeof...(Index) == Rank && (std::is_integral_v<Index> && ...), "one integer per dimension");
    const std::int64_t at[count] = {static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (int i = 0; i < Rank; ++i) offset += at[i] * strides_[i];
    return data_[offset];
  }

  /// The view with index `dim` fixed to `index`.
  POLYSTATE_HOST_DEVICE constexpr tensor_view<T, Rank - 1> select(int dim, std::int64_t index) const {
    static_assert(Rank > 1, "selecting from a vector is indexing it");
    std::int64_t extents[count - 1] = {};
    std::int64_t strides[count - 1] = {};
    for (int i = 0, j = 0; i < Rank; ++i) {
      if (i == dim) continue;
      extents[j] = extents_[i];
      strides[j++] = strides_[i];
    }
    return {moved(index * strides_[dim]), extents, strides};
  }

  /// The view of the indices begin .. end-1 of `dim`.
  POLYSTATE_HOST_DEVICE constexpr tensor_view slice(int dim, std::int64_t begin, std::int64_t end) const {
    tensor_view v = *this;
    v.data_ = moved(begin * strides_[dim]);
    v.extents_[dim] = end - begin;
    return v;
  }

  /// The view whose index i is this one's index order[i].
  POLYSTATE_HOST_DEVICE constexpr tensor_view permuted(const int (&order)[count]) const {
    tensor_view v = *this;
    for (int i = 0; i < Rank; ++i) {
      v.extents_[i] = extents_[order[i]];
      v.strides_[i] = strides_[order[i]];
    }
    return v;
  }

 private:
  // A null pointer stays null: an empty view may have one.
  POLYSTATE_HOST_DEVICE constexpr T* moved(std::int64_t offset) const {
    return data_ == nullptr ? nullptr : data_ + offset;
  }

  T* data_ = nullptr;
  std::int64_t extents_[count] = {};
  std::int64_t strides_[count] = {};
};

static_assert(std::is_trivially_copyable_v<tensor_view<float, 3>>);

/// An operand of indices: cu_seqlens, boundaries, slots of a pool.
using index_view = tensor_view<const std::int32_t, 1>;

}  // namespace polystate::inline POLYSTATE_ABI
