// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From a case's tensors to an operator's operands, on any backend and in any element type.

#include "buffer.hpp"
#include "case_file.hpp"
#include "run.hpp"

#include <polystate/core/element.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace replay {

/// What an operand's elements are: the call's data type, or the type of its sums and parameters.
struct data {};
struct acc {};

template <int Rank>
struct axis_order {
  int axis[Rank] = {};
  constexpr axis_order() {
    for (int i = 0; i < Rank; ++i) axis[i] = i;
  }
};
/// The operator's indices run along the file's axes one to one.
template <int Rank>
inline constexpr axis_order<Rank> same_order{};

/// Owns the memory behind one call's views. Names are those of the case file, "in.x" and "out.y"; `order[i]`
/// is the file's axis that the operator's index i runs along, so an operator gets strided views wherever the
/// file stores another order.
template <class Exec, class Data>
class operands {
 public:
  template <int Rank>
  using axes = int[Rank];
  template <class Kind>
  using element_t = std::conditional_t<std::is_same_v<Kind, data>, Data,
                                       std::conditional_t<std::is_same_v<Kind, acc>, polystate::acc_t<Data>, Kind>>;

  explicit operands(const request& r) : request_(r) {}

  [[nodiscard]] const Exec& exec() const { return exec_; }
  [[nodiscard]] const case_file& file() const { return request_.file; }

