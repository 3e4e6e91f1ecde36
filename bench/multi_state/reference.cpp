// SPDX-License-Identifier: Apache-2.0

// multi_state: the reference.

#include "support/rows.hpp"

#include <polystate/reference/multi_state.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, m, H, dk, dv, dr;
  [[nodiscard]] std::string text() const {
    return "merlin/B" + std::to_string(B) + "/T" + std::to_string(T) + "/m" + std::to_string(m) + "/H" +
           std::to_string(H) + "/dk" + std::to_string(dk) + "/dv" + std::to_string(dv) + "/dr" + std::to_string(dr);
  }
};

/// MERLIN on the gated delta rule. A step writes and reads one token behind the T of the shape, a read asks one query.
class merlin_layer {
 public:
  static constexpr const char* name = "multi_state";
  static constexpr shape shapes[] = {{1, 64, 16, 2, 16, 16, 8}, {1, 64, 16, 4, 128, 128, 64}};

  explicit merlin_layer(const shape& n) : n_(n) {
    auto whole = args();
    const auto bank = bank_.view();
    whole.S = bank.S.slice(1, 0, L_);
    whole.mu = bank.mu.slice(1, 0, L_);
    whole.Sigma = bank.Sigma.slice(1, 0, L_);
    multi_state(on_reference{}, whole);
    bank_.resume(0, whole.separation, n_.T);
    after_prefill_ = bank_.counters();
  }

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    const double T = static_cast<double>(n_.T);
    // as gated_delta_rule and routing; S q of every visible segment instead of one
    const double write_flops = static_cast<double>(n_.H * (5 * n_.dk * n_.dv + 2 * n_.dr * (n_.dr + 1)));
    const double read_flops = static_cast<double>(n_.H * (2 * n_.dk * n_.dv + 2 * n_.dr * (n_.dr + 1)));
    const double flops = T * write_flops + static_cast<double>(visible_segments(n_.T, n_.m)) * read_flops;
    const double a_token = bytes_of(q_, k_, v_, g_, beta_, kp_, qp_, gamma_, o_) / T;
    const double a_query = bytes_of(q_, qp_, gamma_, o_) / T;
    const double bank = static_cast<double>(bank_.bytes());
    const double entry = bank / static_cast<double>(L_);
    return {
        {"forward", {T * a_token, flops}, [=, this] { multi_state(exec, args()); }},
        {"backward",
         {T * a_token + bytes_of(d_q_, d_k_, d_v_, d_g_, d_beta_, d_kp_, d_qp_, d_gamma_), backward_flops(flops)},
         [=, this] {
           multi_state_backward(exec, args(),
                                multi_state_grads<float, rule::gated_delta, router::merlin<float>>{
                                    .d_o = d_o_.view(),
                                    .in = {.d_q = d_q_.view(),
                                           .d_k = d_k_.view(),
                                           .d_v = d_v_.view(),
                                           .d_g = d_g_.view(),
                                           .d_beta = d_beta_.view()},
                                    .moments = {.d_k = d_kp_.view()},
                                    .router = {.d_q = d_qp_.view(), .d_gamma = d_gamma_.view()}});
         }},
        {"step",
         {bank + entry + a_token, write_flops + static_cast<double>(L_ + 1) * read_flops},
         [=, this] {
           bank_.view().counters(0) = after_prefill_;
           multi_state_step(exec,
                            multi_state_step_args<float, rule::gated_delta, separation::uniform, router::merlin<float>>{
                                .in = tokens(0, 1),
                                .separation = {.m = n_.m},
                                .moments = {.k = kp_.view().slice(1, 0, 1)},
                                .router = router(0, 1),
                                .bank = bank_.view(),
                                .o = o_.view().slice(1, 0, 1)});
         }},
        {"read",
         {bank + a_query, static_cast<double>(L_) * read_flops},
         [=, this] {
           bank_.view().counters(0) = after_prefill_;
           multi_state_read(exec, query());
         }},
        {"read_backward",
         {bank + 2 * a_query, backward_flops(static_cast<double>(L_) * read_flops)},
         [=, this] {
           bank_.view().counters(0) = after_prefill_;
           multi_state_read_backward(exec, query(),
                                     multi_state_read_grads<float, rule::gated_delta, router::merlin<float>>{
                                         .d_o = d_o_.view().slice(1, 0, 1),
                                         .in = {.d_q = d_q_.view().slice(1, 0, 1)},
                                         .router = {.d_q = d_qp_.view().slice(1, 0, 1)}});
         }},
    };
  }

 private:
  using layer = multi_state_args<float, rule::gated_delta, separation::uniform, router::merlin<float>>;
  using reading = multi_state_read_args<float, rule::gated_delta, router::merlin<float>>;

  [[nodiscard]] operands<float, rule::gated_delta> tokens(std::int64_t begin, std::int64_t end) const {
    return {.q = q_.view().slice(1, begin, end),
            .k = k_.view().slice(1, begin, end),
            .v = v_.view().slice(1, begin, end),
            .g = g_.view().slice(1, begin, end),
            .beta = beta_.view().slice(1, begin, end),
            .qk_l2norm = true};
  }
  [[nodiscard]] router::merlin<float> router(std::int64_t begin, std::int64_t end) const {
    return {.q = qp_.view().slice(1, begin, end),
            .gamma = gamma_.view().slice(1, begin, end),
            .tau_mu = tau_.view(),
            .tau_sigma = tau_.view()};
  }
  [[nodiscard]] layer args() {
    return {.in = tokens(0, n_.T),
            .separation = {.m = n_.m},
            .moments = {.k = kp_.view()},
            .router = router(0, n_.T),
            .o = o_.view()};
  }
  [[nodiscard]] reading query() {
    return {.in = {.q = q_.view().slice(1, 0, 1), .qk_l2norm = true},
            .bank = bank_.view(),
            .router = router(0, 1),
            .o = o_.view().slice(1, 0, 1)};
  }

  shape n_;
  std::int64_t L_ = separation::uniform{.m = n_.m}.count(n_.T);
  operand_maker make_;
  const tensor<float, 4> q_ = make_.uniform({n_.B, n_.T, n_.H, n_.dk}, -1, 1);
  const tensor<float, 4> k_ = make_.uniform({n_.B, n_.T, n_.H, n_.dk}, -1, 1);
  const tensor<float, 4> v_ = make_.uniform({n_.B, n_.T, n_.H, n_.dv}, -1, 1);
  const tensor<float, 3> g_ = make_.uniform({n_.B, n_.T, n_.H}, -1, 0);
  const tensor<float, 3> beta_ = make_.uniform({n_.B, n_.T, n_.H}, 0, 1);
  const tensor<float, 4> kp_ = make_.uniform({n_.B, n_.T, n_.H, n_.dr}, -1, 1);
  const tensor<float, 4> qp_ = make_.uniform({n_.B, n_.T, n_.H, n_.dr}, -1, 1);
  const tensor<float, 3> gamma_ = make_.uniform({n_.B, n_.T, n_.H}, 0, 1);
  const tensor<float, 1> tau_ = make_.uniform({n_.H}, 1, 2);
  const tensor<float, 4> d_o_ = make_.uniform({n_.B, n_.T, n_.H, n_.dv}, -1, 1);
  tensor<float, 4> o_ = result({n_.B, n_.T, n_.H, n_.dv});
  tensor<float, 4> d_q_ = result({n_.B, n_.T, n_.H, n_.dk});
  tensor<float, 4> d_k_ = result({n_.B, n_.T, n_.H, n_.dk});
  tensor<float, 4> d_v_ = result({n_.B, n_.T, n_.H, n_.dv});
  tensor<float, 3> d_g_ = result({n_.B, n_.T, n_.H});
  tensor<float, 3> d_beta_ = result({n_.B, n_.T, n_.H});
  tensor<float, 4> d_kp_ = result({n_.B, n_.T, n_.H, n_.dr});
  tensor<float, 4> d_qp_ = result({n_.B, n_.T, n_.H, n_.dr});
  tensor<float, 3> d_gamma_ = result({n_.B, n_.T, n_.H});
  state_bank<float> bank_{{.B = 1, .H = n_.H, .dv = n_.dv, .dk = n_.dk, .HR = n_.H, .dr = n_.dr}, L_ + 1};
  bank_counters after_prefill_{};
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::merlin_layer>("reference", on_reference{}); });
}
