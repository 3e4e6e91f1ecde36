// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// selective_scan()'s choice between its two forward kernels.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/selective_scan/forward.cuh>
#include <polystate/cuda/selective_scan/time_launch.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/selective_scan.hpp>

#include <cstddef>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan {

/// The parameters of the kernel that runs: lanes along time where lanes over states would not fill the chip, sequences
/// are longer than a chunk or two, and shared memory has room.
template <class Data>
struct forward_plan {
  bool along_time = false;
  forward_params<Data> over_states;
  time_forward_params<Data> over_time;
};

template <class Data, class State>
forward_plan<Data> plan_forward(const selective_scan_args<Data, State>& args, const device_limits& limits,
                                bool batch_invariant) {
  using Shape = wide_time_forward<Data>;
  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  forward_plan<Data> plan;
  const forward_schedule s = choose_schedule(args, all.size(), limits.multiprocessors, batch_invariant);
  plan.over_states = make_params(args, s);
  plan.along_time = chooses_time(args, s, all.size(), batch_invariant) &&
                    Shape::shared_bytes(args.A.extent(1)) <= limits.shared_bytes;
  if (plan.along_time) {
    plan.over_time =
        time_params(args, choose_time_forward<Shape>(args, s.moves, limits.multiprocessors, batch_invariant));
  }
  return plan;
}

template <class Data, class State>
[[nodiscard]] std::size_t forward_bytes(const on_cuda& exec, const selective_scan_args<Data, State>& args) {
  forward_plan<Data> plan = plan_forward(args, limits_of(exec), exec.batch_invariant);
  workspace_carver count;
  if (plan.along_time) carve_forward(count, plan.over_time);
  return count.bytes();
}

template <class Dims, class Data, class State>
POLYSTATE_HIDDEN status run_forward(const char* name, const on_cuda& exec,
                                    const selective_scan_args<Data, State>& args) {
  forward_plan<Data> plan = plan_forward(args, limits_of(exec), exec.batch_invariant);
  if (!plan.along_time) return launch_forward<Dims>(name, exec, plan.over_states);
  const scratch memory(name, exec, forward_bytes(exec, args));
  if (!memory.result().ok()) return memory.result();
  workspace_carver from(memory.data());
  carve_forward(from, plan.over_time);
  return run_time_forward<wide_time_forward<Data>, true>(name, exec, plan.over_time);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::scan
