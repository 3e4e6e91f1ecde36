// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "gated_delta_rule/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/gated_delta_rule.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace polystate::testing {
namespace {

class GatedDeltaRuleCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  delta_problem<float> p{delta_shape{}, rng};
  gated_delta_rule_args<float> args = p.args();

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(args), code, argument, text));
    try {
      gated_delta_rule(on_reference{}, args);
      ADD_FAILURE() << "accepted";
    } catch (const argument_error& e) {
      EXPECT_EQ(e.status().argument, argument);
      EXPECT_EQ(std::string(e.what()).rfind("gated_delta_rule: " + argument, 0), 0u) << e.what();
    }
    EXPECT_TRUE(all_are(p.o.view(), std::nan("")) && all_are(p.final_state.view(), std::nan(""))) << "written to";
    args = p.args();
  }
};

TEST_F(GatedDeltaRuleCheck, AcceptsTheProblem) {
  EXPECT_TRUE(check(args).ok()) << check(args).message();
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(check(args).ok()) << check(args).message();
}

TEST_F(GatedDeltaRuleCheck, RequiredOperands) {
  args.q = {};
  expect_refused(error_code::missing, "q", "(B, T, HK, dk)");
  args.k = {};
  expect_refused(error_code::missing, "k", "(B, T, HK, dk)");
  args.v = {};
  expect_refused(error_code::missing, "v", "(B, T, HV, dv)");
  args.g = {};
  expect_refused(error_code::missing, "g", "(B, T, HV)");
  args.beta = {};
  expect_refused(error_code::missing, "beta", "(B, T, HV)");
  args.o = {};
  expect_refused(error_code::missing, "o", "(B, T, HV, dv)");
  args.k = {nullptr, {2, 17, 2, 5}};
  expect_refused(error_code::missing, "k", "null pointer with shape (2, 17, 2, 5)");
}

// bugs B080: g and beta of the key heads are named, not read.
TEST_F(GatedDeltaRuleCheck, Shapes) {
  args.k = args.k.slice(3, 0, 4);
  expect_refused(error_code::shape, "k", "shape (2, 17, 2, 4), supported: (B, T, HK, dk) = (2, 17, 2, 5)");
  args.v = args.v.slice(1, 0, 16);
  expect_refused(error_code::shape, "v", "shape (2, 16, 4, 3), supported: (B, T, HV, dv) = (2, 17, any, any)");
  args.g = args.g.slice(2, 0, 2);
  expect_refused(error_code::shape, "g", "shape (2, 17, 2), supported: (B, T, HV) = (2, 17, 4)");
  args.beta = args.beta.slice(2, 0, 2);
  expect_refused(error_code::shape, "beta", "shape (2, 17, 2), supported: (B, T, HV) = (2, 17, 4)");
  args.initial_state = args.initial_state.permuted({0, 1, 3, 2});
  expect_refused(error_code::shape, "initial_state", "shape (2, 4, 5, 3), supported: (S, HV, dv, dk) = (2, 4, 3, 5)");
  args.o = args.o.slice(2, 0, 2);
  expect_refused(error_code::shape, "o", "shape (2, 17, 2, 3)");
  args.final_state = args.final_state.slice(0, 0, 1);
  expect_refused(error_code::shape, "final_state", "shape (1, 4, 3, 5)");
  args.q = {p.q.view().data(), {2, -1, 2, 5}};
  expect_refused(error_code::shape, "q", "(2, -1, 2, 5)");
  args.q = {p.q.view().data(), {4, std::int64_t{1} << 62, 2, 5}};
  expect_refused(error_code::shape, "q", "2^63");
}

TEST_F(GatedDeltaRuleCheck, HeadsAndDims) {
  args.v = args.v.slice(2, 0, 3);
  expect_refused(error_code::shape, "v", "HV = 3, supported: a multiple of HK = 2");
  args.q = args.q.slice(3, 0, 0);
  expect_refused(error_code::unsupported, "q", "dk = 0, supported: at least 1");
  args.v = args.v.slice(3, 0, 0);
  expect_refused(error_code::unsupported, "v", "dv = 0, supported: at least 1");
  args.q = args.q.slice(2, 0, 0);
  args.k = args.k.slice(2, 0, 0);
  expect_refused(error_code::shape, "v", "HV = 4, supported: a multiple of HK = 0");
}

// dims<dk, dv> accepts its shape and refuses others, transposed ones too.
TEST_F(GatedDeltaRuleCheck, FixedDims) {
  EXPECT_TRUE((check<dims<5, 3>>(args).ok()));
  EXPECT_TRUE((check<dims<5, 3>>(on_reference{}, args).ok()));
  EXPECT_TRUE(
      refuses(check<dims<3, 5>>(args), error_code::unsupported, "q", "dk, dv = 5, 3, supported: dims<3, 5> only"));
  EXPECT_THROW((gated_delta_rule<dims<5, 4>>(on_reference{}, args)), argument_error);
  EXPECT_TRUE(all_are(p.o.view(), std::nan("")));
}

