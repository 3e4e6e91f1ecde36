// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of multi_state for any cell of the three axes.

#include "routing/cases.hpp"
#include "segment_moments/cases.hpp"
#include "support/tensor.hpp"

#include <polystate/multi_state.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Sizes and options of one problem. `cuts`: the boundaries. `lengths` non-empty: packed sequences, B = 1, T
/// their sum.
struct layer_shape {
  std::int64_t B = 2, T = 11, H = 4, HK = 2, HR = 2, dk = 5, dv = 3, dr = 4, m = 3, max_visible = 0;
  bool qk_l2norm = false, qkp_l2norm = false, shared_kq = false;
  polystate::moment_rule moment_rule = polystate::moment_rule::plain;
  polystate::divide_by divide_by = polystate::divide_by::m;
  bool keep_current = false;
  std::vector<std::int32_t> cuts = {0, 1, 6, 9, 11};
  std::vector<std::int32_t> lengths = {};
};

/// Owned operands of a recurrence.
template <class Data, class Rule>
struct recurrence_operands {
  tensor<Data, 4> q, k, v;
  tensor<acc_t<Data>, 3> g, beta;
  bool qk_l2norm = false;

  recurrence_operands() = default;
  template <class Rng>
  recurrence_operands(const layer_shape& s, Rng& rng)
      : q({s.B, s.T, s.HK, s.dk}), k({s.B, s.T, s.HK, s.dk}), v({s.B, s.T, s.H, s.dv}), qk_l2norm(s.qk_l2norm) {
    q.uniform(rng, -1, 1);
    k.uniform(rng, -0.7, 0.7);
    v.uniform(rng, -1, 1);
    if (Rule::has_decay) g = tensor<acc_t<Data>, 3>({s.B, s.T, s.H}).uniform(rng, -0.5, 0);
    if (Rule::has_beta) beta = tensor<acc_t<Data>, 3>({s.B, s.T, s.H}).uniform(rng, 0.2, 1);
  }

  [[nodiscard]] operands<Data, Rule> view() const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .scale = 0.6,
            .qk_l2norm = qk_l2norm};
  }
  [[nodiscard]] query_operands<Data, Rule> queries() const {
    return {.q = q.view(), .scale = 0.6, .qk_l2norm = qk_l2norm};
  }
  template <class To>
  [[nodiscard]] recurrence_operands<To, Rule> in() const {
    recurrence_operands<To, Rule> p;
    p.q = convert<To>(q);
    p.k = convert<To>(k);
    p.v = convert<To>(v);
    p.g = convert<acc_t<To>>(g);
    p.beta = convert<acc_t<To>>(beta);
    p.qk_l2norm = qk_l2norm;
    return p;
  }
  [[nodiscard]] recurrence_operands<double, Rule> in_double() const { return in<double>(); }
};

template <class Data>
struct recurrence_operands<Data, rule::ssd> {
  tensor<Data, 4> x, B, C, z;
  tensor<Data, 3> dt;
  tensor<acc_t<Data>, 1> A, dt_bias;
  tensor<acc_t<Data>, 2> D;

  recurrence_operands() = default;
  template <class Rng>
  recurrence_operands(const layer_shape& s, Rng& rng)
      : x({s.B, s.T, s.H, s.dv}),
        B({s.B, s.T, s.HK, s.dk}),
        C({s.B, s.T, s.HK, s.dk}),
        z({s.B, s.T, s.H, s.dv}),
        dt({s.B, s.T, s.H}),
        A({s.H}),
        dt_bias({s.H}),
        D({s.H, s.dv}) {
    x.uniform(rng, -1, 1);
    B.uniform(rng, -1, 1);
    C.uniform(rng, -1, 1);
    z.uniform(rng, -1, 1);
    dt.uniform(rng, -1, 1);
    A.uniform(rng, -1, -0.1);
    dt_bias.uniform(rng, -0.5, 0.5);
    D.uniform(rng, -1, 1);
  }

  [[nodiscard]] operands<Data, rule::ssd> view() const {
    return {.x = x.view(),
            .dt = dt.view(),
            .A = A.view(),
            .B = B.view(),
            .C = C.view(),
            .D = D.view(),
            .z = z.view(),
            .dt_bias = dt_bias.view(),
            .dt_softplus = true};
  }
  [[nodiscard]] query_operands<Data, rule::ssd> queries() const { return {.C = C.view()}; }
  template <class To>
  [[nodiscard]] recurrence_operands<To, rule::ssd> in() const {
    recurrence_operands<To, rule::ssd> p;
    p.x = convert<To>(x);
    p.B = convert<To>(B);
    p.C = convert<To>(C);
    p.z = convert<To>(z);
    p.dt = convert<To>(dt);
    p.A = convert<acc_t<To>>(A);
    p.dt_bias = convert<acc_t<To>>(dt_bias);
    p.D = convert<acc_t<To>>(D);
    return p;
  }
  [[nodiscard]] recurrence_operands<double, rule::ssd> in_double() const { return in<double>(); }
};

