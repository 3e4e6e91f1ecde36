// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"
#include "mamba_block.hpp"

#include <polystate/adapters/token_modulation.hpp>

namespace replay {

template <class Exec, class Data>
void run_malora(operands<Exec, Data>& io) {
  const polystate::malora_args<Data> args{.x = io.template input<data, 3>("in.x"),
                                          .W0 = io.template input<data, 2>("in.W0"),
                                          .A = io.template input<data, 2>("in.A"),
                                          .B = io.template input<data, 2>("in.B"),
                                          .P = io.template input<data, 2>("in.P"),
                                          .mamba = mamba_block_weights(io, "mamba."),
                                          .phi_w = io.template input<data, 2>("in.phi_w"),
                                          .phi_b = io.template input<acc, 1>("in.phi_b"),
                                          .h = io.template output<data, 3>("out.h"),
                                          .lam = io.template output<acc, 3>("out.lam")};
  io.run([&] { polystate::malora(io.exec(), args); });
}

template <class Exec, class Data>
void run_toplora(operands<Exec, Data>& io) {
  const polystate::toplora_args<Data> args{.x = io.template input<data, 3>("in.x"),
                                           .W0 = io.template input<data, 2>("in.W0"),
                                           .A = io.template input<data, 2>("in.A"),
                                           .B = io.template input<data, 2>("in.B"),
                                           .P = io.template input<data, 2>("in.P"),
                                           .rms_w = io.template optional_input<acc, 1>("in.rms_w"),
                                           .h = io.template output<data, 3>("out.h"),
                                           .lam = io.template output<acc, 3>("out.lam"),
                                           .rms_eps = io.file().number("rms_eps")};
  io.run([&] { polystate::toplora(io.exec(), args); });
}

}  // namespace replay
