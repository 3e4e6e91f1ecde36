// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a mamba_block of the reference owns: its operands, intermediate results and gradients in the scalar that it
/// computes in.

#include <polystate/adapters/compose_mamba_block.hpp>
#include <polystate/adapters/mamba_block.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/reference/adapters/owned_tensor.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// Calls f with the same parameter of each of the sets, for every parameter.
template <class F, class... Sets>
void for_each_mamba_weight(F&& f, Sets&&... s) {
  f(s.in_proj...);
  f(s.conv_w...);
  f(s.conv_b...);
  f(s.x_proj...);
  f(s.dt_proj_w...);
  f(s.dt_proj_b...);
  f(s.A_log...);
  f(s.D...);
  f(s.out_proj...);
}
template <class F, class... Sets>
void for_each_mamba_weight_grad(F&& f, Sets&&... s) {
  f(s.d_in_proj...);
  f(s.d_conv_w...);
  f(s.d_conv_b...);
  f(s.d_x_proj...);
  f(s.d_dt_proj_w...);
  f(s.d_dt_proj_b...);
  f(s.d_A_log...);
  f(s.d_D...);
  f(s.d_out_proj...);
}

/// own = a copy of the operand
struct copy_operand {
  template <class Owned, class View>
  void operator()(Owned& own, const View& operand) const {
    own = Owned::copy_of(operand);
  }
};
/// own = zeros of the wanted gradient's shape
struct shape_gradient {
  template <class Owned, class View>
  void operator()(Owned& own, const View& wanted) const {
    own = Owned::shaped_as(wanted);
  }
};
/// view = what own owns
struct show {
  template <class Owned, class View>
  void operator()(Owned& own, View& view) const {
    view = own.view();
  }
};
/// The caller's tensor = own, rounded
struct round_out {
  template <class Owned, class View>
  void operator()(Owned& own, const View& out) const {
    own.store(out);
  }
};

template <class Scalar>
struct owned_mamba_weights {
  owned_tensor<Scalar, 2> in_proj, conv_w, x_proj, dt_proj_w, A_log, out_proj;
  owned_tensor<Scalar, 1> conv_b, dt_proj_b, D;

  template <class Data>
  explicit owned_mamba_weights(const mamba_block_weights<Data>& operands) {
    reference::for_each_mamba_weight(copy_operand{}, *this, operands);
  }
  [[nodiscard]] mamba_block_weights<Scalar> views() {
    mamba_block_weights<Scalar> v{};
    reference::for_each_mamba_weight(show{}, *this, v);
    return v;
  }
};

template <class Scalar>
struct owned_mamba_weight_grads {
  owned_tensor<Scalar, 2> d_in_proj, d_conv_w, d_x_proj, d_dt_proj_w, d_A_log, d_out_proj;
  owned_tensor<Scalar, 1> d_conv_b, d_dt_proj_b, d_D;

  template <class Data>
  explicit owned_mamba_weight_grads(const mamba_block_weight_grads<Data>& wanted) {
    reference::for_each_mamba_weight_grad(shape_gradient{}, *this, wanted);
  }
  [[nodiscard]] mamba_block_weight_grads<Scalar> views() {
    mamba_block_weight_grads<Scalar> v{};
    reference::for_each_mamba_weight_grad(show{}, *this, v);
    return v;
  }
  template <class Data>
  void store(const mamba_block_weight_grads<Data>& wanted) {
    reference::for_each_mamba_weight_grad(round_out{}, *this, wanted);
  }
};

/// Intermediate results, or their gradients.
template <class Scalar>
class owned_mamba_tensors {
 public:
  explicit owned_mamba_tensors(const adapters::mamba_block_sizes& n)
      : xz_({n.B, n.T, 2 * n.di}),
        c_({n.B, n.T, n.di}),
        dt_B_C_({n.B, n.T, n.R + 2 * n.N}),
        delta_({n.B, n.T, n.di}),
        A_({n.di, n.N}),
        s_({n.B, n.T, n.di}) {}
  [[nodiscard]] adapters::mamba_block_tensors<Scalar> views() {
    return {xz_.view(), c_.view(), dt_B_C_.view(), delta_.view(), A_.view(), s_.view()};
  }

 private:
  owned_tensor<Scalar, 3> xz_, c_, dt_B_C_, delta_;
  owned_tensor<Scalar, 2> A_;
  owned_tensor<Scalar, 3> s_;
};

