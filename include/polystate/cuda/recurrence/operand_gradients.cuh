// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From what tile_gradients.cuh leaves of each token and head to the gradients of the operands, and from the output's
/// derivative to those of what finish() takes.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/work_items.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence {

/// Backwards through finish(), of the forms that have one. A block has a slice of a batch entry's tokens in a window.
/// Where there is no output gate, do is the output's derivative, and only the skip weight's is left to make.
template <class Form>
struct finish_gradient_params {
  shared_operands in;  ///< its `out` is the output's derivative
  Form form;
  work_items items;
  const float* o = nullptr;  ///< [token][head][dv], where there is an output gate
  float* d_o = nullptr;      ///< likewise
  any_element_view<4> d_z;   ///< (B, T, heads, dv); may be absent
  float* d_skip = nullptr;   ///< [slice][batch][head][dv], added up over the windows; null where it is not wanted
  std::int64_t batch = 0;
};
inline constexpr int finish_slice = 64;

template <class Form>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(256)
    recurrence_finish_gradient_kernel(const __grid_constant__ finish_gradient_params<Form> p) {
  constexpr int warps = 8;
  __shared__ float sums[warps][32];
  const shared_operands& in = p.in;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool gated = in.z.given();
  const int dv = in.dv();
  const std::int64_t heads = in.heads();
  const std::int64_t head = blockIdx.x % static_cast<unsigned>(heads);
  const std::int64_t part = blockIdx.x / static_cast<unsigned>(heads);  // slice and batch entry
  const std::int64_t b = part % p.batch;
  const std::int64_t first = p.items.first() + part / p.batch * finish_slice;
  const std::int64_t end = p.items.end();
  const std::int64_t last = end < first + finish_slice ? end : first + finish_slice;
  for (int row = lane; row - lane < dv; row += 32) {
    const bool there = row < dv;
    const float skip = there ? p.form.skip_of(head, row) : 0.0f;
    float d_skip = 0.0f;
    with_element(in.value.type(), [&]<class Data>(Data) {
      // All of a thread's tokens at once, and all loads before the first use.
      constexpr int together = finish_slice / warps;
      const auto load = [&](float(&to)[together], const any_element_view<4>& from) {
        const Data* x = reinterpret_cast<const Data*>(from.address(b, first + warp, head, row));
        const std::int64_t step = warps * from.stride(1);
        const bool wanted = there && from.given();
#pragma unroll
        for (int i = 0; i < together; ++i, x += step) {
          to[i] = wanted && first + warp + i * warps < last ? static_cast<float>(*x) : 0.0f;
        }
      };
      float v[together];
      float d_out[together];
      float z[together] = {};
      float o[together] = {};
      load(v, in.value);
      load(d_out, in.out);
      if (gated) load(z, in.z);
      const std::int64_t at = (p.items.token_index(b, first + warp) * heads + head) * dv + row;
      const std::int64_t step = warps * heads * dv;
      if (gated) {
#pragma unroll
        for (int i = 0; i < together; ++i) o[i] = there && first + warp + i * warps < last ? p.o[at + i * step] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const std::int64_t t = first + warp + i * warps;
        if (!there || t >= last) continue;
        const output_gradient d = p.form.finish_backward(o[i], v[i], z[i], d_out[i], skip);
        if (gated) {
          p.d_o[at + i * step] = d.d_o;
          if (p.d_z.given()) p.d_z.store(d.d_z, b, t, head, row);
        }
        d_skip = fmaf(d.d_o, v[i], d_skip);
      }
    });
    if (p.d_skip == nullptr) continue;
    sums[warp][lane] = d_skip;
    __syncthreads();
    if (warp == 0 && there) {
      float& total = p.d_skip[(part * heads + head) * dv + row];
      d_skip = total;
#pragma unroll
      for (int w = 0; w < warps; ++w) d_skip += sums[w][lane];
      total = d_skip;
    }
    __syncthreads();
  }
}

/// From the row parts' dq and dk to the operands' gradients: summed over the heads of a group, and through the
/// normalisation. A warp has one row of one of the two.
struct row_gradient_params {
  shared_operands in;
  const float* part[2] = {};           ///< of query and key; null where not wanted
  any_element_view<4> d_query, d_key;  ///< (B, T, groups, dk)
  work_items items;
  std::int64_t batch = 0;
  std::int64_t row_parts = 0;
};

