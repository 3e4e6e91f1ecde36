// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How malora and toplora are put together from mamba_block, matrix products and an elementwise modulation: the same on
/// every backend, which gives the memory, the products and the modulation.
///
/// `Products` says, beside what compose_mamba_block.hpp asks:
///   modulate_softplus(u, phi_b, a, lam, m)  lam = softplus(u + phi_b), m = lam * a
///   modulate_softplus_adjoint(u, phi_b, a, d_m, d_lam, d_u, d_a, d_phi_b)
///   modulate_rms(y, rms_w, rms_eps, a, lam, m)  lam = exp(RMSNorm(y)), m = lam * a
///   modulate_rms_adjoint(y, rms_w, rms_eps, a, d_m, d_lam, d_y, d_a, d_rms_w)
/// where rms_w and, of the adjoints, d_lam and the last operand may be absent.

#include <polystate/adapters/compose_mamba_block.hpp>
#include <polystate/adapters/token_modulation.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::adapters {

/// The intermediate results of an adapter's forward, or their gradients; the block's are malora's alone.
template <class Data>
struct modulation_tensors {
  tensor_view<Data, 3> p;           ///< (B, T, dp): P x
  tensor_view<Data, 3> o;           ///< (B, T, dp): the block's output; absent for toplora
  tensor_view<Data, 3> u;           ///< (B, T, q): phi_w o; absent for toplora
  tensor_view<Data, 3> a;           ///< (B, T, r): A x
  tensor_view<Data, 3> m;           ///< (B, T, r): lam * a
  tensor_view<acc_t<Data>, 3> lam;  ///< (B, T, q); not of the gradients: the upstream one is read where it is
  mamba_block_tensors<Data> block;
};

/// h = W0 x + B m
template <class Products, class Args, class Data>
status add_low_rank(const Products& algebra, const Args& args, const modulation_tensors<Data>& t) {
  return in_order([&] { return args.W0 ? algebra.product(args.W0, args.x, args.h, false) : status{}; },
                  [&] { return algebra.product(args.B, t.m, args.h, static_cast<bool>(args.W0)); });
}

/// Up to m = lam * (A x). `run_block` takes t.p to t.o.
template <class Products, class Args, class Data, class RunBlock>
status modulate_by_block(const Products& algebra, const Args& args, const modulation_tensors<Data>& t,
                         const RunBlock& run_block) {
  return in_order([&] { return algebra.product(args.P, args.x, t.p, false); },  //
                  run_block,                                                    //
                  [&] { return algebra.product(args.phi_w, t.o, t.u, false); },
                  [&] { return algebra.product(args.A, args.x, t.a, false); },
                  [&] { return algebra.modulate_softplus(t.u, args.phi_b, t.a, t.lam, t.m); });
}

template <class Data>
mamba_block_args<Data> block_of(const malora_args<Data>& args, const modulation_tensors<Data>& t) {
  return {.x = t.p,
          .weights = args.mamba,
          .initial_conv_state = args.initial_conv_state,
          .initial_scan_state = args.initial_scan_state,
          .cu_seqlens = args.cu_seqlens,
          .y = t.o,
          .final_conv_state = args.final_conv_state,
          .final_scan_state = args.final_scan_state};
}

/// The forward up to m; `t` keeps the intermediate results.
template <class Exec, class Products, class Data>
status modulate_malora(const Exec& exec, const Products& algebra, const malora_args<Data>& args,
                       const modulation_tensors<Data>& t) {
  return modulate_by_block(algebra, args, t,
                           [&] { return run_mamba_block(exec, algebra, block_of(args, t), t.block); });
}

template <class Exec, class Products, class Data>
status run_malora(const Exec& exec, const Products& algebra, const malora_args<Data>& args,
                  const modulation_tensors<Data>& t) {
  return in_order([&] { return modulate_malora(exec, algebra, args, t); },
                  [&] { return add_low_rank(algebra, args, t); });
}

/// The step; `t` is scratch memory. Padding rows of h and lam are left to the caller.
template <class Exec, class Products, class Data>
status run_malora_step(const Exec& exec, const Products& algebra, const malora_step_args<Data>& args,
                       const modulation_tensors<Data>& t) {
  const mamba_block_step_args<Data> block{.x = t.p,
                                          .weights = args.mamba,
                                          .read_indices = args.read_indices,
                                          .write_indices = args.write_indices,
                                          .conv_state = args.conv_state,
                                          .scan_state = args.scan_state,
                                          .y = t.o,
                                          .intermediate_conv_states = args.intermediate_conv_states,
                                          .intermediate_scan_states = args.intermediate_scan_states};
  return in_order(
      [&] {
        return modulate_by_block(algebra, args, t, [&] { return run_mamba_block_step(exec, algebra, block, t.block); });
      },
      [&] { return add_low_rank(algebra, args, t); });
}

