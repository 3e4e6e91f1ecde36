// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// multi_state as it is defined: docs/multi_state.md. Forward, step and read are the same two acts on a bank:
/// a token is written into it, queries read it.

#include <polystate/multi_state.hpp>
#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/multi_state/adjoint.hpp>
#include <polystate/reference/multi_state/bank.hpp>
#include <polystate/reference/multi_state/checks.hpp>
#include <polystate/reference/routing.hpp>
#include <polystate/reference/segment_moments.hpp>
#include <polystate/reference/ssd.hpp>
#include <polystate/state_bank.hpp>

#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state(const on_reference& exec, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::recurrence recurrence(args.in);
  const sequences all(recurrence.batch(), recurrence.tokens(), args.cu_seqlens);
  std::int64_t first = 0;  // entry of the outputs: packed sequences follow one another
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const std::int64_t entries = bank_entries(args, tokens.size());
    state_bank<Scalar> memory(ref::shape_of(args, recurrence), entries);
    const auto bank = memory.view();
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      ref::run_token(args, recurrence, bank, 0, {tokens.batch, t}, args.o, args.lam);
    }
    const std::int64_t offset = all.packed() ? first : 0;
    for (std::int64_t l = 0; args.S && l < entries; ++l) {
      for (std::int64_t h = 0; h < recurrence.heads(); ++h) {
        ref::store(ref::state_of(bank_view<Data, State>{.S = args.S, .counters = {}}, tokens.batch, offset + l, h),
                   ref::load(ref::state_of(bank, 0, l, h)));
      }
    }
    ref::store_moments<Scalar>(bank, tokens.batch, offset, args.mu, args.Sigma);
    first += entries;
  }
  return {};
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state_backward(const on_reference& exec,
                                const multi_state_args<Data, Rule, Separation, Router, State>& args,
                                const multi_state_grads<Data, Rule, Router, State>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  const ref::recurrence recurrence(args.in);
  const bank_shape shape = ref::shape_of(args, recurrence);
  ref::layer_adjoint<Data, multi_state_args<Data, Rule, Separation, Router, State>> layer(args);
  const sequences all(recurrence.batch(), recurrence.tokens(), args.cu_seqlens);
  std::int64_t first = 0;  // entry of the upstream gradients: packed sequences follow one another
  for (std::int64_t s = 0; s < all.size(); ++s) {
    const token_range tokens = all[s];
    const std::int64_t entries = bank_entries(args, tokens.size());
    ref::bank_derivatives<Scalar> d(shape, entries);
    d.add_upstream(tokens.batch, all.packed() ? first : 0, grads.d_S, grads.d_mu, grads.d_Sigma);
    const auto read = [&](std::int64_t entry, const ref::token& at, const auto& bank) {
      if (!grads.d_o && !grads.d_lam) return;
      const ref::visible_segments seen = ref::visible(bank_counters{.segments = entry + 1}, args.max_visible);
      layer.read(bank, seen, at, grads.d_o, grads.d_lam, d);
    };
    if constexpr (std::is_same_v<Separation, separation::fenwick>) {
      ref::reversed_states banks(
          state_bank<Scalar>(shape, entries), tokens.size(), [&](state_bank<Scalar>& bank, std::int64_t i) {
            ref::write_token(args.separation, recurrence, bank.view(), 0, {tokens.batch, tokens.begin + i});
          });
      for (std::int64_t i = tokens.size() - 1; i >= 0; --i) {
        const ref::token at{tokens.batch, tokens.begin + i};
        state_bank<Scalar> after = banks.after(i);
        const std::int64_t levels = after.counters().segments;
        read(levels - 1, at, after.view());
        state_bank<Scalar> before = banks.before(i);
        layer.unwrite_levels(before.view(), levels, at, d);
      }
    } else {
      const auto write = [&](const auto& bank, const auto& separation, const ref::token& at) {
        ref::write_token(args, separation, recurrence, bank, 0, at);
      };
      const auto unwrite = [&](std::int64_t entry, std::int64_t length, const ref::token& at, const auto& before) {
        layer.unwrite(before, entry, length, at, d);
      };
      ref::walk_back<Scalar>(shape, args.separation, tokens, write, read, unwrite);
    }
    first += entries;
  }
  layer.store(grads);
  return {};
}

