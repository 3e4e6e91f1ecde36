// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Scores and weights of the routers: docs/routing.md. A router is its weights() here.

#include <polystate/reference/recurrence.hpp>
#include <polystate/routing.hpp>
#include <polystate/state_bank.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Entries first .. current of a bank, which one token sees; `current` is the token's own.
struct visible_segments {
  std::int64_t first;
  std::int64_t current;
  [[nodiscard]] std::int64_t size() const { return current - first + 1; }
};

inline visible_segments visible(const bank_counters& c, std::int64_t max_visible) {
  return {max_visible > 0 ? std::max<std::int64_t>(0, c.segments - max_visible) : 0, c.segments - 1};
}

/// Scores of one query against the visible segments, first to current; empty where the router reads none.
template <class Scalar>
struct segment_scores {
  vector<Scalar> r_mu;
  vector<Scalar> r_sigma;
};

/// Scores of many queries, the columns of Q, of one moment head: (visible, queries).
///     r_mu[l] = mu_l . q'        r_sigma[l] = q'^T Sigma_l q' - r_mu[l]^2
template <class Router, class BankData, class State, class Scalar>
struct query_scores {
  matrix<Scalar> r_mu;
  matrix<Scalar> r_sigma;

  query_scores(const bank_view<BankData, State>& bank, std::int64_t row, std::int64_t moment_head,
               const visible_segments& seen, const matrix<Scalar>& Q)
      : r_mu(Router::reads_moments ? seen.size() : 0, Q.cols()),
        r_sigma(Router::reads_Sigma ? seen.size() : 0, Q.cols()) {
    using moment = typename bank_view<BankData, State>::moment;
    for (std::int64_t l = 0; l < r_mu.rows(); ++l) {
      const std::int64_t entry = seen.first + l;
      r_mu.row(l) =
          load<moment, Scalar>(bank.mu.select(0, row).select(0, entry).select(0, moment_head)).transpose() * Q;
      if constexpr (Router::reads_Sigma) {
        const matrix<Scalar> Sigma =
            load<moment, Scalar>(bank.Sigma.select(0, row).select(0, entry).select(0, moment_head));
        const matrix<Scalar> SigmaQ = Sigma * Q;
        r_sigma.row(l) = SigmaQ.cwiseProduct(Q).colwise().sum() - r_mu.row(l).cwiseProduct(r_mu.row(l));
      }
    }
  }

  [[nodiscard]] segment_scores<Scalar> of_query(std::int64_t i) const { return {r_mu.col(i), r_sigma.col(i)}; }
};

template <class Scalar>
vector<Scalar> softmax(const vector<Scalar>& x) {
  using std::exp;
  if (x.size() == 0) return x;
  Scalar largest = x(0);
  for (std::int64_t l = 1; l < x.size(); ++l) {
    if (largest < x(l)) largest = x(l);
  }
  vector<Scalar> e(x.size());
  for (std::int64_t l = 0; l < x.size(); ++l) e(l) = exp(x(l) - largest);
  return e / e.sum();
}

/// The query that a router scores with.
template <class Data>
const tensor_view<const Data, 4>& query_of(const router::meanpool<Data>& r) {
  return r.u;
}
template <class Data>
const tensor_view<const Data, 4>& query_of(const router::merlin<Data>& r) {
  return r.q;
}
template <class Data>
const tensor_view<const Data, 4>& query_of(const router::cumulant<Data>& r) {
  return r.q;
}
template <class Router>
const auto& query_of(const router::top_k<Router>& r) {
  return query_of(r.of);
}

/// lam over the visible segments, first to current, for one token and head.
template <class Scalar>
vector<Scalar> weights(const router::none&, const token&, std::int64_t, const visible_segments& seen,
                       const segment_scores<Scalar>&) {
  return vector<Scalar>::Ones(seen.size());
}

template <class Scalar>
vector<Scalar> weights(const router::uniform&, const token&, std::int64_t, const visible_segments& seen,
                       const segment_scores<Scalar>&) {
  return vector<Scalar>::Constant(seen.size(), Scalar(1) / Scalar(static_cast<double>(seen.size())));
}

template <class Data, class Scalar>
vector<Scalar> weights(const router::position<Data>& r, const token& at, std::int64_t head,
                       const visible_segments& seen, const segment_scores<Scalar>&) {
  vector<Scalar> w(seen.size());
  for (std::int64_t l = seen.first; l <= seen.current; ++l) {
    const std::int64_t a = r.position_index == position_index::age ? seen.current - l : l;
    w(l - seen.first) = static_cast<Scalar>(r.weights(at.b, at.t, head, a));
  }
  return r.position_norm == position_norm::softmax ? softmax(w) : w;
}

template <class Data, class Scalar>
vector<Scalar> weights(const router::meanpool<Data>&, const token&, std::int64_t, const visible_segments&,
                       const segment_scores<Scalar>& scores) {
  return softmax(scores.r_mu);
}

template <class Data, class Scalar>
vector<Scalar> weights(const router::merlin<Data>& r, const token& at, std::int64_t head, const visible_segments&,
                       const segment_scores<Scalar>& scores) {
  const Scalar gamma = static_cast<Scalar>(r.gamma(at.b, at.t, head));
  const vector<Scalar> by_mean = softmax<Scalar>(static_cast<Scalar>(r.tau_mu(head)) * scores.r_mu);
  const vector<Scalar> by_variance = softmax<Scalar>(static_cast<Scalar>(r.tau_sigma(head)) * scores.r_sigma);
  return gamma * by_mean + (Scalar(1) - gamma) * by_variance;
}

