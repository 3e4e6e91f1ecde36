// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operands of one call, laid into memory of the test's choosing: check() must refuse every pair that shares memory.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::testing {

/// Views with memory of their own, far from each other. Only addresses are looked at.
class operand_table {
 public:
  /// Gives the view this shape, and memory. A view of non-const elements is an output.
  template <class T, int Rank>
  operand_table& add(const std::string& name, tensor_view<T, Rank>& view, const std::int64_t (&extents)[Rank]) {
    const tensor_view<T, Rank> shape(nullptr, extents);
    const auto bytes = static_cast<std::uintptr_t>(shape.size()) * sizeof(T);
    EXPECT_TRUE(bytes > 0 && 2 * bytes < distance) << name;
    operands_.push_back({.name = name,
                         .written = !std::is_const_v<T>,
                         .home = end_,
                         .element = sizeof(T),
                         .bytes = bytes,
                         .place = [&view, shape](std::uintptr_t address, std::int64_t step) {
                           std::int64_t e[Rank];
                           std::int64_t s[Rank];
                           for (int i = 0; i < Rank; ++i) {
                             e[i] = shape.extent(i);
                             s[i] = shape.stride(i) * step;
                           }
                           view = {reinterpret_cast<T*>(address), e, s};
                         }});
    operands_.back().place(end_, 1);
    end_ += distance;
    return *this;
  }

  /// As they are none shares memory; each pair with an output does when laid over each other, whole or by one element,
  /// and the message names both. Elements that alternate in one buffer are legal, and so is one view for a pair
  /// `in_place`.
  template <class Check>
  void expect_overlaps_refused(const Check& check,
                               const std::vector<std::pair<std::string, std::string>>& in_place = {}) {
    const status apart = check();
    ASSERT_TRUE(apart.ok()) << apart.message();
    int promised = 0;
    for (auto& a : operands_) {
      for (auto& b : operands_) {
        if (&a == &b || !(a.written || b.written)) continue;
        SCOPED_TRACE(a.name + " over " + b.name);
        if (std::count(in_place.begin(), in_place.end(), std::pair(a.name, b.name)) > 0) {
          ++promised;
          a.place(b.home, 1);
          EXPECT_TRUE(check().ok()) << check().message();
        } else if (std::count(in_place.begin(), in_place.end(), std::pair(b.name, a.name)) == 0) {
          expect_refused(check, a, b, b.home);
        }
        expect_refused(check, a, b, b.home + b.bytes - b.element);
        if (a.element == b.element) {
          a.place(end_, 2);
          b.place(end_ + a.element, 2);
          EXPECT_TRUE(check().ok()) << "interleaved: " << check().message();
          b.place(b.home, 1);
        }
        a.place(a.home, 1);
      }
    }
    EXPECT_EQ(promised, static_cast<int>(in_place.size()));
  }

 private:
  struct operand {
    std::string name;
    bool written;
    std::uintptr_t home;
    std::uintptr_t element;
    std::uintptr_t bytes;
    std::function<void(std::uintptr_t address, std::int64_t step)> place;
  };

  template <class Check>
  static void expect_refused(const Check& check, const operand& a, const operand& b, std::uintptr_t address) {
    a.place(address, 1);
    const status s = check();
    EXPECT_EQ(s.code, error_code::overlap) << s.message();
    const bool names_both = (s.argument == a.name && s.detail.find("shares memory with " + b.name + ";") == 0) ||
                            (s.argument == b.name && s.detail.find("shares memory with " + a.name + ";") == 0);
    EXPECT_TRUE(names_both) << s.message();
    const bool is_written = (s.argument == a.name && a.written) || (s.argument == b.name && b.written);
    EXPECT_TRUE(is_written) << s.message();
  }

  static constexpr std::uintptr_t distance = 1 << 16;

  std::vector<operand> operands_;
  std::uintptr_t end_ = 1 << 20;
};

}  // namespace polystate::testing
