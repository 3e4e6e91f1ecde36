// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "causal_conv1d/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/causal_conv1d.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

class CausalConv1dCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  conv_problem<float> p{conv_shape{}, rng};
  causal_conv1d_args<float> args = p.args();

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(args), code, argument, text));
    try {
      causal_conv1d(on_reference{}, args);
      ADD_FAILURE() << "accepted";
    } catch (const argument_error& e) {
      EXPECT_EQ(e.status().argument, argument);
      EXPECT_EQ(std::string(e.what()).rfind("causal_conv1d: " + argument, 0), 0u) << e.what();
    }
    EXPECT_TRUE(bitwise_equal(p.y, tensor<float, 3>(p.y.extents()))) << "written to";
  }
};

TEST_F(CausalConv1dCheck, AcceptsTheProblem) { EXPECT_TRUE(check(args).ok()) << check(args).message(); }

TEST_F(CausalConv1dCheck, RequiredOperands) {
  args.x = {};
  expect_refused(error_code::missing, "x", "(B, T, D)");
  args = p.args();
  args.weight = {};
  expect_refused(error_code::missing, "weight", "(D, W)");
  args = p.args();
  args.y = {};
  expect_refused(error_code::missing, "y", "(B, T, D)");
}

TEST_F(CausalConv1dCheck, NullPointerWithElements) {
  args.x = {nullptr, {2, 17, 5}};
  expect_refused(error_code::missing, "x", "null pointer with shape (2, 17, 5)");
}

TEST_F(CausalConv1dCheck, Shapes) {
  args.weight = {p.weight.view().data(), {4, 4}};
  expect_refused(error_code::shape, "weight", "shape (4, 4), supported: (D, W) = (5, any)");
  args = p.args();
  args.bias = {p.bias.view().data(), {4}};
  expect_refused(error_code::shape, "bias", "shape (4), supported: (D) = (5)");
  args = p.args();
  args.initial_state = args.initial_state.slice(1, 0, 2);
  expect_refused(error_code::shape, "initial_state", "(S, W-1, D) = (2, 3, 5)");
  args = p.args();
  args.y = args.y.slice(1, 0, 16);
  expect_refused(error_code::shape, "y", "shape (2, 16, 5), supported: (B, T, D) = (2, 17, 5)");
  args = p.args();
  args.final_state = args.final_state.slice(0, 0, 1);
  expect_refused(error_code::shape, "final_state", "shape (1, 3, 5)");
  args = p.args();
  args.x = {p.x.view().data(), {2, -1, 5}};
  expect_refused(error_code::shape, "x", "(2, -1, 5)");
}

TEST_F(CausalConv1dCheck, WidthZero) {
  args.weight = {p.weight.view().data(), {5, 0}};
  expect_refused(error_code::unsupported, "weight", "W = 0, supported: at least 1");
}

TEST_F(CausalConv1dCheck, ShapeWhoseSizeOverflows) {
  const std::int64_t huge = std::int64_t{1} << 62;
  args.x = {p.x.view().data(), {4, huge, 5}};
  expect_refused(error_code::shape, "x", "2^63");
  args.x = {p.x.view().data(), {2, 17, 5}, {huge, 5, 1}};
  expect_refused(error_code::shape, "x", "2^63");
}

TEST_F(CausalConv1dCheck, OutputWithStrideZero) {
  args.y = {p.y.view().data(), {2, 17, 5}, {85, 0, 1}};
  expect_refused(error_code::stride, "y", "stride 0 along index 1");
  args = p.args();
  args.x = {p.x.view().data(), {2, 17, 5}, {0, 5, 1}};  // an input may repeat
  EXPECT_TRUE(check(args).ok());
}

TEST_F(CausalConv1dCheck, Overlap) {
  args.y = p.x.view();
  expect_refused(error_code::overlap, "y", "x");
  args = p.args();
  args.final_state = p.initial_state.view();  // the one pair that may be one view
  EXPECT_TRUE(check(args).ok());
}

