// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the gradients of every cell of the axes pass. Sources of their own instantiate it for each recurrence.

#include "multi_state/cells.hpp"
#include "multi_state/gradients.hpp"
#include "support/gradient_properties.hpp"

#include <polystate/reference/multi_state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Four segments, one of them partial or of one token: more than top_k keeps.
inline layer_shape small_layer() {
  return {.B = 1, .T = 7, .H = 2, .HK = 1, .HR = 1, .dk = 2, .dv = 2, .dr = 2, .m = 2, .cuts = {0, 1, 4, 6, 7}};
}

/// Shapes that change one thing each.
inline std::vector<layer_shape> differentiated_layers() {
  std::vector<layer_shape> all;
  const auto add = [&](const auto& edit) {
    auto s = small_layer();
    edit(s);
    all.push_back(s);
  };
  add([](auto&) {});
  add([](auto& s) { s.B = 2; });
  add([](auto& s) { s.HK = s.HR = 2; });           // one each
  add([](auto& s) { s.H = 4, s.HK = 2; });         // a group of heads shares a key, all share the moments
  add([](auto& s) { s.H = 4, s.HR = 4; });         // moments each, one key
  add([](auto& s) { s.m = 1; });                   // every token closes its segment
  add([](auto& s) { s.m = 7, s.cuts = {0, 7}; });  // one segment, closed
  add([](auto& s) { s.m = 64; });                  // one segment, open
  add([](auto& s) { s.max_visible = 1; });         // the current segment alone
  add([](auto& s) { s.max_visible = 3; });         // some fall out of sight
  add([](auto& s) { s.qk_l2norm = true; });        //
  add([](auto& s) { s.qkp_l2norm = true; });       //
  add([](auto& s) { s.shared_kq = true; });        //
  add([](auto& s) { s.qkp_l2norm = s.shared_kq = true; });
  add([](auto& s) { s.qk_l2norm = s.qkp_l2norm = s.shared_kq = true; });
  add([](auto& s) { s.H = 4, s.HK = 2, s.shared_kq = true; });
  add([](auto& s) { s.moment_rule = moment_rule::decay_write; });
  add([](auto& s) { s.moment_rule = moment_rule::delta; });
  add([](auto& s) { s.shared_kq = true, s.moment_rule = moment_rule::delta; });
  add([](auto& s) { s.divide_by = divide_by::count; });
  add([](auto& s) { s.keep_current = true; });
  return all;
}

template <class Cell>
class EveryCellBackward : public ::testing::Test {
 protected:
  struct run_and_gradients {
    layer_run<double, Cell> p;
    layer_gradients<double, Cell> g;

    explicit run_and_gradients(const layer_shape& shape) {
      std::mt19937 rng(11);
      p = layer_run<double, Cell>(layer_problem<double, Cell>(shape, rng));
      g = layer_gradients<double, Cell>(p, rng);
    }
    void run() { multi_state_backward(on_reference{}, p.args(), g.views()); }
    void expect(const std::string& what) const { expect_gradients(p, g, what); }
    void expect_finite(const std::string& what) {
      run();
      for (const auto& d : gradients_of(p, g)) {
        for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << what << ": d_" << d.name;
      }
    }
  };
};
TYPED_TEST_SUITE_P(EveryCellBackward);

TYPED_TEST_P(EveryCellBackward, EveryOption) {
  int row = 0;
  for (const auto& shape : differentiated_layers()) {
    typename TestFixture::run_and_gradients(shape).expect("row " + std::to_string(row++));
  }
}

TYPED_TEST_P(EveryCellBackward, ShortSequences) {
  for (std::int32_t T = 0; T < 4; ++T) {
    auto shape = small_layer();
    shape.T = T;
    shape.cuts = T > 0 ? std::vector<std::int32_t>{0, T} : std::vector<std::int32_t>{0};
    typename TestFixture::run_and_gradients(shape).expect("T " + std::to_string(T));
  }
}

