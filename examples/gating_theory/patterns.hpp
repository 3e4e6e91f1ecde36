// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The model trained on a fixed set of patterns, which it can memorise or look up in its context (panels a and b).

#include "theory.hpp"

#include "support/gaussian.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace gating {

/// P unit vectors, each with a label of its own. A context holds l different ones; a token's label is its pattern's,
/// with probability eps the other one. The query is the token Delta back, without its label, and the answer is that
/// token's label.
struct pattern_task {
  std::int64_t d = 512, P = 32, ell = 8, Delta = 4;
  double eps = 0.1;
};

class pattern_trainer {
 public:
  pattern_trainer(const pattern_task& task, double alpha, std::uint64_t seed)
      : task_(task),
        random_(seed),
        patterns_(examples::random_directions<float>(random_, task.d, task.P)),
        labels_(task.P),
        order_(static_cast<std::size_t>(task.P)),
        w_(Eigen::VectorXf::Zero(task.d + 1)),
        lambda_(static_cast<float>(lambda_of(alpha, static_cast<double>(task.Delta)))) {
    for (float& y : labels_) y = sign();
    std::iota(order_.begin(), order_.end(), Eigen::Index{0});
  }

  /// One step of SGD on the logistic loss, of w and lambda.
  void step(std::int64_t batch, double rate) {
    Eigen::VectorXf dw = Eigen::VectorXf::Zero(w_.size());
    float dlambda = 0;
    for (std::int64_t i = 0; i < batch; ++i) {
      draw();
      const auto read = gated_readout<float>(context_, query_, w_, lambda_);
      const float push = answer_ / (1 + std::exp(answer_ * read.f));  // minus the loss's derivative along f
      dw += push * read.h;
      dlambda += push * read.df_dlambda;
    }
    const auto scale = static_cast<float>(rate / static_cast<double>(batch));
    w_ += scale * dw;
    lambda_ += scale * dlambda;
  }

  /// How far w has memorised the patterns' labels: the mean of label * (w . pattern).
  [[nodiscard]] double u() const {
    return static_cast<double>((patterns_.transpose() * w_.head(task_.d)).dot(labels_)) / static_cast<double>(task_.P);
  }
  [[nodiscard]] double v() const { return static_cast<double>(w_(task_.d)); }
  [[nodiscard]] double alpha() const {
    return alpha_of(static_cast<double>(lambda_), static_cast<double>(task_.Delta));
  }

 private:
  float sign() { return (random_() >> 63) != 0 ? 1.0F : -1.0F; }

  void draw() {
    context_.resize(task_.d + 1, task_.ell);
    query_.resize(task_.d + 1);
    for (std::int64_t t = 0; t < task_.ell; ++t) {
      const auto left = static_cast<std::uint64_t>(task_.P - t);
      const auto at = static_cast<std::size_t>(t);
      std::swap(order_[at], order_[at + random_() % left]);
      const Eigen::Index p = order_[at];
      context_.col(t).head(task_.d) = patterns_.col(p);
      context_(task_.d, t) = examples::uniform(random_) < task_.eps ? -labels_(p) : labels_(p);
    }
    const std::int64_t asked = task_.ell - task_.Delta;
    query_ = context_.col(asked);
    query_(task_.d) = 0;
    answer_ = context_(task_.d, asked);
  }

  pattern_task task_;
  std::mt19937_64 random_;
  Eigen::MatrixXf patterns_;  // (d, P)
  Eigen::VectorXf labels_;
  std::vector<Eigen::Index> order_;
  Eigen::VectorXf w_;
  float lambda_;
  Eigen::MatrixXf context_;
  Eigen::VectorXf query_;
  float answer_ = 0;
};

}  // namespace gating
