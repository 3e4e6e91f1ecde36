// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The softmax mass of each segment: exact, and as routers estimate it from the segment's moments.

#include "contexts.hpp"

#include <polystate/reference/multi_state.hpp>
#include <polystate/reference/segment_moments.hpp>
#include <polystate/state_bank.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>

namespace segment_mass {

namespace ps = polystate;

/// sum over a segment's keys of softmax_i(delta q . k_i): (segments, queries).
inline MatrixXd exact_mass(const context& c, std::int64_t m, double delta) {
  MatrixXd weights = delta * (c.keys.transpose() * c.queries);
  weights.rowwise() -= weights.colwise().maxCoeff().eval();
  weights = weights.array().exp();
  MatrixXd mass(weights.rows() / m, weights.cols());
  for (Eigen::Index l = 0; l < mass.rows(); ++l) mass.row(l) = weights.middleRows(l * m, m).colwise().sum();
  const Eigen::RowVectorXd sums = mass.colwise().sum();
  return mass * sums.cwiseInverse().asDiagonal();
}

/// A bank that holds nothing but the moments of a context's segments.
class moments_of_segments {
 public:
  moments_of_segments(const context& c, std::int64_t m)
      : bank_({.dv = 1, .dk = c.keys.rows(), .HR = 1, .dr = c.keys.rows()}, c.keys.cols() / m) {
    const auto to = bank_.view();
    ps::segment_moments(ps::on_reference{}, ps::segment_moments_args<double>{
                                                .moments = {.k = {c.keys.data(), {1, c.keys.cols(), 1, c.keys.rows()}}},
                                                .separation = {m},
                                                .mu = to.mu,
                                                .Sigma = to.Sigma});
    bank_.resume(0, ps::separation::uniform{m}, c.keys.cols());
  }

  /// softmax_l(delta r_mu): the mean alone. (segments, queries)
  [[nodiscard]] MatrixXd first_order(const MatrixXd& queries, double delta) const {
    const MatrixXd u = delta * queries;
    return weights(queries, ps::router::meanpool<double>{.u = operand(u)});
  }
  /// softmax_l(delta r_mu + delta^2/2 r_sigma).
  [[nodiscard]] MatrixXd second_order(const MatrixXd& queries, double delta) const {
    return weights(queries, ps::router::cumulant<double>{.q = operand(queries), .delta = {&delta, {1}}});
  }

  /// Standard deviation of q . k within a segment, over all segments and queries.
  [[nodiscard]] double spread(const MatrixXd& queries) const {
    const auto& from = bank_.view();
    double sum = 0;
    for (std::int64_t l = 0; l < bank_.capacity(); ++l) {
      const Eigen::Map<const Eigen::VectorXd> mu(from.mu.select(1, l).data(), queries.rows());
      const Eigen::Map<const MatrixXd> Sigma(from.Sigma.select(1, l).data(), queries.rows(), queries.rows());
      sum += (queries.transpose() * (Sigma - mu * mu.transpose()) * queries).trace();
    }
    return std::sqrt(sum / static_cast<double>(bank_.capacity() * queries.cols()));
  }

 private:
  static ps::tensor_view<const double, 4> operand(const MatrixXd& m) { return {m.data(), {1, m.cols(), 1, m.rows()}}; }

  template <class Router>
  [[nodiscard]] MatrixXd weights(const MatrixXd& queries, const Router& router) const {
    MatrixXd lam(bank_.capacity(), queries.cols());
    Eigen::RowVectorXd read(queries.cols());  // of states that hold nothing
    ps::multi_state_read(ps::on_reference{}, ps::multi_state_read_args<double, ps::rule::linear, Router>{
                                                 .in = {.q = operand(queries)},
                                                 .bank = bank_.view(),
                                                 .router = router,
                                                 .o = {read.data(), {1, queries.cols(), 1, 1}},
                                                 .lam = {lam.data(), {1, lam.cols(), 1, lam.rows()}}});
    return lam;
  }

  ps::state_bank<double> bank_;
};

/// Half the sum of absolute differences, averaged over queries: the part of the mass that is in the wrong place.
inline double misplaced(const MatrixXd& estimate, const MatrixXd& exact) {
  return (estimate - exact).cwiseAbs().sum() / (2 * static_cast<double>(exact.cols()));
}

/// The share of queries for which the segment with the most mass is named.
inline double same_first(const MatrixXd& estimate, const MatrixXd& exact) {
  Eigen::Index same = 0;
  for (Eigen::Index q = 0; q < exact.cols(); ++q) {
    Eigen::Index a = 0, b = 0;
    estimate.col(q).maxCoeff(&a);
    exact.col(q).maxCoeff(&b);
    same += a == b ? 1 : 0;
  }
  return static_cast<double>(same) / static_cast<double>(exact.cols());
}

}  // namespace segment_mass
