// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the C structs to args, and from a status to a number: what every operator's unit here is written with.
//
//     int polystate_x(const polystate_exec* exec, const polystate_x_args* args) {
//       return report([&] { return visit_data<bfloat16>("x", args->data, [&]<class Data>(of<Data>) {
//         return try_x(policy(*exec), x_args_of<Data>(*args));
//       }); });
//     }

#include "polystate_c.h"

#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace polystate::c_api {

/// Keeps the reason of this thread's last failure for polystate_last_error().
void set_last_error(std::string message);

/// The status that f returns, or what it throws, as the number that a function of the interface returns.
template <class F>
int report(F&& f) noexcept {
  try {
    const status s = std::forward<F>(f)();
    if (!s.ok()) set_last_error(s.message());
    return static_cast<int>(s.code);
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return static_cast<int>(error_code::cuda);
  }
}

inline on_cuda policy(const polystate_exec& exec) {
  return {.stream = static_cast<CUstream_st*>(exec.stream),
          .workspace = {.data = exec.workspace, .bytes = exec.workspace_bytes},
          .batch_invariant = exec.batch_invariant != 0};
}

/// Converts to the view that it initialises, of whatever type and rank.
class operand {
 public:
  explicit operand(const polystate_tensor& tensor) : tensor_(tensor) {}

  template <class T, int Rank>
  operator tensor_view<T, Rank>() const {  // NOLINT(google-explicit-constructor)
    static_assert(Rank <= 5);
    std::int64_t extents[Rank];
    std::int64_t strides[Rank];
    for (int i = 0; i < Rank; ++i) {
      extents[i] = tensor_.extents[i];
      strides[i] = tensor_.strides[i];
    }
    return {static_cast<T*>(tensor_.data), extents, strides};
  }

 private:
  const polystate_tensor& tensor_;
};

template <class T>
struct of {
  using type = T;
};

template <class T>
inline constexpr polystate_dtype dtype_of = POLYSTATE_F32;
template <>
inline constexpr polystate_dtype dtype_of<half> = POLYSTATE_F16;
template <>
inline constexpr polystate_dtype dtype_of<bfloat16> = POLYSTATE_BF16;

/// f(of<T>{}) for the one T of the list that `dtype` names; each costs a build of the operator.
template <class... T, class F>
status visit_dtype(const char* op, const char* argument, polystate_dtype dtype, F&& f) {
  status s{error_code::unsupported, op, argument,
           "dtype " + std::to_string(static_cast<int>(dtype)) + ", this library was built without it"};
  static_cast<void>(((dtype == dtype_of<T> && (s = f(of<T>{}), true)) || ...));
  return s;
}

/// f(of<Dims>{}) for the one dims<dk, dv> of the list that the operands have; each costs a build of the operator.
template <class... Dims, class F>
status visit_dims(const char* op, const polystate_tensor& q, const polystate_tensor& v, F&& f) {
  const auto text = [](std::int64_t dk, std::int64_t dv) { return std::to_string(dk) + ", " + std::to_string(dv); };
  const std::int64_t dk = q.extents[3];
  const std::int64_t dv = v.extents[3];
  status s{error_code::unsupported, op, "q", "dk, dv = " + text(dk, dv) + ", this library was built for"};
  ((s.detail += " " + text(Dims::values[0], Dims::values[1]) + ";"), ...);
  static_cast<void>(((dk == Dims::values[0] && dv == Dims::values[1] && (s = f(of<Dims>{}), true)) || ...));
  return s;
}

}  // namespace polystate::c_api
