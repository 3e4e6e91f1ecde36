// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A token's write into a bank: its open entry takes the step of the recurrence, the others stay; with levels of a
/// Fenwick partition all of them move. The same kernel writes moments, whose states are those of a delta rule with key
/// k' and value k'/m, for the mean 1/m.

#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/multi_state/counting.hpp>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/separation.hpp>

#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

template <class Form>
struct write_params {
  recurrence::shared_operands in;  ///< key and value; query and out are not read
  Form form;
  float divisor = 1;           ///< of the values
  any_element_view<5> states;  ///< (B, capacity, heads, dv, dk)
  tensor_view<const bank_counters, 1> counters;
  token_counting counting;
  std::int64_t t = 0;  ///< the token; the counters are those before token 0
};

template <class Form, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(recurrence::split::threads)
    multi_state_write_kernel(const __grid_constant__ write_params<Form> p) {
  constexpr recurrence::split Split = recurrence::split_over_time(Padded);
  constexpr int L = Split.lanes;
  constexpr int C = Split.columns;
  constexpr int R = recurrence::split::rows;
  constexpr int rows = Split.block_rows();
  constexpr int threads = recurrence::split::threads;
  __shared__ alignas(16) float key[Padded];

  const recurrence::shared_operands& in = p.in;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % L;
  const int dv = in.dv();
  const int dk = in.dk();
  const auto row_tiles = static_cast<unsigned>(tiles_of(dv, rows));
  const int first_row = static_cast<int>(blockIdx.x % row_tiles) * rows + tid / L * R;
  const auto heads = static_cast<unsigned>(in.heads());
  const std::int64_t head = blockIdx.x / row_tiles % heads;
  const std::int64_t b = blockIdx.x / row_tiles / heads;

  const bank_counters before = p.counting.after(p.counters(b), p.t);
  const std::int64_t entries = p.counting.after(before, 1).segments;
  const std::int64_t capacity = p.states.extent(1);
  // Counters that validation would refuse: nothing outside the bank is touched.
  if (entries < 1 || entries > capacity || before.segments < 0 || before.segments > capacity) return;

  recurrence::stage_rows<Padded, threads>(in.key, in, b, p.t, in.group_of(head), 1, 1, key);
  const recurrence::gate gate = p.form.gate_of(p.form.load_gate(b, p.t, head), p.form.numbers_of(head));
  float value[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    value[r] = first_row + r < dv ? in.value.load(b, p.t, head, first_row + r) / p.divisor : 0.0f;
  }
  __syncthreads();
  float k[C];
#pragma unroll
  for (int i = 0; i < C; i += 4) {
    const float4 x = *reinterpret_cast<const float4*>(key + i * L + lane * 4);
    k[i] = x.x, k[i + 1] = x.y, k[i + 2] = x.z, k[i + 3] = x.w;
  }

  const auto load = [&](float(&S)[R][C], std::int64_t entry) {
    recurrence::load_rows<L>(S, p.states.select(1, entry), b, head, first_row, dv, dk, lane);
  };
  // S <- alpha S (I - write k k^T) + write v k^T, the values only where the entry is written to
  const auto advance = [&](float(&S)[R][C], bool writes) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u = writes ? value[r] : 0.0f;
      if constexpr (Form::erases) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < C; ++i) dot = fmaf(S[r][i], k[i], dot);
        u = fmaf(-gate.alpha, recurrence::sum_in_group<L>(dot), u);
      }
      u = gate.write != 0.0f ? u * gate.write : 0.0f;  // u is not finite where the state is not
#pragma unroll
      for (int i = 0; i < C; ++i) S[r][i] = fmaf(u, k[i], gate.alpha * S[r][i]);
    }
  };

  const bool fenwick = p.counting.kind == bank_kind::fenwick;
  const std::int64_t merged = fenwick ? token_counting::merged_level(before.tokens) : -1;
  float sum[R][C] = {};
  for (std::int64_t n = 0; n <= merged && n < before.segments; ++n) {
    float S[R][C];
    load(S, n);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < C; ++i) sum[r][i] += S[r][i];
    }
  }
#pragma unroll 1
  for (std::int64_t n = fenwick ? 0 : entries - 1; n < entries; ++n) {
    const bool has_content = fenwick ? n > merged && n < before.segments : before.open_tokens > 0;
    float S[R][C];
    if (has_content) {
      load(S, n);
    } else {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < C; ++i) S[r][i] = n == merged ? sum[r][i] : 0.0f;
      }
    }
    advance(S, !fenwick || n == 0);
    recurrence::store_rows<L>(S, p.states.select(1, n), b, head, first_row, dv, dk, lane);
  }
}

/// Enqueues the write of one token of every sequence.
template <class Shapes, class Form>
POLYSTATE_HIDDEN status launch_write(const char* name, const on_cuda& exec, const write_params<Form>& p) {
  status s;
  const bool found = dispatch(recurrence::padded_key_dim(p.in.dk()), Shapes{}, [&](auto padded) {
    constexpr int rows = recurrence::split_over_time(padded).block_rows();
    const grid g{.blocks = p.in.value.extent(0) * p.in.heads() * tiles_of(p.in.dv(), rows),
                 .threads = recurrence::split::threads};
    s = launch(name, exec, g, multi_state_write_kernel<Form, padded>, p);
  });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(p.in.dk())};
}

struct count_params {
  tensor_view<bank_counters, 1> counters;
  token_counting counting;
  std::int64_t tokens = 0;
};

/// Counts the tokens of a call, when everything that reads the counters is done.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_count_kernel(const __grid_constant__ count_params p) {
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (b < p.counters.extent(0)) p.counters(b) = p.counting.after(p.counters(b), p.tokens);
}

inline POLYSTATE_HIDDEN status launch_count(const char* name, const cuda_policy auto& exec, const count_params& p) {
  constexpr int threads = 128;
  return launch(name, exec, grid{.blocks = tiles_of(p.counters.extent(0), threads), .threads = threads},
                multi_state_count_kernel<threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
