// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// multi_state, its step and its read on CUDA: docs/multi_state.md says which kernel runs when.

#include <polystate/cuda/clear_tail.cuh>
#include <polystate/cuda/device.cuh>
#include <polystate/cuda/multi_state/bank.cuh>
#include <polystate/cuda/multi_state/forward.cuh>
#include <polystate/cuda/multi_state/levels.cuh>
#include <polystate/cuda/multi_state/operands.cuh>
#include <polystate/cuda/recurrence/policy.hpp>
#include <polystate/cuda/recurrence/shared_memory.cuh>
#include <polystate/cuda/row_range.cuh>
#include <polystate/cuda/segment_moments/segments.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/multi_state.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::layer {

/// Checks what CUDA asks of head dims and routing dims; 0 for a dim that the call does not have.
inline status check_layer_dims(const char* name, std::int64_t dk, std::int64_t dv, std::int64_t dr) {
  argument_checks c(name);
  c.bind("dk", dk, "in").range("dk", multi_state_limits::cuda_dk);
  c.bind("dv", dv, "in").range("dv", multi_state_limits::cuda_dv);
  if (dr > 0) c.bind("dr", dr, "moments.k").range("dr", multi_state_limits::cuda_dr);
  return c.result();
}

/// Entries and queries are counted in 32 bits.
inline status check_bank_size(const char* name, const bank_plan& p) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)() - 1;
  argument_checks c(name);
  c.expect(p.capacity > 0 || p.batch * p.time == 0, error_code::shape, "bank.S",
           "capacity = 0, supported: at least 1; reserve() entries first")
      .expect(p.batch * p.capacity <= most, error_code::unsupported, "bank.S",
              std::to_string(p.batch * p.capacity) + " entries, supported: up to " + std::to_string(most))
      .expect(p.queries() <= most, error_code::unsupported, "o",
              std::to_string(p.queries()) + " queries, supported: up to " + std::to_string(most));
  return c.result();
}

template <class Plan>
std::size_t bytes_of_plan(const Plan& plan) {
  workspace_carver count;
  carve(count, plan);
  return count.bytes();
}

template <class Data, class Rule, class Separation, class Router, class State>
auto make_plan(const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    return make_level_plan(args);
  } else {
    return make_segment_plan(args);
  }
}

/// What is wrong with a forward for CUDA, whatever the stream and workspace.
template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status check_sizes(const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  constexpr const char* name = "multi_state";
  if (status s = check<Dims>(args); !s.ok()) return s;
  const std::int64_t dk = key_of(args.in).extent(3);
  const std::int64_t dv = value_of(args.in).extent(3);
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    return check_layer_dims(name, dk, dv, 0);
  } else {
    const segment_plan plan = make_segment_plan(args);
    const bool has_moments = Router::reads_moments || args.mu || args.Sigma;
    status s = check_layer_dims(name, dk, dv, has_moments ? plan.routing.moments.dr() : 0);
    return s.ok() ? moments::check_segmentation(name, plan.segments()) : s;
  }
}
template <class Dims, class Args>
status check_bank_sizes(const char* name, const on_cuda& exec, const Args& args) {
  if (status s = check<Dims>(args); !s.ok()) return s;
  const bank_plan plan = make_bank_plan(exec, args);
  status s = check_layer_dims(name, plan.dk, plan.dv, plan.dr);
  return s.ok() ? check_bank_size(name, plan) : s;
}
template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status check_sizes(const on_cuda& exec, const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  return check_bank_sizes<Dims>("multi_state_step", exec, args);
}
template <class Dims, class Data, class Rule, class Router, class State>
status check_sizes(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  return check_bank_sizes<Dims>("multi_state_read", exec, args);
}

/// Refuses sizes that the device's shared memory has no room for: of the recurrence, the moments, the read-out.
template <class Data, class Rule, class Separation, class Router, class State>
status check_tiles(const char* name, const multi_state_args<Data, Rule, Separation, Router, State>& args,
                   const device_limits& limits) {
  const std::int64_t dk = key_of(args.in).extent(3);
  status s = recurrence::check_forward_fits<form_of<Data, Rule>>(name, "in", "dk", dk, sizeof(Data), false, limits);
  if constexpr (!std::is_same_v<Separation, separation::fenwick>) {
    const segment_plan plan = make_segment_plan(args);
    if (s.ok() && plan.keeps_moments()) s = moments::check_moments_fit(name, plan.routing.moments, limits);
    if (s.ok() && plan.weighs) s = check_read_out_fits(name, dk, limits);
  }
  return s;
}
template <class Args>
status check_bank_tiles(const char* name, const on_cuda& exec, const Args& args) {
  const bank_plan plan = make_bank_plan(exec, args);
  return plan.streams() ? status{} : check_read_out_fits(name, plan.dk, limits_of(exec));
}

