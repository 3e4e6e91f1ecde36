// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Prefill with one state a level of a Fenwick partition. A sequence is cut into blocks of 16 tokens. What tokens of
/// one block give each other, levels 0 to 4, comes from the block's own small matrices. Each higher level is a run of
/// the recurrence over pairs of blocks (level_items.hpp), whose read-outs are added up with the level's weights.

#include <polystate/core/sequences.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/any_element.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/multi_state/bank_states.hpp>
#include <polystate/cuda/multi_state/level_items.hpp>
#include <polystate/cuda/multi_state/operands.cuh>
#include <polystate/cuda/multi_state/read_out.cuh>
#include <polystate/cuda/recurrence/forward.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/tile.cuh>
#include <polystate/cuda/segment_moments/state_copy.cuh>
#include <polystate/cuda/tiling.hpp>
#include <polystate/cuda/workspace.cuh>
#include <polystate/multi_state.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

inline constexpr int block_levels = 5;  ///< levels within a block
inline constexpr int block_tokens = 1 << (block_levels - 1);

/// Level of source s <= t, both counted from the start of their sequence or of a block.
POLYSTATE_HOST_DEVICE constexpr int level_of(unsigned t, unsigned s) {
  int level = 0;
  for (unsigned apart = t ^ s; apart != 0; apart >>= 1) ++level;
  return level;
}

