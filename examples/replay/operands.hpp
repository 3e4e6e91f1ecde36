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

/// The largest finite value of an element type.
template <class T>
inline constexpr double largest_finite = static_cast<double>(std::numeric_limits<T>::max());
template <>
inline constexpr double largest_finite<polystate::half> = 65504;
template <>
inline constexpr double largest_finite<polystate::bfloat16> = 0x1.fep127;

/// Owns the memory behind one call's views. Names are those of the case file, "in.x" and "out.y"; `order[i]`
/// is the file's axis that the operator's index i runs along, so an operator gets strided views wherever the
/// file stores another order.
template <class Exec, class Data>
class operands {
 public:
  using data_type = Data;
  using acc_type = polystate::acc_t<Data>;
  template <int Rank>
  using axes = int[Rank];

  explicit operands(const request& r) : request_(r) {}

  [[nodiscard]] const Exec& exec() const { return exec_; }
  [[nodiscard]] const case_file& file() const { return request_.file; }

  /// An input that must be in the file.
  template <class T, int Rank>
  [[nodiscard]] polystate::tensor_view<const T, Rank> input(const std::string& name,
                                                            const axes<Rank>& order = identity<Rank>()) {
    const tensor& t = file().at(name);
    return view<const T, Rank>(name, t, upload<T>(name, t), order);
  }
  /// An input that may be missing: the view is then absent.
  template <class T, int Rank>
  [[nodiscard]] polystate::tensor_view<const T, Rank> optional_input(
      const std::string& name, const axes<Rank>& order = identity<Rank>()) {
    if (file().find(name) == nullptr) return {};
    return input<T, Rank>(name, order);
  }
  /// An input that some options need and the others do not read.
  template <class T, int Rank>
  [[nodiscard]] polystate::tensor_view<const T, Rank> input_if(bool needed, const std::string& name) {
    if (!needed) return {};
    return input<T, Rank>(name);
  }
  [[nodiscard]] polystate::index_view indices(const std::string& name) {
    return input<std::int32_t, 1>(name);
  }
  [[nodiscard]] polystate::index_view optional_indices(const std::string& name) {
    return optional_input<std::int32_t, 1>(name);
  }

  /// An output with the shape of the file's expected values, poisoned before the call and read back after it.
  template <class T, int Rank>
  [[nodiscard]] polystate::tensor_view<T, Rank> output(const std::string& name,
                                                       const axes<Rank>& order = identity<Rank>()) {
    return view<T, Rank>(name, file().at(name), result<T>(name).memory.data(), order);
  }
  /// An output that is computed only if the file has expected values for it.
  template <class T, int Rank>
  [[nodiscard]] polystate::tensor_view<T, Rank> optional_output(const std::string& name,
                                                                const axes<Rank>& order = identity<Rank>()) {
    if (file().find(name) == nullptr) return {};
    return output<T, Rank>(name, order);
  }

  /// Calls the operator once and keeps its results; then, for the time, as often as the request says.
  template <class F>
  void run(F&& call) {
    prepare();
    call();
    wait_for(exec_);
    for (auto& r : results_) result_.tensors.push_back({r.name, r.download(r.memory), r.largest_finite});
    for (const auto& [name, t] : file().tensors()) {
      if (name.starts_with("in.") && used_.count(name) == 0) result_.unused.push_back(name);
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
  };

  template <int Rank>
  static const axes<Rank>& identity() {
    static constexpr auto order = [] {
      struct {
        int axis[Rank];
      } o{};
      for (int i = 0; i < Rank; ++i) o.axis[i] = i;
      return o;
    }();
    return order.axis;
  }

  template <class T, int Rank>
  polystate::tensor_view<T, Rank> view(const std::string& name, const tensor& t, void* data,
                                       const axes<Rank>& order) const {
    if (t.shape.size() != Rank) {
      throw file().fault(name, "has " + std::to_string(t.shape.size()) + " axes, " + file().op() + " takes " +
                                   std::to_string(Rank));
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

  template <class T>
  output_buffer& result(const std::string& name) {
    const tensor& expected = file().at(name);
    if (expected.is_index != std::is_integral_v<T>) throw wrong_kind(name, expected);
    const std::size_t size = expected.is_index ? expected.indices.size() : expected.values.size();
    const auto download = [shape = expected.shape, size](const buffer<Exec>& memory) {
      std::vector<T> values(size);
      memory.read(values.data());
      tensor t{.shape = shape, .is_index = std::is_integral_v<T>, .values = {}, .indices = {}};
      if constexpr (std::is_integral_v<T>) {
        t.indices.assign(values.begin(), values.end());
      } else {
        for (const T& value : values) t.values.push_back(static_cast<double>(value));
      }
      return t;
    };
    results_.push_back({name, buffer<Exec>(size * sizeof(T)), download, largest_finite<T>});
    return results_.back();
  }

  void prepare() {
    for (auto& r : results_) r.memory.poison();
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

}  // namespace replay