/// Refuses rows that are to be normalised and whose squares leave float; `s` is what was said before.
template <class Data, class Rule>
status check_operand_rows(const char* name, const on_cuda& exec, const operands<Data, Rule>& in, status s) {
  if constexpr (requires { in.qk_l2norm; }) {
    if (s.ok() && in.qk_l2norm) s = check_row_squares(name, exec, "q", in.q, in.l2norm_eps);
    if (s.ok() && in.qk_l2norm) s = check_row_squares(name, exec, "k", in.k, in.l2norm_eps);
  }
  return s;
}
template <class Data, class Rule>
status check_operand_rows(const char* name, const on_cuda& exec, const query_operands<Data, Rule>& in, status s) {
  if constexpr (requires { in.qk_l2norm; }) {
    if (s.ok() && in.qk_l2norm) s = check_row_squares(name, exec, "q", in.q, in.l2norm_eps);
  }
  return s;
}

/// What the call asks of its stream and workspace; `s` is what was said before.
inline status check_call(const char* name, const on_cuda& exec, status s, std::size_t scratch_bytes) {
  if (s.ok()) s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, scratch_bytes);
  return s;
}

/// Copies a bank's counters to the host and waits for them.
class host_counters {
 public:
  status read(const char* name, const on_cuda& exec, const tensor_view<const bank_counters, 1>& counters) {
    status s = check_not_captured(name, exec);
    if (!s.ok()) return s;
    contents_.resize(static_cast<std::size_t>(counters.size()));
    for (std::size_t b = 0; b < contents_.size() && s.ok(); ++b) {
      s = runtime_status(
          name, "bank.counters",
          cudaMemcpyAsync(&contents_[b], &counters(b), sizeof(bank_counters), cudaMemcpyDefault, exec.stream));
    }
    return s.ok() ? runtime_status(name, "bank.counters", cudaStreamSynchronize(exec.stream)) : s;
  }
  [[nodiscard]] tensor_view<bank_counters, 1> view() {
    return {contents_.data(), {static_cast<std::int64_t>(contents_.size())}};
  }

 private:
  std::vector<bank_counters> contents_;
};

template <class Data, class State>
inline constexpr bool has_kernels = is_element<Data>&& is_element<std::remove_const_t<State>>;

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::layer

/// For the operands of a valid call; 0 for one that check() refuses.
template <class Dims, class Data, class Rule, class Separation, class Router, class State>
std::size_t workspace_bytes(const on_cuda&, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  if (!layer::check_sizes<Dims>(args).ok()) return 0;
  return layer::bytes_of_plan(layer::make_plan(args));
}
template <class Dims, class Data, class Rule, class Separation, class Router, class State>
std::size_t workspace_bytes(const on_cuda& exec,
                            const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  if (!layer::check_sizes<Dims>(exec, args).ok()) return 0;
  return layer::bytes_of_plan(layer::make_bank_plan(exec, args));
}
template <class Dims, class Data, class Rule, class Router, class State>
std::size_t workspace_bytes(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  if (!layer::check_sizes<Dims>(exec, args).ok()) return 0;
  return layer::bytes_of_plan(layer::make_bank_plan(exec, args));
}

/// What on_cuda asks of the operands: check(), sizes as multi_state_limits says and as far as the device's shared
/// memory has room, tokens and entries within 32 bits, a stream of the current device, and a workspace, if given, that
/// is aligned and large enough. Reads no elements.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_cuda& exec, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  constexpr const char* name = "multi_state";
  status s = layer::check_sizes<Dims>(args);
  if (s.ok()) s = layer::check_tiles(name, args, polystate_detail::cuda::limits_of(exec));
  return layer::check_call(name, exec, s, workspace_bytes<Dims>(exec, args));
}
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const on_cuda& exec,
                           const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  constexpr const char* name = "multi_state_step";
  status s = layer::check_sizes<Dims>(exec, args);
  if (s.ok()) s = layer::check_bank_tiles(name, exec, args);
  return layer::check_call(name, exec, s, workspace_bytes<Dims>(exec, args));
}
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  constexpr const char* name = "multi_state_read";
  status s = layer::check_sizes<Dims>(exec, args);
  if (s.ok()) s = layer::check_bank_tiles(name, exec, args);
  return layer::check_call(name, exec, s, workspace_bytes<Dims>(exec, args));
}

