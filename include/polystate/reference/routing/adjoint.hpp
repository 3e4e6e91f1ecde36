// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The backward side of the routers: docs/routing.md derives it. A router is its weights() forward and its
/// router_adjoint here.

#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/routing/weights.hpp>
#include <polystate/reference/walk_back.hpp>
#include <polystate/routing.hpp>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Sums the gradients of a router's operands:
///   weights(token, head, seen, scores, dlam)   returns the derivatives of the scores
///   query(dq, token, moment_head)              of the router's own query operand
///   store(grads)
template <class Router>
class router_adjoint;

template <>
class router_adjoint<router::none> {
 public:
  explicit router_adjoint(const router::none&) {}
  template <class Scalar>
  segment_scores<Scalar> weights(const token&, std::int64_t, const visible_segments&, const segment_scores<Scalar>&,
                                 const vector<Scalar>&) {
    return {};
  }
  void store(const router_grads<router::none>&) const {}
};

template <>
class router_adjoint<router::uniform> {
 public:
  explicit router_adjoint(const router::uniform&) {}
  template <class Scalar>
  segment_scores<Scalar> weights(const token&, std::int64_t, const visible_segments&, const segment_scores<Scalar>&,
                                 const vector<Scalar>&) {
    return {};
  }
  void store(const router_grads<router::uniform>&) const {}
};

template <class Data>
class router_adjoint<router::position<Data>> {
 public:
  using Scalar = compute_t<Data>;
  explicit router_adjoint(const router::position<Data>& r) : router_(r), d_weights_(r.weights) {}

  segment_scores<Scalar> weights(const token& at, std::int64_t head, const visible_segments& seen,
                                 const segment_scores<Scalar>& scores, const vector<Scalar>& dlam) {
    const vector<Scalar> dw = router_.position_norm == position_norm::softmax
                                  ? softmax_adjoint(reference::weights(router_, at, head, seen, scores), dlam)
                                  : dlam;
    for (std::int64_t l = seen.first; l <= seen.current; ++l) {
      const std::int64_t a = router_.position_index == position_index::age ? seen.current - l : l;
      d_weights_(at.b, at.t, head, a) += dw(l - seen.first);
    }
    return {};
  }
  void store(const router_grads<router::position<Data>>& out) const { d_weights_.store(out.d_weights); }

 private:
  router::position<Data> router_;
  gradient<Scalar, 4> d_weights_;
};

template <class Data>
class router_adjoint<router::meanpool<Data>> {
 public:
  using Scalar = compute_t<Data>;
  explicit router_adjoint(const router::meanpool<Data>& r) : d_u_(r.u) {}

  segment_scores<Scalar> weights(const token&, std::int64_t, const visible_segments&,
                                 const segment_scores<Scalar>& scores, const vector<Scalar>& dlam) {
    return {softmax_adjoint(softmax(scores.r_mu), dlam), {}};
  }
  [[nodiscard]] tensor_view<Scalar, 4> query_sums() const { return d_u_.view(); }
  void store(const router_grads<router::meanpool<Data>>& out) const { d_u_.store(out.d_u); }

 private:
  gradient<Scalar, 4> d_u_;
};

/// p = softmax(tau r_mu), s = softmax(tau' r_sigma), lam = gamma p + (1 - gamma) s:
///     dgamma = dlam.(p - s)   dx = softmax'(gamma dlam)   dtau = dx.r_mu   dr_mu = tau dx, and so for s
template <class Data>
class router_adjoint<router::merlin<Data>> {
 public:
  using Scalar = compute_t<Data>;
  explicit router_adjoint(const router::merlin<Data>& r)
      : router_(r), d_q_(r.q), d_gamma_(r.gamma), d_tau_mu_(r.tau_mu), d_tau_sigma_(r.tau_sigma) {}

