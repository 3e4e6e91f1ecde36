// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A retriever: segments pooled by attention or by their mean, a mixer over them, a local and a global head. Pooling,
/// Mamba layers and loss are the library's; the other mixers are those of mixers.hpp.

#include "chains.hpp"
#include "mixers.hpp"
#include "parameters.hpp"

#include <polystate/reference/adapters/segment_retrieval.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace segment_retrieval {

namespace ps = polystate;

inline ps::tensor_view<const double, 2> view(const matrix& m) { return {m.data(), {m.rows(), m.cols()}}; }
inline ps::tensor_view<double, 2> view(matrix& m) { return {m.data(), {m.rows(), m.cols()}}; }
inline ps::tensor_view<const double, 1> view(const VectorXd& v) { return {v.data(), {v.size()}}; }
inline ps::tensor_view<double, 1> view(VectorXd& v) { return {v.data(), {v.size()}}; }

/// Two Mamba layers with a residual, of the library: twice as many channels as the model has dims.
struct mamba_layers {
  std::int64_t D, states, taps = 4, rank = 1;
  static constexpr std::int64_t layers = 2;

  [[nodiscard]] std::int64_t channels() const { return 2 * D; }
  [[nodiscard]] std::int64_t parameters() const {
    return layers * channels() * (2 * D + taps + 1 + (rank + 2 * states) + rank + 1 + states + 1 + D);
  }
  void initialize(initializer& init) const {
    for (std::int64_t l = 0; l < layers; ++l) {
      init.rows(2 * channels(), D);
      init.rows(channels(), taps);
      init.constant(channels(), 0);
      init.rows(rank + 2 * states, channels());
      init.rows(channels(), rank);
      // Step lengths from 0.1 to 1, for sequences of few segments; as softplus(bias).
      init.each(channels(), [&](std::int64_t i) {
        const double dt = std::pow(10, static_cast<double>(i) / static_cast<double>(channels()) - 1);
        return dt + std::log(-std::expm1(-dt));
      });
      init.each(channels() * states, [&](std::int64_t i) { return std::log(static_cast<double>(i % states + 1)); });
      init.constant(channels(), 1);
      init.rows(D, channels());
    }
  }
  [[nodiscard]] ps::mamba_block_weights<double> from(parts_of<const double>& parts) const {
    const std::int64_t di = channels();
    const auto vector = [&](std::int64_t n) { return ps::tensor_view<const double, 1>(parts.take(n), {n}); };
    const auto rows = [&](std::int64_t n, std::int64_t m) {
      return ps::tensor_view<const double, 2>(parts.take(n * m), {n, m});
    };
    return {.in_proj = rows(2 * di, D),
            .conv_w = rows(di, taps),
            .conv_b = vector(di),
            .x_proj = rows(rank + 2 * states, di),
            .dt_proj_w = rows(di, rank),
            .dt_proj_b = vector(di),
            .A_log = rows(di, states),
            .D = vector(di),
            .out_proj = rows(D, di)};
  }
  [[nodiscard]] ps::mamba_block_weight_grads<double> gradients_from(parts_of<double>& parts) const {
    const std::int64_t di = channels();
    const auto vector = [&](std::int64_t n) { return ps::tensor_view<double, 1>(parts.take(n), {n}); };
    const auto rows = [&](std::int64_t n, std::int64_t m) {
      return ps::tensor_view<double, 2>(parts.take(n * m), {n, m});
    };
    return {.d_in_proj = rows(2 * di, D),
            .d_conv_w = rows(di, taps),
            .d_conv_b = vector(di),
            .d_x_proj = rows(rank + 2 * states, di),
            .d_dt_proj_w = rows(di, rank),
            .d_dt_proj_b = vector(di),
            .d_A_log = rows(di, states),
            .d_D = vector(di),
            .d_out_proj = rows(D, di)};
  }
};

using any_mixer = std::variant<mamba_layers, perceptron, two_layers<gru>, two_layers<lstm>>;

struct scores {
  VectorXd r;         ///< of each segment
  VectorXd r_global;  ///< of each slot, read from the last segment: here a slot is a segment
};

class retriever {
 public:
  std::string name;
  bool attention;  ///< else a segment is the mean of its states
  std::int64_t state_dim, attention_dim, D, segments;
  any_mixer mixer;
  std::int64_t out;  ///< dims that the heads read

  [[nodiscard]] std::int64_t parameters() const {
    const std::int64_t pool = attention ? attention_dim * (state_dim + 1) : 0;
    return pool + D * state_dim + mixer_parameters() + out * (1 + segments);
  }
  [[nodiscard]] VectorXd initial(random_numbers& random) const {
    VectorXd theta(parameters());
    initializer init(theta.data(), random);
    if (attention) {
      init.rows(attention_dim, state_dim);
      init.rows(1, attention_dim);
    }
    init.rows(D, state_dim, 1);  // a pooled state has few entries that are not near 0
    std::visit([&](const auto& m) { m.initialize(init); }, mixer);
    init.rows(1, out);
    init.rows(segments, out);
    return theta;
  }

  [[nodiscard]] scores score(const VectorXd& theta, const chain_question& q) const {
    call c(*this, theta, q);
    scores found{VectorXd(q.segments()), VectorXd(segments)};
    if (std::holds_alternative<mamba_layers>(mixer)) {
      c.args.r = view(found.r);
      c.args.r_global = view(found.r_global);
      ps::mara(ps::on_reference{}, c.args);
      return found;
    }
    const MatrixXd y = mixed(c, pooled(c, q));
    found.r = y.transpose() * c.w_l;
    found.r_global = c.W_g * y.col(y.cols() - 1);
    return found;
  }