/// check(), and the contents of the index operands or the bank's counters. Copies them to the host and waits for
/// exec.stream, so it cannot run under graph capture.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status validate(const on_cuda& exec,
                              const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  constexpr const char* name = "multi_state";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::host_indices cu_seqlens;
  polystate_detail::cuda::host_indices boundaries;
  if (s.ok()) s = cu_seqlens.read(name, exec, "cu_seqlens", args.cu_seqlens);
  auto here = args;
  here.cu_seqlens = cu_seqlens.view();
  s = polystate_detail::cuda::layer::check_operand_rows(name, exec, args.in, s);
  if (s.ok()) s = polystate_detail::cuda::moments::check_key_rows(name, exec, args.moments);
  if (s.ok() && args.moments.qkp_l2norm) {
    s = polystate_detail::cuda::route::check_query_rows(name, exec, args.router, args.moments.l2norm_eps);
  }
  if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    if (s.ok()) s = boundaries.read(name, exec, "separation.boundaries", args.separation.boundaries);
    here.separation.boundaries = boundaries.view();
  }
  return s.ok() ? check_contents(here) : s;
}
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status validate(const on_cuda& exec,
                              const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  constexpr const char* name = "multi_state_step";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::layer::host_counters counters;
  if (s.ok()) s = counters.read(name, exec, args.bank.counters);
  s = polystate_detail::cuda::layer::check_operand_rows(name, exec, args.in, s);
  if (s.ok()) s = polystate_detail::cuda::moments::check_key_rows(name, exec, args.moments);
  if (s.ok() && args.moments.qkp_l2norm) {
    s = polystate_detail::cuda::route::check_query_rows(name, exec, args.router, args.moments.l2norm_eps);
  }
  if (!s.ok()) return s;
  auto here = args;
  here.bank.counters = counters.view();
  return check_contents(here);
}
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status validate(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  constexpr const char* name = "multi_state_read";
  status s = check<Dims>(exec, args);
  polystate_detail::cuda::layer::host_counters counters;
  if (s.ok()) s = counters.read(name, exec, args.bank.counters);
  s = polystate_detail::cuda::layer::check_operand_rows(name, exec, args.in, s);
  if (s.ok() && args.qkp_l2norm)
    s = polystate_detail::cuda::route::check_query_rows(name, exec, args.router, args.l2norm_eps);
  if (!s.ok()) return s;
  auto here = args;
  here.bank.counters = counters.view();
  return check_contents(name, here);
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state(const on_cuda& exec, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  static_assert(layer::has_kernels<Data, State>, "multi_state on_cuda takes float, half and bfloat16 data and states");
  namespace rec = polystate_detail::cuda::recurrence;
  constexpr const char* name = "multi_state";
  status s = check<Dims>(exec, args);
  if (!s.ok()) return s;
  const auto plan = layer::make_plan(args);
  const polystate_detail::cuda::scratch memory(name, exec, layer::bytes_of_plan(plan));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    s = layer::run_levels<rec::shapes_of<Dims, 0, 1>>(name, exec, args, plan, layer::carve(hand_out, plan));
    if (s.ok()) s = polystate_detail::cuda::launch_clear_tail(name, exec, plan.all, args.o, args.lam);
  } else {
    s = layer::run_segments<rec::shapes_of<Dims, 0, 1>, rec::moment_shapes_of<Dims, 2>>(name, exec, args, plan,
                                                                                        layer::carve(hand_out, plan));
  }
  return s;
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state_step(const on_cuda& exec,
                            const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  static_assert(layer::has_kernels<Data, State>,
                "multi_state_step on_cuda takes float, half and bfloat16 data and states");
  namespace rec = polystate_detail::cuda::recurrence;
  constexpr const char* name = "multi_state_step";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const layer::bank_plan plan = layer::make_bank_plan(exec, args);
  const polystate_detail::cuda::scratch memory(name, exec, layer::bytes_of_plan(plan));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  return layer::run_step<rec::shapes_of<Dims, 0, 1>, rec::moment_shapes_of<Dims, 2>>(name, exec, args, plan,
                                                                                     layer::carve(hand_out, plan));
}

template <class Dims, class Data, class Rule, class Router, class State>
status try_multi_state_read(const on_cuda& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace layer = polystate_detail::cuda::layer;
  static_assert(layer::has_kernels<Data, State>,
                "multi_state_read on_cuda takes float, half and bfloat16 data and states");
  namespace rec = polystate_detail::cuda::recurrence;
  constexpr const char* name = "multi_state_read";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const layer::bank_plan plan = layer::make_bank_plan(exec, args);
  if (plan.queries() == 0) return {};
  const polystate_detail::cuda::scratch memory(name, exec, layer::bytes_of_plan(plan));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  return layer::run_read<rec::shapes_of<Dims, 0, 1>>(name, exec, args, plan, layer::carve(hand_out, plan));
}

}  // namespace polystate::inline POLYSTATE_ABI
