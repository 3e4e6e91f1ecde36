// SPDX-License-Identifier: Apache-2.0

// The formulas are those of examples/gating_theory.

#include "../../gating_theory/theory.hpp"
#include "../operands.hpp"
#include "../registry.hpp"

#include <cstdint>
#include <string>

namespace replay::reference {

namespace {

using io_t = operands<polystate::on_reference, double>;
using in_t = polystate::tensor_view<const double, 1>;
using out_t = polystate::tensor_view<double, 1>;

/// Operands of elementwise formulas: all as long as `n`.
in_t input(io_t& io, const std::string& name, std::int64_t n) {
  const in_t v = io.input<data, 1>("in." + name);
  if (v.extent(0) != n) throw io.file().fault("in." + name, "is not as long as the others");
  return v;
}
out_t output(io_t& io, const std::string& name, std::int64_t n) {
  const out_t v = io.output<data, 1>("out." + name);
  if (v.extent(0) != n) throw io.file().fault("out." + name, "is not as long as the inputs");
  return v;
}

void run_theory(io_t& io) {
  const in_t lambda = io.input<data, 1>("in.lambda");
  const std::int64_t n = lambda.extent(0);
  const in_t d = input(io, "d", n), ell = input(io, "ell", n), Delta = input(io, "Delta", n),
             xnorm = input(io, "xnorm", n), P = input(io, "P", n), eps = input(io, "eps", n),
             target = input(io, "target", n);
  const out_t tau = output(io, "tau", n), alpha = output(io, "alpha", n), S2 = output(io, "S2", n),
              bayes_error = output(io, "bayes_error", n), no_decay_error = output(io, "no_decay_error", n),
              prop1_ratio = output(io, "prop1_ratio", n), alpha_star = output(io, "alpha_star", n),
              delta_max = output(io, "delta_max", n);
  io.run([&] {
    for (std::int64_t i = 0; i < n; ++i) {
      const gating::setting s{.lambda = lambda(i),
                              .d = d(i),
                              .ell = ell(i),
                              .Delta = Delta(i),
                              .xnorm = xnorm(i),
                              .P = P(i),
                              .eps = eps(i),
                              .target = target(i)};
      tau(i) = gating::tau_of(s.lambda);
      alpha(i) = gating::alpha_of(s.lambda, s.Delta);
      S2(i) = gating::sum_of_squares(s.lambda, s.ell);
      bayes_error(i) = gating::bayes_error(s);
      no_decay_error(i) = gating::no_decay_error(s);
      prop1_ratio(i) = gating::prop1_ratio(s);
      alpha_star(i) = gating::alpha_star(s.P, s.eps);
      delta_max(i) = gating::delta_max(s);
    }
  });
}

void run_flow(io_t& io) {
  const in_t u = io.input<data, 1>("in.u");
  const std::int64_t n = u.extent(0);
  const in_t v = input(io, "v", n), alpha = input(io, "alpha", n), P = input(io, "P", n), eps = input(io, "eps", n);
  const out_t delta_m = output(io, "delta_m", n), delta_r = output(io, "delta_r", n), du = output(io, "du", n),
              dv = output(io, "dv", n), dalpha = output(io, "dalpha", n);
  io.run([&] {
    for (std::int64_t i = 0; i < n; ++i) {
      const gating::flow to = gating::gating_flow(u(i), v(i), alpha(i), P(i), eps(i));
      delta_m(i) = to.delta_m;
      delta_r(i) = to.delta_r;
      du(i) = to.du;
      dv(i) = to.dv;
      dalpha(i) = to.dalpha;
    }
  });
}

}  // namespace

computed gating_theory(const request& r) { return run_on_reference_in_double(r, run_theory); }
computed gating_flow(const request& r) { return run_on_reference_in_double(r, run_flow); }

}  // namespace replay::reference