/// The tokens begin .. end-1 of an operand (B, T, ...), of one batch entry or of all.
inline constexpr std::int64_t every_entry = -1;
template <class T, int Rank>
tensor_view<T, Rank> tokens_of(const tensor_view<T, Rank>& v, const token_range& r) {
  if (!v) return v;
  const auto part = v.slice(1, r.begin, r.end);
  return r.batch == every_entry ? part : part.slice(0, r.batch, r.batch + 1);
}
template <class Data, class Rule>
operands<Data, Rule> tokens_of(operands<Data, Rule> in, const token_range& r) {
  in.q = tokens_of(in.q, r);
  in.k = tokens_of(in.k, r);
  in.v = tokens_of(in.v, r);
  in.g = tokens_of(in.g, r);
  in.beta = tokens_of(in.beta, r);
  return in;
}
template <class Data>
operands<Data, rule::ssd> tokens_of(operands<Data, rule::ssd> in, const token_range& r) {
  in.x = tokens_of(in.x, r);
  in.dt = tokens_of(in.dt, r);
  in.B = tokens_of(in.B, r);
  in.C = tokens_of(in.C, r);
  in.z = tokens_of(in.z, r);
  return in;
}
template <class Data, class Rule>
query_operands<Data, Rule> tokens_of(query_operands<Data, Rule> in, const token_range& r) {
  in.q = tokens_of(in.q, r);
  return in;
}
template <class Data>
query_operands<Data, rule::ssd> tokens_of(query_operands<Data, rule::ssd> in, const token_range& r) {
  in.C = tokens_of(in.C, r);
  return in;
}
template <class Data>
key_moments<Data> tokens_of(key_moments<Data> in, const token_range& r) {
  in.k = tokens_of(in.k, r);
  in.g = tokens_of(in.g, r);
  in.beta = tokens_of(in.beta, r);
  return in;
}
inline router::none tokens_of(const router::none& x, const token_range&) { return x; }
inline router::uniform tokens_of(const router::uniform& x, const token_range&) { return x; }
template <class Data>
router::position<Data> tokens_of(router::position<Data> x, const token_range& r) {
  x.weights = tokens_of(x.weights, r);
  return x;
}
template <class Data>
router::meanpool<Data> tokens_of(router::meanpool<Data> x, const token_range& r) {
  x.u = tokens_of(x.u, r);
  return x;
}
template <class Data>
router::merlin<Data> tokens_of(router::merlin<Data> x, const token_range& r) {
  x.q = tokens_of(x.q, r);
  x.gamma = tokens_of(x.gamma, r);
  return x;
}
template <class Data>
router::cumulant<Data> tokens_of(router::cumulant<Data> x, const token_range& r) {
  x.q = tokens_of(x.q, r);
  return x;
}
template <class Router>
router::top_k<Router> tokens_of(router::top_k<Router> x, const token_range& r) {
  x.of = tokens_of(x.of, r);
  return x;
}

/// One cell of the axes.
template <class RuleType, class SeparationType, class RouterType>
struct cell {
  using Rule = RuleType;
  using Separation = SeparationType;
  using Router = RouterType;
  static std::string name() { return std::string(Separation::name) + "_" + router_of<Router>::name(); }
};

/// What a forward writes beside its weights: outputs and the bank at each segment's end.
template <class Data>
struct layer_results {
  tensor<Data, 4> o;
  tensor<acc_t<Data>, 4> lam, mu;
  tensor<acc_t<Data>, 5> S, Sigma;

  [[nodiscard]] bool untouched_outside() const {
    return o.untouched_outside() && lam.untouched_outside() && mu.untouched_outside() && S.untouched_outside() &&
           Sigma.untouched_outside();
  }
};

/// Owned operands of one cell's problem.
template <class Data, class Cell>
struct layer_problem {
  using Rule = typename Cell::Rule;
  using Separation = typename Cell::Separation;
  using Router = typename Cell::Router;
  using forward_args = multi_state_args<Data, Rule, Separation, Router>;
  using step_args = multi_state_step_args<Data, Rule, Separation, Router>;
  using read_args = multi_state_read_args<Data, Rule, Router>;
  static constexpr bool has_segments = Separation::has_segments;
  static constexpr bool is_fenwick = std::is_same_v<Separation, separation::fenwick>;

  layer_shape shape;
  recurrence_operands<Data, Rule> in;
  routing_keys<Data> keys;
  router_operands<Data> router;
  tensor<std::int32_t, 1> cu_seqlens;

  layer_problem() = default;
  template <class Rng>
  layer_problem(const layer_shape& given, Rng& rng) : shape(given) {
    auto& s = shape;
    if (s.shared_kq) {
      s.HR = s.HK;
      s.dr = s.dk;
    }
    in = recurrence_operands<Data, Rule>(s, rng);
    keys = routing_keys<Data>({.B = s.B,
                               .T = s.T,
                               .HR = s.HR,
                               .dr = s.dr,
                               .moment_rule = s.moment_rule,
                               .divide_by = s.divide_by,
                               .qkp_l2norm = s.qkp_l2norm},
                              rng);
    router = router_operands<Data>({.B = s.B,
                                    .T = s.T,
                                    .H = s.H,
                                    .HR = s.HR,
                                    .dr = s.dr,
                                    .A = is_fenwick ? levels() : s.T + 1,
                                    .position_index = is_fenwick ? position_index::absolute : position_index::age,
                                    .position_norm = is_fenwick ? position_norm::none : position_norm::softmax,
                                    .keep_current = s.keep_current},
                                   rng);
    if (!s.lengths.empty()) {
      std::vector<std::int32_t> cu = {0};
      for (const auto n : s.lengths) cu.push_back(cu.back() + n);
      cu_seqlens = tensor<std::int32_t, 1>({static_cast<std::int64_t>(cu.size())});
      cu_seqlens.assign(cu);
    }
  }

  /// NL of fenwick: one more than T needs.
  [[nodiscard]] std::int64_t levels() const { return separation::fenwick{}.count(shape.T) + 1; }

  [[nodiscard]] Separation separation() const { return separation_of<Separation>(shape.m, shape.cuts); }
  /// Entries of a bank of that many tokens, as the forward's outputs count them.
  [[nodiscard]] std::int64_t entries(std::int64_t tokens) const {
    return is_fenwick ? levels() : separation().count(tokens);
  }

  [[nodiscard]] key_moments<Data> moments() const {
    if (!has_segments) return {};
    auto m = keys.view();
    if (shape.shared_kq) m.k = {};
    return m;
  }
  [[nodiscard]] Router make_router() const { return router_of<Router>::view(router, shape.shared_kq); }

  /// Outputs of a run over that many tokens with that many entries.
  [[nodiscard]] layer_results<Data> results(std::int64_t L) const {
    using acc = acc_t<Data>;
    const auto& s = shape;
    layer_results<Data> out;
    out.o = tensor<Data, 4>({s.B, s.T, s.H, s.dv});
    if (s.lengths.empty()) out.lam = tensor<acc, 4>({s.B, s.T, s.H, L});
    out.S = tensor<acc, 5>({s.B, L, s.H, s.dv, s.dk});
    if (has_segments) out.mu = tensor<acc, 4>({s.B, L, s.HR, s.dr});
    if (has_segments) out.Sigma = tensor<acc, 5>({s.B, L, s.HR, s.dr, s.dr});
    return out;
  }
  [[nodiscard]] layer_results<Data> results() const { return results(entries(shape.T)); }

  [[nodiscard]] forward_args args(layer_results<Data>& out) const {
    return {.in = in.view(),
            .separation = separation(),
            .moments = moments(),
            .router = make_router(),
            .cu_seqlens = cu_seqlens.view(),
            .o = out.o.view(),
            .lam = out.lam.view(),
            .S = out.S.view(),
            .mu = out.mu.view(),
            .Sigma = out.Sigma.view(),
            .shared_kq = shape.shared_kq,
            .max_visible = has_segments ? shape.max_visible : 0};
  }
  /// The tokens of `range` of a forward, without outputs.
  [[nodiscard]] forward_args part(const token_range& range) const {
    return {.in = tokens_of(in.view(), range),
            .separation = separation(),
            .moments = tokens_of(moments(), range),
            .router = tokens_of(make_router(), range),
            .o = {},
            .shared_kq = shape.shared_kq,
            .max_visible = has_segments ? shape.max_visible : 0};
  }
  [[nodiscard]] step_args step(const bank_view<Data, acc_t<Data>>& bank, const token_range& range) const {
    const auto p = part(range);
    return {.in = p.in,
            .separation = p.separation,
            .moments = p.moments,
            .router = p.router,
            .bank = bank,
            .shared_kq = p.shared_kq,
            .max_visible = p.max_visible};
  }
  [[nodiscard]] read_args read(const bank_view<Data, const acc_t<Data>>& bank, const token_range& range) const {
    return {.in = tokens_of(in.queries(), range),
            .bank = bank,
            .router = tokens_of(make_router(), range),
            .o = {},
            .shared_kq = shape.shared_kq,
            .qkp_l2norm = shape.qkp_l2norm,
            .max_visible = has_segments ? shape.max_visible : 0};
  }

  [[nodiscard]] polystate::bank_shape bank_shape(std::int64_t B) const {
    const auto& s = shape;
    return {.B = B, .H = s.H, .dv = s.dv, .dk = s.dk, .HR = has_segments ? s.HR : 0, .dr = has_segments ? s.dr : 0};
  }
};

}  // namespace polystate::testing
