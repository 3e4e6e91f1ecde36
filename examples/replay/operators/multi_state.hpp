// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"
#include "recurrence_operands.hpp"

#include <polystate/multi_state.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace replay {

/// Whether a file's k' goes to the operator: where it is given, and the recurrence's own key does not serve.
inline bool has_own_keys(const case_file& file) {
  return !file.flag("shared_kq", false) && file.find("in.kp") != nullptr;
}

/// Calls f with the operands, without the outputs.
template <class Rule, class Exec, class Data, class F>
void visit_multi_state_inputs(operands<Exec, Data>& io, F&& f) {
  const bool shared_kq = io.file().flag("shared_kq", false);
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    visit_router(io, shared_kq, [&]<class Router>(const Router& router) {
      f(polystate::multi_state_args<Data, Rule, Separation, Router>{
          .in = recurrence_operands<Rule>(io),
          .separation = separation,
          .moments = moments_of(io, has_own_keys(io.file())),
          .router = router,
          .cu_seqlens = io.optional_indices("in.cu_seqlens"),
          .o = {},
          .shared_kq = shared_kq,
          .max_visible = io.file().integer("max_visible", 0)});
    });
  });
}

template <class Rule, class Exec, class Data>
void run_multi_state(operands<Exec, Data>& io) {
  visit_multi_state_inputs<Rule>(io, [&](auto args) {
    args.o = io.template output<data, 4>("out.o");
    args.lam = io.template optional_output<acc, 4>("out.lam");
    args.S = io.template optional_output<acc, 5>("out.S");
    args.mu = io.template optional_output<acc, 4>("out.mu");
    args.Sigma = io.template optional_output<acc, 5>("out.Sigma");
    io.run([&] { polystate::multi_state(io.exec(), args); });
  });
}

template <class Rule, class Exec, class Data>
void run_multi_state_backward(operands<Exec, Data>& io) {
  visit_multi_state_inputs<Rule>(io, [&]<class Separation, class Router>(
                                         const polystate::multi_state_args<Data, Rule, Separation, Router>& args) {
    const polystate::multi_state_grads<Data, Rule, Router> grads{.d_o = io.template upstream<data, 4>("o"),
                                                                 .d_lam = io.template upstream<acc, 4>("lam"),
                                                                 .d_S = io.template upstream<acc, 5>("S"),
                                                                 .d_mu = io.template upstream<acc, 4>("mu"),
                                                                 .d_Sigma = io.template upstream<acc, 5>("Sigma"),
                                                                 .in = recurrence_grads<Rule>(io),
                                                                 .moments = moment_grads(io, args.moments),
                                                                 .router = router_grads_of<Router>(io, args.shared_kq)};
    io.run([&] { polystate::multi_state_backward(io.exec(), args, grads); });
  });
}

/// The counters of B sequences that have each seen `tokens` tokens.
template <class Exec, class Data>
polystate::tensor_view<polystate::bank_counters, 1> counters_of(operands<Exec, Data>& io, std::int64_t B,
                                                                const polystate::bank_counters& c) {
  const std::vector<polystate::bank_counters> counters(static_cast<std::size_t>(B), c);
  return {io.template updated<polystate::bank_counters>(counters), {B}};
}

