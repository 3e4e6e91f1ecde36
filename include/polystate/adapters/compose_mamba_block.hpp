// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How mamba_block is put together from causal_conv1d, selective_scan and matrix products: the same on every backend,
/// which gives the memory and the products.
///
/// `Products` says, each with a status, and with T tokens of B batch entries as columns:
///   product(W, x, y, add)      y = W x, added to y where `add`
///   transposed(W, dy, dx, add) dx = W^T dy, likewise
///   outer(dy, x, dW)           dW = sum over tokens of dy x^T
///   decay(A_log, A)            A = -exp(A_log)
///   decay_adjoint(A, dA, d)    d = A dA, the derivative with respect to A_log

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::adapters {

/// Runs the steps up to the first that fails.
template <class... Steps>
status in_order(Steps&&... steps) {
  status s;
  static_cast<void>(((s = steps()).ok() && ...));
  return s;
}

/// Sizes of a block.
struct mamba_block_sizes {
  std::int64_t B, T, d, di, W, R, N;

  template <class Args>
  static mamba_block_sizes of(const Args& args) {
    return of(args.x.extent(0), args.x.extent(1), args.weights);
  }
  template <class Data>
  static mamba_block_sizes of(std::int64_t B, std::int64_t T, const mamba_block_weights<Data>& w) {
    return {
        B, T, w.in_proj.extent(1), w.conv_w.extent(0), w.conv_w.extent(1), w.dt_proj_w.extent(1), w.A_log.extent(1)};
  }
};

/// The intermediate results of a block's forward, or their gradients.
template <class Data>
struct mamba_block_tensors {
  tensor_view<Data, 3> xz;        ///< (B, T, 2di)
  tensor_view<Data, 3> c;         ///< (B, T, di)
  tensor_view<Data, 3> dt_B_C;    ///< (B, T, R+2N)
  tensor_view<Data, 3> delta;     ///< (B, T, di)
  tensor_view<acc_t<Data>, 2> A;  ///< (di, N)
  tensor_view<Data, 3> s;         ///< (B, T, di)

  [[nodiscard]] std::int64_t di() const { return c.extent(2); }
  [[nodiscard]] std::int64_t N() const { return A.extent(1); }
  [[nodiscard]] std::int64_t R() const { return dt_B_C.extent(2) - 2 * N(); }

  [[nodiscard]] tensor_view<Data, 3> conv_input() const { return xz.slice(2, 0, di()); }
  [[nodiscard]] tensor_view<Data, 3> z() const { return xz.slice(2, di(), 2 * di()); }
  [[nodiscard]] tensor_view<Data, 3> dt() const { return dt_B_C.slice(2, 0, R()); }
  [[nodiscard]] tensor_view<Data, 4> B() const { return one_group(dt_B_C.slice(2, R(), R() + N())); }
  [[nodiscard]] tensor_view<Data, 4> C() const { return one_group(dt_B_C.slice(2, R() + N(), R() + 2 * N())); }

 private:
  static tensor_view<Data, 4> one_group(const tensor_view<Data, 3>& v) {
    return {v.data(), {v.extent(0), v.extent(1), 1, v.extent(2)}, {v.stride(0), v.stride(1), 0, v.stride(2)}};
  }
};

/// What forward and step share: `convolve` and `scan` run the two operators on the intermediate results.
template <class Products, class Data, class Convolve, class Scan>
status compose_mamba_block(const Products& algebra, const tensor_view<const Data, 3>& x,
                           const mamba_block_weights<Data>& w, const tensor_view<Data, 3>& y,
                           const mamba_block_tensors<Data>& t, const Convolve& convolve, const Scan& scan) {
  return in_order([&] { return algebra.product(w.in_proj, x, t.xz, false); },  //
                  convolve,                                                    //
                  [&] { return algebra.product(w.x_proj, t.c, t.dt_B_C, false); },
                  [&] { return algebra.product(w.dt_proj_w, t.dt(), t.delta, false); },
                  [&] { return algebra.decay(w.A_log, t.A); },  //
                  scan,                                         //
                  [&] { return algebra.product(w.out_proj, t.s, y, false); });
}

template <class Data>
causal_conv1d_args<Data> convolution_of(const mamba_block_args<Data>& args, const mamba_block_tensors<Data>& t) {
  return {.x = t.conv_input(),
          .weight = args.weights.conv_w,
          .bias = args.weights.conv_b,
          .initial_state = args.initial_conv_state,
          .cu_seqlens = args.cu_seqlens,
          .y = t.c,
          .final_state = args.final_conv_state,
          .act = activation::silu};
}

template <class Data>
selective_scan_args<Data> scan_of(const mamba_block_args<Data>& args, const mamba_block_tensors<Data>& t) {
  return {.u = t.c,
          .delta = t.delta,
          .A = t.A,
          .B = t.B(),
          .C = t.C(),
          .D = args.weights.D,
          .z = t.z(),
          .delta_bias = args.weights.dt_proj_b,
          .initial_state = args.initial_scan_state,
          .cu_seqlens = args.cu_seqlens,
          .y = t.s,
          .final_state = args.final_scan_state,
          .delta_softplus = true};
}

/// The forward; `t` keeps the intermediate results.
template <class Exec, class Products, class Data>
status run_mamba_block(const Exec& exec, const Products& algebra, const mamba_block_args<Data>& args,
                       const mamba_block_tensors<Data>& t) {
  return compose_mamba_block(
      algebra, args.x, args.weights, args.y, t, [&] { return try_causal_conv1d(exec, convolution_of(args, t)); },
      [&] { return try_selective_scan(exec, scan_of(args, t)); });
}

/// The step; `t` is scratch memory.
template <class Exec, class Products, class Data>
status run_mamba_block_step(const Exec& exec, const Products& algebra, const mamba_block_step_args<Data>& args,
                            const mamba_block_tensors<Data>& t) {
  const causal_conv1d_step_args<Data> convolution{.x = t.conv_input(),
                                                  .weight = args.weights.conv_w,
                                                  .bias = args.weights.conv_b,
                                                  .read_indices = args.read_indices,
                                                  .write_indices = args.write_indices,
                                                  .state = args.conv_state,
                                                  .y = t.c,
                                                  .intermediate_states = args.intermediate_conv_states,
                                                  .act = activation::silu};
  const selective_scan_step_args<Data> scan{.u = t.c,
                                            .delta = t.delta,
                                            .A = t.A,
                                            .B = t.B(),
                                            .C = t.C(),
                                            .D = args.weights.D,
                                            .z = t.z(),
                                            .delta_bias = args.weights.dt_proj_b,
                                            .read_indices = args.read_indices,
                                            .write_indices = args.write_indices,
                                            .state = args.scan_state,
                                            .y = t.s,
                                            .intermediate_states = args.intermediate_scan_states,
                                            .delta_softplus = true};
  return compose_mamba_block(
      algebra, args.x, args.weights, args.y, t, [&] { return try_causal_conv1d_step(exec, convolution); },
      [&] { return try_selective_scan_step(exec, scan); });
}

/// The backward, from the results `t` that the forward has kept. `d` takes the gradients of those, `grads` the wanted
/// ones; d_y must be there.
template <class Exec, class Products, class Data>
status run_mamba_block_backward(const Exec& exec, const Products& algebra, const mamba_block_args<Data>& args,
                                const mamba_block_tensors<Data>& t, const mamba_block_tensors<Data>& d,
                                const mamba_block_grads<Data>& grads) {
  const mamba_block_weights<Data>& w = args.weights;
  const mamba_block_weight_grads<Data>& g = grads.d_weights;
  const auto outer = [&](const tensor_view<const Data, 3>& dy, const tensor_view<const Data, 3>& x,
                         const tensor_view<Data, 2>& dW) { return dW ? algebra.outer(dy, x, dW) : status{}; };
  return in_order(
      [&] { return outer(grads.d_y, t.s, g.d_out_proj); },
      [&] { return algebra.transposed(w.out_proj, grads.d_y, d.s, false); },
      [&] {
        return try_selective_scan_backward(exec, scan_of(args, t),
                                           selective_scan_grads<Data>{.d_y = d.s,
                                                                      .d_final_state = grads.d_final_scan_state,
                                                                      .d_u = d.c,
                                                                      .d_delta = d.delta,
                                                                      .d_A = g.d_A_log ? d.A : decltype(d.A){},
                                                                      .d_B = d.B(),
                                                                      .d_C = d.C(),
                                                                      .d_D = g.d_D,
                                                                      .d_z = d.z(),
                                                                      .d_delta_bias = g.d_dt_proj_b,
                                                                      .d_initial_state = grads.d_initial_scan_state});
      },
      [&] { return g.d_A_log ? algebra.decay_adjoint(t.A, d.A, g.d_A_log) : status{}; },
      [&] { return outer(d.delta, t.dt(), g.d_dt_proj_w); },
      [&] { return algebra.transposed(w.dt_proj_w, d.delta, d.dt(), false); },
      [&] { return outer(d.dt_B_C, t.c, g.d_x_proj); },
      // The scan reads c too.
      [&] { return algebra.transposed(w.x_proj, d.dt_B_C, d.c, true); },
      [&] {
        return try_causal_conv1d_backward(exec, convolution_of(args, t),
                                          causal_conv1d_grads<Data>{.d_y = d.c,
                                                                    .d_final_state = grads.d_final_conv_state,
                                                                    .d_x = d.conv_input(),
                                                                    .d_weight = g.d_conv_w,
                                                                    .d_bias = g.d_conv_b,
                                                                    .d_initial_state = grads.d_initial_conv_state});
      },
      [&] { return outer(d.xz, args.x, g.d_in_proj); },
      [&] { return grads.d_x ? algebra.transposed(w.in_proj, d.xz, grads.d_x, false) : status{}; });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::adapters
