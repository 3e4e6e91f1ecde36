// SPDX-License-Identifier: Apache-2.0

// mara_loss: numbers worked by hand, gradients, refusals.

#include "support/dual.hpp"
#include "support/gradient_properties.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <polystate/reference/adapters/mara_loss.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

template <class Data>
struct loss_problem {
  using data_type = Data;
  tensor<Data, 1> r, r_global;
  tensor<acc_t<Data>, 1> relevance, global_relevance, loss{{1}}, parts{{3}};
  double local_weight = 0.5, global_weight = 2, margin_weight = 3, margin = 0.75;

  loss_problem() = default;
  loss_problem(std::vector<Data> scores, std::vector<acc_t<Data>> wanted, std::vector<Data> global_scores = {},
               std::vector<acc_t<Data>> global_wanted = {}) {
    r = owned(scores);
    relevance = owned(wanted);
    if (global_scores.empty()) return;
    r_global = owned(global_scores);
    global_relevance = owned(global_wanted);
  }
  template <class T>
  static tensor<T, 1> owned(const std::vector<T>& v) {
    tensor<T, 1> t({static_cast<std::int64_t>(v.size())});
    t.assign(v);
    return t;
  }
  [[nodiscard]] mara_loss_args<Data> args() {
    return {.r = r.view(),
            .relevance = relevance.view(),
            .r_global = r_global.view(),
            .global_relevance = global_relevance.view(),
            .loss = loss.view(),
            .parts = parts.view(),
            .local_weight = local_weight,
            .global_weight = global_weight,
            .margin_weight = margin_weight,
            .margin = margin};
  }
  template <class To>
  [[nodiscard]] loss_problem<To> in() const {
    loss_problem<To> p;
    p.r = convert<To>(r);
    p.r_global = convert<To>(r_global);
    p.relevance = convert<acc_t<To>>(relevance);
    p.global_relevance = convert<acc_t<To>>(global_relevance);
    p.local_weight = local_weight;
    p.global_weight = global_weight;
    p.margin_weight = margin_weight;
    p.margin = margin;
    return p;
  }
  [[nodiscard]] loss_problem<double> in_double() const { return in<double>(); }
  template <class Exec>
  static void run(const Exec& exec, const mara_loss_args<Data>& args) {
    mara_loss(exec, args);
  }
};

template <class Data>
struct loss_gradients {
  tensor<acc_t<Data>, 1> d_loss{{1}};
  tensor<Data, 1> d_r, d_r_global;

  loss_gradients() = default;
  explicit loss_gradients(const loss_problem<Data>& p)
      : d_r(poisoned_like(p.r)), d_r_global(poisoned_like(p.r_global)) {
    fill(d_loss, 1.5);
  }
  [[nodiscard]] mara_loss_grads<Data> views() {
    return {.d_loss = d_loss.view(), .d_r = d_r.view(), .d_r_global = d_r_global.view()};
  }
  template <class Exec>
  static void run(const Exec& exec, const mara_loss_args<Data>& args, const mara_loss_grads<Data>& grads) {
    mara_loss_backward(exec, args, grads);
  }
  [[nodiscard]] loss_gradients<double> in_double() const {
    loss_gradients<double> g;
    g.d_loss = convert<double>(d_loss);
    g.d_r = convert<double>(d_r);
    g.d_r_global = convert<double>(d_r_global);
    return g;
  }
  template <class Problem, class F>
  void for_each_upstream(Problem& p, F&& f) {
    f("loss", p.loss, d_loss);
  }
  template <class Problem, class F>
  void for_each_input(Problem& p, F&& f) {
    f("r", p.r, d_r);
    f("r_global", p.r_global, d_r_global);
  }
};

// Scores log 1, log 2, log 5, the last two relevant in the ratio 1 to 3.
TEST(MaraLoss, ByHand) {
  loss_problem<double> p({0, std::log(2.0), std::log(5.0)}, {0, 1, 3}, {std::log(3.0), 0}, {1, 0});
  mara_loss(on_reference{}, p.args());
  const double local = -(0.25 * std::log(0.25) + 0.75 * std::log(0.625));
  const double global = -std::log(0.75);
  const double margin = (0.75 - std::log(2.0)) / 2;  // the pair (2, 0) is further apart than 0.75
  EXPECT_NEAR(p.parts.values()[0], local, 1e-15);
  EXPECT_NEAR(p.parts.values()[1], global, 1e-15);
  EXPECT_NEAR(p.parts.values()[2], margin, 1e-15);
  EXPECT_NEAR(p.loss.values()[0], 0.5 * local + 2 * global + 3 * margin, 1e-14);
}

TEST(MaraLoss, PartsThatAreNotThere) {
  loss_problem<double> p({1, 2}, {1, 1});  // no pair, no global head
  mara_loss(on_reference{}, p.args());
  EXPECT_EQ(p.parts.values()[1], 0);
  EXPECT_EQ(p.parts.values()[2], 0);
  EXPECT_GT(p.parts.values()[0], 0);
  // A slot that is ruled out by a score of -inf costs nothing where it is not relevant.
  const double inf = std::numeric_limits<double>::infinity();
  loss_problem<double> masked({1, 1}, {0, 1}, {2, -inf, 2}, {1, 0, 0});
  loss_gradients<double> g(masked);
  mara_loss(on_reference{}, masked.args());
  mara_loss_backward(on_reference{}, masked.args(), g.views());
  EXPECT_NEAR(masked.parts.values()[1], std::log(2.0), 1e-15);
  EXPECT_EQ(g.d_r_global.values()[1], 0);
}

