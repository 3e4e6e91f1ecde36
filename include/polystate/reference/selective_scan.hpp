// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// selective_scan as it is defined: docs/selective_scan.md.

#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/reference/eigen.hpp>
#include <polystate/selective_scan.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI {

namespace detail::inline POLYSTATE_BUILD::reference {

/// One token of one channel: moves h (N) on and returns y.
template <class Args, class Scalar>
Scalar scan_token(const Args& args, std::int64_t b, std::int64_t t, std::int64_t d, vector<Scalar>& h) {
  using std::exp;
  const std::int64_t g = group_of_head(d, args.A.extent(0), args.B.extent(2));
  const Scalar u = static_cast<Scalar>(args.u(b, t, d));
  Scalar dt = static_cast<Scalar>(args.delta(b, t, d));
  if (args.delta_bias) dt += static_cast<Scalar>(args.delta_bias(d));
  if (args.delta_softplus) dt = softplus(dt);

  Scalar y(0);
  for (std::int64_t n = 0; n < h.size(); ++n) {
    const Scalar A = static_cast<Scalar>(args.A(d, n));
    const Scalar B = static_cast<Scalar>(args.B(b, t, g, n));
    const Scalar C = static_cast<Scalar>(args.C(b, t, g, n));
    h(n) = exp(dt * A) * h(n) + dt * B * u;
    y += C * h(n);
  }
  if (args.D) y += static_cast<Scalar>(args.D(d)) * u;
  if (args.z) y *= silu(static_cast<Scalar>(args.z(b, t, d)));
  return y;
}

}  // namespace detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Data, class State>
[[nodiscard]] status check(const on_reference&, const selective_scan_args<Data, State>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Data, class State>
[[nodiscard]] status check(const on_reference&, const selective_scan_step_args<Data, State>& args) {
  const status s = check(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Data, class State>
status try_selective_scan(const on_reference& exec, const selective_scan_args<Data, State>& args) {
  namespace ref = detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    for (std::int64_t d = 0; d < args.A.extent(0); ++d) {
      ref::vector<Scalar> h = ref::vector<Scalar>::Zero(args.A.extent(1));
      if (args.initial_state)
        h = ref::load<const State, Scalar>(args.initial_state.select(0, s).select(0, d));
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        args.y(tokens.batch, t, d) = static_cast<Data>(ref::scan_token(args, tokens.batch, t, d, h));
      }
      if (args.final_state) ref::store(args.final_state.select(0, s).select(0, d), h);
    }
  }
  return {};
}

template <class Data, class State>
status try_selective_scan_step(const on_reference& exec, const selective_scan_step_args<Data, State>& args) {
  namespace ref = detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  const std::int64_t T = args.u.extent(1);
  const state_pool pool(args.state.extent(0), args.read_indices, args.write_indices);
  for (std::int64_t b = 0; b < args.u.extent(0); ++b) {
    for (std::int64_t d = 0; d < args.A.extent(0); ++d) {
      if (pool.padding(b)) {
        for (std::int64_t t = 0; t < T; ++t) args.y(b, t, d) = static_cast<Data>(Scalar(0));
        continue;
      }
      ref::vector<Scalar> h = ref::load<State, Scalar>(args.state.select(0, pool.read(b)).select(0, d));
      for (std::int64_t t = 0; t < T; ++t) {
        args.y(b, t, d) = static_cast<Data>(ref::scan_token(args, b, t, d, h));
        if (args.intermediate_states)
          ref::store(args.intermediate_states.select(0, b).select(0, t).select(0, d), h);
      }
      ref::store(args.state.select(0, pool.write(b)).select(0, d), h);
    }
  }
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