  /// Adds the loss's gradient to that of the parameters; returns the loss.
  double add_gradient(const VectorXd& theta, const chain_question& q, VectorXd& d_theta) const {
    call c(*this, theta, q);
    const scores found = score(theta, q);
    const VectorXd relevance = q.relevance();
    double loss = 0;
    const double one = 1;
    scores d{VectorXd(q.segments()), VectorXd(segments)};
    const ps::mara_loss_args<double> loss_args{.r = view(found.r),
                                               .relevance = view(relevance),
                                               .r_global = view(found.r_global),
                                               .global_relevance = view(relevance),
                                               .loss = {&loss, {1}}};
    ps::mara_loss(ps::on_reference{}, loss_args);
    ps::mara_loss_backward(ps::on_reference{}, loss_args,
                           {.d_loss = {&one, {1}}, .d_r = view(d.r), .d_r_global = view(d.r_global)});
    // The library overwrites: its gradients of this question come first, then they are added.
    VectorXd of_question = VectorXd::Zero(theta.size());
    parts_of<double> parts(of_question.data());
    ps::mara_grads<double> grads;
    if (attention) {
      grads.d_W_k = {parts.take(attention_dim * state_dim), {attention_dim, state_dim}};
      grads.d_q_a = {parts.take(attention_dim), {attention_dim}};
    }
    grads.d_W_in = {parts.take(D * state_dim), {D, state_dim}};
    matrix d_s;
    if (const auto* mamba = std::get_if<mamba_layers>(&mixer)) {
      grads.d_r = view(std::as_const(d.r));
      grads.d_r_global = view(std::as_const(d.r_global));
      for (std::size_t l = 0; l < mamba_layers::layers; ++l) grads.d_blocks[l] = mamba->gradients_from(parts);
      grads.d_w_l = {parts.take(out), {out}};
      grads.d_W_g = {parts.take(segments * out), {segments, out}};
    } else {
      const MatrixXd x = pooled(c, q), y = mixed(c, x);
      MatrixXd dy = c.w_l * d.r.transpose();
      dy.col(y.cols() - 1) += c.W_g.transpose() * d.r_global;
      double* const d_mixer = parts.take(mixer_parameters());
      d_s = visit_other([&](const auto& m) { return m.backward(c.mixer, x, dy, d_mixer); }).transpose();
      parts.vector(out) = y * d.r;
      parts.rows(segments, out) = d.r_global * y.col(y.cols() - 1).transpose();
      grads.d_s = view(std::as_const(d_s));
    }
    ps::mara_backward(ps::on_reference{}, c.args, grads);
    d_theta += of_question;
    return loss;
  }

 private:
  /// The parameters as the library and the mixers take them.
  struct call {
    ps::mara_args<double> args;
    const double* mixer;
    Eigen::Map<const VectorXd> w_l{nullptr, 0};
    Eigen::Map<const matrix> W_g{nullptr, 0, 0};
    // Without attention every state has the same weight.
    double no_query = 0;
    VectorXd no_keys;

    call(const retriever& of, const VectorXd& theta, const chain_question& q)
        : args{.H = view(q.H),
               .cu_segments = {q.cu_segments.data(), {q.segments() + 1}},
               .W_k = {},
               .q_a = {},
               .W_in = {}},
          no_keys(VectorXd::Zero(of.state_dim)) {
      parts_of<const double> parts(theta.data());
      if (of.attention) {
        args.W_k = {parts.take(of.attention_dim * of.state_dim), {of.attention_dim, of.state_dim}};
        args.q_a = {parts.take(of.attention_dim), {of.attention_dim}};
      } else {
        args.W_k = {no_keys.data(), {1, of.state_dim}};
        args.q_a = {&no_query, {1}};
      }
      args.W_in = {parts.take(of.D * of.state_dim), {of.D, of.state_dim}};
      if (const auto* mamba = std::get_if<mamba_layers>(&of.mixer)) {
        mixer = nullptr;
        for (std::size_t l = 0; l < mamba_layers::layers; ++l) args.blocks[l] = mamba->from(parts);
        args.residual = true;
        args.w_l = {parts.take(of.out), {of.out}};
        args.W_g = {parts.take(of.segments * of.out), {of.segments, of.out}};
        return;
      }
      args.layers = 0;
      mixer = parts.take(of.mixer_parameters());
      const double* const local = parts.take(of.out);
      const double* const global = parts.take(of.segments * of.out);
      new (&w_l) Eigen::Map<const VectorXd>(local, of.out);
      new (&W_g) Eigen::Map<const matrix>(global, of.segments, of.out);
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
  };

  [[nodiscard]] std::int64_t mixer_parameters() const {
    return std::visit([](const auto& m) { return m.parameters(); }, mixer);
  }
  /// What the mixer starts from: a column a segment.
  [[nodiscard]] MatrixXd pooled(call& c, const chain_question& q) const {
    matrix s(q.segments(), D);
    auto args = c.args;
    args.s = view(s);
    ps::mara(ps::on_reference{}, args);
    return s.transpose();
  }
  template <class F>
  MatrixXd visit_other(F&& f) const {
    return std::visit(
        [&](const auto& m) -> MatrixXd {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(m)>, mamba_layers>) {
            return {};
          } else {
            return f(m);
          }
        },
        mixer);
  }
  [[nodiscard]] MatrixXd mixed(const call& c, const MatrixXd& x) const {
    return visit_other([&](const auto& m) { return m.forward(c.mixer, x); });
  }
};

}  // namespace segment_retrieval
