// SPDX-License-Identifier: Apache-2.0
#pragma once

// Properties of a backward pass. A problem type P says args(), in<To>(), in_double() and run(exec, args), as
// support/recurrence_properties.hpp asks. Its gradients are a type G that owns the upstream ones, random, and those
// that backward writes, poisoned:
//   views()                        the operator's grads
//   run(exec, args, grads)         static: the operator's backward
//   in_double()                    the same upstream gradients in double
//   for_each_upstream(problem, f)  f(name, output, upstream), of a problem of any scalar
//   for_each_input(problem, f)     f(name, input, gradient), likewise; an absent operand has no gradient

#include "support/compare.hpp"
#include "support/dual.hpp"
#include "support/finite_differences.hpp"
#include "support/recurrence_properties.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <polystate/core/exec.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace polystate::testing {

/// The scalar whose gradient backward computes: sum over the outputs of <output, upstream>.
template <class P, class G>
typename P::data_type objective(P& p, G& g) {
  using Scalar = typename P::data_type;
  P::run(on_reference{}, p.args());
  Scalar sum(0);
  g.for_each_upstream(p, [&](const char*, const auto& output, const auto& upstream) {
    if (!upstream || !output) return;
    const auto y = output.values();
    const auto w = upstream.values();
    for (std::size_t i = 0; i < y.size(); ++i) sum += Scalar(w.at(i)) * Scalar(y[i]);
  });
  return sum;
}

/// Every gradient against central differences.
template <class P, class G>
void expect_central_differences(P p, G g, const std::string& what) {
  G::run(on_reference{}, p.args(), g.views());
  g.for_each_input(p, [&](const char* name, auto& input, const auto& gradient) {
    if (!input || !gradient) return;
    EXPECT_LE(deviation_from_differences(input, gradient.values(), [&] { return objective(p, g); }),
              difference_tolerance)
        << what << ": d_" << name;
  });
}

/// Every gradient against the forward run on dual numbers, along a random direction of its operand.
template <class P, class G>
void expect_dual_derivatives(P p, G g, const std::string& what) {
  G::run(on_reference{}, p.args(), g.views());
  auto moving = p.template in<dual>();
  std::mt19937 rng(17);
  std::uniform_real_distribution<double> uniform(-1, 1);
  g.for_each_input(moving, [&](const char* name, auto& input, const auto& gradient) {
    if (!input || !gradient) return;
    double want = 0;
    double magnitude = 0;
    std::size_t i = 0;
    const auto derivatives = gradient.values();
    input.for_each([&](dual& x) {
      x.derivative = uniform(rng);
      want += derivatives.at(i) * x.derivative;
      magnitude += std::abs(derivatives.at(i++) * x.derivative);
    });
    EXPECT_LE(std::abs(objective(moving, g).derivative - want), 1e-10 * magnitude) << what << ": d_" << name;
    input.for_each([](dual& x) { x.derivative = 0; });
  });
}

/// The gradients as numbers, in the order of the operands; none for an absent one.
struct named_values {
  std::string name;
  std::vector<double> values;
};
template <class P, class G>
std::vector<named_values> gradients_of(P& p, G& g) {
  std::vector<named_values> all;
  g.for_each_input(p, [&](const char* name, const auto&, const auto& gradient) {
    all.push_back({name, {}});
    for (const auto& x : gradient.values()) all.back().values.push_back(static_cast<double>(x));
  });
  return all;
}

/// Exactly the same numbers, wherever both have the gradient.
inline void expect_same_gradients(const std::vector<named_values>& a, const std::vector<named_values>& b,
                                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].values.empty() || b[i].values.empty()) continue;
    EXPECT_EQ(a[i].values, b[i].values) << what << ": d_" << a[i].name;
  }
}

/// Both of them; and nothing is written outside the gradients, nor to the outputs, nor added to what was there.
template <class P, class G>
void expect_gradients(P p, G g, const std::string& what) {
  G::run(on_reference{}, p.args(), g.views());
  g.for_each_upstream(p, [&](const char* name, const auto& output, const auto&) {
    EXPECT_TRUE(all_are(output.view(), std::nan(""))) << what << ": backward wrote to " << name;
  });
  g.for_each_input(p, [&](const char* name, const auto& input, const auto& gradient) {
    EXPECT_TRUE(!input || !gradient || gradient.untouched_outside()) << what << ": d_" << name;
  });
  const auto first = gradients_of(p, g);
  G::run(on_reference{}, p.args(), g.views());
  expect_same_gradients(gradients_of(p, g), first, what + ": run again");
  expect_central_differences(p, g, what);
  expect_dual_derivatives(p, g, what);
}

/// bugs B068: each gradient alone, and all but it, is what it is beside all others; the forward's outputs are not
/// needed.
template <class P, class G>
void expect_gradients_independent(P p, const G& gradients) {
  G all = gradients;
  G::run(on_reference{}, p.args(), all.views());
  const auto want = gradients_of(p, all);
  all.for_each_upstream(p, [](const char*, auto& output, const auto&) { output = {}; });
  for (int chosen = -1; chosen < static_cast<int>(want.size()); ++chosen) {
    for (const bool alone : {true, false}) {
      G some = gradients;
      int i = 0;
      some.for_each_input(p, [&](const char*, const auto&, auto& gradient) {
        if ((i++ == chosen) != alone) gradient = {};
      });
      G::run(on_reference{}, p.args(), some.views());
      expect_same_gradients(gradients_of(p, some), want, std::to_string(chosen) + (alone ? " alone" : " left out"));
    }
  }
}

