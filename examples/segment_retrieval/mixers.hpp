// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the Mamba layers are compared with: other maps from the segments' vectors, the columns of x, to as many
/// columns that the heads read. Each is a struct of sizes with parameters() of one layer, initialize(), forward() and
/// backward(), which recomputes what it needs, adds to the parameters' gradient and returns that of x.

#include "parameters.hpp"

#include <Eigen/Core>

#include <cstdint>
#include <vector>

namespace segment_retrieval {

inline Eigen::ArrayXd sigmoid(const Eigen::ArrayXd& x) { return 1 / (1 + (-x).exp()); }

/// y = B tanh(A x + a) + b for each segment by itself: no segment learns of another.
struct perceptron {
  std::int64_t in, hidden, out;

  [[nodiscard]] std::int64_t parameters() const { return hidden * (in + 1) + out * (hidden + 1); }
  void initialize(initializer& init) const {
    init.rows(hidden, in);
    init.constant(hidden, 0);
    init.rows(out, hidden);
    init.constant(out, 0);
  }

  struct weights {
    Eigen::Map<const matrix> A;
    Eigen::Map<const VectorXd> a;
    Eigen::Map<const matrix> B;
    Eigen::Map<const VectorXd> b;
  };
  [[nodiscard]] weights from(const double* parameters) const {
    parts_of<const double> parts(parameters);
    return {
        .A = parts.rows(hidden, in), .a = parts.vector(hidden), .B = parts.rows(out, hidden), .b = parts.vector(out)};
  }

  [[nodiscard]] MatrixXd forward(const double* parameters, const MatrixXd& x) const {
    const weights w = from(parameters);
    const MatrixXd h = ((w.A * x).colwise() + w.a).array().tanh();
    return (w.B * h).colwise() + w.b;
  }
  [[nodiscard]] MatrixXd backward(const double* parameters, const MatrixXd& x, const MatrixXd& dy,
                                  double* d_parameters) const {
    const weights w = from(parameters);
    const MatrixXd h = ((w.A * x).colwise() + w.a).array().tanh();
    const MatrixXd dz = (w.B.transpose() * dy).array() * (1 - h.array().square());
    parts_of<double> d(d_parameters);
    d.rows(hidden, in) += dz * x.transpose();
    d.vector(hidden) += dz.rowwise().sum();
    d.rows(out, hidden) += dy * h.transpose();
    d.vector(out) += dy.rowwise().sum();
    return w.A.transpose() * dz;
  }
};

/// Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078, with the reset gate behind the product):
///     r = sigmoid(W_r x + U_r h + b_r)      u = sigmoid(W_u x + U_u h + b_u)
///     c = tanh(W_c x + b_c + r * (U_c h))   h <- u * h + (1 - u) * c
struct gru {
  std::int64_t in, out;

  [[nodiscard]] std::int64_t parameters() const { return 3 * out * (in + out + 1); }
  void initialize(initializer& init) const {
    init.rows(3 * out, in);
    init.rows(3 * out, out);
    init.constant(3 * out, 0);
  }

  struct step {
    VectorXd before, r, u, c, Uc;
  };
  /// The steps of the recurrence, and h behind them in the columns of y.
  [[nodiscard]] std::vector<step> run(const double* parameters, const MatrixXd& x, MatrixXd& y) const {
    parts_of<const double> parts(parameters);
    const auto W = parts.rows(3 * out, in);
    const auto U = parts.rows(3 * out, out);
    const auto b = parts.vector(3 * out);
    std::vector<step> steps;
    y.resize(out, x.cols());
    VectorXd h = VectorXd::Zero(out);
    for (Eigen::Index t = 0; t < x.cols(); ++t) {
      const VectorXd Wx = W * x.col(t) + b;
      const VectorXd Uh = U * h;
      step s{.before = h,
             .r = sigmoid((Wx + Uh).head(out).array()),
             .u = sigmoid((Wx + Uh).segment(out, out).array()),
             .c = {},
             .Uc = Uh.tail(out)};
      s.c = (Wx.tail(out) + s.r.cwiseProduct(s.Uc)).array().tanh();
      h = s.u.cwiseProduct(h) + (1 - s.u.array()).matrix().cwiseProduct(s.c);
      y.col(t) = h;
      steps.push_back(std::move(s));
    }
    return steps;
  }

  [[nodiscard]] MatrixXd forward(const double* parameters, const MatrixXd& x) const {
    MatrixXd y;
    (void)run(parameters, x, y);
    return y;
  }
  [[nodiscard]] MatrixXd backward(const double* parameters, const MatrixXd& x, const MatrixXd& dy,
                                  double* d_parameters) const {
    MatrixXd y;
    const std::vector<step> steps = run(parameters, x, y);
    parts_of<const double> parts(parameters);
    const auto W = parts.rows(3 * out, in);
    const auto U = parts.rows(3 * out, out);
    parts_of<double> d(d_parameters);
    auto d_W = d.rows(3 * out, in);
    auto d_U = d.rows(3 * out, out);
    auto d_b = d.vector(3 * out);
    MatrixXd dx(in, x.cols());
    VectorXd dh = VectorXd::Zero(out);
    for (Eigen::Index t = x.cols() - 1; t >= 0; --t) {
      const step& s = steps[static_cast<std::size_t>(t)];
      dh += dy.col(t);
      const Eigen::ArrayXd dc = dh.array() * (1 - s.u.array()) * (1 - s.c.array().square());
      VectorXd d_Wx(3 * out);  // of W x + b; that of U h differs by r in its last part
      d_Wx << (dc * s.Uc.array() * s.r.array() * (1 - s.r.array())).matrix(),
          (dh.array() * (s.before - s.c).array() * s.u.array() * (1 - s.u.array())).matrix(), dc.matrix();
      VectorXd d_Uh = d_Wx;
      d_Uh.tail(out).array() *= s.r.array();
      d_W += d_Wx * x.col(t).transpose();
      d_b += d_Wx;
      d_U += d_Uh * s.before.transpose();
      dx.col(t) = W.transpose() * d_Wx;
      dh = dh.cwiseProduct(s.u) + U.transpose() * d_Uh;
    }
    return dx;
  }
};

/// Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000):
///     (i, f, o, c) = W x + U h + b;  cell <- sigmoid(f) * cell + sigmoid(i) * tanh(c);  h <- sigmoid(o) * tanh(cell)
struct lstm {
  std::int64_t in, out;

