// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How an operator's check() is written: shapes by the names of their sizes, and the first fault kept.

#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/memory_overlap.hpp>
#include <polystate/core/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

/// A size in a shape: a name ("T"), a name with an offset ({"W", -1}), or a number.
struct size_name {
  const char* name;
  std::int64_t offset;
  constexpr size_name(const char* n, std::int64_t o = 0) : name(n), offset(o) {}  // NOLINT: meant to convert
  constexpr size_name(int value) : name(nullptr), offset(value) {}                // NOLINT: meant to convert

  [[nodiscard]] std::string text() const {
    if (name == nullptr) return std::to_string(offset);
    if (offset == 0) return name;
    return name + std::string(offset > 0 ? "+" : "-") + std::to_string(offset > 0 ? offset : -offset);
  }
};

/// Two operands of one shape that may be one view: the operator reads what it needs before it writes there.
struct in_place_pair {
  const char* output;
  const char* input;
};

/// Collects the checks of one call. The first operand that mentions a size binds it, later ones must agree;
/// after the first fault every check is a no-op, so the order of the lines is the order of the messages.
/// Reads no elements: safe on device pointers.
class argument_checks {
 public:
  explicit argument_checks(const char* op) { status_.op = op; }

  /// An operand that must be there. A view of non-const elements is an output: its elements must be distinct.
  template <class T, int Rank>
  argument_checks& required(const char* name, const tensor_view<T, Rank>& view,
                            std::initializer_list<size_name> shape) {
    if (failed()) return *this;
    if (!view) return fail(error_code::missing, name, "not given; its shape is " + text(shape));
    return checked(name, view, shape);
  }

  /// An operand that may be absent.
  template <class T, int Rank>
  argument_checks& optional(const char* name, const tensor_view<T, Rank>& view,
                            std::initializer_list<size_name> shape) {
    if (failed() || !view) return *this;
    return checked(name, view, shape);
  }

  /// An operand that these options do not use.
  template <class T, int Rank>
  argument_checks& absent(const char* name, const tensor_view<T, Rank>& view, const std::string& why) {
    if (failed() || !view) return *this;
    return fail(error_code::unexpected, name, "given, but " + why);
  }

  /// required() or absent(), as the options say.
  template <class T, int Rank>
  argument_checks& required_if(bool used, const char* name, const tensor_view<T, Rank>& view,
                               std::initializer_list<size_name> shape, const std::string& why_not) {
    return used ? required(name, view, shape) : absent(name, view, why_not);
  }

  /// optional() or absent(), as the options say.
  template <class T, int Rank>
  argument_checks& optional_if(bool used, const char* name, const tensor_view<T, Rank>& view,
                               std::initializer_list<size_name> shape, const std::string& why_not) {
    return used ? optional(name, view, shape) : absent(name, view, why_not);
  }

  /// cu_seqlens, or its absence: binds "S", the number of sequences, from the bound "B".
  argument_checks& sequences(const index_view& cu_seqlens) {
    if (failed()) return *this;
    if (!cu_seqlens) return bind("S", size("B"));
    if (size("B") != 1) {
      return fail(error_code::shape, "cu_seqlens",
                  "given with batch size " + std::to_string(size("B")) + "; packed sequences are one batch entry");
    }
    if (cu_seqlens.extent(0) < 1) return fail(error_code::shape, "cu_seqlens", "empty; it has S+1 entries");
    return bind("S", cu_seqlens.extent(0) - 1).required("cu_seqlens", cu_seqlens, {{"S", 1}});
  }

  /// A bound size must lie in a range. The message names the operand where it was bound.
  argument_checks& range(const char* size, const size_range& supported) {
    if (failed() || supported.contains(this->size(size))) return *this;
    return fail(error_code::unsupported, bound(size).origin,
                std::string(size) + " = " + std::to_string(this->size(size)) + ", supported: " + supported.text());
  }

  /// Bound sizes must be those that the caller fixed at compile time, in their order; dims<> fixes none.
  template <class Dims, class... Names>
  argument_checks& fixed(const char* argument, const Names*... names) {
    static_assert(Dims::size == 0 || Dims::size == sizeof...(Names), "dims<> or dims<...> with a number for each size");
    if constexpr (Dims::size > 0) {
      if (failed()) return *this;
      bool equal = true;
      int i = 0;
      std::string sizes;
      std::string values;
      const auto compare = [&](const char* name) {
        equal = equal && size(name) == Dims::values[i];
        sizes += (i > 0 ? ", " : "") + std::string(name);
        values += (i > 0 ? ", " : "") + std::to_string(size(name));
        ++i;
      };
      (compare(names), ...);
      if (!equal) {
        return fail(error_code::unsupported, argument,
                    sizes + " = " + values + ", supported: dims<" + Dims::text() + "> only");
      }
    }
    return *this;
  }

