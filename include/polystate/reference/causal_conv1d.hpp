// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// causal_conv1d as it is defined: docs/causal_conv1d.md.

#include <polystate/causal_conv1d.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// a[t] = bias + sum_j weight[:,j] * p[t+j]: rows of p are tokens, the first W-1 of them the state.
template <class Data, class Scalar>
matrix<Scalar> convolve(const tensor_view<const acc_t<Data>, 2>& weight, const tensor_view<const acc_t<Data>, 1>& bias,
                        const matrix<Scalar>& p) {
  const std::int64_t W = weight.extent(1);
  matrix<Scalar> a = matrix<Scalar>::Zero(p.rows() - (W - 1), p.cols());
  for (std::int64_t d = 0; d < a.cols(); ++d) {
    for (std::int64_t t = 0; t < a.rows(); ++t) {
      if (bias) a(t, d) = static_cast<Scalar>(bias(d));
      for (std::int64_t j = 0; j < W; ++j) a(t, d) += static_cast<Scalar>(weight(d, j)) * p(t + j, d);
    }
  }
  return a;
}

/// y = a or silu(a)
template <class Scalar>
matrix<Scalar> activate(activation act, const matrix<Scalar>& a) {
  return act == activation::silu ? matrix<Scalar>(a.unaryExpr(&silu<Scalar>)) : a;
}

/// p = concat(initial_state, x) of one sequence: (W-1+T, D)
template <class Data>
matrix<compute_t<Data>> extended_input(const causal_conv1d_args<Data>& args, std::int64_t s,
                                       const token_range& tokens) {
  const std::int64_t history = args.weight.extent(1) - 1;
  matrix<compute_t<Data>> p = matrix<compute_t<Data>>::Zero(history + tokens.size(), args.x.extent(2));
  if (args.initial_state) p.topRows(history) = load(args.initial_state.select(0, s));
  p.bottomRows(tokens.size()) = load(args.x.select(0, tokens.batch).slice(0, tokens.begin, tokens.end));
  return p;
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_reference&, const causal_conv1d_args<Data>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_reference&, const causal_conv1d_args<Data>& args,
                           const causal_conv1d_grads<Data>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? check_contents(args) : s;
}
template <class Dims = dims<>, class Data>
[[nodiscard]] status check(const on_reference&, const causal_conv1d_step_args<Data>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Dims, class Data>
status try_causal_conv1d(const on_reference& exec, const causal_conv1d_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const std::int64_t history = args.weight.extent(1) - 1;
  const sequences all(args.x.extent(0), args.x.extent(1), args.cu_seqlens);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const ref::matrix<Scalar> p = ref::extended_input(args, s, tokens);
    const ref::matrix<Scalar> y = ref::activate(args.act, ref::convolve<Data>(args.weight, args.bias, p));
    ref::store(args.y.select(0, tokens.batch).slice(0, tokens.begin, tokens.end), y);
    if (args.final_state) ref::store(args.final_state.select(0, s), p.bottomRows(history));
  }
  return {};
}

template <class Dims, class Data>
status try_causal_conv1d_backward(const on_reference& exec, const causal_conv1d_args<Data>& args,
                                  const causal_conv1d_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  const std::int64_t D = args.x.extent(2);
  const std::int64_t W = args.weight.extent(1);
  ref::gradient<Scalar, 2> d_weight(args.weight);
  ref::gradient<Scalar, 1> d_bias(args.bias);
  const sequences all(args.x.extent(0), args.x.extent(1), args.cu_seqlens);
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const auto of_sequence = [&](const auto& view) {
      return view.select(0, tokens.batch).slice(0, tokens.begin, tokens.end);
    };
    const ref::matrix<Scalar> p = ref::extended_input(args, s, tokens);
    ref::matrix<Scalar> da = ref::matrix<Scalar>::Zero(tokens.size(), D);
    if (grads.d_y) da = ref::load(of_sequence(grads.d_y));
    if (args.act == activation::silu) {
      const ref::matrix<Scalar> a = ref::convolve<Data>(args.weight, args.bias, p);
      da = da.cwiseProduct(a.unaryExpr(&ref::silu_derivative<Scalar>));
    }
    ref::matrix<Scalar> dp = ref::matrix<Scalar>::Zero(p.rows(), D);
    if (grads.d_final_state) dp.bottomRows(W - 1) = ref::load(grads.d_final_state.select(0, s));
    for (std::int64_t d = 0; d < D; ++d) {
      for (std::int64_t t = 0; t < tokens.size(); ++t) {
        for (std::int64_t j = 0; j < W; ++j) {
          dp(t + j, d) += static_cast<Scalar>(args.weight(d, j)) * da(t, d);
          d_weight(d, j) += da(t, d) * p(t + j, d);
        }
        if (args.bias) d_bias(d) += da(t, d);
      }
    }
    if (grads.d_x) ref::store(of_sequence(grads.d_x), dp.bottomRows(tokens.size()));
    if (grads.d_initial_state) ref::store(grads.d_initial_state.select(0, s), dp.topRows(W - 1));
  }
  d_weight.store(grads.d_weight);
  d_bias.store(grads.d_bias);
  return {};
}

template <class Dims, class Data>
status try_causal_conv1d_step(const on_reference& exec, const causal_conv1d_step_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const std::int64_t T = args.x.extent(1);
  const std::int64_t D = args.x.extent(2);
  const std::int64_t history = args.weight.extent(1) - 1;
  const state_pool pool(args.state.extent(0), args.read_indices, args.write_indices);
  for (std::int64_t b = 0; b < args.x.extent(0); ++b) {
    if (pool.padding(b)) {
      ref::store(args.y.select(0, b), ref::matrix<Scalar>::Zero(T, D));
      continue;
    }
    ref::matrix<Scalar> p(history + T, D);
    p.topRows(history) = ref::load(args.state.select(0, pool.read(b)));
    p.bottomRows(T) = ref::load(args.x.select(0, b));

    ref::store(args.y.select(0, b), ref::activate(args.act, ref::convolve<Data>(args.weight, args.bias, p)));
    ref::store(args.state.select(0, pool.write(b)), p.bottomRows(history));
    for (std::int64_t t = 0; args.intermediate_states && t < T; ++t) {
      ref::store(args.intermediate_states.select(0, b).select(0, t), p.middleRows(t + 1, history));
    }
  }
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
