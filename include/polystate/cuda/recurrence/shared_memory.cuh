// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which key dims a device's shared memory has room for.

#include <polystate/core/dispatch.hpp>
#include <polystate/core/error.hpp>
#include <polystate/cuda/device_limits.hpp>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/reverse.cuh>
#include <polystate/cuda/recurrence/tile_gradients.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Shared memory of a block of the forward kernel, at least. `element_bytes`: of q, k and v; `has_z`: of an output
/// gate.
template <class Form>
std::size_t least_forward_bytes(std::int64_t dk, int element_bytes, bool has_z) {
  std::size_t bytes = 0;
  static_cast<void>(dispatch(padded_key_dim(dk), key_dims{}, [&](auto padded) {
    bytes = forward_tile<Form::erases, padded, least_walkers<padded>>::bytes(element_bytes, has_z, 1);
  }));
  return bytes;
}

/// The same of the kernels of a backward pass. `d_o_bytes`: of an element of the read-outs' derivatives.
template <class Form>
std::size_t least_backward_bytes(std::int64_t dk, int element_bytes, int d_o_bytes) {
  std::size_t bytes = 0;
  static_cast<void>(dispatch(padded_key_dim(dk), key_dims{}, [&](auto padded) {
    bytes = (std::max)(reverse_tile<Form::erases, padded, least_walkers<padded>>::bytes(element_bytes, d_o_bytes, 1),
                       gradient_tile::bytes(padded, least_gradient_rows, least_gradient_rows, Form::erases));
  }));
  return (std::max)(bytes, least_forward_bytes<Form>(dk, element_bytes, false));
}

/// Refuses a key dim, called `size` in the operator's contract, that the device has no room for.
template <class Form>
status check_forward_fits(const char* op, const char* argument, const char* size, std::int64_t dk, int element_bytes,
                          bool has_z, const device_limits& limits) {
  return check_shared_memory(op, argument, size + (" = " + std::to_string(dk)),
                             least_forward_bytes<Form>(dk, element_bytes, has_z), limits.shared_bytes);
}
template <class Form>
status check_backward_fits(const char* op, const char* argument, const char* size, std::int64_t dk, int element_bytes,
                           int d_o_bytes, const device_limits& limits) {
  return check_shared_memory(op, argument, size + (" = " + std::to_string(dk)),
                             least_backward_bytes<Form>(dk, element_bytes, d_o_bytes), limits.shared_bytes);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
