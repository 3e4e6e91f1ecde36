// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"

#include <polystate/routing.hpp>

namespace replay {

template <class Exec, class Data>
void run_routing(operands<Exec, Data>& io) {
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    visit_router(io, false, [&]<class Router>(const Router& router) {
      const polystate::routing_args<Data, Separation, Router> args{
          .moments = moments_of(io, Router::reads_moments),
          .separation = separation,
          .router = router,
          .lam = io.template output<acc, 4>("out.lam"),
          .r_mu = io.template optional_output<acc, 4>("out.r_mu"),
          .r_sigma = io.template optional_output<acc, 4>("out.r_sigma"),
          .max_visible = io.file().integer("max_visible", 0)};
      io.run([&] { polystate::routing(io.exec(), args); });
    });
  });
}

}  // namespace replay