  /// An input that must be in the file.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<const element_t<Kind>, Rank> input(
      const std::string& name, const axes<Rank>& order = same_order<Rank>.axis) {
    const tensor& t = file().at(name);
    return view<const element_t<Kind>, Rank>(name, t, upload<element_t<Kind>>(name, t), order);
  }
  /// An input that may be missing: the view is then absent.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<const element_t<Kind>, Rank> optional_input(
      const std::string& name, const axes<Rank>& order = same_order<Rank>.axis) {
    if (file().find(name) == nullptr) return {};
    return input<Kind, Rank>(name, order);
  }
  /// An input that some options need and the others do not read.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<const element_t<Kind>, Rank> input_if(bool needed, const std::string& name) {
    if (!needed) return {};
    return input<Kind, Rank>(name);
  }
  /// The gradient that reaches output `name` ("y" for grad.y); absent, which means zero, where the file has none.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<const element_t<Kind>, Rank> upstream(
      const std::string& name, const axes<Rank>& order = same_order<Rank>.axis) {
    return optional_input<Kind, Rank>("grad." + name, order);
  }
  /// The same, its memory row-major in the order of the operator's indices, where no strides say it.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<const element_t<Kind>, Rank> reordered_upstream(const std::string& name,
                                                                                       const axes<Rank>& order) {
    using T = const element_t<Kind>;
    const std::string full_name = "grad." + name;
    const tensor* t = file().find(full_name);
    if (t == nullptr) return {};
    const auto in_file_order = view<T, Rank>(full_name, *t, nullptr, order);
    tensor moved = *t;
    std::int64_t extents[Rank] = {};
    for (int i = 0; i < Rank; ++i) extents[i] = in_file_order.extent(i);
    for_each_offset(in_file_order, [&, next = std::size_t{0}](std::int64_t offset) mutable {
      moved.values.at(next++) = t->values.at(static_cast<std::size_t>(offset));
    });
    return {static_cast<T*>(upload<element_t<Kind>>(full_name, moved)), extents};
  }
  [[nodiscard]] polystate::index_view indices(const std::string& name) { return input<std::int32_t, 1>(name); }
  [[nodiscard]] polystate::index_view optional_indices(const std::string& name) {
    return optional_input<std::int32_t, 1>(name);
  }

  /// An output with the shape of the file's expected values, poisoned before the call and read back after it.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> output(const std::string& name,
                                                                     const axes<Rank>& order = same_order<Rank>.axis) {
    return view<element_t<Kind>, Rank>(name, file().at(name), result<Kind>(name).memory.data(), order);
  }
  /// An output without axes: one number.
  template <class Kind>
  [[nodiscard]] element_t<Kind>& scalar_output(const std::string& name) {
    if (!file().at(name).shape.empty()) throw file().fault(name, "has axes, " + file().op() + " returns one number");
    return *static_cast<element_t<Kind>*>(result<Kind>(name).memory.data());
  }
  /// An output that is computed only if the file has expected values for it.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> optional_output(
      const std::string& name, const axes<Rank>& order = same_order<Rank>.axis) {
    if (file().find(name) == nullptr) return {};
    return output<Kind, Rank>(name, order);
  }

  /// The gradient of input `name` ("x" for din.x), wanted if the file has expected values for it.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> gradient(
      const std::string& name, const axes<Rank>& order = same_order<Rank>.axis) {
    return optional_output<Kind, Rank>("din." + name, order);
  }

  /// The gradient of an input that some options do not read: it is then 0, and not the operator's to compute.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> gradient_if(bool read, const std::string& name) {
    if (!read) return {};
    return gradient<Kind, Rank>(name);
  }

  /// An output whose memory is row-major in the order of the operator's indices, where no strides say it.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> reordered_output(const std::string& name,
                                                                               const axes<Rank>& order) {
    using T = element_t<Kind>;
    const tensor& t = file().at(name);
    const auto in_file_order = view<T, Rank>(name, t, nullptr, order);
    output_buffer& r = result<Kind>(name);
    std::int64_t extents[Rank] = {};
    for (int i = 0; i < Rank; ++i) extents[i] = in_file_order.extent(i);
    const polystate::tensor_view<element_t<Kind>, Rank> in_memory(static_cast<T*>(r.memory.data()), extents);
    r.download = [as_stored = r.download, in_file_order](const buffer<Exec>& memory) {
      tensor stored = as_stored(memory);
      tensor moved = stored;
      for_each_offset(in_file_order, [&, next = std::size_t{0}](std::int64_t offset) mutable {
        moved.values[static_cast<std::size_t>(offset)] = stored.values[next++];
      });
      return moved;
    };
    return in_memory;
  }

  /// Memory that the operator reads and writes, with these contents before each call.
  template <class T>
  [[nodiscard]] T* updated(const std::vector<T>& contents) {
    const auto* raw = reinterpret_cast<const std::byte*>(contents.data());
    updated_.push_back({buffer<Exec>(contents.size() * sizeof(T)), {raw, raw + contents.size() * sizeof(T)}});
    return static_cast<T*>(updated_.back().memory.data());
  }

  /// An output that the operator updates in place: before each call, the input's entries along axis 1, which
  /// may be fewer or, where the input is missing, none.
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> grown(const std::string& input_name,
                                                                    const std::string& output_name) {
    using T = element_t<Kind>;
    const tensor& after = file().at(output_name);
    const auto v = view<T, Rank>(output_name, after, nullptr, same_order<Rank>.axis);
    std::vector<T> contents(after.values.size(), static_cast<T>(std::numeric_limits<double>::quiet_NaN()));
    if (const tensor* before = file().find(input_name); before != nullptr) {
      used_.insert(input_name);
      if (before->is_index) throw wrong_kind(input_name, *before);
      auto fitting = before->shape;
      if (fitting.size() == Rank) fitting[1] = std::max(fitting[1], after.shape[1]);
      if (fitting != after.shape) throw file().fault(input_name, "its shape does not fit " + output_name);
      const auto block = static_cast<std::size_t>(v.stride(1));
      const std::size_t from = static_cast<std::size_t>(before->shape[1]) * block;
      const std::size_t to = static_cast<std::size_t>(after.shape[1]) * block;
      for (std::size_t i = 0; i < before->values.size(); ++i) {
        contents[i / from * to + i % from] = static_cast<T>(before->values[i]);
      }
    }
    output_buffer& r = result<Kind>(output_name);
    const auto* raw = reinterpret_cast<const std::byte*>(contents.data());
    r.contents.assign(raw, raw + contents.size() * sizeof(T));
    return view<T, Rank>(output_name, after, r.memory.data(), same_order<Rank>.axis);
  }
  template <class Kind, int Rank>
  [[nodiscard]] polystate::tensor_view<element_t<Kind>, Rank> optional_grown(const std::string& input_name,
                                                                             const std::string& output_name) {
    if (file().find(output_name) == nullptr) return {};
    return grown<Kind, Rank>(input_name, output_name);
  }

  /// Calls the operator once and keeps its results; then, for the time, as often as the request says.
  template <class F>
  void run(F&& call) {
    prepare();
    call();
    wait_for(exec_);
    for (auto& r : results_) result_.tensors.push_back({r.name, r.download(r.memory), r.largest_finite});
    for (const auto& [name, t] : file().tensors()) {
      if ((name.starts_with("in.") || name.starts_with("grad.")) && used_.count(name) == 0) {
        result_.unused.push_back(name);
      }
    }

    std::vector<double> times;
    for (int i = 0; i < request_.repeat; ++i) {
      prepare();
      times.push_back(milliseconds(exec_, call));
    }
    if (times.empty()) return;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    result_.milliseconds = *middle;
  }

  [[nodiscard]] computed take_result() { return std::move(result_); }

 private:
  struct output_buffer {
    std::string name;
    buffer<Exec> memory;
    std::function<tensor(const buffer<Exec>&)> download;
    double largest_finite;
    std::vector<std::byte> contents;  // before each call; none: poison
  };
  struct updated_buffer {
    buffer<Exec> memory;
    std::vector<std::byte> contents;
  };

  /// f(offset of the element) in the order of the view's indices.
  template <class T, int Rank, class F>
  static void for_each_offset(const polystate::tensor_view<T, Rank>& v, F&& f) {
    std::int64_t index[Rank] = {};
    for (std::int64_t i = 0, n = v.size(); i < n; ++i) {
      std::int64_t offset = 0;
      for (int d = 0; d < Rank; ++d) offset += index[d] * v.stride(d);
      f(offset);
      for (int d = Rank - 1; d >= 0 && ++index[d] == v.extent(d); --d) index[d] = 0;
    }
  }

  template <class T, int Rank>
  polystate::tensor_view<T, Rank> view(const std::string& name, const tensor& t, void* data,
                                       const axes<Rank>& order) const {
    if (t.shape.size() != Rank) {
      throw file().fault(
          name, "has " + std::to_string(t.shape.size()) + " axes, " + file().op() + " takes " + std::to_string(Rank));
    }
    std::int64_t extents[Rank] = {};
    for (std::size_t i = 0; i < Rank; ++i) extents[i] = t.shape[i];
    return polystate::tensor_view<T, Rank>(static_cast<T*>(data), extents).permuted(order);
  }

  template <class T>
  void* upload(const std::string& name, const tensor& t) {
    if (t.is_index != std::is_integral_v<T>) throw wrong_kind(name, t);
    used_.insert(name);
    std::vector<T> values;
    if constexpr (std::is_integral_v<T>) {
      values.assign(t.indices.size(), T{});
      std::transform(t.indices.begin(), t.indices.end(), values.begin(),
                     [](std::int64_t index) { return static_cast<T>(index); });
    } else {
      values.reserve(t.values.size());
      for (const double value : t.values) values.push_back(static_cast<T>(value));
    }
    inputs_.emplace_back(values.size() * sizeof(T));
    inputs_.back().write(values.data());
    return inputs_.back().data();
  }

  template <class Kind>
  output_buffer& result(const std::string& name) {
    using T = element_t<Kind>;
    const element rounded_to =
        std::is_same_v<Kind, data> || request_.type == element::f64 ? request_.type : element::f32;
    const tensor& expected = file().at(name);
    if (expected.is_index != std::is_integral_v<T>) throw wrong_kind(name, expected);
    const std::size_t size = expected.is_index ? expected.indices.size() : expected.values.size();
    const auto download = [shape = expected.shape, size, rounded_to](const buffer<Exec>& memory) {
      std::vector<T> values(size);
      memory.read(values.data());
      tensor t{.shape = shape, .is_index = std::is_integral_v<T>, .values = {}, .indices = {}};
      if constexpr (std::is_integral_v<T>) {
        static_cast<void>(rounded_to);  // of numbers alone
        t.indices.assign(values.begin(), values.end());
      } else {
        // No change where the operator ran in this type itself.
        for (const T& value : values) t.values.push_back(round_to(rounded_to, static_cast<double>(value)));
      }
      return t;
    };
    results_.push_back({name, buffer<Exec>(size * sizeof(T)), download, largest_finite(rounded_to), {}});
    return results_.back();
  }

  void prepare() {
    for (auto& r : results_) {
      if (r.contents.empty()) {
        r.memory.poison();
      } else {
        r.memory.write(r.contents.data());
      }
    }
    for (auto& u : updated_) u.memory.write(u.contents.data());
    wait_for(exec_);
  }

  malformed wrong_kind(const std::string& name, const tensor& t) const {
    return file().fault(name, t.is_index ? "holds indices, not numbers" : "holds numbers, not indices");
  }

  const request& request_;
  Exec exec_{};
  // Views point into the buffers: no container that moves its elements.
  std::deque<buffer<Exec>> inputs_;
  std::deque<output_buffer> results_;
  std::deque<updated_buffer> updated_;
  std::set<std::string> used_;
  computed result_;
};

/// Runs f(operands<Exec, Data>&) for the Data that the request names.
template <class Exec, class F>
computed run_on(const request& r, F&& f) {
  const auto in = [&]<class Data>(std::type_identity<Data>) {
    operands<Exec, Data> io(r);
    f(io);
    return io.take_result();
  };
  switch (r.type) {
    case element::f64:
      if constexpr (!std::is_same_v<Exec, polystate::on_cuda>) return in(std::type_identity<double>{});
      break;
    case element::f32:
      return in(std::type_identity<float>{});
    case element::f16:
      return in(std::type_identity<polystate::half>{});
    case element::bf16:
      return in(std::type_identity<polystate::bfloat16>{});
  }
  throw skipped(std::string(name_of(r.type)) + " is not supported by this backend");
}

/// The same on the reference, whose arithmetic is double in every type, for operators with so many forms that
/// each type more costs minutes of compiling: the operands are double, the results are rounded here.
template <class F>
computed run_on_reference_in_double(const request& r, F&& f) {
  operands<polystate::on_reference, double> io(r);
  f(io);
  return io.take_result();
}

}  // namespace replay
