// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// routing as it is defined: docs/routing.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/routing/adjoint.hpp>
#include <polystate/reference/routing/weights.hpp>
#include <polystate/reference/segment_moments/adjoint.hpp>
#include <polystate/reference/segment_moments/moments.hpp>
#include <polystate/reference/walk_back.hpp>
#include <polystate/routing.hpp>
#include <polystate/state_bank.hpp>

#include <vector>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// Contents of the index operands and of raw weights, for weights of this shape (B, T, H, L).
template <class Data, class Separation, class Router, class Weight>
status check_routing_contents(const char* op, const routing_args<Data, Separation, Router>& args,
                              const tensor_view<Weight, 4>& lam) {
  const std::int64_t T = lam.extent(1);
  status s = check_contents(op, args.separation, T);
  for (std::int64_t b = 0; s.ok() && b < lam.extent(0); ++b) {
    s = check_kept_weights(op, args.separation, args.router, token_range{b, 0, T}, lam.extent(2), args.max_visible);
  }
  return s;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands and of raw
/// weights.
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const on_reference&, const routing_args<Data, Separation, Router>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? polystate_detail::reference::check_routing_contents("routing", args, args.lam) : s;
}
template <class Dims = dims<>, class Data, class Separation, class Router>
[[nodiscard]] status check(const on_reference&, const routing_args<Data, Separation, Router>& args,
                           const routing_grads<Data, Router>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? polystate_detail::reference::check_routing_contents("routing_backward", args, grads.d_lam) : s;
}

template <class Dims, class Data, class Separation, class Router>
status try_routing(const on_reference& exec, const routing_args<Data, Separation, Router>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const std::int64_t T = args.lam.extent(1);
  const std::int64_t H = args.lam.extent(2);
  const std::int64_t HR = Router::reads_moments ? args.moments.k.extent(2) : 0;
  const bank_shape shape{.H = 0, .HR = HR, .dr = HR > 0 ? args.moments.k.extent(3) : 0};
  for (std::int64_t b = 0; b < args.lam.extent(0); ++b) {
    state_bank<Scalar> memory(shape, args.separation.count(T));
    const auto bank = memory.view();
    for (std::int64_t t = 0; t < T; ++t) {
      const ref::token at{b, t};
      ref::write_key(args.moments, bank, args.separation, at);

      const ref::visible_segments seen = ref::visible(bank.counters(0), args.max_visible);
      std::vector<ref::segment_scores<Scalar>> scores(1);  // of each moment head; one empty one where there is none
      if constexpr (Router::reads_moments) {
        scores.clear();
        for (std::int64_t r = 0; r < HR; ++r) {
          const ref::vector<Scalar> q =
              ref::routing_query<Data>(args.router, at, r, args.moments.qkp_l2norm, args.moments.l2norm_eps);
          scores.push_back(ref::query_scores<Router, Scalar, Scalar, Scalar>(bank, 0, r, seen, q).of_query(0));
          if (args.r_mu) ref::store_weights(args.r_mu.select(0, b).select(0, t).select(0, r), seen, scores.back().r_mu);
          if (args.r_sigma) {
            ref::store_weights(args.r_sigma.select(0, b).select(0, t).select(0, r), seen, scores.back().r_sigma);
          }
        }
      }
      for (std::int64_t h = 0; h < H; ++h) {
        const auto& of_head = scores[static_cast<std::size_t>(HR > 0 ? group_of_head(h, H, HR) : 0)];
        ref::store_weights(args.lam.select(0, b).select(0, t).select(0, h), seen,
                           ref::weights(args.router, at, h, seen, of_head));
      }
    }
  }
  return {};
}

template <class Dims, class Data, class Separation, class Router>
status try_routing_backward(const on_reference& exec, const routing_args<Data, Separation, Router>& args,
                            const routing_grads<Data, Router>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  const std::int64_t T = grads.d_lam.extent(1);
  const std::int64_t H = grads.d_lam.extent(2);
  const std::int64_t HR = Router::reads_moments ? args.moments.k.extent(2) : 0;
  const bank_shape shape{.H = 0, .HR = HR, .dr = HR > 0 ? args.moments.k.extent(3) : 0};
  ref::moments_adjoint<Data> moments(args.moments);
  ref::router_adjoint<Router> router(args.router);
  for (std::int64_t b = 0; b < grads.d_lam.extent(0); ++b) {
    ref::bank_derivatives<Scalar> d(shape, args.separation.count(T));
    const auto write = [&](const auto& bank, const auto& separation, const ref::token& at) {
      ref::write_key(args.moments, bank, separation, at);
    };
    const auto read = [&](std::int64_t entry, const ref::token& at, const auto& bank) {
      const ref::visible_segments seen = ref::visible(bank_counters{.segments = entry + 1}, args.max_visible);
      std::vector<ref::vector<Scalar>> dlam;
      for (std::int64_t h = 0; h < H; ++h) dlam.push_back(ref::load_weights<Scalar>(grads.d_lam, at, h, seen));
      ref::routing_token_adjoint(
          router, bank, 0, seen, at, dlam,
          [&](std::int64_t r) {
            return ref::routing_query<Data>(args.router, at, r, args.moments.qkp_l2norm, args.moments.l2norm_eps);
          },
          &d,
          [&](std::int64_t r, const ref::vector<Scalar>& dq) {
            ref::add_routing_query(router, args.router, at, r, args.moments.qkp_l2norm, args.moments.l2norm_eps, dq);
          });
    };
    const auto unwrite = [&](std::int64_t entry, std::int64_t length, const ref::token& at, const auto& before) {
      moments.unwrite_key(before, entry, length, at, d);
    };
    ref::walk_back<Scalar>(shape, args.separation, token_range{b, 0, T}, write, read, unwrite);
  }
  moments.store(grads.moments);
  router.store(grads.router);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
