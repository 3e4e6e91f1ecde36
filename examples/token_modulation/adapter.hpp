// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A MaLoRA adapter with random weights, nothing trained: decays and step lengths as Mamba begins with, matrices that
/// keep the size of what they multiply.

#include "support/gaussian.hpp"

#include <polystate/adapters/token_modulation.hpp>
#include <polystate/core/tensor_view.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <random>

namespace token_modulation {

namespace ps = polystate;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using vector = Eigen::VectorXd;

/// Sizes of an adapter and of its block.
struct sizes {
  std::int64_t din = 4096, dout = 4096, rank = 16;
  std::int64_t dp = 16;      ///< width of the block
  std::int64_t di = 0;       ///< channels of the block; 0: 2 dp
  std::int64_t taps = 4;     ///< of the convolution
  std::int64_t dt_rank = 0;  ///< 0: dp / 16, rounded up
  std::int64_t states = 16;  ///< a channel
  bool diagonal = false;     ///< a factor for each of the rank's entries, else one for all

  [[nodiscard]] sizes resolved() const {
    sizes s = *this;
    if (s.di == 0) s.di = 2 * dp;
    if (s.dt_rank == 0) s.dt_rank = (dp + 15) / 16;
    return s;
  }
  [[nodiscard]] std::int64_t factors() const { return diagonal ? rank : 1; }
};

inline ps::tensor_view<const double, 2> operand(const matrix& m) { return {m.data(), {m.rows(), m.cols()}}; }
inline ps::tensor_view<const double, 1> operand(const vector& v) { return {v.data(), {v.size()}}; }
/// Rows are tokens of one sequence.
inline ps::tensor_view<const double, 3> tokens(const matrix& m) { return {m.data(), {1, m.rows(), m.cols()}}; }
inline ps::tensor_view<double, 3> tokens(matrix& m) { return {m.data(), {1, m.rows(), m.cols()}}; }

/// Uniform with variance 1/inputs, so that a product keeps the size of its input.
inline matrix uniform_rows(std::mt19937_64& random, std::int64_t rows, std::int64_t inputs) {
  const double most = std::sqrt(3 / static_cast<double>(inputs));
  matrix m(rows, inputs);
  for (double& x : m.reshaped<Eigen::RowMajor>()) x = (2 * examples::uniform(random) - 1) * most;
  return m;
}

inline matrix gaussian(std::mt19937_64& random, std::int64_t rows, std::int64_t columns) {
  Eigen::MatrixXd m(rows, columns);
  examples::fill_gaussian<double>(random, m);
  return m;
}

class adapter {
 public:
  adapter(const sizes& n, std::uint64_t seed) : n_(n.resolved()) {
    std::mt19937_64 random(seed);
    A_ = uniform_rows(random, n_.rank, n_.din);
    B_ = uniform_rows(random, n_.dout, n_.rank);  // a trained one: LoRA begins with B = 0, and no update at all
    P_ = uniform_rows(random, n_.dp, n_.din);
    in_proj_ = uniform_rows(random, 2 * n_.di, n_.dp);
    conv_w_ = uniform_rows(random, n_.di, n_.taps);
    conv_b_ = uniform_rows(random, n_.di, n_.taps).col(0);
    x_proj_ = uniform_rows(random, n_.dt_rank + 2 * n_.states, n_.di);
    dt_proj_w_ = uniform_rows(random, n_.di, n_.dt_rank);
    dt_proj_b_.resize(n_.di);
    for (double& b : dt_proj_b_) {  // softplus(b) log-uniform in 0.001 .. 0.1
      const double dt = std::exp(std::log(1e-3) + examples::uniform(random) * std::log(100.0));
      b = std::log(std::expm1(dt));
    }
    A_log_.resize(n_.di, n_.states);
    for (std::int64_t k = 0; k < n_.states; ++k) A_log_.col(k).setConstant(std::log(static_cast<double>(k + 1)));
    D_ = vector::Ones(n_.di);
    out_proj_ = uniform_rows(random, n_.dp, n_.di);
    phi_w_ = uniform_rows(random, n_.factors(), n_.dp);
    phi_b_ = vector::Constant(n_.factors(), std::log(std::expm1(1.0)));  // lam = 1, LoRA, where the block says 0
  }

  /// Inputs only.
  [[nodiscard]] ps::malora_args<double> args() const {
    ps::malora_args<double> a{};
    show_in(a);
    return a;
  }
  [[nodiscard]] ps::malora_step_args<double> step_args() const {
    ps::malora_step_args<double> a{};
    show_in(a);
    return a;
  }
  [[nodiscard]] const sizes& size() const { return n_; }

 private:
  template <class Args>
  void show_in(Args& a) const {
    a.A = operand(A_);
    a.B = operand(B_);
    a.P = operand(P_);
    a.mamba = {.in_proj = operand(in_proj_),
               .conv_w = operand(conv_w_),
               .conv_b = operand(conv_b_),
               .x_proj = operand(x_proj_),
               .dt_proj_w = operand(dt_proj_w_),
               .dt_proj_b = operand(dt_proj_b_),
               .A_log = operand(A_log_),
               .D = operand(D_),
               .out_proj = operand(out_proj_)};
    a.phi_w = operand(phi_w_);
    a.phi_b = operand(phi_b_);
  }

  sizes n_;
  matrix A_, B_, P_, in_proj_, conv_w_, x_proj_, dt_proj_w_, A_log_, out_proj_, phi_w_;
  vector conv_b_, dt_proj_b_, D_, phi_b_;
};

}  // namespace token_modulation
