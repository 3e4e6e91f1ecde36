// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// selective_scan as it is defined: docs/selective_scan.md.

#include <polystate/core/sequences.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>
#include <polystate/selective_scan.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// What one token does to one channel.
template <class Args>
struct scan_token {
  using Scalar = compute_t<std::remove_const_t<typename decltype(Args::u)::element_type>>;

  const Args& args;
  std::int64_t b, t, d;
  std::int64_t g;  ///< group of the channel
  Scalar u;
  Scalar raw;  ///< delta + delta_bias
  Scalar dt;

  scan_token(const Args& a, std::int64_t batch, std::int64_t time, std::int64_t channel)
      : args(a),
        b(batch),
        t(time),
        d(channel),
        g(group_of_head(d, a.A.extent(0), a.B.extent(2))),
        u(static_cast<Scalar>(a.u(b, t, d))),
        raw(static_cast<Scalar>(a.delta(b, t, d))) {
    if (args.delta_bias) raw += static_cast<Scalar>(args.delta_bias(d));
    dt = args.delta_softplus ? softplus(raw) : raw;
  }

  [[nodiscard]] Scalar A(std::int64_t n) const { return static_cast<Scalar>(args.A(d, n)); }
  [[nodiscard]] Scalar B(std::int64_t n) const { return static_cast<Scalar>(args.B(b, t, g, n)); }
  [[nodiscard]] Scalar C(std::int64_t n) const { return static_cast<Scalar>(args.C(b, t, g, n)); }
  [[nodiscard]] Scalar D() const { return args.D ? static_cast<Scalar>(args.D(d)) : Scalar(0); }
  [[nodiscard]] Scalar z() const { return static_cast<Scalar>(args.z(b, t, d)); }

  /// h <- exp(dt A) h + dt B u
  void advance(vector<Scalar>& h) const {
    using std::exp;
    for (std::int64_t n = 0; n < h.size(); ++n) h(n) = exp(dt * A(n)) * h(n) + dt * B(n) * u;
  }

  /// s = C.h + D u, before the gate
  [[nodiscard]] Scalar read(const vector<Scalar>& h) const {
    Scalar s = D() * u;
    for (std::int64_t n = 0; n < h.size(); ++n) s += C(n) * h(n);
    return s;
  }

  /// y = s * silu(z)
  [[nodiscard]] Scalar output(const vector<Scalar>& h) const { return args.z ? read(h) * silu(z()) : read(h); }
};

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const selective_scan_args<Data, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const selective_scan_args<Data, State>& args,
                           const selective_scan_grads<Data, State>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data, class State>
[[nodiscard]] status check(const on_reference&, const selective_scan_step_args<Data, State>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Dims, class Data, class State>
status try_selective_scan(const on_reference& exec, const selective_scan_args<Data, State>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    for (std::int64_t d = 0; d < args.A.extent(0); ++d) {
      ref::vector<Scalar> h = ref::vector<Scalar>::Zero(args.A.extent(1));
      if (args.initial_state) h = ref::load<const State, Scalar>(args.initial_state.select(0, s).select(0, d));
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        const ref::scan_token token(args, tokens.batch, t, d);
        token.advance(h);
        args.y(tokens.batch, t, d) = static_cast<Data>(token.output(h));
      }
      if (args.final_state) ref::store(args.final_state.select(0, s).select(0, d), h);
    }
  }
  return {};
}

template <class Dims, class Data, class State>
status try_selective_scan_backward(const on_reference& exec, const selective_scan_args<Data, State>& args,
                                   const selective_scan_grads<Data, State>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  ref::gradient<Scalar, 3> d_u(args.u), d_delta(args.delta), d_z(args.z);
  ref::gradient<Scalar, 2> d_A(args.A);
  ref::gradient<Scalar, 4> d_B(args.B), d_C(args.C);
  ref::gradient<Scalar, 1> d_D(args.D), d_delta_bias(args.delta_bias);
  const std::int64_t N = args.A.extent(1);
  const sequences all(args.u.extent(0), args.u.extent(1), args.cu_seqlens);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    for (std::int64_t d = 0; d < args.A.extent(0); ++d) {
      ref::vector<Scalar> h0 = ref::vector<Scalar>::Zero(N);
      ref::vector<Scalar> dh = ref::vector<Scalar>::Zero(N);
      if (args.initial_state) h0 = ref::load<const State, Scalar>(args.initial_state.select(0, s).select(0, d));
      if (grads.d_final_state) dh = ref::load<const State, Scalar>(grads.d_final_state.select(0, s).select(0, d));
      const auto token_at = [&](std::int64_t i) { return ref::scan_token(args, tokens.batch, tokens.begin + i, d); };
      ref::reversed_states states(h0, tokens.size(),
                                  [&](ref::vector<Scalar>& h, std::int64_t i) { token_at(i).advance(h); });
      for (std::int64_t i = tokens.size() - 1; i >= 0; --i) {
        using std::exp;
        const auto token = token_at(i);
        const std::int64_t b = token.b, t = token.t, g = token.g;
        // y = s silu(z), s = C.h + D u
        const ref::vector<Scalar> h = states.after(i);
        Scalar ds = grads.d_y ? static_cast<Scalar>(grads.d_y(b, t, d)) : Scalar(0);
        if (args.z) {
          d_z(b, t, d) += ds * token.read(h) * ref::silu_derivative(token.z());
          ds *= ref::silu(token.z());
        }
        if (args.D) d_D(d) += ds * token.u;
        Scalar du = ds * token.D();
        Scalar ddt(0);
        // h = e h_before + dt B u, e = exp(dt A)
        const ref::vector<Scalar> before = states.before(i);
        for (std::int64_t n = 0; n < N; ++n) {
          d_C(b, t, g, n) += ds * h(n);
          dh(n) += ds * token.C(n);
          const Scalar e = exp(token.dt * token.A(n));
          const Scalar through_decay = dh(n) * e * before(n);
          d_A(d, n) += through_decay * token.dt;
          ddt += through_decay * token.A(n) + dh(n) * token.B(n) * token.u;
          d_B(b, t, g, n) += dh(n) * token.dt * token.u;
          du += dh(n) * token.dt * token.B(n);
          dh(n) *= e;
        }
        const Scalar draw = args.delta_softplus ? ddt * ref::sigmoid(token.raw) : ddt;
        d_u(b, t, d) += du;
        d_delta(b, t, d) += draw;
        if (args.delta_bias) d_delta_bias(d) += draw;
      }
      if (grads.d_initial_state) ref::store(grads.d_initial_state.select(0, s).select(0, d), dh);
    }
  }
  d_u.store(grads.d_u);
  d_delta.store(grads.d_delta);
  d_A.store(grads.d_A);
  d_B.store(grads.d_B);
  d_C.store(grads.d_C);
  d_D.store(grads.d_D);
  d_z.store(grads.d_z);
  d_delta_bias.store(grads.d_delta_bias);
  return {};
}

template <class Dims, class Data, class State>
status try_selective_scan_step(const on_reference& exec, const selective_scan_step_args<Data, State>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

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
        const ref::scan_token token(args, b, t, d);
        token.advance(h);
        args.y(b, t, d) = static_cast<Data>(token.output(h));
        if (args.intermediate_states) ref::store(args.intermediate_states.select(0, b).select(0, t).select(0, d), h);
      }
      ref::store(args.state.select(0, pool.write(b)).select(0, d), h);
    }
  }
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