/// The states of a forward call, copied in; those after it are rounded out. Args are a block's, or an adapter's.
template <class Scalar>
class owned_mamba_states {
 public:
  template <class Args>
  explicit owned_mamba_states(const Args& args)
      : initial_conv_(owned_tensor<Scalar, 3>::copy_of(args.initial_conv_state)),
        initial_scan_(owned_tensor<Scalar, 3>::copy_of(args.initial_scan_state)),
        final_conv_(owned_tensor<Scalar, 3>::shaped_as(args.final_conv_state)),
        final_scan_(owned_tensor<Scalar, 3>::shaped_as(args.final_scan_state)) {}
  template <class Args>
  void show_in(Args& args) {
    args.initial_conv_state = initial_conv_.view();
    args.initial_scan_state = initial_scan_.view();
    args.final_conv_state = final_conv_.view();
    args.final_scan_state = final_scan_.view();
  }
  template <class Args>
  void store(const Args& args) {
    final_conv_.store(args.final_conv_state);
    final_scan_.store(args.final_scan_state);
  }

 private:
  owned_tensor<Scalar, 3> initial_conv_, initial_scan_, final_conv_, final_scan_;
};

/// The gradients of the states, likewise.
template <class Scalar>
class owned_mamba_state_grads {
 public:
  template <class Grads>
  explicit owned_mamba_state_grads(const Grads& grads)
      : d_final_conv_(owned_tensor<Scalar, 3>::copy_of(grads.d_final_conv_state)),
        d_final_scan_(owned_tensor<Scalar, 3>::copy_of(grads.d_final_scan_state)),
        d_initial_conv_(owned_tensor<Scalar, 3>::shaped_as(grads.d_initial_conv_state)),
        d_initial_scan_(owned_tensor<Scalar, 3>::shaped_as(grads.d_initial_scan_state)) {}
  template <class Grads>
  void show_in(Grads& grads) {
    grads.d_final_conv_state = d_final_conv_.view();
    grads.d_final_scan_state = d_final_scan_.view();
    grads.d_initial_conv_state = d_initial_conv_.view();
    grads.d_initial_scan_state = d_initial_scan_.view();
  }
  template <class Grads>
  void store(const Grads& grads) {
    d_initial_conv_.store(grads.d_initial_conv_state);
    d_initial_scan_.store(grads.d_initial_scan_state);
  }

 private:
  owned_tensor<Scalar, 3> d_final_conv_, d_final_scan_, d_initial_conv_, d_initial_scan_;
};

/// The states of a step's rows, one slot each: taken from the pool, and put back. A padding row has zeros.
template <class Scalar>
class owned_mamba_rows {
 public:
  template <class Args>
  owned_mamba_rows(const Args& args, const adapters::mamba_block_sizes& n)
      : rows_(n.B),
        conv_({n.B, n.W - 1, n.di}),
        scan_({n.B, n.di, n.N}),
        after_conv_(owned_tensor<Scalar, 4>::shaped_as(args.intermediate_conv_states)),
        after_scan_(owned_tensor<Scalar, 4>::shaped_as(args.intermediate_scan_states)),
        pool_(args.conv_state.extent(0), args.read_indices, args.write_indices) {
    for (std::int64_t b = 0; b < rows_; ++b) {
      if (pool_.padding(b)) continue;
      copy_elements(conv_.view().select(0, b), args.conv_state.select(0, pool_.read(b)));
      copy_elements(scan_.view().select(0, b), args.scan_state.select(0, pool_.read(b)));
    }
  }
  [[nodiscard]] bool padding(std::int64_t row) const { return pool_.padding(row); }
  template <class Args>
  void show_in(Args& args) {
    args.conv_state = conv_.view();
    args.scan_state = scan_.view();
    args.intermediate_conv_states = after_conv_.view();
    args.intermediate_scan_states = after_scan_.view();
  }
  template <class Args>
  void store(const Args& args) {
    for (std::int64_t b = 0; b < rows_; ++b) {
      if (pool_.padding(b)) continue;
      copy_elements(args.conv_state.select(0, pool_.write(b)), conv_.view().select(0, b));
      copy_elements(args.scan_state.select(0, pool_.write(b)), scan_.view().select(0, b));
      store_row(args.intermediate_conv_states, after_conv_, b);
      store_row(args.intermediate_scan_states, after_scan_, b);
    }
  }
  /// Zeros in the padding rows of an output.
  template <class T>
  void clear_padding(const tensor_view<T, 3>& out) const {
    for (std::int64_t b = 0; out && b < rows_; ++b) {
      if (!padding(b)) continue;
      for (std::int64_t t = 0; t < out.extent(1); ++t) {
        for (std::int64_t i = 0; i < out.extent(2); ++i) out(b, t, i) = static_cast<T>(Scalar(0));
      }
    }
  }

 private:
  template <class T>
  static void store_row(const tensor_view<T, 4>& out, owned_tensor<Scalar, 4>& from, std::int64_t b) {
    if (out) copy_elements(out.select(0, b), from.view().select(0, b));
  }

  std::int64_t rows_;
  owned_tensor<Scalar, 3> conv_, scan_;
  owned_tensor<Scalar, 4> after_conv_, after_scan_;
  state_pool pool_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
