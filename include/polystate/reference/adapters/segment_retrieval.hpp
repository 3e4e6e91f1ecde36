// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// mara as it is defined: docs/segment_retrieval.md.

#include <polystate/adapters/segment_retrieval.hpp>
#include <polystate/core/sequences.hpp>
#include <polystate/reference/adapters/mamba_block.hpp>
#include <polystate/reference/adapters/mara_loss.hpp>
#include <polystate/reference/adapters/segment_retrieval/pool.hpp>
#include <polystate/reference/eigen.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// The operands in the scalar that the reference computes in, and the forward with what the backward needs of it. A
/// matrix has one row a hidden state or a segment.
template <class Data>
class mara_run {
 public:
  using Scalar = compute_t<Data>;

  explicit mara_run(const mara_args<Data>& args)
      : args_(args),
        segments_(1, args.H.extent(0), args.cu_segments),
        H_(load(args.H)),
        W_k_(load(args.W_k)),
        q_a_(load(args.q_a)),
        W_in_(load(args.W_in)) {
    for (std::size_t l = 0; l < layers(); ++l) weights_.emplace_back(args.blocks[l]);
  }

  status forward() {
    p_ = matrix<Scalar>::Zero(segments_.size(), H_.cols());
    for (std::int64_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].size() > 0) p_.row(i) = attention_pool<Scalar>(states_of(i), W_k_, q_a_).pooled();
    }
    inputs_.assign(1, p_ * W_in_.transpose());
    for (std::size_t l = 0; l < layers(); ++l) {
      auto x = owned(inputs_[l]);
      auto y = owned_tensor<Scalar, 3>::shaped_as(x.view());
      const status s = try_mamba_block(
          on_reference{}, mamba_block_args<Scalar>{.x = x.view(), .weights = weights_[l].views(), .y = y.view()});
      if (!s.ok()) return s;
      inputs_.push_back(rows_of(y));
      if (args_.residual) inputs_.back() += inputs_[l];
    }
    return {};
  }

  void store_outputs() const {
    const matrix<Scalar>& s = inputs_.back();
    const vector<Scalar> g = s.row(s.rows() - 1);
    if (args_.p) store(args_.p, p_);
    if (args_.s) store(args_.s, s);
    if (args_.r) store(args_.r, s * load(args_.w_l));
    if (args_.g) store(args_.g, g);
    if (args_.r_global) store(args_.r_global, load(args_.W_g) * g);
  }

  /// After forward().
  status backward(const mara_grads<Data>& grads) {
    const matrix<Scalar>& s = inputs_.back();
    const Eigen::Index last = s.rows() - 1;
    matrix<Scalar> ds = matrix<Scalar>::Zero(s.rows(), s.cols());
    vector<Scalar> d_w_l = vector<Scalar>::Zero(s.cols());
    matrix<Scalar> d_W_g = matrix<Scalar>::Zero(args_.W_g.extent(0), s.cols());
    if (grads.d_s) ds += load(grads.d_s);
    if (grads.d_g) ds.row(last) += load(grads.d_g);
    if (grads.d_r) {
      const vector<Scalar> d_r = load(grads.d_r);
      ds += d_r * load(args_.w_l).transpose();
      d_w_l = s.transpose() * d_r;
    }
    if (grads.d_r_global) {
      const vector<Scalar> d_r_global = load(grads.d_r_global);
      ds.row(last) += load(args_.W_g).transpose() * d_r_global;
      d_W_g = d_r_global * s.row(last);
    }

    std::vector<owned_mamba_weight_grads<Scalar>> d_blocks;
    for (std::size_t l = 0; l < layers(); ++l) d_blocks.emplace_back(grads.d_blocks[l]);
    for (std::size_t l = layers(); l-- > 0;) {
      auto x = owned(inputs_[l]);
      auto d_y = owned(ds);
      auto d_x = owned_tensor<Scalar, 3>::shaped_as(x.view());
      const status done = try_mamba_block_backward(
          on_reference{}, mamba_block_args<Scalar>{.x = x.view(), .weights = weights_[l].views(), .y = {}},
          mamba_block_grads<Scalar>{.d_y = d_y.view(), .d_x = d_x.view(), .d_weights = d_blocks[l].views()});
      if (!done.ok()) return done;
      if (!args_.residual) ds.setZero();
      ds += rows_of(d_x);
    }

    matrix<Scalar> dp = ds * W_in_;
    if (grads.d_p) dp += load(grads.d_p);
    matrix<Scalar> d_H = matrix<Scalar>::Zero(H_.rows(), H_.cols());
    matrix<Scalar> d_W_k = matrix<Scalar>::Zero(W_k_.rows(), W_k_.cols());
    vector<Scalar> d_q_a = vector<Scalar>::Zero(q_a_.size());
    if (grads.d_H || grads.d_W_k || grads.d_q_a) {
      for (std::int64_t i = 0; i < segments_.size(); ++i) {
        const token_range tokens = segments_[i];
        if (tokens.size() == 0) continue;
        const matrix<Scalar> states = states_of(i);
        const attention_pool<Scalar> pool(states, W_k_, q_a_);
        d_H.middleRows(tokens.begin, tokens.size()) = pool.adjoint(dp.row(i), d_W_k, d_q_a);
      }
    }

    if (grads.d_H) store(grads.d_H, d_H);
    if (grads.d_W_k) store(grads.d_W_k, d_W_k);
    if (grads.d_q_a) store(grads.d_q_a, d_q_a);
    if (grads.d_W_in) store(grads.d_W_in, ds.transpose() * p_);
    for (std::size_t l = 0; l < layers(); ++l) d_blocks[l].store(grads.d_blocks[l]);
    if (grads.d_w_l) store(grads.d_w_l, d_w_l);
    if (grads.d_W_g) store(grads.d_W_g, d_W_g);
    return {};
  }

 private:
  [[nodiscard]] std::size_t layers() const { return static_cast<std::size_t>(args_.layers); }
  [[nodiscard]] matrix<Scalar> states_of(std::int64_t segment) const {
    return H_.middleRows(segments_[segment].begin, segments_[segment].size());
  }
  template <class T, int Rank>
  static auto load(const tensor_view<const T, Rank>& view) {
    return reference::load<const T, Scalar>(view);
  }

  /// Rows as one sequence (1, N, D), and back.
  static owned_tensor<Scalar, 3> owned(const matrix<Scalar>& rows) {
    owned_tensor<Scalar, 3> t({1, rows.rows(), rows.cols()});
    store(t.view().select(0, 0), rows);
    return t;
  }
  static matrix<Scalar> rows_of(owned_tensor<Scalar, 3>& t) {
    return reference::load<Scalar, Scalar>(t.view().select(0, 0));
  }

  const mara_args<Data>& args_;
  sequences segments_;
  matrix<Scalar> H_, W_k_;
  vector<Scalar> q_a_;
  matrix<Scalar> W_in_;
  std::vector<owned_mamba_weights<Scalar>> weights_;
  matrix<Scalar> p_;
  std::vector<matrix<Scalar>> inputs_;  ///< of each layer, and behind the last: s
};

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

template <class Data>
[[nodiscard]] status check(const on_reference&, const mara_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents("mara", args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const mara_args<Data>& args, const mara_grads<Data>& grads) {
  const status s = check(args, grads);
  return s.ok() ? check_contents("mara_backward", args) : s;
}

template <class Data>
status try_mara(const on_reference& exec, const mara_args<Data>& args) {
  if (status s = check(exec, args); !s.ok()) return s;
  polystate_detail::reference::mara_run<Data> run(args);
  if (status s = run.forward(); !s.ok()) return s;
  run.store_outputs();
  return {};
}

template <class Data>
status try_mara_backward(const on_reference& exec, const mara_args<Data>& args, const mara_grads<Data>& grads) {
  if (status s = check(exec, args, grads); !s.ok()) return s;
  polystate_detail::reference::mara_run<Data> run(args);
  if (status s = run.forward(); !s.ok()) return s;
  return run.backward(grads);
}

}  // namespace polystate::inline POLYSTATE_ABI
