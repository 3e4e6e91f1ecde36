// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tensors that tests own: any memory order, poisoned at birth, a guard band on both sides.

#include <polystate/core/element.hpp>
#include <polystate/core/tensor_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::testing {

/// Memory order of a tensor: which index varies slowest .. fastest, and elements skipped after each innermost
/// row.
template <int Rank>
struct layout {
  std::array<int, Rank> order;
  std::int64_t pad = 0;
};

template <int Rank>
constexpr layout<Rank> row_major() {
  layout<Rank> l{};
  for (int i = 0; i < Rank; ++i) l.order[static_cast<std::size_t>(i)] = i;
  return l;
}

/// Calls f(element) in index order, whatever the memory order.
template <class T, int Rank, class F>
void for_each(const tensor_view<T, Rank>& view, F&& f) {
  std::int64_t at[Rank] = {};
  for (std::int64_t i = 0; i < view.size(); ++i) {
    std::int64_t offset = 0;
    for (int d = 0; d < Rank; ++d) offset += at[d] * view.stride(d);
    f(view.data()[offset]);
    for (int d = Rank - 1; d >= 0; --d) {
      if (++at[d] < view.extent(d)) break;
      at[d] = 0;
    }
  }
}

/// Every byte of it is 0xff before the first write: NaN in all our element types, -1 in the integers.
template <class T, int Rank>
class tensor {
 public:
  using extents_type = std::array<std::int64_t, Rank>;
  static constexpr std::int64_t guard = 64;  // elements

  tensor() = default;  // absent
  explicit tensor(const extents_type& extents, const layout<Rank>& memory = row_major<Rank>()) : given_(true) {
    std::int64_t stride = 1;
    for (int i = Rank - 1; i >= 0; --i) {
      const auto d = static_cast<std::size_t>(memory.order[static_cast<std::size_t>(i)]);
      extents_[d] = extents[d];
      strides_[d] = stride;
      stride *= extents[d];
      if (i == Rank - 1) stride += memory.pad;
    }
    storage_.resize(static_cast<std::size_t>(stride + 2 * guard));
    poison();
  }

  void poison() { std::memset(static_cast<void*>(storage_.data()), 0xff, storage_.size() * sizeof(T)); }

  [[nodiscard]] tensor_view<T, Rank> view() { return view_at(storage_.data()); }
  [[nodiscard]] tensor_view<const T, Rank> view() const { return view_at(storage_.data()); }
  /// The same view of a copy of the storage, on a device say.
  template <class U>
  [[nodiscard]] tensor_view<U, Rank> view_at(U* storage) const {
    if (!given_) return {};
    std::int64_t extents[Rank];
    std::int64_t strides[Rank];
    for (int i = 0; i < Rank; ++i) {
      extents[i] = extents_[static_cast<std::size_t>(i)];
      strides[i] = strides_[static_cast<std::size_t>(i)];
    }
    return {storage + guard, extents, strides};
  }

  [[nodiscard]] std::vector<T>& storage() { return storage_; }
  [[nodiscard]] const std::vector<T>& storage() const { return storage_; }
  [[nodiscard]] explicit operator bool() const { return given_; }
  [[nodiscard]] const extents_type& extents() const { return extents_; }

  /// Calls f(element) in index order, whatever the memory order.
  template <class F>
  void for_each(F&& f) {
    testing::for_each(view(), std::forward<F>(f));
  }

  /// Uniform in [low, high], rounded to T.
  template <class Rng>
  tensor& uniform(Rng& rng, double low, double high) {
    std::uniform_real_distribution<double> distribution(low, high);
    for_each([&](T& x) { x = static_cast<T>(distribution(rng)); });
    return *this;
  }
  /// The elements in index order.
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> v;
    const_cast<tensor*>(this)->for_each([&](T& x) { v.push_back(x); });
    return v;
  }
  void assign(const std::vector<T>& v) {
    std::size_t i = 0;
    for_each([&](T& x) { x = v.at(i++); });
  }

  /// Whether nothing outside the elements was written: guard bands and the gaps between rows.
  [[nodiscard]] bool untouched_outside() const {
    tensor copy = *this;
    copy.for_each([](T& x) { std::memset(static_cast<void*>(&x), 0xff, sizeof(T)); });
    const auto* bytes = reinterpret_cast<const unsigned char*>(copy.storage_.data());
    for (std::size_t i = 0; i < copy.storage_.size() * sizeof(T); ++i) {
      if (bytes[i] != 0xff) return false;
    }
    return true;
  }

 private:
  bool given_ = false;
  extents_type extents_{};
  extents_type strides_{};
  std::vector<T> storage_;
};

/// Sets every element.
template <class T, int Rank>
void fill(tensor<T, Rank>& t, double value) {
  t.for_each([&](T& x) { x = static_cast<T>(value); });
}

/// The same values in another type, in row-major order.
template <class To, class From, int Rank>
tensor<To, Rank> convert(const tensor<From, Rank>& from) {
  if (!from) return {};
  tensor<To, Rank> to(from.extents());
  std::vector<To> v;
  for (const From& x : from.values()) v.push_back(static_cast<To>(x));
  to.assign(v);
  return to;
}

/// The same elements in another memory order.
template <class T, int Rank>
tensor<T, Rank> laid_out(const tensor<T, Rank>& from, const layout<Rank>& memory) {
  if (!from) return {};
  tensor<T, Rank> to(from.extents(), memory);
  to.assign(from.values());
  return to;
}

/// A fresh tensor of the same shape; absent where that is.
template <class T, int Rank>
tensor<T, Rank> poisoned_like(const tensor<T, Rank>& t) {
  auto fresh = t;
  if (t) fresh.poison();
  return fresh;
}

/// The elements that a view shows, in a tensor of its own.
template <class T, int Rank>
tensor<std::remove_const_t<T>, Rank> copy_of(const tensor_view<T, Rank>& view) {
  std::array<std::int64_t, Rank> extents{};
  for (int i = 0; i < Rank; ++i) extents[static_cast<std::size_t>(i)] = view.extent(i);
  tensor<std::remove_const_t<T>, Rank> copy(extents);
  std::vector<std::remove_const_t<T>> elements;
  for_each(view, [&](T& x) { elements.push_back(x); });
  copy.assign(elements);
  return copy;
}

/// Copies elements between views of one shape.
template <class T, class U, int Rank>
void assign(const tensor_view<T, Rank>& to, const tensor_view<U, Rank>& from) {
  const auto elements = copy_of(from).values();
  std::size_t i = 0;
  for_each(to, [&](T& x) { x = elements.at(i++); });
}

/// cu_seqlens of packed sequences with these lengths; absent where there are none.
inline tensor<std::int32_t, 1> cu_seqlens_of(const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return {};
  std::vector<std::int32_t> cu = {0};
  for (const auto n : lengths) cu.push_back(cu.back() + n);
  tensor<std::int32_t, 1> t({static_cast<std::int64_t>(cu.size())});
  t.assign(cu);
  return t;
}

}  // namespace polystate::testing
