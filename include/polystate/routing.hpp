// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Third axis of a layer: how the read-outs of the visible states are weighted. This header states the
/// routers and the operator that computes their weights alone; include polystate/reference/routing.hpp for
/// the definition.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/separation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// Which weight of a token segment l of the token's segment i gets: a(l) = i - l (age, 0 = the current
/// segment) or l.
enum class position_index { age, absolute };

/// Whether position weights pass a softmax over the visible segments or are used as given.
enum class position_norm { softmax, none };

/// Routers. Scores of query q' against segment l, whose moments are mu_l and Sigma_l:
///
///     r_mu[l] = mu_l . q'        r_sigma[l] = q'^T Sigma_l q' - r_mu[l]^2
///
/// Operands have B batch entries, T tokens, H heads, HR moment heads (H a multiple of HR, consecutive heads
/// share one) and dr routing dims. A router says what it reads; a new one is a struct here and its weights in
/// reference/routing.hpp.
namespace router {

/// No weights: for separation::single.
struct none {
  static constexpr const char* name = "none";
  static constexpr bool reads_moments = false;
  static constexpr bool reads_Sigma = false;
  static constexpr bool normalizes_query = false;
};

/// lam = 1 / (number of visible segments)
struct uniform {
  static constexpr const char* name = "uniform";
  static constexpr bool reads_moments = false;
  static constexpr bool reads_Sigma = false;
  static constexpr bool normalizes_query = false;
};

/// lam = softmax_l(weights[t, a(l)]), or weights[t, a(l)] itself
template <class Data>
struct position {
  static constexpr const char* name = "position";
  static constexpr bool reads_moments = false;
  static constexpr bool reads_Sigma = false;
  static constexpr bool normalizes_query = false;

  tensor_view<const acc_t<Data>, 4> weights;  ///< (B, T, H, A), A at least the number of segments; others unused
  polystate::position_index position_index = polystate::position_index::age;
  polystate::position_norm position_norm = polystate::position_norm::softmax;
};

/// lam = softmax_l(mu_l . u). Memory Caching's mean key.
template <class Data>
struct meanpool {
  static constexpr const char* name = "meanpool";
  static constexpr bool reads_moments = true;
  static constexpr bool reads_Sigma = false;
  static constexpr bool normalizes_query = false;

  tensor_view<const Data, 4> u{};  ///< (B, T, HR, dr); absent with shared_kq
};

/// lam = gamma softmax_l(tau_mu r_mu[l]) + (1 - gamma) softmax_l(tau_sigma r_sigma[l]). MERLIN, Algorithm 1.
template <class Data>
struct merlin {
  static constexpr const char* name = "merlin";
  static constexpr bool reads_moments = true;
  static constexpr bool reads_Sigma = true;
  static constexpr bool normalizes_query = true;

  tensor_view<const Data, 4> q{};               ///< (B, T, HR, dr), q'; absent with shared_kq
  tensor_view<const acc_t<Data>, 3> gamma;      ///< (B, T, H), the mixing value itself
  tensor_view<const acc_t<Data>, 1> tau_mu;     ///< (H)
  tensor_view<const acc_t<Data>, 1> tau_sigma;  ///< (H)
};

/// lam = softmax_l(delta r_mu[l] + delta^2/2 r_sigma[l]): the segment's softmax mass to second order.
template <class Data>
struct cumulant {
  static constexpr const char* name = "cumulant";
  static constexpr bool reads_moments = true;
  static constexpr bool reads_Sigma = true;
  static constexpr bool normalizes_query = true;

  tensor_view<const Data, 4> q{};           ///< (B, T, HR, dr), q'; absent with shared_kq
  tensor_view<const acc_t<Data>, 1> delta;  ///< (H), inverse temperature
};

/// Of the visible segments the k with the largest weight of another router, ties to the more recent one,
/// divided by their sum. With at most k visible segments nothing changes. The choice has no gradient, the
/// division does.
template <class Router>
struct top_k {
  static constexpr const char* name = Router::name;
  static constexpr bool reads_moments = Router::reads_moments;
  static constexpr bool reads_Sigma = Router::reads_Sigma;
  static constexpr bool normalizes_query = Router::normalizes_query;

  Router of;
  std::int64_t k = 0;         ///< at least 1
  bool keep_current = false;  ///< the current segment is kept, and k-1 of the rest
};

}  // namespace router

template <class Router>
inline constexpr bool is_top_k = false;
template <class Router>
inline constexpr bool is_top_k<router::top_k<Router>> = true;

/// Checks a router's operands against the bound "B", "T", "H" and, where it reads moments, "HR" and "dr".
/// `entries`: the number of segments that position weights must cover, as far as it is known.
inline void check_router(argument_checks&, const router::none&, bool, std::int64_t) {}
inline void check_router(argument_checks&, const router::uniform&, bool, std::int64_t) {}
template <class Data>
void check_router(argument_checks& c, const router::position<Data>& r, bool, std::int64_t entries) {
  c.required("router.weights", r.weights, {"B", "T", "H", "A"})
      .expect(c.size("A") >= entries, error_code::shape, "router.weights",
              "A = " + std::to_string(c.size("A")) + ", supported: at least L = " + std::to_string(entries));
}
template <class Data>
void check_router(argument_checks& c, const router::meanpool<Data>& r, bool shared_kq, std::int64_t) {
  c.required_if(!shared_kq, "router.u", r.u, {"B", "T", "HR", "dr"}, "shared_kq makes the query serve as u");
}
template <class Data>
void check_router(argument_checks& c, const router::merlin<Data>& r, bool shared_kq, std::int64_t) {
  c.required_if(!shared_kq, "router.q", r.q, {"B", "T", "HR", "dr"}, "shared_kq makes the query serve as q'")
      .required("router.gamma", r.gamma, {"B", "T", "H"})
      .required("router.tau_mu", r.tau_mu, {"H"})
      .required("router.tau_sigma", r.tau_sigma, {"H"});
}
template <class Data>
void check_router(argument_checks& c, const router::cumulant<Data>& r, bool shared_kq, std::int64_t) {
  c.required_if(!shared_kq, "router.q", r.q, {"B", "T", "HR", "dr"}, "shared_kq makes the query serve as q'")
      .required("router.delta", r.delta, {"H"});
}
template <class Router>
void check_router(argument_checks& c, const router::top_k<Router>& r, bool shared_kq, std::int64_t entries) {
  static_assert(!is_top_k<Router>, "top_k around top_k chooses twice: give the smaller k once");
  c.expect(r.k >= 1, error_code::value, "router.k", std::to_string(r.k) + ", supported: at least 1");
  check_router(c, r.of, shared_kq, entries);
}

/// Gradients of a router's operands. All may be absent, which means not wanted; they are overwritten, never
/// added to. Those of operands that all tokens share are summed over batch, time and sequences.
template <class Router>
struct router_grads;
template <>
struct router_grads<router::none> {};
template <>
struct router_grads<router::uniform> {};
template <class Data>
struct router_grads<router::position<Data>> {
  tensor_view<acc_t<Data>, 4> d_weights{};  ///< (B, T, H, A); 0 for weights of segments that are not visible
};
template <class Data>
struct router_grads<router::meanpool<Data>> {
  tensor_view<Data, 4> d_u{};  ///< (B, T, HR, dr); not with shared_kq
};
template <class Data>
struct router_grads<router::merlin<Data>> {
  tensor_view<Data, 4> d_q{};                 ///< (B, T, HR, dr), of the raw q'; not with shared_kq
  tensor_view<acc_t<Data>, 3> d_gamma{};      ///< (B, T, H)
  tensor_view<acc_t<Data>, 1> d_tau_mu{};     ///< (H)
  tensor_view<acc_t<Data>, 1> d_tau_sigma{};  ///< (H)
};
template <class Data>
struct router_grads<router::cumulant<Data>> {
  tensor_view<Data, 4> d_q{};             ///< (B, T, HR, dr), of the raw q'; not with shared_kq
  tensor_view<acc_t<Data>, 1> d_delta{};  ///< (H)
};
template <class Router>
struct router_grads<router::top_k<Router>> {
  router_grads<Router> of{};
};