  /// Heads that share groups: `heads` must be a multiple of `groups`.
  argument_checks& grouped(const char* heads, const char* groups) {
    if (failed()) return *this;
    const std::int64_t h = size(heads);
    const std::int64_t g = size(groups);
    if (g > 0 ? h % g == 0 : h == 0) return *this;
    return fail(error_code::shape, bound(heads).origin,
                std::string(heads) + " = " + std::to_string(h) + ", supported: a multiple of " + groups + " = " +
                    std::to_string(g));
  }

  /// Any other condition.
  argument_checks& expect(bool holds, error_code code, const char* argument, const std::string& given_and_supported) {
    if (failed() || holds) return *this;
    return fail(code, argument, given_and_supported);
  }

  /// Of the operands named so far, none that is written may share memory with another: call it after the last one.
  /// Absent and empty views share none. `in_place`: pairs that may be one view, element for element; see
  /// memory_overlap for what is exact.
  argument_checks& no_overlap(std::initializer_list<in_place_pair> in_place = {}) {
    for (int i = 1; i < operands_; ++i) {
      for (int j = 0; j < i; ++j) {
        if (!failed() && (operand_[i].written || operand_[j].written)) check_pair(operand_[i], operand_[j], in_place);
      }
    }
    return *this;
  }

  /// A size bound by an earlier operand; 0 after a fault.
  [[nodiscard]] std::int64_t size(const char* name) const {
    for (const auto& b : bound_) {
      if (same(b.name, name)) return b.value;
    }
    return 0;
  }

  /// Binds a size that no operand's shape shows.
  argument_checks& bind(const char* name, std::int64_t value, const char* origin = "") {
    if (!failed()) bound_.push_back({name, value, origin});
    return *this;
  }

  /// Another part's result: kept if this has no fault yet.
  argument_checks& include(status other) {
    if (!failed() && !other.ok()) {
      other.op = status_.op;
      status_ = std::move(other);
    }
    return *this;
  }

  /// The checks of entry `index` of the list of operands `list`, whose names are then "list[index].name". Its sizes
  /// stay its own.
  argument_checks& include(const argument_checks& entry, const char* list, std::size_t index) {
    if (failed()) return *this;
    if (entry.failed()) {
      status s = entry.result();
      s.argument = list_entry(list, index) + s.argument;
      return include(std::move(s));
    }
    for (int i = 0; i < entry.operands_; ++i) {
      named_operand operand = entry.operand_[i];
      operand.list = list;
      operand.index = index;
      remember(operand);
    }
    return *this;
  }

  /// Checks with the sizes bound here, for another part of the operands.
  [[nodiscard]] argument_checks sizes() const {
    argument_checks others(status_.op);
    others.bound_ = bound_;
    return others;
  }

  [[nodiscard]] bool failed() const { return !status_.ok(); }
  [[nodiscard]] status result() const { return status_; }

 private:
  struct bound_size {
    const char* name;
    std::int64_t value;
    const char* origin;
  };

  /// An operand with elements, for no_overlap().
  struct named_operand {
    const char* name;
    const char* list;  // null: of no list
    std::size_t index;
    bool written;
    memory_layout memory;

    [[nodiscard]] std::string text() const { return list == nullptr ? name : list_entry(list, index) + name; }
  };
  // mara's backward with all of its layers has 90.
  static constexpr int max_operands = 96;

  static bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

  static std::string list_entry(const char* list, std::size_t index) {
    return std::string(list) + "[" + std::to_string(index) + "].";
  }

  void remember(const named_operand& operand) {
    if (operands_ == max_operands) {
      fail(error_code::unsupported, operand.text().c_str(),
           "operand " + std::to_string(max_operands + 1) + " of this call, supported: " + std::to_string(max_operands));
      return;
    }
    operand_[operands_++] = operand;
  }

  void check_pair(const named_operand& a, const named_operand& b, std::initializer_list<in_place_pair> in_place) {
    if (!memory_overlap::between(a.memory, b.memory)) return;
    const bool promised = std::any_of(in_place.begin(), in_place.end(), [&](const in_place_pair& pair) {
      return (same(a.name, pair.output) && same(b.name, pair.input)) ||
             (same(b.name, pair.output) && same(a.name, pair.input));
    });
    if (promised && a.memory == b.memory) return;
    const named_operand& written = a.written ? a : b;
    fail(error_code::overlap, written.text().c_str(),
         "shares memory with " + (a.written ? b : a).text() +
             (promised ? "; it may be that very view or another memory" : "; outputs must not overlap"));
  }

  argument_checks& fail(error_code code, const char* argument, std::string detail) {
    status_.code = code;
    status_.argument = argument;
    status_.detail = std::move(detail);
    return *this;
  }