/// The forward up to m; `t` keeps the intermediate results.
template <class Products, class Data>
status modulate_toplora(const Products& algebra, const toplora_args<Data>& args, const modulation_tensors<Data>& t) {
  return in_order([&] { return algebra.product(args.P, args.x, t.p, false); },
                  [&] { return algebra.product(args.A, args.x, t.a, false); },
                  [&] { return algebra.modulate_rms(t.p, args.rms_w, args.rms_eps, t.a, t.lam, t.m); });
}

template <class Products, class Data>
status run_toplora(const Products& algebra, const toplora_args<Data>& args, const modulation_tensors<Data>& t) {
  return in_order([&] { return modulate_toplora(algebra, args, t); }, [&] { return add_low_rank(algebra, args, t); });
}

/// The backward of an adapter, from the results `t` that the forward has kept; `d` takes the gradients of those, and
/// d_h must be there. `modulation` takes d.m and d_lam to d.a and d.p.
template <class Products, class Args, class Grads, class Data, class Modulation>
status compose_backward(const Products& algebra, const Args& args, const Grads& grads,
                        const modulation_tensors<Data>& t, const modulation_tensors<Data>& d,
                        const Modulation& modulation) {
  const auto outer = [&](const tensor_view<const Data, 3>& dy, const tensor_view<const Data, 3>& x,
                         const tensor_view<Data, 2>& dW) { return dW ? algebra.outer(dy, x, dW) : status{}; };
  const auto add_to_x = [&](const tensor_view<const Data, 2>& W, const tensor_view<const Data, 3>& dy, bool add) {
    return grads.d_x && W ? algebra.transposed(W, dy, grads.d_x, add) : status{};
  };
  return in_order([&] { return outer(grads.d_h, args.x, grads.d_W0); },
                  [&] { return outer(grads.d_h, t.m, grads.d_B); },
                  [&] { return algebra.transposed(args.B, grads.d_h, d.m, false); },  //
                  modulation,                                                         //
                  [&] { return outer(d.a, args.x, grads.d_A); }, [&] { return outer(d.p, args.x, grads.d_P); },
                  [&] { return add_to_x(args.A, d.a, false); }, [&] { return add_to_x(args.P, d.p, true); },
                  [&] { return add_to_x(args.W0, grads.d_h, true); });
}

template <class Exec, class Products, class Data>
status run_malora_backward(const Exec& exec, const Products& algebra, const malora_args<Data>& args,
                           const modulation_tensors<Data>& t, const modulation_tensors<Data>& d,
                           const malora_grads<Data>& grads) {
  const mamba_block_grads<Data> of_block{.d_y = d.o,
                                         .d_final_conv_state = grads.d_final_conv_state,
                                         .d_final_scan_state = grads.d_final_scan_state,
                                         .d_x = d.p,
                                         .d_weights = grads.d_mamba,
                                         .d_initial_conv_state = grads.d_initial_conv_state,
                                         .d_initial_scan_state = grads.d_initial_scan_state};
  return compose_backward(algebra, args, grads, t, d, [&] {
    return in_order(
        [&] {
          return algebra.modulate_softplus_adjoint(t.u, args.phi_b, t.a, d.m, grads.d_lam, d.u, d.a, grads.d_phi_b);
        },
        [&] { return grads.d_phi_w ? algebra.outer(d.u, t.o, grads.d_phi_w) : status{}; },
        [&] { return algebra.transposed(args.phi_w, d.u, d.o, false); },
        [&] { return run_mamba_block_backward(exec, algebra, block_of(args, t), t.block, d.block, of_block); });
  });
}

template <class Products, class Data>
status run_toplora_backward(const Products& algebra, const toplora_args<Data>& args, const modulation_tensors<Data>& t,
                            const modulation_tensors<Data>& d, const toplora_grads<Data>& grads) {
  return compose_backward(algebra, args, grads, t, d, [&] {
    return algebra.modulate_rms_adjoint(t.p, args.rms_w, args.rms_eps, t.a, d.m, grads.d_lam, d.p, d.a, grads.d_rms_w);
  });
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::adapters