template <class Rule, class Exec, class Data>
void run_multi_state_step(operands<Exec, Data>& io) {
  using polystate::separation::uniform;
  const case_file& file = io.file();
  const bool shared_kq = file.flag("shared_kq", false);
  const std::int64_t seen = file.integer("t0");
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    if constexpr (!std::is_same_v<Separation, uniform>) {
      throw skipped("a step with separation " + std::string(Separation::name) + " is not there");
    } else {
      constexpr std::int64_t longest = std::int64_t{1} << 48;
      if (separation.m < 1 || separation.m > longest) throw malformed(file.path(), "param.m", "out of range");
      if (seen < 0 || seen > longest) throw malformed(file.path(), "param.t0", "out of range");
      visit_router(io, shared_kq, [&]<class Router>(const Router& router) {
        const polystate::bank_counters counters{.tokens = seen,
                                                .segments = seen / separation.m + (seen % separation.m != 0 ? 1 : 0),
                                                .open_tokens = seen % separation.m};
        const tensor* before = file.find("in.bank_S");
        if (counters.segments != (before != nullptr && before->shape.size() == 5 ? before->shape[1] : 0)) {
          throw file.fault("in.bank_S", "has not the " + std::to_string(counters.segments) +
                                            " entries of a bank that has seen t0 tokens");
        }
        const auto S = io.template grown<acc, 5>("in.bank_S", "out.bank_S");
        const polystate::multi_state_step_args<Data, Rule, uniform, Router> args{
            .in = recurrence_operands<Rule>(io),
            .separation = separation,
            .moments = moments_of(io, has_own_keys(file)),
            .router = router,
            .bank = {.S = S,
                     .mu = io.template optional_grown<acc, 4>("in.bank_mu", "out.bank_mu"),
                     .Sigma = io.template optional_grown<acc, 5>("in.bank_Sigma", "out.bank_Sigma"),
                     .counters = counters_of(io, S.extent(0), counters)},
            .o = io.template optional_output<data, 4>("out.o"),
            .shared_kq = shared_kq,
            .max_visible = file.integer("max_visible", 0)};
        io.run([&] { polystate::multi_state_step(io.exec(), args); });
      });
    }
  });
}

/// Calls f with the operands of a read, without the outputs.
template <class Rule, class Exec, class Data, class F>
void visit_multi_state_read_inputs(operands<Exec, Data>& io, F&& f) {
  const case_file& file = io.file();
  const bool shared_kq = file.flag("shared_kq", false);
  polystate::query_operands<Data, Rule> query;
  if constexpr (std::is_same_v<Rule, polystate::rule::ssd>) {
    query = {.C = io.template input<data, 4>("in.C")};
  } else {
    query = {.q = io.template input<data, 4>("in.q"),
             .scale = file.number("scale"),
             .qk_l2norm = file.flag("qk_l2norm", false),
             .l2norm_eps = file.number("l2norm_eps", 1e-6)};
  }
  visit_router(io, shared_kq, [&]<class Router>(const Router& router) {
    const auto S = io.template input<acc, 5>("in.bank_S");
    // How many tokens the entries hold makes no difference to a read.
    const polystate::bank_counters counters{.tokens = S.extent(1), .segments = S.extent(1), .open_tokens = 0};
    f(polystate::multi_state_read_args<Data, Rule, Router>{
        .in = query,
        .bank = {.S = S,
                 .mu = io.template input_if<acc, 4>(Router::reads_moments, "in.bank_mu"),
                 .Sigma = io.template input_if<acc, 5>(Router::reads_Sigma, "in.bank_Sigma"),
                 .counters = counters_of(io, S.extent(0), counters)},
        .router = router,
        .o = {},
        .shared_kq = shared_kq,
        .qkp_l2norm = file.flag("qkp_l2norm", false),
        .l2norm_eps = file.number("l2norm_eps", 1e-6),
        .max_visible = file.integer("max_visible", 0)});
  });
}

template <class Rule, class Exec, class Data>
void run_multi_state_read(operands<Exec, Data>& io) {
  visit_multi_state_read_inputs<Rule>(io, [&](auto args) {
    args.o = io.template output<data, 4>("out.o");
    args.lam = io.template optional_output<acc, 4>("out.lam");
    io.run([&] { polystate::multi_state_read(io.exec(), args); });
  });
}

template <class Rule, class Exec, class Data>
void run_multi_state_read_backward(operands<Exec, Data>& io) {
  visit_multi_state_read_inputs<Rule>(io, [&]<class Router>(
                                              const polystate::multi_state_read_args<Data, Rule, Router>& args) {
    polystate::multi_state_read_grads<Data, Rule, Router> grads{.d_o = io.template upstream<data, 4>("o"),
                                                                .d_lam = io.template upstream<acc, 4>("lam"),
                                                                .router = router_grads_of<Router>(io, args.shared_kq)};
    if constexpr (std::is_same_v<Rule, polystate::rule::ssd>) {
      grads.in.d_C = io.template gradient<data, 4>("C");
    } else {
      grads.in.d_q = io.template gradient<data, 4>("q");
    }
    io.run([&] { polystate::multi_state_read_backward(io.exec(), args, grads); });
  });
}

}  // namespace replay
