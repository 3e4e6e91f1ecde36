// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// routing on CUDA: docs/routing.md says how. For other operators: routing/problem.cuh has the whole way from keys and
/// queries to weights and back, routing/scores.cuh and routing/weights.cuh its parts with their params.

#include <polystate/cuda/device.cuh>
#include <polystate/cuda/routing/problem.cuh>
#include <polystate/cuda/routing/problem_backward.cuh>
#include <polystate/cuda/routing/score_output.cuh>
#include <polystate/cuda/workspace.cuh>
#include <polystate/routing.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::route {

/// Adds the gradients of a router's operands to what is wanted.
inline void want(wanted_gradients&, const router_grads<router::uniform>&) {}
template <class Data>
void want(wanted_gradients& to, const router_grads<router::position<Data>>& grads) {
  to.d_weights = grads.d_weights;
}
template <class Data>
void want(wanted_gradients& to, const router_grads<router::meanpool<Data>>& grads) {
  to.d_query = any_element_view<4>(grads.d_u);
}
template <class Data>
void want(wanted_gradients& to, const router_grads<router::merlin<Data>>& grads) {
  to.d_query = any_element_view<4>(grads.d_q);
  to.d_gamma = grads.d_gamma;
  to.d_tau[0] = grads.d_tau_mu;
  to.d_tau[1] = grads.d_tau_sigma;
}
template <class Data>
void want(wanted_gradients& to, const router_grads<router::cumulant<Data>>& grads) {
  to.d_query = any_element_view<4>(grads.d_q);
  to.d_tau[0] = grads.d_delta;
}
template <class Router>
void want(wanted_gradients& to, const router_grads<router::top_k<Router>>& grads) {
  want(to, grads.of);
}

/// `rows`: lam or its derivative, which have the sizes B, T and H.
template <class Data, class Separation, class Router, class Weight>
routing_problem make_routing_problem(const routing_args<Data, Separation, Router>& args,
                                     const tensor_view<Weight, 4>& rows) {
  routing_problem p;
  p.router = make_router(args.router);
  const std::int64_t B = rows.extent(0);
  const std::int64_t T = rows.extent(1);
  if constexpr (Router::reads_moments) {
    p.moments = moments::make_moment_problem(args.moments, args.separation, {}, Router::reads_Sigma);
    p.query.rows = query_of(args.router);
    p.query.normalizations = args.moments.qkp_l2norm && Router::normalizes_query ? 1 : 0;
    p.query.eps[0] = static_cast<float>(args.moments.l2norm_eps);
  } else {
    p.moments.segments = moments::make_segmentation(args.separation, sequences(B, T, {}), B, T);
  }
  p.heads = rows.extent(2);
  p.max_visible = args.max_visible;
  return p;
}

template <class Data, class Router>
wanted_gradients wanted_of(const routing_grads<Data, Router>& grads) {
  wanted_gradients w;
  w.d_k = any_element_view<4>(grads.moments.d_k);
  w.d_g = grads.moments.d_g;
  w.d_beta = grads.moments.d_beta;
  want(w, grads.router);
  return w;
}

/// What CUDA asks beside the contract's check, which has passed.
template <class Data, class Separation, class Router>
status check_routing_operands(const char* name, const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                              const routing_problem& p, std::size_t scratch_bytes) {
  status s = check_stream(name, exec);
  if (s.ok()) s = check_workspace(name, exec, scratch_bytes);
  if (!s.ok()) return s;
  argument_checks c(name);
  if constexpr (Router::reads_moments) {
    c.bind("dr", args.moments.k.extent(3), "moments.k").range("dr", segment_moments_limits::cuda_dr);
  }
  return c.include(moments::check_segmentation(name, p.moments.segments)).result();
}

/// Whether kernels exist for the sizes.
template <class Data, class Separation, class Router>
bool is_supported(const routing_args<Data, Separation, Router>& args) {
  return !Router::reads_moments || segment_moments_limits::cuda_dr.contains(args.moments.k.extent(3));
}

/// Refuses rows that are to be normalised and whose squares leave float.
template <class Data, class Separation, class Router>
status check_rows(const char* name, const on_cuda& exec, const routing_args<Data, Separation, Router>& args) {
  if (!Router::reads_moments || !args.moments.qkp_l2norm) return {};
  const status s = moments::check_key_rows(name, exec, args.moments);
  return s.ok() ? check_query_rows(name, exec, args.router, args.moments.l2norm_eps) : s;
}