  segment_scores<Scalar> weights(const token& at, std::int64_t head, const visible_segments&,
                                 const segment_scores<Scalar>& scores, const vector<Scalar>& dlam) {
    const Scalar gamma = static_cast<Scalar>(router_.gamma(at.b, at.t, head));
    const Scalar tau_mu = static_cast<Scalar>(router_.tau_mu(head));
    const Scalar tau_sigma = static_cast<Scalar>(router_.tau_sigma(head));
    const vector<Scalar> by_mean = softmax<Scalar>(tau_mu * scores.r_mu);
    const vector<Scalar> by_variance = softmax<Scalar>(tau_sigma * scores.r_sigma);
    d_gamma_(at.b, at.t, head) += dlam.dot(by_mean - by_variance);
    const vector<Scalar> dx = softmax_adjoint<Scalar>(by_mean, gamma * dlam);
    const vector<Scalar> dy = softmax_adjoint<Scalar>(by_variance, (Scalar(1) - gamma) * dlam);
    d_tau_mu_(head) += dx.dot(scores.r_mu);
    d_tau_sigma_(head) += dy.dot(scores.r_sigma);
    return {tau_mu * dx, tau_sigma * dy};
  }
  [[nodiscard]] tensor_view<Scalar, 4> query_sums() const { return d_q_.view(); }
  void store(const router_grads<router::merlin<Data>>& out) const {
    d_q_.store(out.d_q);
    d_gamma_.store(out.d_gamma);
    d_tau_mu_.store(out.d_tau_mu);
    d_tau_sigma_.store(out.d_tau_sigma);
  }

 private:
  router::merlin<Data> router_;
  gradient<Scalar, 4> d_q_;
  gradient<Scalar, 3> d_gamma_;
  gradient<Scalar, 1> d_tau_mu_, d_tau_sigma_;
};

/// lam = softmax(x), x = delta r_mu + delta^2/2 r_sigma:
///     ddelta = dx.(r_mu + delta r_sigma)   dr_mu = delta dx   dr_sigma = delta^2/2 dx
template <class Data>
class router_adjoint<router::cumulant<Data>> {
 public:
  using Scalar = compute_t<Data>;
  explicit router_adjoint(const router::cumulant<Data>& r) : router_(r), d_q_(r.q), d_delta_(r.delta) {}

  segment_scores<Scalar> weights(const token& at, std::int64_t head, const visible_segments& seen,
                                 const segment_scores<Scalar>& scores, const vector<Scalar>& dlam) {
    const Scalar delta = static_cast<Scalar>(router_.delta(head));
    const vector<Scalar> dx = softmax_adjoint(reference::weights(router_, at, head, seen, scores), dlam);
    d_delta_(head) += dx.dot(scores.r_mu + delta * scores.r_sigma);
    return {delta * dx, (delta * delta / Scalar(2)) * dx};
  }
  [[nodiscard]] tensor_view<Scalar, 4> query_sums() const { return d_q_.view(); }
  void store(const router_grads<router::cumulant<Data>>& out) const {
    d_q_.store(out.d_q);
    d_delta_.store(out.d_delta);
  }

 private:
  router::cumulant<Data> router_;
  gradient<Scalar, 4> d_q_;
  gradient<Scalar, 1> d_delta_;
};

/// y = lam / sum over the kept ones:  dlam = (dy - dy.y) / sum, 0 for the others
template <class Router>
class router_adjoint<router::top_k<Router>> {
 public:
  explicit router_adjoint(const router::top_k<Router>& r) : router_(r), of_(r.of) {}

  template <class Scalar>
  segment_scores<Scalar> weights(const token& at, std::int64_t head, const visible_segments& seen,
                                 const segment_scores<Scalar>& scores, const vector<Scalar>& dy) {
    if (seen.size() <= router_.k) return of_.weights(at, head, seen, scores, dy);
    const vector<Scalar> lam = reference::weights(router_.of, at, head, seen, scores);
    const auto kept = chosen(lam, router_.k, router_.keep_current);
    Scalar sum(0);
    Scalar mean(0);
    for (std::int64_t l = 0; l < lam.size(); ++l) {
      if (!kept[static_cast<std::size_t>(l)]) continue;
      sum += lam(l);
      mean += lam(l) * dy(l);
    }
    mean /= sum;
    vector<Scalar> dlam = vector<Scalar>::Zero(lam.size());
    for (std::int64_t l = 0; l < lam.size(); ++l) {
      if (kept[static_cast<std::size_t>(l)]) dlam(l) = (dy(l) - mean) / sum;
    }
    return of_.weights(at, head, seen, scores, dlam);
  }
  [[nodiscard]] auto query_sums() const { return of_.query_sums(); }
  void store(const router_grads<router::top_k<Router>>& out) const { of_.store(out.of); }