/// Blocks of `block_tokens` tokens of all sequences, one sequence after the other.
struct sequence_blocks {
  sequences all;
  std::int64_t time = 0;

  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t each() const { return tiles_of(time, block_tokens); }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t size() const {
    return all.packed() ? time / block_tokens + all.size() : all.size() * each();
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE std::int64_t first(std::int64_t s) const {
    return all.packed() ? all[s].begin / block_tokens + s : s * each();
  }
  /// Tokens of block i; none where it is to spare.
  [[nodiscard]] POLYSTATE_HOST_DEVICE token_range operator[](std::int64_t i) const {
    std::int64_t s = 0;
    if (all.packed()) {
      std::int64_t high = all.size() - 1;
      while (s < high) {
        const std::int64_t middle = (s + high + 1) / 2;
        if (first(middle) <= i) {
          s = middle;
        } else {
          high = middle - 1;
        }
      }
    } else {
      s = i / each();
    }
    token_range r = all[s];
    r.begin += (i - first(s)) * block_tokens;
    if (r.begin > r.end) r.begin = r.end;
    if (r.end - r.begin > block_tokens) r.end = r.begin + block_tokens;
    return r;
  }
};

template <class Form>
struct block_params {
  recurrence::shared_operands in;  ///< out is not written
  Form form;
  sequence_blocks blocks;
  tensor_view<const float, 4> weights;  ///< (B, T, heads, levels)
  float* sum = nullptr;                 ///< [token][head][dv], out
};

template <int Padded>
struct block_tile {
  static constexpr int T = block_tokens;
  static constexpr int threads = 128;
  float k[T * Padded];
  float q[T * Padded];
  float key_key[T][T + 1];    ///< k_t.k_s, then what is left of k_t's erasures, by token
  float query_key[T][T + 1];  ///< q_t.k_s, then the weight of v_s in o_t
  float left[T][T + 1];       ///< of token t: what its query lost along each key
  float alpha[T];
  float write[T];
};

/// o_t = sum_{s<=t} lam(t, s) scale write_s (q_t . M_t .. M_{s+1} k_s) v_s, M_r = alpha_r (I - write_r k_r k_r^T). The
/// query is carried back from t to s: after M_t .. M_{r+1} it is D q_t - sum_r' c_r' k_r', so that products of keys and
/// queries say it all.
template <class Form, int Padded>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(block_tile<Padded>::threads)
    multi_state_block_kernel(const __grid_constant__ block_params<Form> p) {
  using Tile = block_tile<Padded>;
  constexpr int T = Tile::T;
  constexpr int threads = Tile::threads;
  extern __shared__ uint4 shared_memory[];
  Tile& sm = *reinterpret_cast<Tile*>(shared_memory);

  const recurrence::shared_operands& in = p.in;
  const int tid = static_cast<int>(threadIdx.x);
  const auto heads = static_cast<unsigned>(in.heads());
  const std::int64_t head = blockIdx.x % heads;
  const token_range tokens = p.blocks[blockIdx.x / heads];
  const int n = static_cast<int>(tokens.size());
  if (n == 0) return;
  const std::int64_t b = tokens.batch;
  const std::int64_t group = in.group_of(head);
  const int dv = in.dv();

  recurrence::stage_rows<Padded, threads>(in.key, in, b, tokens.begin, group, n, T, sm.k);
  recurrence::stage_rows<Padded, threads>(in.query, in, b, tokens.begin, group, n, T, sm.q);
  if (tid < n) {
    const recurrence::gate g = p.form.gate_of(p.form.load_gate(b, tokens.begin + tid, head), p.form.numbers_of(head));
    sm.alpha[tid] = g.alpha;
    sm.write[tid] = g.write;
  }
  __syncthreads();

  // Groups of 8 threads take one dot product each.
  constexpr int lanes = 8;
  static_assert(T * T % (threads / lanes) == 0);
  for (int pair = tid / lanes; pair < T * T; pair += threads / lanes) {
    const int t = pair / T;
    const int s = pair % T;
    float of_query = 0.0f;
    float of_key = 0.0f;
    if (s <= t) {
      for (int c = tid % lanes * 4; c < Padded; c += lanes * 4) {
        const float4 x = *reinterpret_cast<const float4*>(sm.k + s * Padded + c);
        const float4 y = *reinterpret_cast<const float4*>(sm.q + t * Padded + c);
        of_query = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, of_query))));
        if constexpr (Form::erases) {
          const float4 z = *reinterpret_cast<const float4*>(sm.k + t * Padded + c);
          of_key = fmaf(x.x, z.x, fmaf(x.y, z.y, fmaf(x.z, z.z, fmaf(x.w, z.w, of_key))));
        }
      }
    }
    of_query = recurrence::sum_in_group<lanes>(of_query);
    of_key = recurrence::sum_in_group<lanes>(of_key);
    if (tid % lanes == 0) {
      sm.query_key[t][s] = of_query;
      sm.key_key[t][s] = of_key;
    }
  }
  __syncthreads();

  if (tid < n) {
    const int t = tid;
    float* const lost = sm.left[t];
    float decay = 1.0f;
    for (int s = t; s >= 0; --s) {
      float z = decay * sm.query_key[t][s];
      if constexpr (Form::erases) {
        for (int r = s + 1; r <= t; ++r) z = fmaf(-lost[r], sm.key_key[r][s], z);
        for (int r = s + 1; r <= t; ++r) lost[r] *= sm.alpha[s];
        lost[s] = sm.write[s] != 0.0f ? sm.alpha[s] * sm.write[s] * z : 0.0f;
      }
      decay *= sm.alpha[s];
      // Blocks begin at multiples of their size, so levels are those within the block.
      const int level = level_of(static_cast<unsigned>(t), static_cast<unsigned>(s));
      const float lam = level < p.weights.extent(3) ? p.weights(b, tokens.begin + t, head, level) : 0.0f;
      sm.query_key[t][s] = sm.write[s] != 0.0f ? lam * in.scale * sm.write[s] * z : 0.0f;
    }
  }
  __syncthreads();

  for (int row = tid; row < dv; row += threads) {
    float v[T];
#pragma unroll
    for (int s = 0; s < T; ++s) v[s] = s < n ? in.value.load(b, tokens.begin + s, head, row) : 0.0f;
    for (int t = 0; t < n; ++t) {
      float o = 0.0f;
#pragma unroll
      for (int s = 0; s < T; ++s) {
        if (s <= t) o = fmaf(sm.query_key[t][s], v[s], o);
      }
      p.sum[((b * p.blocks.time + tokens.begin + t) * heads + head) * dv + row] = o;
    }
  }
}