TEST(MaraLoss, NoOverflow) {
  loss_problem<double> p({1000, -1000, 0}, {0, 1, 0});
  mara_loss(on_reference{}, p.args());
  EXPECT_NEAR(p.parts.values()[0], 2000, 1e-9);
}

TEST(MaraLossBackward, EveryGradient) {
  const loss_problem<double> whole({0.3, -0.2, 1.1, 0.4}, {0, 2, 0, 1}, {0.1, -0.5, 0.7}, {0.5, 0, 1});
  expect_gradients(whole, loss_gradients<double>(whole), "both heads");
  const loss_problem<double> local({0.3, -0.2, 1.1, 0.4}, {0, 1, 0, 1});
  expect_gradients(local, loss_gradients<double>(local), "local head");
  for (int part = 0; part < 3; ++part) {
    auto p = whole;
    p.local_weight = part == 0 ? 1 : 0;
    p.global_weight = part == 1 ? 1 : 0;
    p.margin_weight = part == 2 ? 1 : 0;
    expect_gradients(p, loss_gradients<double>(p), "part " + std::to_string(part));
  }
  expect_gradients_independent(whole, loss_gradients<double>(whole));
  expect_absent_upstream_is_zero(whole, loss_gradients<double>(whole));
}

// On the margin itself the pair pulls no more.
TEST(MaraLossBackward, OnTheMargin) {
  loss_problem<double> p({1, 0}, {1, 0});
  p.local_weight = 0;
  p.margin = 1;
  loss_gradients<double> g(p);
  mara_loss_backward(on_reference{}, p.args(), g.views());
  EXPECT_EQ(g.d_r.values(), (std::vector<double>{0, 0}));
  p.margin = 1.5;
  mara_loss_backward(on_reference{}, p.args(), g.views());
  EXPECT_EQ(g.d_r.values(), (std::vector<double>{-4.5, 4.5}));
}

TEST(MaraLossBackward, RoundsOnce) {
  const loss_problem<float> p({0.3F, -0.2F, 1.1F}, {0, 1, 0}, {0.1F, 0.2F}, {0, 1});
  expect_gradients_rounded_once(p, loss_gradients<float>(p));
}

TEST(MaraLossCheck, Refusals) {
  loss_problem<float> p({1, 2, 3}, {0, 1, 0}, {1, 2}, {0, 1});
  const auto refused = [&](const mara_loss_args<float>& args, error_code code, const std::string& argument,
                           const std::string& text) {
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_THROW(mara_loss(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.loss.view(), std::nan("")) && all_are(p.parts.view(), std::nan("")));
  };
  auto args = p.args();
  EXPECT_TRUE(check(on_reference{}, args).ok());
  args.r = {};
  refused(args, error_code::missing, "r", "mara_loss: r: not given; its shape is (N)");
  args = p.args();
  args.relevance = args.relevance.slice(0, 0, 2);
  refused(args, error_code::shape, "relevance", "shape (2), supported: (N) = (3)");
  args = p.args();
  args.global_relevance = {};
  refused(args, error_code::missing, "global_relevance", "(NG)");
  args.global_relevance = p.global_relevance.view();
  args.r_global = {};
  refused(args, error_code::unexpected, "global_relevance", "r_global is not");
  args = p.args();
  args.loss = {};
  refused(args, error_code::missing, "loss", "(1)");
  args = p.args();
  args.margin = -1;
  refused(args, error_code::value, "margin", "-1.000000, supported: finite, at least 0");
  args = p.args();
  args.global_weight = std::nan("");
  refused(args, error_code::value, "global_weight", "nan");
  args = p.args();
  args.loss = {p.parts.view().data(), {1}};
  refused(args, error_code::overlap, "parts", "loss");

  p.relevance.assign({0, 0, 0});
  refused(p.args(), error_code::value, "relevance", "no entry above 0");
  p.relevance.assign({0, 1, -1});
  refused(p.args(), error_code::value, "relevance", "entry 2 is negative");
  p.relevance.assign({std::numeric_limits<float>::infinity(), 1, 0});
  refused(p.args(), error_code::value, "relevance", "entry 0 is not finite");
  p.relevance.assign({0, 1, 0});
  p.global_relevance.assign({0, 0});
  refused(p.args(), error_code::value, "global_relevance", "no entry above 0");
  loss_gradients<float> g(p);
  EXPECT_THROW(mara_loss_backward(on_reference{}, p.args(), g.views()), argument_error);
  EXPECT_TRUE(all_are(g.d_r.view(), std::nan("")));
  p.global_relevance.assign({1, 0});
  expect_gradients_checked(p, g);
}

}  // namespace
}  // namespace polystate::testing