template <class Data, class Scalar>
vector<Scalar> weights(const router::cumulant<Data>& r, const token&, std::int64_t head, const visible_segments&,
                       const segment_scores<Scalar>& scores) {
  const Scalar delta = static_cast<Scalar>(r.delta(head));
  return softmax<Scalar>(delta * scores.r_mu + (delta * delta / Scalar(2)) * scores.r_sigma);
}

/// Whether weight a, of a later segment than weight b, is chosen first. NaN counts as largest.
template <class Scalar>
bool goes_before(const Scalar& a, const Scalar& b) {
  if (a != a) return true;
  return b == b && !(a < b);
}

/// Which k of the weights are kept: the largest, ties to the later index, all distinct.
template <class Scalar>
std::vector<bool> chosen(const vector<Scalar>& lam, std::int64_t k, bool keep_current) {
  std::vector<bool> kept(static_cast<std::size_t>(lam.size()), false);
  if (keep_current) kept.back() = true;
  for (std::int64_t n = keep_current ? 1 : 0; n < k; ++n) {
    std::int64_t best = -1;
    for (std::int64_t l = 0; l < lam.size(); ++l) {
      if (!kept[static_cast<std::size_t>(l)] && (best < 0 || goes_before(lam(l), lam(best)))) best = l;
    }
    kept[static_cast<std::size_t>(best)] = true;
  }
  return kept;
}

template <class Scalar>
Scalar kept_sum(const vector<Scalar>& lam, const std::vector<bool>& kept) {
  Scalar sum(0);
  for (std::int64_t l = 0; l < lam.size(); ++l) {
    if (kept[static_cast<std::size_t>(l)]) sum += lam(l);
  }
  return sum;
}

template <class Router, class Scalar>
vector<Scalar> weights(const router::top_k<Router>& r, const token& at, std::int64_t head, const visible_segments& seen,
                       const segment_scores<Scalar>& scores) {
  vector<Scalar> lam = weights(r.of, at, head, seen, scores);
  if (lam.size() <= r.k) return lam;
  const auto kept = chosen(lam, r.k, r.keep_current);
  const Scalar sum = kept_sum(lam, kept);
  for (std::int64_t l = 0; l < lam.size(); ++l) {
    lam(l) = kept[static_cast<std::size_t>(l)] ? Scalar(lam(l) / sum) : Scalar(0);
  }
  return lam;
}

/// Refuses raw position weights that top_k would divide by a sum of 0. The other routers' kept weights are
/// positive.
template <class Router>
status check_kept_weights(const char*, const Router&, const token&, std::int64_t, const visible_segments&) {
  return {};
}
template <class Data>
status check_kept_weights(const char* op, const router::top_k<router::position<Data>>& r, const token& at,
                          std::int64_t heads, const visible_segments& seen) {
  argument_checks c(op);
  if (r.of.position_norm == position_norm::softmax || seen.size() <= r.k) return c.result();
  using Scalar = compute_t<Data>;
  for (std::int64_t h = 0; h < heads; ++h) {
    const vector<Scalar> lam = weights(r.of, at, h, seen, segment_scores<Scalar>{});
    c.expect(!(kept_sum(lam, chosen(lam, r.k, r.keep_current)) == Scalar(0)), error_code::value, "router.weights",
             "the kept weights of batch entry " + std::to_string(at.b) + ", token " + std::to_string(at.t) + ", head " +
                 std::to_string(h) + " sum to 0; top_k divides by their sum");
  }
  return c.result();
}

/// The same for all tokens of a sequence, which starts from these counters.
template <class Separation, class Router>
status check_kept_weights(const char* op, const Separation& separation, const Router& router, const token_range& tokens,
                          std::int64_t heads, std::int64_t max_visible, bank_counters counters = {}) {
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    counters = count_token(separation, counters);
    if (status s = check_kept_weights(op, router, token{tokens.batch, t}, heads, visible(counters, max_visible));
        !s.ok()) {
      return s;
    }
  }
  return {};
}

/// Writes lam into a row over all segments: 0 where they are not visible.
template <class T, class Scalar>
void store_weights(const tensor_view<T, 1>& row, const visible_segments& seen, const vector<Scalar>& lam) {
  for (std::int64_t l = 0; l < row.extent(0); ++l) {
    const bool sees = l >= seen.first && l <= seen.current;
    row(l) = sees ? static_cast<T>(lam(l - seen.first)) : T(0);
  }
}

/// A row over all segments at the visible ones.
template <class Scalar, class T>
vector<Scalar> load_weights(const tensor_view<T, 4>& rows, const token& at, std::int64_t head,
                            const visible_segments& seen) {
  return load<T, Scalar>(rows.select(0, at.b).select(0, at.t).select(0, head).slice(0, seen.first, seen.current + 1));
}

/// A router's query of a moment head: its own operand, or with shared_kq the recurrence's, normalised if
/// asked.
template <class Data, class Router>
vector<compute_t<Data>> routing_query(const Router& router, const token& at, std::int64_t moment_head, bool qkp_l2norm,
                                      double l2norm_eps, const vector<compute_t<Data>>& shared = {}) {
  if constexpr (Router::reads_moments) {
    const vector<compute_t<Data>> q = shared.size() > 0 ? shared : load_row(query_of(router), at, moment_head);
    return qkp_l2norm && Router::normalizes_query ? l2_normalized(q, l2norm_eps) : q;
  } else {
    return {};
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
