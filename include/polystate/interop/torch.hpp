// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// PyTorch's tensors as views, and its current stream as a policy. Needs PyTorch's headers with CUDA; nothing is
/// copied, nothing is owned: the tensors must outlive the call, as any operand must.
///
///     const polystate::torch_operands of("selective_scan", u.device());
///     const polystate::selective_scan_args<polystate::bfloat16> args{.u = of("u", u), .delta = of("delta", delta),
///     ...}; const c10::cuda::CUDAGuard guard(u.device());
///     polystate::selective_scan(polystate::torch_stream(u.device()), args);

#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// PyTorch's name of an element type: double, float, half, bfloat16, std::int32_t.
template <class T>
inline constexpr c10::ScalarType torch_type = c10::ScalarType::Undefined;
template <>
inline constexpr c10::ScalarType torch_type<double> = c10::ScalarType::Double;
template <>
inline constexpr c10::ScalarType torch_type<float> = c10::ScalarType::Float;
template <>
inline constexpr c10::ScalarType torch_type<half> = c10::ScalarType::Half;
template <>
inline constexpr c10::ScalarType torch_type<bfloat16> = c10::ScalarType::BFloat16;
template <>
inline constexpr c10::ScalarType torch_type<std::int32_t> = c10::ScalarType::Int;

/// A tensor on its way to becoming the operand that it initialises, whatever that operand's type and rank.
class torch_operand {
 public:
  torch_operand(const char* op, const char* name, c10::Device device, const at::Tensor& tensor)
      : op_(op), name_(name), device_(device), tensor_(tensor) {}

  /// The view, its strides kept; absent if the tensor is undefined. Throws argument_error for another element type,
  /// number of dimensions or device, and for a sparse tensor.
  template <class T, int Rank>
  operator tensor_view<T, Rank>() const {  // NOLINT(google-explicit-constructor): it stands for a view
    using element = std::remove_cv_t<T>;
    static_assert(torch_type<element> != c10::ScalarType::Undefined, "an operand's elements have a PyTorch dtype");
    if (!tensor_.defined()) return {};
    if (tensor_.layout() != c10::kStrided || tensor_.is_conj() || tensor_.is_neg()) {
      refuse(error_code::unsupported, "not a plain strided tensor");
    }
    if (tensor_.device() != device_) {
      refuse(error_code::device, "on " + tensor_.device().str() + ", supported: " + device_.str());
    }
    if (tensor_.scalar_type() != torch_type<element>) {
      refuse(error_code::unsupported, std::string("dtype ") + c10::toString(tensor_.scalar_type()) +
                                          ", supported: " + c10::toString(torch_type<element>));
    }
    if (tensor_.dim() != Rank) {
      refuse(error_code::shape, std::to_string(tensor_.dim()) + " dimensions, supported: " + std::to_string(Rank));
    }
    std::int64_t extents[Rank];
    std::int64_t strides[Rank];
    for (int i = 0; i < Rank; ++i) {
      extents[i] = tensor_.size(i);
      strides[i] = tensor_.stride(i);
    }
    return {static_cast<T*>(data<T>()), extents, strides};
  }

 private:
  // A tensor that is only read stays shared where PyTorch copies on write.
  template <class T>
  [[nodiscard]] auto* data() const {
    if constexpr (std::is_const_v<T>) {
      return tensor_.const_data_ptr();
    } else {
      return tensor_.mutable_data_ptr();
    }
  }

  [[noreturn]] void refuse(error_code code, const std::string& detail) const {
    throw argument_error({code, op_, name_, detail});
  }

  const char* op_;
  const char* name_;
  c10::Device device_;
  const at::Tensor& tensor_;
};

/// Makes the operands of one call, all of them on one device. `op` is a string literal, named in errors.
class torch_operands {
 public:
  torch_operands(const char* op, c10::Device device) : op_(op), device_(device) {}

  /// Undefined: absent.
  torch_operand operator()(const char* name, const at::Tensor& tensor) const { return {op_, name, device_, tensor}; }
  /// Without a value: absent.
  torch_operand operator()(const char* name, const std::optional<at::Tensor>& tensor) const {
    static const at::Tensor absent;
    return {op_, name, device_, tensor.has_value() ? *tensor : absent};
  }

 private:
  const char* op_;
  c10::Device device_;
};

inline namespace POLYSTATE_BUILD {

/// The policy of PyTorch's current stream on a CUDA device, which must also be the current device. Scratch comes from
/// `memory`, if it is given: a tensor of workspace_bytes() bytes on that device (PyTorch aligns them to 512 bytes).
inline on_cuda torch_stream(c10::Device device, const at::Tensor& memory = {}) {
  on_cuda exec{.stream = c10::cuda::getCurrentCUDAStream(device.index()).stream()};
  if (memory.defined() && memory.nbytes() > 0) {
    exec.workspace = {.data = memory.mutable_data_ptr(), .bytes = memory.nbytes()};
  }
  return exec;
}

}  // namespace POLYSTATE_BUILD

}  // namespace polystate::inline POLYSTATE_ABI