template <class Shapes, class Form>
POLYSTATE_HIDDEN status launch_blocks(const char* name, const on_cuda& exec, const block_params<Form>& p) {
  status s;
  const bool found = dispatch(recurrence::padded_key_dim(p.in.dk()), Shapes{}, [&](auto padded) {
    using Tile = block_tile<padded>;
    const grid g{.blocks = p.blocks.size() * p.in.heads(), .threads = Tile::threads, .shared_bytes = sizeof(Tile)};
    s = launch(name, exec, g, multi_state_block_kernel<Form, padded>, p);
  });
  return found ? s : status{error_code::unsupported, name, "dk", "no kernel for " + std::to_string(p.in.dk())};
}

struct level_sum_params {
  sequences all;
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;
  int dv = 0;
  int level = 0;                        ///< whose read-outs are added; 0: none, the sums go out
  tensor_view<const float, 4> weights;  ///< (B, T, heads, levels)
  const float* read = nullptr;          ///< [token][head][dv]
  float* sum = nullptr;                 ///< likewise
  finishing finish;
  any_element_view<4> out;  ///< (B, T, heads, dv)
};

/// A thread has an element of the output.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_level_sum_kernel(const __grid_constant__ level_sum_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t row = i % p.dv;
  const std::int64_t unit = i / p.dv;
  const std::int64_t head = unit % p.heads;
  const std::int64_t n = unit / p.heads;
  const std::int64_t b = n / p.time;
  const std::int64_t t = n % p.time;
  if (b >= p.batch) return;
  if (p.level == 0) {
    p.out.store(p.finish(p.sum[i], b, t, head, row), b, t, head, row);
    return;
  }
  const std::int64_t since = t - (p.all.packed() ? p.all[p.all.of_token(t)].begin : 0);
  if ((since >> (p.level - 1) & 1) != 0) p.sum[i] = fmaf(p.weights(b, t, head, p.level), p.read[i], p.sum[i]);
}

inline POLYSTATE_HIDDEN status launch_level_sum(const char* name, const cuda_policy auto& exec,
                                                const level_sum_params& p) {
  constexpr int threads = 256;
  return launch(name, exec, grid{.blocks = tiles_of(p.batch * p.time * p.heads * p.dv, threads), .threads = threads},
                multi_state_level_sum_kernel<threads>, p);
}

/// The weights as the caller wants them back: 0 for levels that are not there yet.
struct level_weight_params {
  tensor_view<const float, 4> weights;  ///< (B, T, heads, levels)
  tensor_view<float, 4> lam;            ///< likewise, out
};

template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    multi_state_level_weight_kernel(const __grid_constant__ level_weight_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const std::int64_t levels = p.lam.extent(3);
  const std::int64_t heads = p.lam.extent(2);
  const std::int64_t n = i / levels / heads;
  const std::int64_t b = n / p.lam.extent(1);
  const std::int64_t t = n % p.lam.extent(1);
  const std::int64_t head = i / levels % heads;
  if (b >= p.lam.extent(0)) return;
  const bool there = i % levels < separation::fenwick{}.count(t + 1);
  p.lam(b, t, head, i % levels) = there ? p.weights(b, t, head, i % levels) : 0.0f;
}

struct level_plan {
  sequences all;
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;
  std::int64_t dv = 0;
  std::int64_t dk = 0;
  std::int64_t levels = 0;    ///< that there are weights for
  bool keeps_states = false;  ///< in scratch memory

  [[nodiscard]] std::int64_t rows() const { return all.size() * levels; }
};

struct level_memory {
  float* sum = nullptr;     ///< [token][head][dv]
  float* read = nullptr;    ///< likewise, of one level
  float* states = nullptr;  ///< [sequence][level][head][dv][dk]
};

