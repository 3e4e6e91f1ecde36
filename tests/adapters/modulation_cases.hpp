// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems of malora and toplora that every backend's tests share.

#include "adapters/mamba_cases.hpp"
#include "support/tensor.hpp"

#include <polystate/adapters/token_modulation.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace polystate::testing {

/// Sizes and options of one problem. `block.d` is dp. `lengths` non-empty: packed sequences, B = 1, T their sum.
struct modulation_shape {
  std::int64_t B = 2, T = 5, din = 4, dout = 3, r = 2;
  bool diagonal = true;
  mamba_sizes block = {};
  bool base = true, initial_states = true, final_states = true, rms_w = true;
  std::vector<std::int32_t> lengths = {};
  layout<3> memory = row_major<3>();  ///< of x, h, lam

  [[nodiscard]] std::int64_t q() const { return diagonal ? r : 1; }
  [[nodiscard]] std::int64_t sequences() const {
    return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size());
  }
};

inline double unit_row(std::int64_t inputs) { return std::sqrt(3 / static_cast<double>(inputs)); }

/// What both adapters have: owned operands and outputs, rows of matrices of length near 1.
template <class Data>
struct low_rank_problem {
  using data_type = Data;

  tensor<Data, 3> x, h;
  tensor<acc_t<Data>, 3> lam;
  tensor<Data, 2> W0, A, B, P;

  low_rank_problem() = default;
  template <class Rng>
  low_rank_problem(const modulation_shape& s, std::int64_t dp, std::int64_t q, Rng& rng)
      : x(tensor<Data, 3>({s.B, s.T, s.din}, s.memory).uniform(rng, -2, 2)),
        h({s.B, s.T, s.dout}, s.memory),
        lam({s.B, s.T, q}, s.memory),
        A(tensor<Data, 2>({s.r, s.din}).uniform(rng, -unit_row(s.din), unit_row(s.din))),
        B(tensor<Data, 2>({s.dout, s.r}).uniform(rng, -unit_row(s.r), unit_row(s.r))),
        P(tensor<Data, 2>({dp, s.din}).uniform(rng, -unit_row(s.din), unit_row(s.din))) {
    if (s.base) W0 = tensor<Data, 2>({s.dout, s.din}).uniform(rng, -unit_row(s.din), unit_row(s.din));
  }

 protected:
  template <class Args>
  void show_in(Args& args) {
    args.x = x.view();
    args.W0 = W0.view();
    args.A = A.view();
    args.B = B.view();
    args.P = P.view();
    args.h = h.view();
    args.lam = lam.view();
  }
  template <class To>
  void convert_to(low_rank_problem<To>& p) const {
    p.x = convert<To>(x);
    p.W0 = convert<To>(W0);
    p.A = convert<To>(A);
    p.B = convert<To>(B);
    p.P = convert<To>(P);
    p.h = tensor<To, 3>(h.extents());
    p.lam = tensor<acc_t<To>, 3>(lam.extents());
  }
};

template <class Data>
struct malora_problem : low_rank_problem<Data> {
  mamba_weights<Data> mamba;
  tensor<Data, 2> phi_w;
  tensor<acc_t<Data>, 1> phi_b;
  mamba_states<Data> before, after;
  tensor<std::int32_t, 1> cu_seqlens;

  malora_problem() = default;
  template <class Rng>
  malora_problem(const modulation_shape& s, Rng& rng)
      : low_rank_problem<Data>(s, s.block.d, s.q(), rng),
        mamba(s.block, rng),
        phi_w(tensor<Data, 2>({s.q(), s.block.d}).uniform(rng, -unit_row(s.block.d), unit_row(s.block.d))),
        phi_b(tensor<acc_t<Data>, 1>({s.q()}).uniform(rng, -1, 1)),
        cu_seqlens(cu_seqlens_of(s.lengths)) {
    if (s.initial_states) before = mamba_states<Data>::random(s.block, s.sequences(), rng);
    if (s.final_states) after = mamba_states<Data>::shaped(s.block, s.sequences());
  }
  [[nodiscard]] malora_args<Data> args() {
    malora_args<Data> a{};
    this->show_in(a);
    a.mamba = mamba.views();
    a.phi_w = phi_w.view();
    a.phi_b = phi_b.view();
    a.initial_conv_state = before.conv.view();
    a.initial_scan_state = before.scan.view();
    a.cu_seqlens = cu_seqlens.view();
    a.final_conv_state = after.conv.view();
    a.final_scan_state = after.scan.view();
    return a;
  }
  /// A step of the tokens begin .. end-1 on these states, into h and lam.
  [[nodiscard]] malora_step_args<Data> step_args(std::int64_t begin, std::int64_t end, mamba_states<Data>& pool) {
    malora_step_args<Data> a{};
    this->show_in(a);
    a.x = a.x.slice(1, begin, end);
    a.h = a.h.slice(1, begin, end);
    a.lam = a.lam.slice(1, begin, end);
    a.mamba = mamba.views();
    a.phi_w = phi_w.view();
    a.phi_b = phi_b.view();
    a.conv_state = pool.conv.view();
    a.scan_state = pool.scan.view();
    return a;
  }
  template <class To>
  [[nodiscard]] malora_problem<To> in() const {
    malora_problem<To> p;
    this->convert_to(p);
    p.mamba = mamba.template in<To>();
    p.phi_w = convert<To>(phi_w);
    p.phi_b = convert<acc_t<To>>(phi_b);
    p.before = before.template in<To>();
    p.after = after.template in<To>().poisoned();
    p.cu_seqlens = cu_seqlens;
    return p;
  }
  [[nodiscard]] malora_problem<double> in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const malora_args<Data>& args) {
    malora(exec, args);
  }
};

template <class Data>
struct toplora_problem : low_rank_problem<Data> {
  tensor<acc_t<Data>, 1> rms_w;

  toplora_problem() = default;
  template <class Rng>
  toplora_problem(const modulation_shape& s, Rng& rng) : low_rank_problem<Data>(s, s.r, s.r, rng) {
    if (s.rms_w) rms_w = tensor<acc_t<Data>, 1>({s.r}).uniform(rng, 0.5, 1.5);
  }
  [[nodiscard]] toplora_args<Data> args() {
    toplora_args<Data> a{};
    this->show_in(a);
    a.rms_w = rms_w.view();
    a.rms_eps = 1e-3;
    return a;
  }
  template <class To>
  [[nodiscard]] toplora_problem<To> in() const {
    toplora_problem<To> p;
    this->convert_to(p);
    p.rms_w = convert<acc_t<To>>(rms_w);
    return p;
  }
  [[nodiscard]] toplora_problem<double> in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const toplora_args<Data>& args) {
    toplora(exec, args);
  }
};

}  // namespace polystate::testing
