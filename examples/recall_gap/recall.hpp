// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Recall of m key-value pairs from a fixed state and from attention, as formulas. A matrix has one column a pair, keys
/// of N entries and values of P.

#include <Eigen/Core>

namespace recall_gap {

using Eigen::MatrixXd;

/// sum_j v_j k_j^T: (P, N).
inline MatrixXd linear_state(const MatrixXd& keys, const MatrixXd& values) { return values * keys.transpose(); }

/// sum_i softmax_i(beta q . k_i) v_i for each query q, a column.
inline MatrixXd read_attention(const MatrixXd& keys, const MatrixXd& values, const MatrixXd& queries, double beta) {
  MatrixXd weights = beta * (keys.transpose() * queries);
  weights.rowwise() -= weights.colwise().maxCoeff().eval();
  weights = weights.array().exp();
  const Eigen::RowVectorXd sums = weights.colwise().sum();
  return (values * weights) * sums.cwiseInverse().asDiagonal();
}

/// The share of pairs j for which, of all values, v_j has the largest product with what was read for k_j.
inline double share_recalled(const MatrixXd& reads, const MatrixXd& values) {
  const MatrixXd scores = values.transpose() * reads;
  Eigen::Index right = 0;
  for (Eigen::Index j = 0; j < scores.cols(); ++j) {
    Eigen::Index best = 0;
    scores.col(j).maxCoeff(&best);
    right += best == j ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(scores.cols());
}

}  // namespace recall_gap
