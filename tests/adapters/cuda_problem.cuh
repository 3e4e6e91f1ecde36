// SPDX-License-Identifier: Apache-2.0
#pragma once

// The adapters' operands on the device.

#include "adapters/modulation_cases.hpp"
#include "support/device.cuh"

#include <polystate/adapters/token_modulation.hpp>

#include <cublas_v2.h>

#include <stdexcept>

namespace polystate::testing {

/// A cuBLAS handle of the current device.
class blas_handle {
 public:
  blas_handle() {
    if (cublasCreate(&handle_) != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cublasCreate");
  }
  blas_handle(const blas_handle&) = delete;
  blas_handle& operator=(const blas_handle&) = delete;
  ~blas_handle() { static_cast<void>(cublasDestroy(handle_)); }
  [[nodiscard]] cublasHandle_t get() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

template <class Data>
struct device_mamba_weights {
  device_tensor<Data, 2> in_proj, x_proj, dt_proj_w, out_proj;
  device_tensor<acc_t<Data>, 2> conv_w, A_log;
  device_tensor<acc_t<Data>, 1> conv_b, dt_proj_b, D;

  explicit device_mamba_weights(const mamba_weights<Data>& w)
      : in_proj(w.in_proj),
        x_proj(w.x_proj),
        dt_proj_w(w.dt_proj_w),
        out_proj(w.out_proj),
        conv_w(w.conv_w),
        A_log(w.A_log),
        conv_b(w.conv_b),
        dt_proj_b(w.dt_proj_b),
        D(w.D) {}
  [[nodiscard]] mamba_block_weights<Data> views() const {
    mamba_block_weights<Data> v{};
    for_each_weight([](const char*, const auto& own, auto& view) { view = own.view(); }, *this, v);
    return v;
  }
  [[nodiscard]] bool unchanged() const {
    bool same = true;
    for_each_weight([&](const char*, const auto& own) { same = same && own.unchanged(); }, *this);
    return same;
  }
};

template <class Data>
struct device_low_rank {
  device_tensor<Data, 3> x, h;
  device_tensor<acc_t<Data>, 3> lam;
  device_tensor<Data, 2> W0, A, B, P;

  explicit device_low_rank(const low_rank_problem<Data>& p)
      : x(p.x), h(p.h), lam(p.lam), W0(p.W0), A(p.A), B(p.B), P(p.P) {}
  template <class Args>
  void show_in(Args& a) const {
    a.x = x.view();
    a.W0 = W0.view();
    a.A = A.view();
    a.B = B.view();
    a.P = P.view();
    a.h = h.view();
    a.lam = lam.view();
  }
  [[nodiscard]] bool inputs_unchanged() const {
    return x.unchanged() && W0.unchanged() && A.unchanged() && B.unchanged() && P.unchanged();
  }
};

template <class Data>
struct device_malora : device_low_rank<Data> {
  device_mamba_weights<Data> mamba;
  device_tensor<Data, 2> phi_w;
  device_tensor<acc_t<Data>, 1> phi_b;
  device_tensor<Data, 3> conv_before, conv_after;
  device_tensor<acc_t<Data>, 3> scan_before, scan_after;
  device_tensor<std::int32_t, 1> cu_seqlens;

  explicit device_malora(const malora_problem<Data>& p)
      : device_low_rank<Data>(p),
        mamba(p.mamba),
        phi_w(p.phi_w),
        phi_b(p.phi_b),
        conv_before(p.before.conv),
        conv_after(p.after.conv),
        scan_before(p.before.scan),
        scan_after(p.after.scan),
        cu_seqlens(p.cu_seqlens) {}
  [[nodiscard]] malora_args<Data> args() const {
    malora_args<Data> a{};
    show_modulator_in(a);
    a.initial_conv_state = conv_before.view();
    a.initial_scan_state = scan_before.view();
    a.cu_seqlens = cu_seqlens.view();
    a.final_conv_state = conv_after.view();
    a.final_scan_state = scan_after.view();
    return a;
  }
  /// A step of some tokens; the states before it are the pool.
  [[nodiscard]] malora_step_args<Data> step_args(std::int64_t begin, std::int64_t end) const {
    malora_step_args<Data> a{};
    show_modulator_in(a);
    a.x = a.x.slice(1, begin, end);
    a.h = a.h.slice(1, begin, end);
    a.lam = a.lam.slice(1, begin, end);
    a.conv_state = conv_before.view();
    a.scan_state = scan_before.view();
    return a;
  }
  void download(malora_problem<Data>& p) const {
    this->h.download(p.h);
    this->lam.download(p.lam);
    conv_after.download(p.after.conv);
    scan_after.download(p.after.scan);
  }
  [[nodiscard]] bool inputs_unchanged() const {
    return device_low_rank<Data>::inputs_unchanged() && mamba.unchanged() && phi_w.unchanged() && phi_b.unchanged();
  }

 private:
  template <class Args>
  void show_modulator_in(Args& a) const {
    this->show_in(a);
    a.mamba = mamba.views();
    a.phi_w = phi_w.view();
    a.phi_b = phi_b.view();
  }
};

template <class Data>
struct device_toplora : device_low_rank<Data> {
  device_tensor<acc_t<Data>, 1> rms_w;

  explicit device_toplora(const toplora_problem<Data>& p) : device_low_rank<Data>(p), rms_w(p.rms_w) {}
  [[nodiscard]] toplora_args<Data> args() const {
    toplora_args<Data> a{};
    this->show_in(a);
    a.rms_w = rms_w.view();
    a.rms_eps = 1e-3;
    return a;
  }
};

}  // namespace polystate::testing