  [[nodiscard]] bound_size bound(const char* name) const {
    for (const auto& b : bound_) {
      if (same(b.name, name)) return b;
    }
    return {nullptr, 0, ""};
  }

  static std::string text(std::initializer_list<size_name> shape) {
    std::string s = "(";
    for (const auto& d : shape) s += (s.size() > 1 ? ", " : "") + d.text();
    return s + ")";
  }

  template <class T, int Rank>
  static std::string extents(const tensor_view<T, Rank>& view) {
    std::string s = "(";
    for (int i = 0; i < Rank; ++i) s += (i > 0 ? ", " : "") + std::to_string(view.extent(i));
    return s + ")";
  }

  template <class T, int Rank>
  argument_checks& checked(const char* name, const tensor_view<T, Rank>& view, std::initializer_list<size_name> shape) {
    // An element's offset, and the number of elements, must fit in 64 bits.
    std::int64_t reach = 0;
    std::int64_t count = 1;
    bool empty = false;
    for (int i = 0; i < Rank; ++i) {
      const std::int64_t extent = view.extent(i);
      if (extent < 0) {
        return fail(error_code::shape, name, "shape " + extents(view) + "; extents are at least 0");
      }
      empty = empty || extent == 0;
    }
    for (int i = 0; i < Rank && !empty; ++i) {
      const std::int64_t extent = view.extent(i);
      const std::int64_t stride = view.stride(i);
      std::int64_t span = 0;
      std::int64_t bytes = 0;
      if (__builtin_mul_overflow(count, extent, &count) || __builtin_mul_overflow(extent - 1, stride, &span) ||
          __builtin_add_overflow(reach, span < 0 ? -span : span, &reach) ||
          __builtin_mul_overflow(reach, static_cast<std::int64_t>(sizeof(T)), &bytes)) {
        return fail(error_code::shape, name, "shape " + extents(view) + " reaches past 2^63 bytes");
      }
    }
    int i = 0;
    for (const auto& d : shape) {
      const std::int64_t extent = view.extent(i++);
      if (d.name == nullptr) {
        if (extent != d.offset) return wrong_shape(name, view, shape);
        continue;
      }
      if (bound(d.name).name == nullptr) {
        if (d.offset == 0) bind(d.name, extent, name);
        continue;
      }
      if (extent != size(d.name) + d.offset) return wrong_shape(name, view, shape);
    }
    if (empty) return *this;
    if (view.data() == nullptr) return fail(error_code::missing, name, "null pointer with shape " + extents(view));
    if constexpr (!std::is_const_v<T>) {
      for (int k = 0; k < Rank; ++k) {
        if (view.extent(k) > 1 && view.stride(k) == 0) {
          return fail(error_code::stride, name,
                      "stride 0 along index " + std::to_string(k) + " of shape " + extents(view) +
                          "; an output's elements must be distinct");
        }
      }
    }
    remember({name, nullptr, 0, !std::is_const_v<T>, memory_layout::of(view)});
    return *this;
  }

  template <class T, int Rank>
  argument_checks& wrong_shape(const char* name, const tensor_view<T, Rank>& view,
                               std::initializer_list<size_name> shape) {
    std::string supported = text(shape) + " = (";
    bool first = true;
    for (const auto& d : shape) {
      const bool known = d.name == nullptr || bound(d.name).name != nullptr;
      supported += first ? "" : ", ";
      supported += known ? std::to_string((d.name != nullptr ? size(d.name) : 0) + d.offset) : "any";
      first = false;
    }
    return fail(error_code::shape, name, "shape " + extents(view) + ", supported: " + supported + ")");
  }

  status status_;
  std::vector<bound_size> bound_;
  int operands_ = 0;
  named_operand operand_[max_operands];  // the first operands_ of them
};

/// Checks the contents of cu_seqlens, which must be readable here: 0 first, not decreasing, `time` last.
inline status check_cu_seqlens(const char* op, const index_view& cu_seqlens, std::int64_t time) {
  argument_checks c(op);
  if (!cu_seqlens) return c.result();
  const std::int64_t last = cu_seqlens.extent(0) - 1;
  const auto at = [&](std::int64_t i) {
    return "entry " + std::to_string(i) + " is " + std::to_string(cu_seqlens(i)) + ", supported: ";
  };
  c.expect(cu_seqlens(0) == 0, error_code::value, "cu_seqlens", at(0) + "0");
  for (std::int64_t i = 1; i <= last && !c.failed(); ++i) {
    c.expect(cu_seqlens(i) >= cu_seqlens(i - 1), error_code::value, "cu_seqlens",
             at(i) + "at least the entry before, " + std::to_string(cu_seqlens(i - 1)));
  }
  c.expect(cu_seqlens(last) == time, error_code::value, "cu_seqlens", at(last) + "T = " + std::to_string(time));
  return c.result();
}

}  // namespace polystate::inline POLYSTATE_ABI
