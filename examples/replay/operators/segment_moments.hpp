// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../axes.hpp"
#include "../operands.hpp"

#include <polystate/segment_moments.hpp>

namespace replay {

template <class Exec, class Data>
void run_segment_moments(operands<Exec, Data>& io) {
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    const polystate::segment_moments_args<Data, Separation> args{
        .moments = moments_of(io, true),
        .separation = separation,
        .cu_seqlens = io.optional_indices("in.cu_seqlens"),
        .mu = io.template optional_output<acc, 4>("out.mu"),
        .Sigma = io.template optional_output<acc, 5>("out.Sigma")};
    io.run([&] { polystate::segment_moments(io.exec(), args); });
  });
}

template <class Exec, class Data>
void run_segment_moments_backward(operands<Exec, Data>& io) {
  visit_segments(io, [&]<class Separation>(const Separation& separation) {
    const polystate::segment_moments_args<Data, Separation> args{
        .moments = moments_of(io, true), .separation = separation, .cu_seqlens = io.optional_indices("in.cu_seqlens")};
    const polystate::segment_moments_grads<Data> grads{.d_mu = io.template upstream<acc, 4>("mu"),
                                                       .d_Sigma = io.template upstream<acc, 5>("Sigma"),
                                                       .moments = moment_grads(io, args.moments)};
    io.run([&] { polystate::segment_moments_backward(io.exec(), args, grads); });
  });
}

}  // namespace replay