 private:
  router::top_k<Router> router_;
  router_adjoint<Router> of_;
};

/// One token's routing backwards: from the derivatives of its weights, dlam[head] over the visible segments,
/// to those of the router's operands, of the bank's moments (added to `d`, if there is one) and of each
/// moment head's query, which take_query(moment_head, dq') receives.
///     r_mu = mu.q', r_sigma = q'^T Sigma q' - r_mu^2, and with e = dr_mu - 2 r_mu dr_sigma:
///     dmu += e q'   dSigma += dr_sigma q' q'^T   dq' += e mu + dr_sigma (Sigma + Sigma^T) q'
template <class Router, class BankData, class State, class Scalar, class Query, class TakeQuery>
void routing_token_adjoint(router_adjoint<Router>& adjoint, const bank_view<BankData, State>& bank, std::int64_t row,
                           const visible_segments& seen, const token& at, const std::vector<vector<Scalar>>& dlam,
                           const Query& query, bank_derivatives<Scalar>* d, const TakeQuery& take_query) {
  const auto H = static_cast<std::int64_t>(dlam.size());
  if constexpr (!Router::reads_moments) {
    for (std::int64_t h = 0; h < H; ++h) {
      adjoint.weights(at, h, seen, segment_scores<Scalar>{}, dlam[static_cast<std::size_t>(h)]);
    }
  } else {
    using moment = typename bank_view<BankData, State>::moment;
    const std::int64_t HR = bank.mu.extent(2);
    for (std::int64_t g = 0; g < HR; ++g) {
      const vector<Scalar> q = query(g);
      const segment_scores<Scalar> scores =
          query_scores<Router, BankData, State, Scalar>(bank, row, g, seen, matrix<Scalar>(q)).of_query(0);
      segment_scores<Scalar> ds{vector<Scalar>::Zero(seen.size()), vector<Scalar>::Zero(seen.size())};
      for (std::int64_t h = g * (H / HR); h < (g + 1) * (H / HR); ++h) {
        const auto of_head = adjoint.weights(at, h, seen, scores, dlam[static_cast<std::size_t>(h)]);
        ds.r_mu += of_head.r_mu;
        if constexpr (Router::reads_Sigma) ds.r_sigma += of_head.r_sigma;
      }
      vector<Scalar> dq = vector<Scalar>::Zero(q.size());
      for (std::int64_t l = 0; l < seen.size(); ++l) {
        const std::int64_t entry = seen.first + l;
        Scalar e = ds.r_mu(l);
        if constexpr (Router::reads_Sigma) {
          e -= Scalar(2) * scores.r_mu(l) * ds.r_sigma(l);
          const matrix<Scalar> Sigma = load<moment, Scalar>(bank.Sigma.select(0, row).select(0, entry).select(0, g));
          dq += ds.r_sigma(l) * (Sigma * q + Sigma.transpose() * q);
          if (d != nullptr)
            d->Sigma[static_cast<std::size_t>(entry)][static_cast<std::size_t>(g)] += ds.r_sigma(l) * q * q.transpose();
        }
        dq += e * load<moment, Scalar>(bank.mu.select(0, row).select(0, entry).select(0, g));
        if (d != nullptr) d->mu[static_cast<std::size_t>(entry)][static_cast<std::size_t>(g)] += e * q;
      }
      take_query(g, dq);
    }
  }
}

/// Through the normalisation of a query: from the derivative of what scored to that of the raw query.
template <class Router, class Scalar>
vector<Scalar> raw_query_adjoint(const vector<Scalar>& raw, bool qkp_l2norm, double l2norm_eps,
                                 const vector<Scalar>& dq) {
  return qkp_l2norm && Router::normalizes_query ? l2_normalized_adjoint(raw, l2norm_eps, dq) : dq;
}

/// Adds to the gradient of the router's own query operand.
template <class Router, class Scalar>
void add_routing_query(router_adjoint<Router>& adjoint, const Router& router, const token& at, std::int64_t moment_head,
                       bool qkp_l2norm, double l2norm_eps, const vector<Scalar>& dq) {
  if constexpr (Router::reads_moments) {
    add(adjoint.query_sums().select(0, at.b).select(0, at.t).select(0, moment_head),
        raw_query_adjoint<Router>(load_row(query_of(router), at, moment_head), qkp_l2norm, l2norm_eps, dq));
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
