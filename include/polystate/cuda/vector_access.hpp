// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which operands can be accessed 16 bytes at a time.

#include <polystate/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// The widest access of one thread.
inline constexpr std::size_t vector_bytes = 16;

/// Elements in one such access.
template <class Data>
inline constexpr int vector_elements = static_cast<int>(vector_bytes / sizeof(Data));

/// Whether the elements along index `dim` fall into whole, aligned vectors at every position of the other
/// indices. True for an operand without elements: it is never accessed.
template <class T, int Rank>
[[nodiscard]] bool vectorisable(const tensor_view<T, Rank>& view, int dim) {
  constexpr std::int64_t elements = vector_elements<T>;
  if (view.size() == 0) return true;
  if (view.stride(dim) != 1 || view.extent(dim) % elements != 0) return false;
  if (reinterpret_cast<std::uintptr_t>(view.data()) % vector_bytes != 0) return false;
  for (int i = 0; i < Rank; ++i) {
    if (i != dim && view.extent(i) > 1 && view.stride(i) % elements != 0) return false;
  }
  return true;
}

/// Whether any four neighbours along the last index, from a multiple of four on, are one aligned access. True for an
/// operand without elements.
template <class T, int Rank>
[[nodiscard]] bool in_quads(const tensor_view<T, Rank>& view) {
  constexpr std::int64_t elements = 4;
  if (view.size() == 0) return true;
  if (view.stride(Rank - 1) != 1 || view.extent(Rank - 1) % elements != 0) return false;
  if (reinterpret_cast<std::uintptr_t>(view.data()) % (elements * sizeof(T)) != 0) return false;
  for (int i = 0; i + 1 < Rank; ++i) {
    if (view.extent(i) > 1 && view.stride(i) % elements != 0) return false;
  }
  return true;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