TEST_F(GatedDeltaRuleCheck, Options) {
  args.l2norm_eps = -1;
  expect_refused(error_code::value, "l2norm_eps", "-1.000000, supported: at least 0");
  args.l2norm_eps = std::nan("");
  expect_refused(error_code::value, "l2norm_eps", "at least 0");
}

TEST_F(GatedDeltaRuleCheck, OutputWithStrideZero) {
  args.o = {p.o.view().data(), {2, 17, 4, 3}, {204, 12, 0, 1}};
  expect_refused(error_code::stride, "o", "stride 0 along index 2");
  args.final_state = {p.final_state.view().data(), {2, 4, 3, 5}, {0, 15, 5, 1}};
  expect_refused(error_code::stride, "final_state", "stride 0 along index 0");
  args.q = {p.q.view().data(), {2, 17, 2, 5}, {0, 0, 5, 1}};  // an input may repeat
  args.initial_state = {p.initial_state.view().data(), {2, 4, 3, 5}, {0, 15, 5, 1}};
  EXPECT_TRUE(check(args).ok());
}

TEST_F(GatedDeltaRuleCheck, Overlap) {
  tensor<float, 4> big({2, 17, 8, 8});
  const auto at = [&](auto like) {
    std::int64_t extents[4] = {like.extent(0), like.extent(1), like.extent(2), like.extent(3)};
    return tensor_view<float, 4>(big.view().data(), extents);
  };
  const auto gate = tensor_view<float, 3>(big.view().data(), {2, 17, 4});
  const auto both = [&](auto set, const char* output, const char* input) {
    args.o = at(args.o);
    set();
    expect_refused(error_code::overlap, output, input);
  };
  both([&] { args.q = at(args.q); }, "o", "shares memory with q");
  both([&] { args.k = at(args.k); }, "o", "shares memory with k");
  both([&] { args.v = at(args.v); }, "o", "shares memory with v");
  both([&] { args.g = gate; }, "o", "shares memory with g");
  both([&] { args.beta = gate; }, "o", "shares memory with beta");
  both([&] { args.initial_state = at(args.initial_state); }, "o", "shares memory with initial_state");
  both([&] { args.final_state = at(args.final_state); }, "final_state", "shares memory with o");
  args.final_state = at(args.final_state);
  args.k = at(args.k);
  expect_refused(error_code::overlap, "final_state", "shares memory with k");
  args.final_state = p.initial_state.view();  // the one pair that may be one view
  EXPECT_TRUE(check(args).ok());
}

TEST_F(GatedDeltaRuleCheck, PackedSequences) {
  auto cu = cu_seqlens_of({9, 8});
  args.cu_seqlens = cu.view();
  expect_refused(error_code::shape, "cu_seqlens", "batch size 2");

  args = p.part(args, 0, 0, 1);
  args.cu_seqlens = cu.view();
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.initial_state = args.initial_state.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "initial_state", "(S, HV, dv, dk) = (2, 4, 3, 5)"));
  args.initial_state = p.initial_state.view();

  const auto refused_contents = [&](const std::vector<std::int32_t>& contents, const std::string& text) {
    cu.assign(contents);
    EXPECT_TRUE(check(args).ok());  // contents are no business of the shape check
    EXPECT_TRUE(refuses(check(on_reference{}, args), error_code::value, "cu_seqlens", text));
    EXPECT_THROW(gated_delta_rule(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.o.view(), std::nan("")));
  };
  refused_contents({1, 9, 17}, "entry 0 is 1");
  refused_contents({0, 9, 16}, "entry 2 is 16, supported: T = 17");
  refused_contents({0, 18, 17}, "entry 2 is 17, supported: at least");
  refused_contents({0, -3, 17}, "entry 1 is -3");
}

// An operand that the rule does not read is refused, one that it reads is required.
TEST(GatedDeltaRuleOperandsOfRules, Check) {
  std::mt19937 rng(2);
  delta_problem<float> full(delta_shape{}, rng);
  const auto of_rule = [&](auto rule) {
    using Rule = decltype(rule);
    auto p = full;
    gated_delta_rule_args<float, Rule> args{.q = p.q.view(), .k = p.k.view(), .v = p.v.view(), .o = p.o.view()};
    const std::string name = Rule::name;
    const auto judge = [&](bool reads, const char* argument, auto& view, const auto& given) {
      if (reads) {
        EXPECT_TRUE(refuses(check(args), error_code::missing, argument, "(B, T, HV)")) << name;
        view = given;
      } else {
        view = given;
        EXPECT_TRUE(refuses(check(args), error_code::unexpected, argument,
                            "given, but rule " + name + " has no " + (argument[0] == 'g' ? "decay" : "beta")))
            << name;
        view = {};
      }
    };
    judge(Rule::has_decay, "g", args.g, p.g.view());
    judge(Rule::has_beta, "beta", args.beta, p.beta.view());
    EXPECT_TRUE(check(args).ok()) << name << ": " << check(args).message();
  };
  of_rule(rule::linear{});
  of_rule(rule::gated{});
  of_rule(rule::delta{});
  of_rule(rule::gated_delta{});
}

class GatedDeltaRuleStepCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{3};
  delta_problem<float> p{delta_shape{.T = 3}, rng};
  tensor<float, 4> state{{4, 4, 3, 5}};
  tensor<float, 5> intermediate{{2, 3, 4, 3, 5}};
  tensor<std::int32_t, 1> read{{2}}, write{{2}};
  gated_delta_rule_step_args<float> args = good();

  gated_delta_rule_step_args<float> good() {
    read.assign({2, 0});
    write.assign({3, 0});
    auto a = p.step_of(p.args());
    a.read_indices = read.view();
    a.write_indices = write.view();
    a.state = state.view();
    a.intermediate_states = intermediate.view();
    return a;
  }
  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_THROW(gated_delta_rule_step(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.o.view(), std::nan("")) && all_are(state.view(), std::nan("")) &&
                all_are(intermediate.view(), std::nan("")))
        << "written to";
    args = good();
  }
};

TEST_F(GatedDeltaRuleStepCheck, Operands) {
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.read_indices = {};
  expect_refused(error_code::unexpected, "write_indices", "read_indices is not");
  args.read_indices = {};
  args.write_indices = {};
  expect_refused(error_code::shape, "state", "slots = 4, supported without read_indices: B = 2");
  args.state = {};
  expect_refused(error_code::missing, "state", "(slots, HV, dv, dk)");
  args.state = state.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "state", "(slots, HV, dv, dk) = (4, 4, 3, 5)");
  args.intermediate_states = intermediate.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "intermediate_states", "(B, T, HV, dv, dk) = (2, 3, 4, 3, 5)");
  args.read_indices = args.read_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "read_indices", "shape (1)");
  args.write_indices = args.write_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "write_indices", "shape (1)");
  args.o = {};
  expect_refused(error_code::missing, "o", "(B, T, HV, dv)");
  args.g = {};
  expect_refused(error_code::missing, "g", "(B, T, HV)");
  args.state = {state.view().data(), {4, 4, 3, 5}, {0, 15, 5, 1}};
  expect_refused(error_code::stride, "state", "stride 0 along index 0");
  EXPECT_TRUE(refuses(check<dims<5, 5>>(args), error_code::unsupported, "q", "dims<5, 5> only"));
}

TEST_F(GatedDeltaRuleStepCheck, Overlap) {
  const auto same_start = [](auto& view, float* data) {
    std::int64_t extents[4] = {view.extent(0), view.extent(1), view.extent(2), view.extent(3)};
    return tensor_view<float, 4>(data, extents);
  };
  args.o = same_start(args.o, state.view().data());
  expect_refused(error_code::overlap, "o", "shares memory with state");
  args.o = same_start(args.o, intermediate.view().data());
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with o");
  args.q = same_start(args.q, state.view().data());
  expect_refused(error_code::overlap, "state", "shares memory with q");
  args.v = same_start(args.v, intermediate.view().data());
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with v");
}

TEST_F(GatedDeltaRuleStepCheck, TooManyTokens) {
  delta_problem<float> nine(delta_shape{.T = 9, .HK = 2}, rng);
  args = nine.step_of(nine.args());
  args.state = nine.initial_state.view();
  expect_refused(error_code::unsupported, "q", "T = 9, supported: 0 to 8");
}

TEST_F(GatedDeltaRuleStepCheck, IndexContents) {  // bugs B107
  const auto refused_contents = [&](const std::vector<std::int32_t>& r, const std::vector<std::int32_t>& w,
                                    const std::string& argument, const std::string& text) {
    read.assign(r);
    write.assign(w);
    EXPECT_TRUE(check(args).ok());
    expect_refused(error_code::value, argument, text);
  };
  refused_contents({4, 0}, {1, 0}, "read_indices", "entry 0 is 4, supported: -1 to 3");
  refused_contents({-2, 0}, {1, 0}, "read_indices", "entry 0 is -2");
  refused_contents({1, 0}, {1, 7}, "write_indices", "entry 1 is 7");
  refused_contents({1, 0}, {3, 3}, "write_indices", "slot 3 is written by rows 0 and 1");
  refused_contents({1, 0}, {0, 2}, "read_indices", "slot 0 is read by row 1 and written by row 0");
  read.assign({1, 1});
  args.write_indices = {};
  EXPECT_TRUE(
      refuses(check(on_reference{}, args), error_code::value, "read_indices", "slot 1 is written by rows 0 and 1"));
}

}  // namespace
}  // namespace polystate::testing