/// Calls f with the operands whose boundaries are a copy on the host.
template <class Data, class Separation, class Router>
status check_boundaries(const char* name, const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                        std::int64_t T) {
  if constexpr (std::is_same_v<Separation, separation::boundaries>) {
    host_indices boundaries;
    const status s = boundaries.read(name, exec, "separation.boundaries", args.separation.boundaries);
    return s.ok() ? check_contents(name, separation::boundaries{boundaries.view()}, T) : s;
  } else {
    return {};
  }
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::route

/// For the operands of a valid call; 0 for one that check() refuses.
template <class Data, class Separation, class Router>
std::size_t workspace_bytes(const on_cuda&, const routing_args<Data, Separation, Router>& args) {
  namespace route = polystate_detail::cuda::route;
  if (!check(args).ok() || !route::is_supported(args)) return 0;
  polystate_detail::cuda::workspace_carver count;
  route::carve(count, route::make_routing_problem(args, args.lam));
  return count.bytes();
}
template <class Data, class Separation, class Router>
std::size_t workspace_bytes(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                            const routing_grads<Data, Router>& grads) {
  namespace route = polystate_detail::cuda::route;
  if (!check(args, grads).ok() || !route::is_supported(args)) return 0;
  const route::routing_problem p = route::make_routing_problem(args, grads.d_lam);
  polystate_detail::cuda::workspace_carver count;
  route::carve(count, p);
  route::carve_gradients(count, p, route::wanted_of(grads), polystate_detail::cuda::limits_of(exec));
  return count.bytes();
}

/// What on_cuda asks of the operands: check(), dr up to 512 and as far as the device's shared memory has room, tokens
/// and segments within 32 bits, a stream of the current device, and a workspace, if given, that is aligned and large
/// enough. Reads no elements: kept raw weights that sum to 0 are not refused but divide by 0.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const on_cuda& exec, const routing_args<Data, Separation, Router>& args) {
  namespace route = polystate_detail::cuda::route;
  constexpr const char* name = "routing";
  if (status s = check<Dims>(args); !s.ok()) return s;
  const route::routing_problem p = route::make_routing_problem(args, args.lam);
  status s = route::check_routing_operands(name, exec, args, p, workspace_bytes(exec, args));
  if (s.ok() && Router::reads_moments) {
    s = polystate_detail::cuda::moments::check_moments_fit(name, p.moments, polystate_detail::cuda::limits_of(exec));
  }
  return s;
}
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                           const routing_grads<Data, Router>& grads) {
  namespace route = polystate_detail::cuda::route;
  constexpr const char* name = "routing_backward";
  if (status s = check<Dims>(args, grads); !s.ok()) return s;
  const route::routing_problem p = route::make_routing_problem(args, grads.d_lam);
  status s = route::check_routing_operands(name, exec, args, p, workspace_bytes(exec, args, grads));
  if (s.ok() && Router::reads_moments) {
    s = polystate_detail::cuda::moments::check_moments_backward_fit(name, p.moments,
                                                                    polystate_detail::cuda::limits_of(exec));
  }
  return s;
}

/// check(), and the contents of the boundaries. Copies them to the host and waits for exec.stream, so it cannot run
/// under graph capture.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status validate(const on_cuda& exec, const routing_args<Data, Separation, Router>& args) {
  status s = check<Dims>(exec, args);
  if (s.ok()) s = polystate_detail::cuda::route::check_rows("routing", exec, args);
  if (!s.ok()) return s;
  return polystate_detail::cuda::route::check_boundaries("routing", exec, args, args.lam.extent(1));
}
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status validate(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                              const routing_grads<Data, Router>& grads) {
  status s = check<Dims>(exec, args, grads);
  if (s.ok()) s = polystate_detail::cuda::route::check_rows("routing_backward", exec, args);
  if (!s.ok()) return s;
  return polystate_detail::cuda::route::check_boundaries("routing_backward", exec, args, grads.d_lam.extent(1));
}

template <class Dims, class Data, class Separation, class Router>
status try_routing(const on_cuda& exec, const routing_args<Data, Separation, Router>& args) {
  namespace route = polystate_detail::cuda::route;
  static_assert(polystate_detail::cuda::is_element<Data>, "routing on_cuda takes float, half and bfloat16 data");
  constexpr const char* name = "routing";
  if (status s = check<Dims>(exec, args); !s.ok()) return s;
  const route::routing_problem p = route::make_routing_problem(args, args.lam);
  const polystate_detail::cuda::scratch memory(name, exec, workspace_bytes(exec, args));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  const route::routing_memory m = route::carve(hand_out, p);
  const status s = route::launch_routing<polystate_detail::cuda::recurrence::moment_shapes_of<Dims, 0>>(
      name, exec, p, m, route::weight_view<float>{.rows = args.lam});
  if (!s.ok() || p.is_empty() || (!args.r_mu && !args.r_sigma)) return s;
  return route::launch_score_output(name, exec,
                                    {.visible = m.moments.table.visible,
                                     .scores = m.scores,
                                     .r_mu = args.r_mu,
                                     .r_sigma = args.r_sigma,
                                     .tokens = p.tokens(),
                                     .time = args.lam.extent(1),
                                     .heads = p.moment_heads(),
                                     .segments = args.lam.extent(3)});
}

template <class Dims, class Data, class Separation, class Router>
status try_routing_backward(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                            const routing_grads<Data, Router>& grads) {
  namespace route = polystate_detail::cuda::route;
  static_assert(polystate_detail::cuda::is_element<Data>,
                "routing_backward on_cuda takes float, half and bfloat16 data");
  using shapes = polystate_detail::cuda::recurrence::moment_shapes_of<Dims, 0>;
  constexpr const char* name = "routing_backward";
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;
  const route::routing_problem p = route::make_routing_problem(args, grads.d_lam);
  const route::wanted_gradients wanted = route::wanted_of(grads);
  const polystate_detail::cuda::scratch memory(name, exec, workspace_bytes(exec, args, grads));
  if (!memory.result().ok()) return memory.result();
  polystate_detail::cuda::workspace_carver hand_out(memory.data());
  const route::routing_memory m = route::carve(hand_out, p);
  const route::routing_gradient_memory g =
      route::carve_gradients(hand_out, p, wanted, polystate_detail::cuda::limits_of(exec));
  const status s = route::launch_scores<shapes>(name, exec, p, m);
  if (!s.ok()) return s;
  return route::launch_routing_backward<shapes>(name, exec, p, m, route::weight_view<const float>{.rows = grads.d_lam},
                                                wanted, g);
}

}  // namespace polystate::inline POLYSTATE_ABI
