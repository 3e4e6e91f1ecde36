// SPDX-License-Identifier: Apache-2.0

// The gradients of malora and toplora against central differences and dual numbers, and their properties.

#include "adapters/modulation_gradients.hpp"
#include "support/gradient_properties.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/adapters/token_modulation.hpp>

#include <gtest/gtest.h>

#include <string>

namespace polystate::testing {
namespace {

template <template <class> class Problem, template <class> class Gradients, class Data = double>
struct problem_and_gradients {
  Problem<Data> p;
  Gradients<Data> g;

  explicit problem_and_gradients(const modulation_shape& shape) {
    std::mt19937 rng(1);
    p = Problem<Data>(shape, rng);
    g = Gradients<Data>(shape, rng);
  }
};
template <class Data = double>
using of_malora = problem_and_gradients<malora_problem, malora_gradients, Data>;
template <class Data = double>
using of_toplora = problem_and_gradients<toplora_problem, toplora_gradients, Data>;

void expect_malora(const modulation_shape& shape, const std::string& what) {
  const of_malora<> c(shape);
  expect_gradients(c.p, c.g, what);
}
void expect_toplora(const modulation_shape& shape, const std::string& what) {
  const of_toplora<> c(shape);
  expect_gradients(c.p, c.g, what);
}

TEST(MaloraBackward, BothForms) {
  for (const bool diagonal : {false, true}) {
    for (const bool base : {false, true}) {
      expect_malora({.T = 4, .diagonal = diagonal, .base = base}, diagonal ? "diagonal" : "scalar");
    }
  }
}

TEST(MaloraBackward, SizesAndStates) {
  for (const std::int64_t T : {0, 1, 7}) expect_malora({.B = 1, .T = T}, "T " + std::to_string(T));
  expect_malora({.B = 1, .T = 3, .din = 1, .dout = 1, .r = 1, .block = {.d = 1, .di = 1, .W = 1, .R = 1, .N = 1}},
                "narrow");
  expect_malora({.T = 3, .initial_states = false, .final_states = false}, "no states");
  expect_malora({.B = 1, .T = 6, .lengths = {2, 0, 4}}, "packed");
}

TEST(ToploraBackward, EveryOption) {
  for (const bool base : {false, true}) {
    for (const bool rms_w : {false, true}) expect_toplora({.T = 4, .r = 3, .base = base, .rms_w = rms_w}, "options");
  }
  expect_toplora({.T = 0}, "no tokens");
  expect_toplora({.T = 2, .r = 1}, "rank 1");
}

template <class C>
void expect_properties(const C& c) {
  expect_gradients_independent(c.p, c.g);
  expect_absent_upstream_is_zero(c.p, c.g);
  expect_gradients_checked(c.p, c.g);
}
TEST(TokenModulationBackward, Properties) {
  expect_properties(of_malora<>({.T = 3}));
  expect_properties(of_toplora<>({.T = 3}));
}

TEST(TokenModulationBackward, RoundsOnce) {
  const modulation_shape shape{.T = 4};
  const of_malora<float> f(shape);
  expect_gradients_rounded_once(f.p, f.g);
  const of_malora<bfloat16> b(shape);
  expect_gradients_rounded_once(b.p, b.g);
  const of_toplora<half> h(shape);
  expect_gradients_rounded_once(h.p, h.g);
}

TEST(TokenModulationBackward, Refusals) {
  of_malora<float> c({});
  auto args = c.p.args();
  args.W0 = {};
  EXPECT_TRUE(refuses(check(args, c.g.views()), error_code::unexpected, "d_W0", "W0 is not"));
  of_toplora<float> top({});
  auto top_args = top.p.args();
  top_args.rms_w = {};
  EXPECT_TRUE(refuses(check(top_args, top.g.views()), error_code::unexpected, "d_rms_w", "rms_w is not"));
}

}  // namespace
}  // namespace polystate::testing
