// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Parameters and their gradients as one vector each, cut into matrices in a fixed order, and Adam on it.

#include "random.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>

namespace segment_retrieval {

using Eigen::MatrixXd;
using Eigen::VectorXd;
/// Row-major, as the library's operands are stored.
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Hands out consecutive parts of a vector.
template <class Scalar>
class parts_of {
 public:
  using vector_map = Eigen::Map<std::conditional_t<std::is_const_v<Scalar>, const VectorXd, VectorXd>>;
  using matrix_map = Eigen::Map<std::conditional_t<std::is_const_v<Scalar>, const matrix, matrix>>;

  explicit parts_of(Scalar* begin) : next_(begin) {}

  Scalar* take(std::int64_t count) {
    Scalar* const part = next_;
    next_ += count;
    return part;
  }
  vector_map vector(std::int64_t size) { return vector_map(take(size), size); }
  matrix_map rows(std::int64_t rows, std::int64_t columns) { return matrix_map(take(rows * columns), rows, columns); }

 private:
  Scalar* next_;
};

/// Fills consecutive parts of a vector with initial values.
class initializer {
 public:
  initializer(double* begin, random_numbers& random) : parts_(begin), random_(random) {}

  /// Uniform, of variance 1/inputs: a row's product with that many entries of size 1 has size 1.
  void rows(std::int64_t rows, std::int64_t columns, std::int64_t inputs = 0) {
    const double bound = std::sqrt(3 / static_cast<double>(inputs > 0 ? inputs : columns));
    for (double& x : parts_.vector(rows * columns)) x = random_.uniform(-bound, bound);
  }
  void constant(std::int64_t count, double value) { parts_.vector(count).setConstant(value); }
  template <class F>
  void each(std::int64_t count, F&& value) {
    auto part = parts_.vector(count);
    for (std::int64_t i = 0; i < count; ++i) part(i) = value(i);
  }

 private:
  parts_of<double> parts_;
  random_numbers& random_;
};

/// Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1.
class adam {
 public:
  explicit adam(std::int64_t size) : mean_(VectorXd::Zero(size)), square_(VectorXd::Zero(size)) {}

  void step(VectorXd& parameters, const VectorXd& gradient, double rate) {
    constexpr double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
    ++steps_;
    mean_ = beta1 * mean_ + (1 - beta1) * gradient;
    square_ = beta2 * square_ + (1 - beta2) * gradient.cwiseAbs2();
    const double of_mean = 1 - std::pow(beta1, steps_), of_square = 1 - std::pow(beta2, steps_);
    parameters.array() -= rate * (mean_ / of_mean).array() / ((square_ / of_square).array().sqrt() + eps);
  }

 private:
  VectorXd mean_, square_;
  int steps_ = 0;
};

}  // namespace segment_retrieval
