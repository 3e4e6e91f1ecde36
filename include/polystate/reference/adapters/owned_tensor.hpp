// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tensors of the reference's own scalar: copies of operands, and results before they are rounded.

#include <polystate/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Copies element by element, converting.
template <class To, class From, int Rank>
void copy_elements(const tensor_view<To, Rank>& to, const tensor_view<From, Rank>& from) {
  for (std::int64_t i = 0; i < to.extent(0); ++i) {
    if constexpr (Rank == 1) {
      to(i) = static_cast<To>(from(i));
    } else {
      copy_elements(to.select(0, i), from.select(0, i));
    }
  }
}

/// A row-major tensor that owns its elements, or none: then its view is absent.
template <class Scalar, int Rank>
class owned_tensor {
 public:
  owned_tensor() = default;
  /// Zeros.
  explicit owned_tensor(const std::int64_t (&extents)[static_cast<std::size_t>(Rank)]) : given_(true) {
    std::int64_t size = 1;
    for (int i = 0; i < Rank; ++i) size *= extents_[i] = extents[i];
    elements_.assign(static_cast<std::size_t>(size), Scalar(0));
  }
  /// The operand's elements; absent where it is.
  template <class T>
  static owned_tensor copy_of(const tensor_view<T, Rank>& operand) {
    owned_tensor t = shaped_as(operand);
    if (operand) copy_elements(t.view(), operand);
    return t;
  }
  /// Zeros of the operand's shape; absent where it is.
  template <class T>
  static owned_tensor shaped_as(const tensor_view<T, Rank>& operand) {
    if (!operand) return {};
    std::int64_t extents[static_cast<std::size_t>(Rank)];
    for (int i = 0; i < Rank; ++i) extents[i] = operand.extent(i);
    return owned_tensor(extents);
  }

  [[nodiscard]] tensor_view<Scalar, Rank> view() {
    if (!given_) return {};
    return {elements_.data(), extents_};
  }

  /// Rounds the elements into the caller's tensor, if there is one.
  template <class T>
  void store(const tensor_view<T, Rank>& out) {
    if (out) copy_elements(out, view());
  }

 private:
  bool given_ = false;
  std::int64_t extents_[static_cast<std::size_t>(Rank)] = {};
  std::vector<Scalar> elements_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