/// An absent upstream gradient is one of zeros; without any, every gradient is zero.
template <class P, class G>
void expect_absent_upstream_is_zero(P p, const G& gradients) {
  int outputs = 0;
  G(gradients).for_each_upstream(p, [&](const char*, const auto&, const auto&) { ++outputs; });
  for (int mask = 1; mask < (1 << outputs); ++mask) {
    G absent = gradients;
    G zero = gradients;
    int i = 0;
    absent.for_each_upstream(p, [&](const char*, const auto&, auto& upstream) {
      if ((mask >> i++ & 1) != 0) upstream = {};
    });
    i = 0;
    zero.for_each_upstream(p, [&](const char*, const auto&, auto& upstream) {
      if ((mask >> i++ & 1) != 0) fill(upstream, 0);
    });
    G::run(on_reference{}, p.args(), absent.views());
    G::run(on_reference{}, p.args(), zero.views());
    expect_same_gradients(gradients_of(p, absent), gradients_of(p, zero), "upstream " + std::to_string(mask));
    if (mask + 1 < (1 << outputs)) continue;
    for (const auto& d : gradients_of(p, absent))
      EXPECT_EQ(d.values, std::vector<double>(d.values.size(), 0)) << d.name;
  }
}

/// An absent initial state is one of zeros, and its gradient exists.
template <class P, class G>
void expect_absent_initial_state_is_zero(P p, const G& gradients) {
  fill(p.initial_state, 0);
  P without = p;
  without.initial_state = {};
  G a = gradients;
  G b = gradients;
  G::run(on_reference{}, p.args(), a.views());
  G::run(on_reference{}, without.args(), b.views());
  EXPECT_FALSE(all_are(b.d_initial_state.view(), 0));
  expect_same_gradients(gradients_of(p, b), gradients_of(p, a), "initial state of zeros");
}

/// Data and states of few bits: the double run on the rounded operands, each gradient rounded once.
template <class P, class G>
void expect_gradients_rounded_once(P p, G g) {
  auto p_double = p.in_double();
  auto g_double = g.in_double();
  G::run(on_reference{}, p.args(), g.views());
  decltype(g_double)::run(on_reference{}, p_double.args(), g_double.views());
  const auto want = gradients_of(p_double, g_double);
  std::size_t i = 0;
  g.for_each_input(p, [&](const char* name, const auto&, const auto& gradient) {
    auto rounded = gradient;
    using T = typename decltype(rounded.values())::value_type;
    std::vector<T> values;
    for (const double x : want.at(i++).values) values.push_back(static_cast<T>(x));
    rounded.assign(values);
    EXPECT_TRUE(bitwise_equal(gradient, rounded)) << "d_" << name;
  });
}

/// Where the outputs are linear in the operands of these names together, <J u, w> = <u, J^T w> at the operands u.
template <class P, class G>
void expect_adjoint(P p, G g, const std::vector<std::string>& linear) {
  G::run(on_reference{}, p.args(), g.views());
  double sum = 0;
  double magnitude = 0;
  std::size_t found = 0;
  g.for_each_input(p, [&](const char* name, const auto& input, const auto& gradient) {
    if (std::find(linear.begin(), linear.end(), name) == linear.end()) return;
    ++found;
    const auto u = input.values();
    const auto d = gradient.values();
    for (std::size_t i = 0; i < u.size(); ++i) {
      sum += u[i] * d.at(i);
      magnitude += std::abs(u[i] * d[i]);
    }
  });
  EXPECT_EQ(found, linear.size());
  EXPECT_LE(std::abs(objective(p, g) - sum), 1e-13 * magnitude) << linear.front();
}

/// Every gradient, upstream or written, is refused with one row too few, and nothing is written then.
template <class P, class G>
void expect_gradients_checked(P p, const G& gradients) {
  EXPECT_TRUE(check(p.args(), G(gradients).views()).ok()) << check(p.args(), G(gradients).views()).message();
  const auto expect_refused = [&](G& g, const std::string& name) {
    const status s = check(p.args(), g.views());
    EXPECT_TRUE(refuses(s, error_code::shape, "d_" + name, "_backward: d_" + name + ": shape (")) << name;
    EXPECT_THROW(G::run(on_reference{}, p.args(), g.views()), argument_error) << name;
    g.for_each_input(p, [&](const char* written, const auto&, const auto& gradient) {
      EXPECT_TRUE(all_are(gradient.view(), std::nan(""))) << written;
    });
  };
  const auto shorten = [](auto& t) {
    auto extents = t.extents();
    --extents[0];
    t = std::remove_reference_t<decltype(t)>(extents);
  };
  int operands = 0;
  const auto count = [&](const auto&...) { ++operands; };
  G(gradients).for_each_upstream(p, count);
  G(gradients).for_each_input(p, count);
  for (int chosen = 0; chosen < operands; ++chosen) {
    G g = gradients;
    std::string refused;
    int i = 0;
    const auto choose = [&](const char* name, const auto&, auto& gradient) {
      if (i++ != chosen) return;
      refused = name;
      shorten(gradient);
    };
    g.for_each_upstream(p, choose);
    g.for_each_input(p, choose);
    expect_refused(g, refused);
  }
}

}  // namespace polystate::testing
