// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The model trained where no token comes twice, so that nothing can be memorised (panels c and d): one weight vector
/// for each pair of an effective context length and a distance, all on the same contexts.

#include "theory.hpp"

#include "support/gaussian.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gating {

/// A context is l random unit vectors of d entries with random labels; the query is the one Delta back.
struct fresh_task {
  std::int64_t d = 128, ell = 1024;
  std::vector<double> taus;
  std::vector<std::int64_t> distances;
};

class fresh_trainer {
 public:
  fresh_trainer(const fresh_task& task, std::uint64_t seed)
      : task_(task),
        random_(seed),
        decays_(task.ell, static_cast<Eigen::Index>(task.taus.size())),
        w_(Eigen::MatrixXf::Zero(task.d + 1, models())),
        context_(task.d + 1, task.ell),
        queries_(task.d + 1, static_cast<Eigen::Index>(task.distances.size())),
        answers_(queries_.cols()),
        weights_(task.ell, models()),
        h_(task.d + 1, models()) {
    for (Eigen::Index i = 0; i < decays_.cols(); ++i) {
      for (Eigen::Index t = 0; t < task.ell; ++t) {
        decays_(t, i) =
            static_cast<float>(std::exp(-static_cast<double>(task.ell - t) / task.taus[static_cast<std::size_t>(i)]));
      }
    }
  }

  /// One step of SGD on the logistic loss, of every w; the gates stay.
  void step(std::int64_t batch, double rate) {
    Eigen::MatrixXf dw = Eigen::MatrixXf::Zero(w_.rows(), w_.cols());
    for (std::int64_t i = 0; i < batch; ++i) {
      read();
      for (Eigen::Index m = 0; m < models(); ++m) {
        const float y = answers_(m % queries_.cols());
        dw.col(m) += (y / (1 + std::exp(y * w_.col(m).dot(h_.col(m))))) * h_.col(m);
      }
    }
    w_ += static_cast<float>(rate / static_cast<double>(batch)) * dw;
  }

  /// Tries `samples` further contexts: how many were answered right, (distances, taus).
  [[nodiscard]] Eigen::MatrixXd right_of(std::int64_t samples) {
    Eigen::MatrixXd right = Eigen::MatrixXd::Zero(queries_.cols(), decays_.cols());
    for (std::int64_t i = 0; i < samples; ++i) {
      read();
      for (Eigen::Index m = 0; m < models(); ++m) {
        const Eigen::Index q = m % queries_.cols();
        if (answers_(q) * w_.col(m).dot(h_.col(m)) > 0) right(q, m / queries_.cols()) += 1;
      }
    }
    return right;
  }

 private:
  [[nodiscard]] Eigen::Index models() const {
    return static_cast<Eigen::Index>(task_.taus.size() * task_.distances.size());
  }

  /// Draws a context and computes every model's h: gated_readout() for many queries and gates at once.
  void read() {
    const std::int64_t d = task_.d;
    context_.topRows(d) = examples::random_directions<float>(random_, d, task_.ell);
    for (Eigen::Index t = 0; t < task_.ell; ++t) context_(d, t) = (random_() >> 63) != 0 ? 1.0F : -1.0F;
    for (Eigen::Index q = 0; q < queries_.cols(); ++q) {
      const Eigen::Index asked = task_.ell - task_.distances[static_cast<std::size_t>(q)];
      queries_.col(q) = context_.col(asked);
      queries_(d, q) = 0;
      answers_(q) = context_(d, asked);
    }
    products_.noalias() = context_.transpose() * queries_;
    for (Eigen::Index i = 0; i < decays_.cols(); ++i) {
      weights_.middleCols(i * queries_.cols(), queries_.cols()) = products_.array().colwise() * decays_.col(i).array();
      h_.middleCols(i * queries_.cols(), queries_.cols()) = queries_;
    }
    h_.noalias() += context_ * weights_;
  }

  fresh_task task_;
  std::mt19937_64 random_;
  Eigen::MatrixXf decays_;  // (l, taus)
  Eigen::MatrixXf w_;       // (d+1, distances x taus), distances first
  Eigen::MatrixXf context_;
  Eigen::MatrixXf queries_;  // (d+1, distances)
  Eigen::VectorXf answers_;
  Eigen::MatrixXf products_;  // (l, distances)
  Eigen::MatrixXf weights_;   // (l, distances x taus)
  Eigen::MatrixXf h_;
};

}  // namespace gating