TYPED_TEST_P(EveryCellBackward, PackedSequences) {
  if constexpr (!std::is_same_v<typename TypeParam::Separation, separation::boundaries>) {
    auto shape = small_layer();
    shape.lengths = {0, 3, 1, 0, 3};
    typename TestFixture::run_and_gradients(shape).expect("packed");
    shape.qk_l2norm = shape.qkp_l2norm = shape.shared_kq = true;
    typename TestFixture::run_and_gradients(shape).expect("packed, shared");
  }
}

// Each output alone carries its gradient, an absent one is a gradient of zeros; each gradient is the same alone.
TYPED_TEST_P(EveryCellBackward, UpstreamAlone) {
  const typename TestFixture::run_and_gradients all(small_layer());
  expect_absent_upstream_is_zero(all.p, all.g);
  expect_gradients_independent(all.p, all.g);
  for (int chosen = 0; chosen < 5; ++chosen) {
    auto one = all;
    int i = 0;
    std::string what = "alone: ";
    bool given = false;
    one.g.for_each_upstream(one.p, [&](const char* name, const auto&, auto& upstream) {
      if (i++ != chosen) {
        upstream = {};
      } else {
        what += name;
        given = static_cast<bool>(upstream);
      }
    });
    if (given) one.expect(what);
  }
}

// Nothing forgotten, or all of it at some tokens; betas at the ends of their range; rows of zeros.
TYPED_TEST_P(EveryCellBackward, ExtremeOperands) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  using Rule = typename TypeParam::Rule;
  auto shape = small_layer();
  shape.moment_rule = moment_rule::delta;
  for (const double g : {0.0, -1000.0, -infinity}) {
    for (const double beta : {0.0, 2.0}) {
      typename TestFixture::run_and_gradients c(shape);
      auto& p = c.p.problem;
      // Every third token.
      const auto every_third = [](auto& t, double value) {
        int i = 0;
        t.for_each([&](double& x) { x = i++ % 3 == 0 ? value : x; });
      };
      if constexpr (is_delta_family<Rule>) {
        every_third(p.in.g, g);
        every_third(p.in.beta, beta);
      } else {
        if (std::isfinite(g)) every_third(p.in.A, g);
      }
      every_third(p.keys.g, g);
      every_third(p.keys.beta, beta);
      const std::string what = "g " + std::to_string(g) + ", beta " + std::to_string(beta);
      // A segment whose moments are 0 ties with others like it, and top_k's choice among them is no function of beta.
      using Router = typename TypeParam::Router;
      if (!(is_top_k<Router> && Router::reads_moments && beta == 0)) c.expect(what);
      c.expect_finite(what);
    }
  }
  shape.qk_l2norm = shape.qkp_l2norm = true;
  for (const bool shared : {false, true}) {
    shape.shared_kq = shared;
    typename TestFixture::run_and_gradients c(shape);
    auto& p = c.p.problem;
    const auto zero_row = [](auto& t) {
      int i = 0;
      t.for_each([&](double& x) { x = i / 2 == 3 ? 0 : x, ++i; });
    };
    if constexpr (is_delta_family<Rule>) {
      zero_row(p.in.q);
      zero_row(p.in.k);
    } else {
      zero_row(p.in.B);
      zero_row(p.in.C);
    }
    zero_row(p.keys.k);
    zero_row(p.router.q);
    expect_dual_derivatives(c.p, c.g, "zero rows");
    c.expect_finite("zero rows");
    auto args = c.p.args();
    args.moments.l2norm_eps = 0;
    if constexpr (is_delta_family<Rule>) args.in.l2norm_eps = 0;
    multi_state_backward(on_reference{}, args, c.g.views());
    for (const auto& d : gradients_of(c.p, c.g)) {
      for (const double x : d.values) EXPECT_TRUE(std::isfinite(x)) << "eps 0: d_" << d.name;
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(EveryCellBackward, EveryOption, ShortSequences, PackedSequences, UpstreamAlone,
                            ExtremeOperands);

}  // namespace polystate::testing
