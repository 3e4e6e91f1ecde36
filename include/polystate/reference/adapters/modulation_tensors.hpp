// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What malora and toplora of the reference own: operands, intermediate results and gradients in the scalar that it
/// computes in.

#include <polystate/adapters/compose_token_modulation.hpp>
#include <polystate/adapters/token_modulation.hpp>
#include <polystate/reference/adapters/mamba_tensors.hpp>
#include <polystate/reference/adapters/owned_tensor.hpp>

#include <cstdint>
#include <optional>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference {

/// The operands that both adapters have, and the outputs.
template <class Scalar>
class owned_low_rank {
 public:
  template <class Args>
  explicit owned_low_rank(const Args& args)
      : x_(owned_tensor<Scalar, 3>::copy_of(args.x)),
        W0_(owned_tensor<Scalar, 2>::copy_of(args.W0)),
        A_(owned_tensor<Scalar, 2>::copy_of(args.A)),
        B_(owned_tensor<Scalar, 2>::copy_of(args.B)),
        P_(owned_tensor<Scalar, 2>::copy_of(args.P)),
        h_({args.x.extent(0), args.x.extent(1), args.B.extent(0)}) {}
  template <class Args>
  void show_in(Args& args) {
    args.x = x_.view();
    args.W0 = W0_.view();
    args.A = A_.view();
    args.B = B_.view();
    args.P = P_.view();
    args.h = h_.view();
  }
  template <class Args>
  void store(const Args& args) {
    h_.store(args.h);
  }

 private:
  owned_tensor<Scalar, 3> x_;
  owned_tensor<Scalar, 2> W0_, A_, B_, P_;
  owned_tensor<Scalar, 3> h_;
};

/// The modulator's operands of malora.
template <class Scalar>
class owned_malora_modulator {
 public:
  template <class Args>
  explicit owned_malora_modulator(const Args& args)
      : mamba_(args.mamba),
        phi_w_(owned_tensor<Scalar, 2>::copy_of(args.phi_w)),
        phi_b_(owned_tensor<Scalar, 1>::copy_of(args.phi_b)) {}
  template <class Args>
  void show_in(Args& args) {
    args.mamba = mamba_.views();
    args.phi_w = phi_w_.view();
    args.phi_b = phi_b_.view();
  }

 private:
  owned_mamba_weights<Scalar> mamba_;
  owned_tensor<Scalar, 2> phi_w_;
  owned_tensor<Scalar, 1> phi_b_;
};

/// Intermediate results, or their gradients.
template <class Scalar>
class owned_modulation_tensors {
 public:
  /// Of malora, forward or step.
  template <class Args>
  static owned_modulation_tensors of_malora(const Args& args) {
    const std::int64_t B = args.x.extent(0), T = args.x.extent(1), dp = args.P.extent(0), q = args.phi_w.extent(0);
    owned_modulation_tensors t(args, q);
    t.o_ = owned_tensor<Scalar, 3>({B, T, dp});
    t.u_ = owned_tensor<Scalar, 3>({B, T, q});
    t.block_.emplace(adapters::mamba_block_sizes::of(B, T, args.mamba));
    return t;
  }
  template <class Args>
  static owned_modulation_tensors of_toplora(const Args& args) {
    return owned_modulation_tensors(args, args.A.extent(0));
  }
  [[nodiscard]] adapters::modulation_tensors<Scalar> views() {
    return {p_.view(),
            o_.view(),
            u_.view(),
            a_.view(),
            m_.view(),
            lam_.view(),
            block_ ? block_->views() : adapters::mamba_block_tensors<Scalar>{}};
  }
  template <class T>
  void store_lam(const tensor_view<T, 3>& lam) {
    lam_.store(lam);
  }

 private:
  template <class Args>
  owned_modulation_tensors(const Args& args, std::int64_t q)
      : p_({args.x.extent(0), args.x.extent(1), args.P.extent(0)}),
        a_({args.x.extent(0), args.x.extent(1), args.A.extent(0)}),
        m_({args.x.extent(0), args.x.extent(1), args.A.extent(0)}),
        lam_({args.x.extent(0), args.x.extent(1), q}) {}

  owned_tensor<Scalar, 3> p_, o_, u_, a_, m_, lam_;
  std::optional<owned_mamba_tensors<Scalar>> block_;
};

/// The gradients that both adapters have.
template <class Scalar>
class owned_low_rank_grads {
 public:
  template <class Args, class Grads>
  owned_low_rank_grads(const Args& args, const Grads& grads)
      : d_h_(grads.d_h ? owned_tensor<Scalar, 3>::copy_of(grads.d_h)
                       : owned_tensor<Scalar, 3>({args.x.extent(0), args.x.extent(1), args.B.extent(0)})),
        d_lam_(owned_tensor<Scalar, 3>::copy_of(grads.d_lam)),
        d_x_(owned_tensor<Scalar, 3>::shaped_as(grads.d_x)),
        d_W0_(owned_tensor<Scalar, 2>::shaped_as(grads.d_W0)),
        d_A_(owned_tensor<Scalar, 2>::shaped_as(grads.d_A)),
        d_B_(owned_tensor<Scalar, 2>::shaped_as(grads.d_B)),
        d_P_(owned_tensor<Scalar, 2>::shaped_as(grads.d_P)) {}
  template <class Grads>
  void show_in(Grads& grads) {
    grads.d_h = d_h_.view();
    grads.d_lam = d_lam_.view();
    grads.d_x = d_x_.view();
    grads.d_W0 = d_W0_.view();
    grads.d_A = d_A_.view();
    grads.d_B = d_B_.view();
    grads.d_P = d_P_.view();
  }
  template <class Grads>
  void store(const Grads& grads) {
    d_x_.store(grads.d_x);
    d_W0_.store(grads.d_W0);
    d_A_.store(grads.d_A);
    d_B_.store(grads.d_B);
    d_P_.store(grads.d_P);
  }

 private:
  owned_tensor<Scalar, 3> d_h_, d_lam_, d_x_;
  owned_tensor<Scalar, 2> d_W0_, d_A_, d_B_, d_P_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::reference
