// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"

#include <polystate/routing.hpp>

namespace replay {

/// Calls f with the operands, without the outputs.
template <class Exec, class Data, class F>
void visit_routing_inputs(operands<Exec, Data>& io, F&& f) {
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    visit_router(io, false, [&]<class Router>(const Router& router) {
      f(polystate::routing_args<Data, Separation, Router>{.moments = moments_of(io, Router::reads_moments),
                                                          .separation = separation,
                                                          .router = router,
                                                          .lam = {},
                                                          .max_visible = io.file().integer("max_visible", 0)});
    });
  });
}

template <class Exec, class Data>
void run_routing(operands<Exec, Data>& io) {
  visit_routing_inputs(io, [&](auto args) {
    args.lam = io.template output<acc, 4>("out.lam");
    args.r_mu = io.template optional_output<acc, 4>("out.r_mu");
    args.r_sigma = io.template optional_output<acc, 4>("out.r_sigma");
    io.run([&] { polystate::routing(io.exec(), args); });
  });
}

template <class Exec, class Data>
void run_routing_backward(operands<Exec, Data>& io) {
  visit_routing_inputs(
      io, [&]<class Separation, class Router>(const polystate::routing_args<Data, Separation, Router>& args) {
        const polystate::routing_grads<Data, Router> grads{.d_lam = io.template upstream<acc, 4>("lam"),
                                                           .moments = moment_grads(io, args.moments),
                                                           .router = router_grads_of<Router>(io, false)};
        io.run([&] { polystate::routing_backward(io.exec(), args, grads); });
      });
}

}  // namespace replay