template <int Threads, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    recurrence_row_gradient_kernel(const __grid_constant__ row_gradient_params p) {
  constexpr int each = Padded / 32;
  const shared_operands& in = p.in;
  const int dk = in.dk();
  const auto groups = static_cast<unsigned>(in.key.extent(2));
  const std::int64_t heads = in.heads();
  const std::int64_t shared = heads / groups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto tokens = static_cast<unsigned>(p.items.last() - p.items.first());
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (Threads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= p.batch * tokens * groups * 2) return;
  const int which = static_cast<int>(row % 2);
  const std::int64_t group = row / 2 % groups;
  const std::int64_t t = row / 2 / groups % tokens;
  const std::int64_t b = row / 2 / groups / tokens;
  const std::int64_t time = p.items.first() + t;
  if (p.part[which] == nullptr || time >= p.items.end()) return;

  // All loads of a few heads, and of the row itself, before the first use.
  const any_element_view<4>& raw = which == 0 ? in.query : in.key;
  std::uint32_t bits[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    bits[i] = in.normalize && i * 32 + lane < dk ? raw.load_bits(b, time, group, i * 32 + lane) : 0u;
  }
  float dy[each] = {};
  const float* from = p.part[which] + (p.items.token_index(b, time) * heads + group * shared) * dk + lane;
  for (std::int64_t part = 0; part < p.row_parts; ++part, from += p.items.token_count() * heads * dk) {
#pragma unroll(each <= 4 ? 8 : 2)
    for (std::int64_t h = 0; h < shared; ++h) {
#pragma unroll
      for (int i = 0; i < each; ++i) dy[i] += i * 32 + lane < dk ? from[h * dk + i * 32] : 0.0f;
    }
  }
  const any_element_view<4>& to = which == 0 ? p.d_query : p.d_key;
  if (in.normalize) {
    float x[each];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      x[i] = from_bits(bits[i], raw.type());
      squares = fmaf(x[i], x[i], squares);
    }
    const float inverse = inverse_length(sum_in_group<32>(squares), in.eps);
    float along = 0.0f;  // y . dy
#pragma unroll
    for (int i = 0; i < each; ++i) {
      x[i] *= inverse;
      along = fmaf(x[i], dy[i], along);
    }
    along = sum_in_group<32>(along);
#pragma unroll
    for (int i = 0; i < each; ++i) dy[i] = (dy[i] - x[i] * along) * inverse;
  }
#pragma unroll
  for (int i = 0; i < each; ++i) {
    if (i * 32 + lane < dk) to.store(dy[i], b, time, group, i * 32 + lane);
  }
}

/// The same for the gates: a block has one head of one batch entry. `head_sums` are [batch][head] pairs, added up over
/// the windows, of forms whose gates share numbers among all tokens.
template <class Form>
struct gate_gradient_params {
  Form form;
  typename Form::gate_gradients to;
  const float* part = nullptr;
  float2* head_sums = nullptr;
  work_items items;
  std::int64_t heads = 0;
  std::int64_t row_parts = 0;
};

inline constexpr int gate_threads = 512;

template <class Form>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(gate_threads)
    recurrence_gate_gradient_kernel(const __grid_constant__ gate_gradient_params<Form> p) {
  __shared__ float2 sums[gate_threads / 32];
  const std::int64_t b = blockIdx.x / static_cast<unsigned>(p.heads);
  const std::int64_t head = blockIdx.x % static_cast<unsigned>(p.heads);
  const int tid = static_cast<int>(threadIdx.x);
  const head_numbers numbers = p.form.numbers_of(head);
  float2 sum = make_float2(0.0f, 0.0f);
  for (std::int64_t t = p.items.first() + tid; t < p.items.end(); t += gate_threads) {
    float2 d = make_float2(0.0f, 0.0f);
    for (std::int64_t part = 0; part < p.row_parts; ++part) {
      const float* const x = p.part + ((part * p.items.token_count() + p.items.token_index(b, t)) * p.heads + head) * 2;
      d.x += x[0];
      d.y += x[1];
    }
    const float2 of_head = p.form.store_gate_gradient(p.to, d.x, d.y, b, t, head, numbers);
    sum.x += of_head.x;
    sum.y += of_head.y;
  }
  if (p.head_sums == nullptr) return;
  sum = make_float2(sum_in_group<32>(sum.x), sum_in_group<32>(sum.y));
  if (tid % 32 == 0) sums[tid / 32] = sum;
  __syncthreads();
  if (tid != 0) return;
  float2 total = p.head_sums[b * p.heads + head];
  for (int w = 0; w < gate_threads / 32; ++w) {
    total.x += sums[w].x;
    total.y += sums[w].y;
  }
  p.head_sums[b * p.heads + head] = total;
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::recurrence
