// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the recurrences with matrix states have in common. Token t of a head moves its state S (dv, dk) on,
///
///     S <- alpha S (I - write k k^T) + write v k^T        o = scale S q        (the erasure only in forms that erase)
///
/// and a `Form` says how an operator's operands become these numbers:
///
///     static constexpr bool erases;                  whether there is the erasure
///     static constexpr bool finishes;                whether finish() does anything
///     static constexpr bool normalizes;              whether keys and queries may have to be normalised
///     gate_inputs load_gate(b, t, head)              what alpha and write are made of, as it lies in memory
///     head_numbers numbers_of(head)                  what they are made of, the same for all tokens
///     gate gate_of(gate_inputs, head_numbers)
///     float skip_of(head, row)                       a number of the row, for
///     float finish(o, v, z, skip)                    the output, from the read-out and skip v; z is 0 without a gate
///
/// and backwards
///
///     output_gradient finish_backward(o, v, z, d_out, skip)
///     float2 store_gate_gradient(gate_gradients, d_log_alpha, d_write, b, t, head, head_numbers)
///                                                    stores those of the gate's operands, returns those of the head's
///
/// Element types are run-time numbers here: a token's operands are O(dk + dv), its state O(dk dv), and one kernel
/// serves all types.

#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/vector_access.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

struct gate_inputs {
  float first = 0;
  float second = 0;
};
struct head_numbers {
  float first = 0;
  float second = 0;
};
struct gate {
  float alpha;
  float write;
};
/// The derivatives of what finish() reads, by that of what it returns; that of v is skip d_o, that of skip v d_o.
struct output_gradient {
  float d_o;
  float d_z;
};

/// The operands whose shapes all forms share; `z` is absent in forms without an output gate.
struct shared_operands {
  any_element_view<4> key, query;     ///< (B, T, groups, dk)
  any_element_view<4> value, z, out;  ///< (B, T, heads, dv)
  float scale = 1;
  bool normalize = false;  ///< k and q are divided by sqrt(sum of squares + eps) first
  float eps = 0;
  bool whole_rows = false;    ///< key and query are 16-byte accesses along dk
  bool whole_values = false;  ///< value and z are along dv
  bool whole_out = false;     ///< out is along dv

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t heads() const { return value.extent(2); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE int dk() const { return static_cast<int>(key.extent(3)); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE int dv() const { return static_cast<int>(value.extent(3)); }
  [[nodiscard]] __device__ std::int64_t group_of(std::int64_t head) const {
    // group_of_head() in 32 bits, which a grid's blocks bound: 64-bit divisions are slow.
    const auto all = static_cast<std::uint32_t>(heads());
    return static_cast<std::uint32_t>(head) / (all / static_cast<std::uint32_t>(key.extent(2)));
  }
};

template <class Data>
shared_operands make_shared_operands(const tensor_view<const Data, 4>& key, const tensor_view<const Data, 4>& query,
                                     const tensor_view<const Data, 4>& value, const tensor_view<const Data, 4>& z,
                                     const tensor_view<Data, 4>& out) {
  shared_operands in;
  in.key = any_element_view<4>(key);
  in.query = any_element_view<4>(query);
  in.value = any_element_view<4>(value);
  in.z = any_element_view<4>(z);
  in.out = any_element_view<4>(out);
  in.whole_rows = vectorisable(key, 3) && vectorisable(query, 3);
  in.whole_values = vectorisable(value, 3) && vectorisable(z, 3);
  in.whole_out = vectorisable(out, 3);
  return in;
}

/// Sums `Count` values over the `Lanes` threads of a group at once, every value in the same order. A thread ends with
/// max(1, Count / Lanes) of the sums, in a[0], a[1], ..; returns the index of the first. Where Lanes exceeds Count,
/// neighbours hold the same one.
template <int Lanes, int Left, int Count>
__device__ int sum_over_lanes(float (&a)[Count], int lane) {
  if constexpr (Lanes == 1) {
    return 0;
  } else if constexpr (Left == 1) {
    a[0] += __shfl_xor_sync(0xffffffffu, a[0], Lanes / 2);
    return sum_over_lanes<Lanes / 2, 1>(a, lane);
  } else {
    constexpr int half_of_them = Left / 2;
    const bool upper = (lane & (Lanes / 2)) != 0;
#pragma unroll
    for (int i = 0; i < half_of_them; ++i) {
      const float give = upper ? a[i] : a[i + half_of_them];
      const float keep = upper ? a[i + half_of_them] : a[i];
      a[i] = keep + __shfl_xor_sync(0xffffffffu, give, Lanes / 2);
    }
    return (upper ? half_of_them : 0) + sum_over_lanes<Lanes / 2, half_of_them>(a, lane);
  }
}
template <int Lanes, int Count>
__device__ int sum_over_lanes(float (&a)[Count], int lane) {
  return sum_over_lanes<Lanes, Count, Count>(a, lane);
}

/// The sum over the `Lanes` threads of a group, the same bits in each.
template <int Lanes>
__device__ float sum_in_group(float x) {
#pragma unroll
  for (int apart = Lanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
  return x;
}

/// 1 / sqrt(squares + eps), and 0 where that is 1/0: a row of zeros stays zero.
__device__ inline float inverse_length(float squares, float eps) {
  const float sum = squares + eps;
  return sum == 0.0f ? 0.0f : 1.0f / sqrtf(sum);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