  [[nodiscard]] std::int64_t parameters() const { return 4 * out * (in + out + 1); }
  void initialize(initializer& init) const {
    init.rows(4 * out, in);
    init.rows(4 * out, out);
    init.constant(out, 0);
    init.constant(out, 1);  // the cell keeps what it holds at first
    init.constant(2 * out, 0);
  }

  struct step {
    VectorXd h_before, cell_before, i, f, o, c, cell;
  };
  [[nodiscard]] std::vector<step> run(const double* parameters, const MatrixXd& x, MatrixXd& y) const {
    parts_of<const double> parts(parameters);
    const auto W = parts.rows(4 * out, in);
    const auto U = parts.rows(4 * out, out);
    const auto b = parts.vector(4 * out);
    std::vector<step> steps;
    y.resize(out, x.cols());
    VectorXd h = VectorXd::Zero(out), cell = h;
    for (Eigen::Index t = 0; t < x.cols(); ++t) {
      const VectorXd z = W * x.col(t) + U * h + b;
      step s{.h_before = h,
             .cell_before = cell,
             .i = sigmoid(z.head(out).array()),
             .f = sigmoid(z.segment(out, out).array()),
             .o = sigmoid(z.segment(2 * out, out).array()),
             .c = z.tail(out).array().tanh(),
             .cell = {}};
      cell = s.f.cwiseProduct(cell) + s.i.cwiseProduct(s.c);
      h = s.o.array() * cell.array().tanh();
      s.cell = cell;
      y.col(t) = h;
      steps.push_back(std::move(s));
    }
    return steps;
  }

  [[nodiscard]] MatrixXd forward(const double* parameters, const MatrixXd& x) const {
    MatrixXd y;
    (void)run(parameters, x, y);
    return y;
  }
  [[nodiscard]] MatrixXd backward(const double* parameters, const MatrixXd& x, const MatrixXd& dy,
                                  double* d_parameters) const {
    MatrixXd y;
    const std::vector<step> steps = run(parameters, x, y);
    parts_of<const double> parts(parameters);
    const auto W = parts.rows(4 * out, in);
    const auto U = parts.rows(4 * out, out);
    parts_of<double> d(d_parameters);
    auto d_W = d.rows(4 * out, in);
    auto d_U = d.rows(4 * out, out);
    auto d_b = d.vector(4 * out);
    MatrixXd dx(in, x.cols());
    VectorXd dh = VectorXd::Zero(out), d_cell = dh;
    for (Eigen::Index t = x.cols() - 1; t >= 0; --t) {
      const step& s = steps[static_cast<std::size_t>(t)];
      const Eigen::ArrayXd squashed = s.cell.array().tanh();
      dh += dy.col(t);
      d_cell.array() += dh.array() * s.o.array() * (1 - squashed.square());
      VectorXd dz(4 * out);
      dz << (d_cell.array() * s.c.array() * s.i.array() * (1 - s.i.array())).matrix(),
          (d_cell.array() * s.cell_before.array() * s.f.array() * (1 - s.f.array())).matrix(),
          (dh.array() * squashed * s.o.array() * (1 - s.o.array())).matrix(),
          (d_cell.array() * s.i.array() * (1 - s.c.array().square())).matrix();
      d_W += dz * x.col(t).transpose();
      d_U += dz * s.h_before.transpose();
      d_b += dz;
      dx.col(t) = W.transpose() * dz;
      dh = U.transpose() * dz;
      d_cell = d_cell.cwiseProduct(s.f);
    }
    return dx;
  }
};

/// Two layers, the second on what the first says.
template <class Layer>
struct two_layers {
  Layer first, second;

  [[nodiscard]] std::int64_t parameters() const { return first.parameters() + second.parameters(); }
  void initialize(initializer& init) const {
    first.initialize(init);
    second.initialize(init);
  }
  [[nodiscard]] MatrixXd forward(const double* parameters, const MatrixXd& x) const {
    return second.forward(parameters + first.parameters(), first.forward(parameters, x));
  }
  [[nodiscard]] MatrixXd backward(const double* parameters, const MatrixXd& x, const MatrixXd& dy,
                                  double* d_parameters) const {
    const std::int64_t n = first.parameters();
    const MatrixXd between = second.backward(parameters + n, first.forward(parameters, x), dy, d_parameters + n);
    return first.backward(parameters, x, between, d_parameters);
  }
};

}  // namespace segment_retrieval
