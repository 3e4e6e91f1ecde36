// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The factors of malora and toplora and their product with A x, as adapters/compose_token_modulation.hpp asks.

#include <polystate/core/error.hpp>
#include <polystate/core/state_pool.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/adapters/modulation_backward.cuh>
#include <polystate/cuda/adapters/products.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/math.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters {

template <class Data>
struct modulation_params {
  tensor_view<const Data, 3> u;       ///< phi_w o, or y of toplora
  tensor_view<const float, 1> shift;  ///< phi_b, or rms_w, which may be absent
  tensor_view<const Data, 3> a;
  tensor_view<float, 3> lam;
  tensor_view<Data, 3> m;
  float rms_eps = 0;
};

/// lam = softplus(u + phi_b), m = lam * a. A thread has an entry of a token.
template <int Threads, class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    modulate_softplus_kernel(const __grid_constant__ modulation_params<Data> p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i >= p.m.size()) return;
  const std::int64_t r = p.m.extent(2), T = p.m.extent(1);
  const std::int64_t k = i % r, t = i / r % T, b = i / r / T;
  const std::int64_t q = p.u.extent(2);
  const std::int64_t factor = q == r ? k : 0;
  const float lam = softplus<float>(static_cast<float>(p.u(b, t, factor)) + p.shift(factor));
  p.m(b, t, k) = static_cast<Data>(lam * static_cast<float>(p.a(b, t, k)));
  if (k == factor) p.lam(b, t, factor) = lam;
}

/// lam = exp(RMSNorm(y)), m = lam * a. A warp has a token.
template <int Threads, class Data>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    modulate_rms_kernel(const __grid_constant__ modulation_params<Data> p) {
  const std::int64_t token = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t r = p.m.extent(2), T = p.m.extent(1);
  if (token >= p.m.extent(0) * T) return;
  const std::int64_t t = token % T, b = token / T;
  float squares = 0.0f;
  for (std::int64_t k = lane; k < r; k += 32) {
    const auto y = static_cast<float>(p.u(b, t, k));
    squares = fmaf(y, y, squares);
  }
  squares = recurrence::sum_in_group<32>(squares);
  const float by = 1.0f / sqrtf(squares / static_cast<float>(r) + p.rms_eps);
  for (std::int64_t k = lane; k < r; k += 32) {
    const float lam = expf(static_cast<float>(p.u(b, t, k)) * by * (p.shift ? p.shift(k) : 1.0f));
    p.lam(b, t, k) = lam;
    p.m(b, t, k) = static_cast<Data>(lam * static_cast<float>(p.a(b, t, k)));
  }
}

template <class T>
struct padding_params {
  state_pool pool;
  tensor_view<T, 3> out;
};

/// Zeros in the padding rows of a step's output. A thread has an element.
template <int Threads, class T>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    clear_padding_kernel(const __grid_constant__ padding_params<T> p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i >= p.out.size()) return;
  const std::int64_t n = p.out.extent(2), tokens = p.out.extent(1);
  const std::int64_t b = i / n / tokens;
  if (p.pool.padding(b)) p.out(b, i / n % tokens, i % n) = static_cast<T>(0.0f);
}

template <class Data>
class modulated_products : public cublas_products<Data> {
  using tokens = tensor_view<Data, 3>;
  using const_tokens = tensor_view<const Data, 3>;
  using parameter = tensor_view<const float, 1>;

 public:
  using cublas_products<Data>::cublas_products;

  status modulate_softplus(const const_tokens& u, const parameter& phi_b, const const_tokens& a,
                           const tensor_view<float, 3>& lam, const tokens& m) const {
    return launch(this->op(), this->cuda(), this->grid_of(m.size()), modulate_softplus_kernel<threads, Data>,
                  modulation_params<Data>{u, phi_b, a, lam, m});
  }
  status modulate_rms(const const_tokens& y, const parameter& rms_w, double rms_eps, const const_tokens& a,
                      const tensor_view<float, 3>& lam, const tokens& m) const {
    return launch(this->op(), this->cuda(), this->grid_of(32 * m.extent(0) * m.extent(1)),
                  modulate_rms_kernel<threads, Data>,
                  modulation_params<Data>{y, rms_w, a, lam, m, static_cast<float>(rms_eps)});
  }
  status modulate_softplus_adjoint(const const_tokens& u, const parameter& phi_b, const const_tokens& a,
                                   const const_tokens& d_m, const tensor_view<const float, 3>& d_lam, const tokens& d_u,
                                   const tokens& d_a, const tensor_view<float, 1>& d_phi_b) const {
    status s = launch(this->op(), this->cuda(), this->grid_of(32 * a.extent(0) * a.extent(1)),
                      modulate_softplus_adjoint_kernel<threads, Data>,
                      modulation_adjoint_params<Data>{u, phi_b, a, d_m, d_lam, d_u, d_a, {}});
    return s.ok() && d_phi_b ? sum_over_tokens<Data>(d_u, d_phi_b) : s;
  }
  status modulate_rms_adjoint(const const_tokens& y, const parameter& rms_w, double rms_eps, const const_tokens& a,
                              const const_tokens& d_m, const tensor_view<const float, 3>& d_lam, const tokens& d_y,
                              const tokens& d_a, const tensor_view<float, 1>& d_rms_w) const {
    const tensor_view<float, 3> parts = d_rms_w ? parts_of_d_rms_w_ : tensor_view<float, 3>{};
    status s =
        launch(this->op(), this->cuda(), this->grid_of(32 * a.extent(0) * a.extent(1)),
               modulate_rms_adjoint_kernel<threads, Data>,
               modulation_adjoint_params<Data>{y, rms_w, a, d_m, d_lam, d_y, d_a, parts, static_cast<float>(rms_eps)});
    return s.ok() && d_rms_w ? sum_over_tokens<float>(parts, d_rms_w) : s;
  }
  /// Scratch memory of modulate_rms_adjoint(), (B, T, r).
  void set_parts_of_d_rms_w(const tensor_view<float, 3>& parts) { parts_of_d_rms_w_ = parts; }

  /// Without indices no row is padding.
  template <class T>
  status clear_padding(const state_pool& pool, bool indexed, const tensor_view<T, 3>& out) const {
    if (!indexed || !out) return {};
    return launch(this->op(), this->cuda(), this->grid_of(out.size()), clear_padding_kernel<threads, T>,
                  padding_params<T>{pool, out});
  }

 private:
  template <class T>
  status sum_over_tokens(const tensor_view<const T, 3>& x, const tensor_view<float, 1>& sum) const {
    return launch(this->op(), this->cuda(), grid{.blocks = sum.extent(0), .threads = threads},
                  token_sum_kernel<threads, T>, token_sum_params<T>{x, sum});
  }

  tensor_view<float, 3> parts_of_d_rms_w_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters
