// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of the problems in modulation_cases.hpp, as support/gradient_properties.hpp asks.

#include "adapters/modulation_cases.hpp"
#include "support/tensor.hpp"

#include <polystate/adapters/token_modulation.hpp>

#include <cstdint>

namespace polystate::testing {

template <class Data>
struct low_rank_gradients {
  tensor<Data, 3> d_h;           ///< upstream
  tensor<acc_t<Data>, 3> d_lam;  ///< upstream
  tensor<Data, 3> d_x;
  tensor<Data, 2> d_W0, d_A, d_B, d_P;

  low_rank_gradients() = default;
  template <class Rng>
  low_rank_gradients(const modulation_shape& s, std::int64_t dp, std::int64_t q, Rng& rng)
      : d_h(tensor<Data, 3>({s.B, s.T, s.dout}, s.memory).uniform(rng, -1, 1)),
        d_lam(tensor<acc_t<Data>, 3>({s.B, s.T, q}, s.memory).uniform(rng, -1, 1)),
        d_x({s.B, s.T, s.din}, s.memory),
        d_A({s.r, s.din}),
        d_B({s.dout, s.r}),
        d_P({dp, s.din}) {
    if (s.base) d_W0 = tensor<Data, 2>({s.dout, s.din});
  }

 protected:
  template <class Grads>
  void show_in(Grads& g) {
    g.d_h = d_h.view();
    g.d_lam = d_lam.view();
    g.d_x = d_x.view();
    g.d_W0 = d_W0.view();
    g.d_A = d_A.view();
    g.d_B = d_B.view();
    g.d_P = d_P.view();
  }
  void convert_to(low_rank_gradients<double>& g) const {
    g.d_h = convert<double>(d_h);
    g.d_lam = convert<double>(d_lam);
    g.d_x = convert<double>(d_x);
    g.d_W0 = convert<double>(d_W0);
    g.d_A = convert<double>(d_A);
    g.d_B = convert<double>(d_B);
    g.d_P = convert<double>(d_P);
  }
  template <class Problem, class F>
  void for_each_low_rank_input(Problem& p, F&& f) {
    f("x", p.x, d_x);
    f("W0", p.W0, d_W0);
    f("A", p.A, d_A);
    f("B", p.B, d_B);
    f("P", p.P, d_P);
  }
};

template <class Data>
struct malora_gradients : low_rank_gradients<Data> {
  mamba_states<Data> d_after;  ///< upstream
  mamba_weights<Data> d_mamba;
  tensor<Data, 2> d_phi_w;
  tensor<acc_t<Data>, 1> d_phi_b;
  mamba_states<Data> d_before;

  malora_gradients() = default;
  template <class Rng>
  malora_gradients(const modulation_shape& s, Rng& rng)
      : low_rank_gradients<Data>(s, s.block.d, s.q(), rng),
        d_mamba(mamba_weights<Data>::shaped(s.block)),
        d_phi_w({s.q(), s.block.d}),
        d_phi_b({s.q()}),
        d_before(mamba_states<Data>::shaped(s.block, s.sequences())) {
    if (s.final_states) d_after = mamba_states<Data>::random(s.block, s.sequences(), rng);
  }
  [[nodiscard]] malora_grads<Data> views() {
    malora_grads<Data> g{};
    this->show_in(g);
    g.d_final_conv_state = d_after.conv.view();
    g.d_final_scan_state = d_after.scan.view();
    g.d_mamba = views_of_gradients(d_mamba);
    g.d_phi_w = d_phi_w.view();
    g.d_phi_b = d_phi_b.view();
    g.d_initial_conv_state = d_before.conv.view();
    g.d_initial_scan_state = d_before.scan.view();
    return g;
  }
  template <class Exec>
  static void run(const Exec& exec, const malora_args<Data>& args, const malora_grads<Data>& grads) {
    malora_backward(exec, args, grads);
  }
  [[nodiscard]] malora_gradients<double> in_double() const {
    malora_gradients<double> g;
    this->convert_to(g);
    g.d_after = d_after.template in<double>();
    g.d_mamba = d_mamba.template in<double>();
    g.d_phi_w = convert<double>(d_phi_w);
    g.d_phi_b = convert<double>(d_phi_b);
    g.d_before = d_before.template in<double>();
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("h", p.h, this->d_h);
    f("lam", p.lam, this->d_lam);
    f("final_conv_state", p.after.conv, d_after.conv);
    f("final_scan_state", p.after.scan, d_after.scan);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    this->for_each_low_rank_input(p, f);
    for_each_weight(f, p.mamba, d_mamba);
    f("phi_w", p.phi_w, d_phi_w);
    f("phi_b", p.phi_b, d_phi_b);
    f("initial_conv_state", p.before.conv, d_before.conv);
    f("initial_scan_state", p.before.scan, d_before.scan);
  }
};

template <class Data>
struct toplora_gradients : low_rank_gradients<Data> {
  tensor<acc_t<Data>, 1> d_rms_w;

  toplora_gradients() = default;
  template <class Rng>
  toplora_gradients(const modulation_shape& s, Rng& rng) : low_rank_gradients<Data>(s, s.r, s.r, rng) {
    if (s.rms_w) d_rms_w = tensor<acc_t<Data>, 1>({s.r});
  }
  [[nodiscard]] toplora_grads<Data> views() {
    toplora_grads<Data> g{};
    this->show_in(g);
    g.d_rms_w = d_rms_w.view();
    return g;
  }
  template <class Exec>
  static void run(const Exec& exec, const toplora_args<Data>& args, const toplora_grads<Data>& grads) {
    toplora_backward(exec, args, grads);
  }
  [[nodiscard]] toplora_gradients<double> in_double() const {
    toplora_gradients<double> g;
    this->convert_to(g);
    g.d_rms_w = convert<double>(d_rms_w);
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("h", p.h, this->d_h);
    f("lam", p.lam, this->d_lam);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    this->for_each_low_rank_input(p, f);
    f("rms_w", p.rms_w, d_rms_w);
  }
};

}  // namespace polystate::testing