/// Checks the gradients of a router's operands, whose sizes are bound.
inline void check_router_grads(argument_checks&, const router_grads<router::none>&, bool) {}
inline void check_router_grads(argument_checks&, const router_grads<router::uniform>&, bool) {}
template <class Data>
void check_router_grads(argument_checks& c, const router_grads<router::position<Data>>& grads, bool) {
  c.optional("router.d_weights", grads.d_weights, {"B", "T", "H", "A"});
}
template <class Data>
void check_router_grads(argument_checks& c, const router_grads<router::meanpool<Data>>& grads, bool shared_kq) {
  c.optional_if(!shared_kq, "router.d_u", grads.d_u, {"B", "T", "HR", "dr"}, "shared_kq adds it to the query's");
}
template <class Data>
void check_router_grads(argument_checks& c, const router_grads<router::merlin<Data>>& grads, bool shared_kq) {
  c.optional_if(!shared_kq, "router.d_q", grads.d_q, {"B", "T", "HR", "dr"}, "shared_kq adds it to the query's")
      .optional("router.d_gamma", grads.d_gamma, {"B", "T", "H"})
      .optional("router.d_tau_mu", grads.d_tau_mu, {"H"})
      .optional("router.d_tau_sigma", grads.d_tau_sigma, {"H"});
}
template <class Data>
void check_router_grads(argument_checks& c, const router_grads<router::cumulant<Data>>& grads, bool shared_kq) {
  c.optional_if(!shared_kq, "router.d_q", grads.d_q, {"B", "T", "HR", "dr"}, "shared_kq adds it to the query's")
      .optional("router.d_delta", grads.d_delta, {"H"});
}
template <class Router>
void check_router_grads(argument_checks& c, const router_grads<router::top_k<Router>>& grads, bool shared_kq) {
  check_router_grads(c, grads.of, shared_kq);
}

/// Operands of routing(): the weights of every token over the segments that it sees. Token t is in segment i;
/// its own k' is added to the moments first, then it sees the segments 0 .. i, or with max_visible = w > 0
/// the last w of them, the current one with its running moments. Source: MERLIN (multi-state linear attention
/// with second-order routing), Algorithm 1.
template <class Data, class Separation, class Router>
struct routing_args {
  static_assert(std::is_same_v<Separation, separation::uniform> || std::is_same_v<Separation, separation::boundaries>,
                "routing needs segments: separation::uniform or separation::boundaries");
  static_assert(!std::is_same_v<Router, router::none>, "router::none has no weights to compute");

  key_moments<Data> moments{};  ///< moments.k only where the router reads moments
  Separation separation;
  Router router;
  tensor_view<acc_t<Data>, 4> lam;        ///< (B, T, H, L), out; 0 for segments that are not visible
  tensor_view<acc_t<Data>, 4> r_mu{};     ///< (B, T, HR, L), optional, out; mu_l . u for meanpool
  tensor_view<acc_t<Data>, 4> r_sigma{};  ///< (B, T, HR, L), optional, out
  std::int64_t max_visible = 0;           ///< 0: all
};

/// Gradients of routing(). d_lam is given; no gradient flows from the scores.
template <class Data, class Router>
struct routing_grads {
  tensor_view<const acc_t<Data>, 4> d_lam;  ///< (B, T, H, L), upstream
  key_moment_grads<Data> moments{};         ///< out
  router_grads<Router> router{};            ///< out
};

/// Checks the inputs, which forward and backward share, against the weights' shape: that of lam or of d_lam.
template <class Data, class Separation, class Router, class Weight>
void check_inputs(argument_checks& c, const routing_args<Data, Separation, Router>& args, const char* lam_name,
                  const tensor_view<Weight, 4>& lam) {
  c.required(lam_name, lam, {"B", "T", "H", "L"});
  check_separation(c, args.separation, {});
  if constexpr (Router::reads_moments) {
    check_moments(c, args.moments);
    c.grouped("H", "HR");
  } else {
    check_no_moments(c, args.moments, std::string("router ") + Router::name + " does not use it");
  }
  const std::int64_t L = c.failed() ? 0 : args.separation.count(c.size("T"));
  c.expect(c.size("L") == L, error_code::shape, lam_name,
           "L = " + std::to_string(c.size("L")) + ", supported: the number of segments, " + std::to_string(L));
  check_router(c, args.router, false, L);
  c.expect(args.max_visible >= 0, error_code::value, "max_visible",
           std::to_string(args.max_visible) + ", supported: at least 0");
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const routing_args<Data, Separation, Router>& args) {
  argument_checks c("routing");
  const std::string why_not = std::string("router ") + Router::name + " does not use it";
  check_inputs(c, args, "lam", args.lam);
  if constexpr (Router::reads_moments) c.template fixed<Dims>("moments.k", "dr");
  c.optional_if(Router::reads_moments, "r_mu", args.r_mu, {"B", "T", "HR", "L"}, why_not)
      .optional_if(Router::reads_Sigma, "r_sigma", args.r_sigma, {"B", "T", "HR", "L"}, why_not)
      .no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const routing_args<Data, Separation, Router>& args,
                           const routing_grads<Data, Router>& grads) {
  argument_checks c("routing_backward");
  check_inputs(c, args, "d_lam", grads.d_lam);
  if constexpr (Router::reads_moments) c.template fixed<Dims>("moments.k", "dr");
  check_moment_grads(c, args.moments, grads.moments);
  check_router_grads(c, grads.router, false);
  c.no_overlap();
  return c.result();
}

/// Scratch that the CUDA path needs, in bytes; its backend's header defines both.
template <class Data, class Separation, class Router>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const routing_args<Data, Separation, Router>& args);
template <class Data, class Separation, class Router>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                                          const routing_grads<Data, Router>& grads);

/// What routing() does, with a status for an exception. Each overload is defined in polystate/reference/routing.hpp or
/// polystate/cuda/routing.cuh: include it, or the linker will miss it.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status try_routing(const on_cuda& exec, const routing_args<Data, Separation, Router>& args);
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status try_routing_backward(const on_cuda& exec, const routing_args<Data, Separation, Router>& args,
                                          const routing_grads<Data, Router>& grads);
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status try_routing(const on_reference& exec, const routing_args<Data, Separation, Router>& args);

template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status try_routing_backward(const on_reference& exec, const routing_args<Data, Separation, Router>& args,
                                          const routing_grads<Data, Router>& grads);

/// Computes lam and, if given, the scores.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
/// cuda:      asynchronous on exec.stream, float sums; float, half and bfloat16 data, dr up to 512; scratch from
/// exec.workspace, or allocated in the order of the stream: workspace_bytes(exec, args).
///
/// routing<dims<128>>(exec, args) compiles that dr alone and refuses others; a router without moments has no sizes.
///
/// Throws argument_error when check() fails, or on the reference when kept raw position weights sum to 0, before any
/// write; cuda_error when a launch fails. On CUDA, which reads no operand on the host, such weights are not finite.
/// NaN scores give NaN weights for that token and head. Deterministic. Thread-safe.
template <class Dims = dims<>, class Exec, class Data, class Separation, class Router>
void routing(const Exec& exec, const routing_args<Data, Separation, Router>& args) {
  raise_on_error(try_routing<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/routing.md derives it, in compute_t<Data>; memory as segment_moments_backward().
/// cuda:      as routing(), no atomics: workspace_bytes(exec, args, grads).
///
/// Throws and guarantees as routing().
template <class Dims = dims<>, class Exec, class Data, class Separation, class Router>
void routing_backward(const Exec& exec, const routing_args<Data, Separation, Router>& args,
                      const routing_grads<Data, Router>& grads) {
  raise_on_error(try_routing_backward<Dims>(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
