// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The formulas of "On the importance of gating": the simplified gated model, the accuracy that it can reach, and the
/// gradient flow of its margins. docs/gating_theory.md has the model.

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <numbers>

namespace gating {

/// Standard normal distribution function.
inline double Phi(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

/// What the gated model reads for one query, and how its output changes with the gate.
template <class Scalar>
struct readout {
  Eigen::Matrix<Scalar, Eigen::Dynamic, 1> h;  ///< (d+1)
  Scalar f = 0;                                ///< w . h
  Scalar df_dlambda = 0;
};

/// h = xq + sum_{t=1}^{l} exp(-e^lambda (l-t+1)) (xq . x_t) x_t, f = w . h. X: (d+1, l), a token a column, its label
/// last; xq: (d+1), label 0.
template <class Scalar>
readout<Scalar> gated_readout(const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& X,
                              const Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& xq,
                              const Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& w, Scalar lambda) {
  readout<Scalar> out{.h = xq};
  const Scalar rate = std::exp(lambda);
  for (Eigen::Index t = 0; t < X.cols(); ++t) {
    const auto age = static_cast<Scalar>(X.cols() - t);
    const Scalar weight = std::exp(-rate * age) * xq.dot(X.col(t));
    out.h += weight * X.col(t);
    out.df_dlambda += -rate * age * weight * w.dot(X.col(t));
  }
  out.f = w.dot(out.h);
  return out;
}

/// One setting: the asked token, of norm xnorm and d entries, lies Delta tokens back of ell.
struct setting {
  double lambda = 0;
  double d = 0, ell = 0, Delta = 0;
  double xnorm = 1;
  double P = 0;       ///< patterns
  double eps = 0;     ///< probability that a label differs from its pattern's own
  double target = 0;  ///< error that counts as recalled
};

/// Effective context length e^-lambda.
inline double tau_of(double lambda) { return std::exp(-lambda); }
/// What is left of a token Delta back.
inline double alpha_of(double lambda, double Delta) { return std::exp(-Delta * std::exp(lambda)); }
/// The lambda with which a token Delta back keeps alpha.
inline double lambda_of(double alpha, double Delta) { return std::log(-std::log(alpha) / Delta); }

/// sum_{j=1}^{ell} exp(-2 j e^lambda).
inline double sum_of_squares(double lambda, double ell) {
  double sum = 0;
  for (double j = 1; j <= ell; ++j) sum += std::exp(-2 * j * std::exp(lambda));
  return sum;
}

/// Error of the best decision from the label entry of h.
inline double bayes_error(const setting& s) {
  const double alpha = alpha_of(s.lambda, s.Delta);
  return Phi(-alpha * s.xnorm * std::sqrt(s.d / (sum_of_squares(s.lambda, s.ell) - alpha * alpha)));
}
/// The same with nothing forgotten.
inline double no_decay_error(const setting& s) { return Phi(-s.xnorm * std::sqrt(s.d / (s.ell - 1))); }

/// Proposition 1: how the margin of recall compares with that of memorisation as training begins.
inline double prop1_ratio(const setting& s) {
  const double alpha = alpha_of(s.lambda, s.Delta);
  return s.P * alpha * alpha / ((1 - 2 * s.eps) * (1 + alpha) * (1 + alpha));
}
/// About where that ratio passes 1.
inline double alpha_star(double P, double eps) { return std::sqrt((1 - 2 * eps) / P); }
/// Exactly where: alpha / (1 + alpha) = alpha_star.
inline double alpha_crossing(double P, double eps) { return alpha_star(P, eps) / (1 - alpha_star(P, eps)); }

/// The largest distance in 1 .. ell whose Bayes error is at most the target; 0 if none.
inline double delta_max(setting s) {
  const double sum = sum_of_squares(s.lambda, s.ell);
  double best = 0;
  for (double Delta = 1; Delta <= s.ell; ++Delta) {
    const double alpha = alpha_of(s.lambda, Delta);
    if (Phi(-alpha * s.xnorm * std::sqrt(s.d / (sum - alpha * alpha))) <= s.target) best = Delta;
  }
  return best;
}

/// The gradient flow of the logistic loss for orthonormal patterns: u is how far the weights have memorised the
/// patterns' labels, v the weight of the label entry.
struct flow {
  double delta_m = 0;  ///< margin of memorisation
  double delta_r = 0;  ///< margin of recall
  double du = 0, dv = 0, dalpha = 0;
};
inline flow gating_flow(double u, double v, double alpha, double P, double eps) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  flow out{.delta_m = (1 + alpha) * u, .delta_r = alpha * v};
  const double k = (1 - eps) * sigmoid(-(out.delta_m + out.delta_r));
  const double f = eps * sigmoid(out.delta_m - out.delta_r);
  const double slope = alpha * std::log(alpha);  // of alpha along lambda
  out.du = (1 + alpha) / P * (k - f);
  out.dv = alpha * (k + f);
  out.dalpha = slope * slope * ((u + v) * k + (v - u) * f);
  return out;
}

/// Time at which the flow from u = v = 0 lifts alpha to `reached`; `most` where it does not.
inline double escape_time_of_flow(double alpha, double P, double eps, double reached, double most) {
  constexpr double step = 0.01;
  double u = 0, v = 0, time = 0;
  for (; alpha < reached && time < most; time += step) {
    const flow d = gating_flow(u, v, alpha, P, eps);
    u += step * d.du;
    v += step * d.dv;
    alpha += step * d.dalpha;
  }
  return time;
}

}  // namespace gating
