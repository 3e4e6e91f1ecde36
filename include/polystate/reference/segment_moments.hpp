// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// segment_moments as it is defined: docs/segment_moments.md.

#include <polystate/reference/recurrence.hpp>
#include <polystate/reference/segment_moments/adjoint.hpp>
#include <polystate/reference/segment_moments/moments.hpp>
#include <polystate/reference/walk_back.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/state_bank.hpp>

namespace polystate::inline POLYSTATE_ABI {

/// What on_reference asks of the operands: check(), and valid contents of the index operands.
template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const on_reference&, const segment_moments_args<Data, Separation>& args) {
  const status s = check<Dims>(args);
  return s.ok() ? check_contents(args) : s;
}

template <class Dims = dims<>, class Data, class Separation>
[[nodiscard]] status check(const on_reference&, const segment_moments_args<Data, Separation>& args,
                           const segment_moments_grads<Data>& grads) {
  const status s = check<Dims>(args, grads);
  return s.ok() ? check_contents(args, grads) : s;
}

template <class Dims, class Data, class Separation>
status try_segment_moments(const on_reference& exec, const segment_moments_args<Data, Separation>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const auto& k = args.moments.k;
  const bank_shape shape{.H = 0, .HR = k.extent(2), .dr = k.extent(3)};
  const sequences all(k.extent(0), k.extent(1), args.cu_seqlens);
  std::int64_t first = 0;  // entry of the outputs: packed sequences follow one another
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    state_bank<Scalar> memory(shape, args.separation.count(tokens.size()));
    const auto bank = memory.view();
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      ref::write_key(args.moments, bank, args.separation, {tokens.batch, t});
    }
    ref::store_moments<Scalar>(bank, tokens.batch, all.packed() ? first : 0, args.mu, args.Sigma);
    first += bank.counters(0).segments;
  }
  return {};
}

template <class Dims, class Data, class Separation>
status try_segment_moments_backward(const on_reference& exec, const segment_moments_args<Data, Separation>& args,
                                    const segment_moments_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  const auto& k = args.moments.k;
  const bank_shape shape{.H = 0, .HR = k.extent(2), .dr = k.extent(3)};
  ref::moments_adjoint<Data> adjoint(args.moments);
  const sequences all(k.extent(0), k.extent(1), args.cu_seqlens);
  std::int64_t first = 0;  // entry of the upstream gradients: packed sequences follow one another
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const std::int64_t entries = args.separation.count(tokens.size());
    ref::bank_derivatives<Scalar> d(shape, entries);
    d.add_upstream(tokens.batch, all.packed() ? first : 0, tensor_view<const acc_t<Data>, 5>{}, grads.d_mu,
                   grads.d_Sigma);
    ref::walk_back<Scalar>(
        shape, args.separation, tokens,
        [&](const auto& bank, const auto& separation, const ref::token& at) {
          ref::write_key(args.moments, bank, separation, at);
        },
        [&](std::int64_t, const ref::token&, const auto&) {},
        [&](std::int64_t entry, std::int64_t length, const ref::token& at, const auto& before) {
          adjoint.unwrite_key(before, entry, length, at, d);
        });
    first += entries;
  }
  adjoint.store(grads.moments);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
