// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../operands.hpp"

#include <polystate/recurrence.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace replay {

/// What the tokens of a recurrence are made of: q, k, v and gates, or for ssd x, dt, A, B, C and more.
template <class Rule, class Exec, class Data>
polystate::operands<Data, Rule> recurrence_operands(operands<Exec, Data>& io) {
  const case_file& file = io.file();
  if constexpr (std::is_same_v<Rule, polystate::rule::ssd>) {
    const auto x = io.template input<data, 4>("in.x");
    // One number a head is the same number for each of its channels.
    polystate::tensor_view<const polystate::acc_t<Data>, 2> D;
    if (const tensor* t = file.find("in.D"); t != nullptr && t->shape.size() == 1) {
      const auto per_head = io.template input<acc, 1>("in.D");
      D = {per_head.data(), {per_head.extent(0), x.extent(3)}, {1, 0}};
    } else {
      D = io.template optional_input<acc, 2>("in.D");
    }
    constexpr double unlimited = std::numeric_limits<double>::infinity();
    return {.x = x,
            .dt = io.template input<data, 3>("in.dt"),
            .A = io.template input<acc, 1>("in.A"),
            .B = io.template input<data, 4>("in.B"),
            .C = io.template input<data, 4>("in.C"),
            .D = D,
            .z = io.template optional_input<data, 4>("in.z"),
            .dt_bias = io.template optional_input<acc, 1>("in.dt_bias"),
            .dt_softplus = file.flag("dt_softplus"),
            .dt_min = file.number("dt_min", -unlimited),
            .dt_max = file.number("dt_max", unlimited)};
  } else {
    return {.q = io.template input<data, 4>("in.q"),
            .k = io.template input<data, 4>("in.k"),
            .v = io.template input<data, 4>("in.v"),
            .g = io.template input_if<acc, 3>(Rule::has_decay, "in.g"),
            .beta = io.template input_if<acc, 3>(Rule::has_beta, "in.beta"),
            .scale = file.number("scale"),
            .qk_l2norm = file.flag("qk_l2norm", false),
            .l2norm_eps = file.number("l2norm_eps", 1e-6)};
  }
}

/// The gradients of those that the file has expected values for.
template <class Rule, class Exec, class Data>
polystate::operand_grads<Data, Rule> recurrence_grads(operands<Exec, Data>& io) {
  if constexpr (std::is_same_v<Rule, polystate::rule::ssd>) {
    // Of one number a head, one a head.
    polystate::tensor_view<polystate::acc_t<Data>, 2> d_D;
    if (const tensor* t = io.file().find("din.D"); t != nullptr && t->shape.size() == 1) {
      const auto per_head = io.template gradient<acc, 1>("D");
      d_D = {per_head.data(), {per_head.extent(0), 1}};
    } else {
      d_D = io.template gradient<acc, 2>("D");
    }
    return {.d_x = io.template gradient<data, 4>("x"),
            .d_dt = io.template gradient<data, 3>("dt"),
            .d_A = io.template gradient<acc, 1>("A"),
            .d_B = io.template gradient<data, 4>("B"),
            .d_C = io.template gradient<data, 4>("C"),
            .d_D = d_D,
            .d_z = io.template gradient<data, 4>("z"),
            .d_dt_bias = io.template gradient<acc, 1>("dt_bias")};
  } else {
    return {.d_q = io.template gradient<data, 4>("q"),
            .d_k = io.template gradient<data, 4>("k"),
            .d_v = io.template gradient<data, 4>("v"),
            .d_g = io.template gradient_if<acc, 3>(Rule::has_decay, "g"),
            .d_beta = io.template gradient_if<acc, 3>(Rule::has_beta, "beta")};
  }
}

}  // namespace replay