inline level_memory carve(workspace_carver& from, const level_plan& p) {
  level_memory m;
  m.sum = from.take<float>(p.batch * p.time * p.heads * p.dv);
  if (p.time > block_tokens) m.read = from.take<float>(p.batch * p.time * p.heads * p.dv);
  if (p.keeps_states) m.states = from.take<float>(p.rows() * p.heads * p.dv * p.dk);
  return m;
}

template <class Data, class Rule, class Router, class State>
level_plan make_level_plan(const multi_state_args<Data, Rule, separation::fenwick, Router, State>& args) {
  const auto& v = value_of(args.in);
  return {.all = sequences(v.extent(0), v.extent(1), args.cu_seqlens),
          .batch = v.extent(0),
          .time = v.extent(1),
          .heads = v.extent(2),
          .dv = v.extent(3),
          .dk = key_of(args.in).extent(3),
          .levels = args.router.weights.extent(3),
          .keeps_states = args.S && !takes_states(args.S)};
}

/// The whole forward pass.
template <class Shapes, class Data, class Rule, class Router, class State>
POLYSTATE_HIDDEN status run_levels(const char* name, const on_cuda& exec,
                                   const multi_state_args<Data, Rule, separation::fenwick, Router, State>& args,
                                   const level_plan& p, const level_memory& m) {
  const auto form = recurrence::make_form(unfinished(args.in));
  status s = launch_blocks<Shapes>(name, exec,
                                   block_params<form_of<Data, Rule>>{.in = make_unfinished_operands(args.in, m.sum),
                                                                     .form = form,
                                                                     .blocks = {p.all, p.time},
                                                                     .weights = args.router.weights,
                                                                     .sum = m.sum});
  recurrence::forward_params<form_of<Data, Rule>, level_items> walk = {.in = make_unfinished_operands(args.in, m.read),
                                                                       .form = form,
                                                                       .items = {},
                                                                       .initial_state = {},
                                                                       .final_state = {},
                                                                       .carry_in = {},
                                                                       .carry_out = {},
                                                                       .record = {}};
  level_sum_params sum = {.all = p.all,
                          .batch = p.batch,
                          .time = p.time,
                          .heads = p.heads,
                          .dv = static_cast<int>(p.dv),
                          .level = 0,
                          .weights = args.router.weights,
                          .read = m.read,
                          .sum = m.sum,
                          .finish = finishing_of(args.in),
                          .out = any_element_view<4>(args.o)};
  for (int n = block_levels; s.ok() && n < p.levels && n < 63 && (std::int64_t{1} << (n - 1)) < p.time; ++n) {
    walk.items = level_items::of_level(p.all, p.time, n);
    s = recurrence::launch_forward<Shapes>(name, exec, walk);
    sum.level = n;
    if (s.ok()) s = launch_level_sum(name, exec, sum);
  }
  sum.level = 0;
  if (s.ok()) s = launch_level_sum(name, exec, sum);
  if (s.ok() && args.lam) {
    constexpr int threads = 256;
    s = launch(name, exec, grid{.blocks = tiles_of(args.lam.size(), threads), .threads = threads},
               multi_state_level_weight_kernel<threads>, level_weight_params{args.router.weights, args.lam});
  }
  if (!s.ok() || !args.S || args.S.size() == 0) return s;

  walk.in.out = {};
  walk.items = level_items::of_last_tokens(p.all, p.time, p.levels);
  walk.final_state = any_element_view<4>(states_in_rows(args.S, m.states, p.rows(), p.heads, p.dv, p.dk));
  s = recurrence::launch_forward<Shapes>(name, exec, walk);
  if (!s.ok() || !p.keeps_states) return s;
  return moments::launch_state_copy(name, exec,
                                    {.from = m.states,
                                     .rows = p.dv,
                                     .slots = p.rows(),
                                     .slots_per_row = p.rows() / args.S.extent(0),
                                     .to = any_element_view<5>(args.S)});
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::layer