TEST_F(CausalConv1dCheck, PackedSequences) {
  tensor<std::int32_t, 1> cu({3});
  cu.assign({0, 9, 17});
  args.cu_seqlens = cu.view();
  expect_refused(error_code::shape, "cu_seqlens", "batch size 2");

  args = p.args();
  args.x = args.x.slice(0, 0, 1);
  args.y = args.y.slice(0, 0, 1);
  args.cu_seqlens = cu.view();
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();

  const auto refused_contents = [&](const std::vector<std::int32_t>& contents, const std::string& text) {
    cu.assign(contents);
    EXPECT_TRUE(check(args).ok());  // contents are no business of the shape check
    EXPECT_TRUE(refuses(check(on_reference{}, args), error_code::value, "cu_seqlens", text));
    EXPECT_THROW(causal_conv1d(on_reference{}, args), argument_error);
  };
  refused_contents({1, 9, 17}, "entry 0 is 1");
  refused_contents({0, 9, 16}, "entry 2 is 16, supported: T = 17");
  refused_contents({0, 18, 17}, "entry 2 is 17, supported: at least");
  refused_contents({0, -3, 17}, "entry 1 is -3");
}

TEST(CausalConv1dStepCheck, Operands) {
  std::mt19937 rng(2);
  tensor<float, 3> x({2, 3, 5}), y({2, 3, 5}), state({4, 3, 5});
  tensor<float, 2> weight({5, 4});
  tensor<float, 4> intermediate({2, 3, 3, 5});
  tensor<std::int32_t, 1> read({2}), write({2});
  x.uniform(rng, -1, 1);
  state.uniform(rng, -1, 1);
  weight.uniform(rng, -1, 1);
  read.assign({2, 0});
  write.assign({3, 0});
  const causal_conv1d_step_args<float> good{.x = x.view(),
                                            .weight = weight.view(),
                                            .read_indices = read.view(),
                                            .write_indices = write.view(),
                                            .state = state.view(),
                                            .y = y.view(),
                                            .intermediate_states = intermediate.view()};
  EXPECT_TRUE(check(on_reference{}, good).ok()) << check(on_reference{}, good).message();

  auto args = good;
  args.read_indices = {};
  EXPECT_TRUE(refuses(check(args), error_code::unexpected, "write_indices", "read_indices is not"));
  args.write_indices = {};
  EXPECT_TRUE(refuses(check(args), error_code::shape, "state", "slots = 4, supported without read_indices: B = 2"));
  args = good;
  args.state = state.view().slice(1, 0, 2);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "state", "(slots, W-1, D) = (4, 3, 5)"));
  args = good;
  args.intermediate_states = intermediate.view().slice(1, 0, 2);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "intermediate_states", "(B, T, W-1, D)"));
  args = good;
  args.read_indices = args.read_indices.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "read_indices", "shape (1)"));
  args = good;
  args.x = {x.view().data(), {2, 9, 5}, {0, 0, 1}};
  EXPECT_TRUE(refuses(check(args), error_code::unsupported, "x", "T = 9, supported: 0 to 8"));

  const auto refused_contents = [&](const std::vector<std::int32_t>& r, const std::vector<std::int32_t>& w,
                                    const std::string& argument, const std::string& text) {
    read.assign(r);
    write.assign(w);
    EXPECT_TRUE(refuses(check(on_reference{}, good), error_code::value, argument, text));
  };
  refused_contents({4, 0}, {1, 0}, "read_indices", "entry 0 is 4, supported: -1 to 3");
  refused_contents({-2, 0}, {1, 0}, "read_indices", "entry 0 is -2");
  refused_contents({1, 0}, {1, 7}, "write_indices", "entry 1 is 7");
  refused_contents({1, 0}, {3, 3}, "write_indices", "slot 3 is written by rows 0 and 1");
  refused_contents({1, 0}, {0, 2}, "read_indices", "slot 0 is read by row 1 and written by row 0");
}

// dims<W> accepts its width and refuses others, in every pass.
TEST_F(CausalConv1dCheck, FixedDims) {
  const auto refused = [](const status& s) {
    return refuses(s, error_code::unsupported, "weight", "W = 4, supported: dims<3> only");
  };
  EXPECT_TRUE(check<dims<4>>(on_reference{}, args).ok());
  EXPECT_TRUE(refused(try_causal_conv1d<dims<3>>(on_reference{}, args)));
  EXPECT_TRUE(refused(try_causal_conv1d_backward<dims<3>>(on_reference{}, args, causal_conv1d_grads<float>{})));
  EXPECT_TRUE(bitwise_equal(p.y, tensor<float, 3>(p.y.extents())));
  tensor<float, 3> state({2, 3, 5}), y({2, 1, 5});
  const causal_conv1d_step_args<float> step{
      .x = args.x.slice(1, 0, 1), .weight = args.weight, .state = state.view(), .y = y.view()};
  EXPECT_TRUE(check<dims<4>>(on_reference{}, step).ok());
  EXPECT_TRUE(refused(try_causal_conv1d_step<dims<3>>(on_reference{}, step)));
}

}  // namespace
}  // namespace polystate::testing