template <class Dims, class Data, class Rule, class Separation, class Router, class State>
status try_multi_state_step(const on_reference& exec,
                            const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  namespace ref = polystate_detail::reference;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::recurrence recurrence(args.in);
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    for (std::int64_t t = 0; t < recurrence.tokens(); ++t) {
      ref::run_token(args, recurrence, args.bank, b, {b, t}, args.o, tensor_view<acc_t<Data>, 4>{});
    }
  }
  return {};
}

template <class Dims, class Data, class Rule, class Router, class State>
status try_multi_state_read(const on_reference& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args); !s.ok()) return s;

  const ref::query_reader reader(args.in);
  for (std::int64_t b = 0; b < args.o.extent(0); ++b) {
    std::vector<ref::token> at;
    for (std::int64_t t = 0; t < args.o.extent(1); ++t) at.push_back({b, t});
    const ref::visible_segments seen = ref::visible(args.bank.counters(b), args.max_visible);
    const auto query = [&](const ref::token& from, std::int64_t g) {
      return ref::routing_query<Data>(args.router, from, g, args.qkp_l2norm, args.l2norm_eps,
                                      args.shared_kq ? reader.query(from, g) : ref::vector<Scalar>());
    };
    ref::read_bank(args.router, reader, args.bank, b, seen, at, query,
                   [&](std::int64_t t, std::int64_t h, const ref::vector<Scalar>& lam, const ref::vector<Scalar>& o) {
                     ref::store(args.o.select(0, b).select(0, t).select(0, h), o);
                     if (args.lam) ref::store_weights(args.lam.select(0, b).select(0, t).select(0, h), seen, lam);
                   });
  }
  return {};
}

template <class Dims, class Data, class Rule, class Router, class State>
status try_multi_state_read_backward(const on_reference& exec,
                                     const multi_state_read_args<Data, Rule, Router, State>& args,
                                     const multi_state_read_grads<Data, Rule, Router>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check<Dims>(exec, args, grads); !s.ok()) return s;

  const ref::query_reader reader(args.in);
  ref::query_adjoint queries(args.in);
  ref::router_adjoint<Router> router(args.router);
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    const ref::visible_segments seen = ref::visible(args.bank.counters(b), args.max_visible);
    for (std::int64_t t = 0; t < reader.tokens(); ++t) {
      const ref::token at{b, t};
      const auto shared = [&](std::int64_t g) { return args.shared_kq ? reader.query(at, g) : ref::vector<Scalar>(); };
      const auto query = [&](const ref::token& from, std::int64_t g) {
        return ref::routing_query<Data>(args.router, from, g, args.qkp_l2norm, args.l2norm_eps, shared(g));
      };
      std::vector<ref::vector<Scalar>> dlam;
      ref::read_bank(args.router, reader, args.bank, b, seen, {at}, query,
                     [&](std::int64_t, std::int64_t h, const ref::vector<Scalar>& lam, const ref::vector<Scalar>&) {
                       dlam.push_back(ref::vector<Scalar>::Zero(seen.size()));
                       if (grads.d_lam) dlam.back() += ref::load_weights<Scalar>(grads.d_lam, at, h, seen);
                       if (!grads.d_o) return;
                       const std::int64_t group = group_of_head(h, args.bank.S.extent(2), reader.groups());
                       const ref::vector<Scalar> d_o = Scalar(reader.scale()) * ref::load_row(grads.d_o, at, h);
                       queries.query(ref::weighted_read_adjoint(args.bank, b, seen, h, lam, d_o,
                                                                reader.query(at, group), dlam.back()),
                                     at, group);
                     });
      ref::routing_token_adjoint<Router>(
          router, args.bank, b, seen, at, dlam, [&](std::int64_t g) { return query(at, g); },
          static_cast<ref::bank_derivatives<Scalar>*>(nullptr),
          [&](std::int64_t g, const ref::vector<Scalar>& dq) {
            if (args.shared_kq) {
              queries.query(ref::raw_query_adjoint<Router>(shared(g), args.qkp_l2norm, args.l2norm_eps, dq), at, g);
            } else {
              ref::add_routing_query(router, args.router, at, g, args.qkp_l2norm, args.l2norm_eps, dq);
            }
          });
    }
  }
  queries.store(grads.in);
  router.store(grads.router);
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
