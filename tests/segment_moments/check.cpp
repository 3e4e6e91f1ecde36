// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "segment_moments/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/segment_moments.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

class SegmentMomentsCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  routing_keys<float> keys{keys_shape{.moment_rule = moment_rule::delta}, rng};
  tensor<float, 4> mu{{2, 3, 2, 5}};
  tensor<float, 5> Sigma{{2, 3, 2, 5, 5}};
  segment_moments_args<float> args = good();

  segment_moments_args<float> good() {
    return {.moments = keys.view(), .separation = {4}, .mu = mu.view(), .Sigma = Sigma.view()};
  }

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(on_reference{}, args), code, argument, text));
    EXPECT_TRUE(refuses(try_segment_moments(on_reference{}, args), code, argument, text));
    EXPECT_THROW(segment_moments(on_reference{}, args), argument_error);
    EXPECT_TRUE(bitwise_equal(mu, tensor<float, 4>(mu.extents()))) << "written to";
    EXPECT_TRUE(bitwise_equal(Sigma, tensor<float, 5>(Sigma.extents()))) << "written to";
    args = good();
  }
};

TEST_F(SegmentMomentsCheck, AcceptsTheProblem) {
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
}

TEST_F(SegmentMomentsCheck, Operands) {
  args.moments.k = {};
  expect_refused(error_code::missing, "moments.k", "(B, T, HR, dr)");
  args.moments.g = {};
  expect_refused(error_code::missing, "moments.g", "(B, T, HR)");
  args.moments.beta = {};
  expect_refused(error_code::missing, "moments.beta", "(B, T, HR)");
  args.moments.moment_rule = moment_rule::plain;
  expect_refused(error_code::unexpected, "moments.g", "moment_rule plain has no decay");
  args.moments.moment_rule = moment_rule::plain;
  args.moments.g = {};
  expect_refused(error_code::unexpected, "moments.beta", "moment_rule plain has no beta");
  args.mu = {};
  args.Sigma = {};
  expect_refused(error_code::missing, "mu", "neither mu nor Sigma");
}

TEST_F(SegmentMomentsCheck, Shapes) {
  args.moments.k = {keys.k.view().data(), {2, 11, 2, 0}};
  expect_refused(error_code::unsupported, "moments.k", "dr = 0, supported: at least 1");
  args.moments.g = args.moments.g.slice(1, 0, 10);
  expect_refused(error_code::shape, "moments.g", "shape (2, 10, 2), supported: (B, T, HR) = (2, 11, 2)");
  args.moments.beta = args.moments.beta.slice(2, 0, 1);
  expect_refused(error_code::shape, "moments.beta", "shape (2, 11, 1)");
  args.mu = args.mu.slice(1, 0, 2);
  expect_refused(error_code::shape, "mu", "shape (2, 2, 2, 5), supported: (B, L, HR, dr) = (2, 3, 2, 5)");
  args.Sigma = args.Sigma.slice(4, 0, 4);
  expect_refused(error_code::shape, "Sigma", "(B, L, HR, dr, dr) = (2, 3, 2, 5, 5)");
}

TEST_F(SegmentMomentsCheck, Options) {
  args.separation.m = 0;
  expect_refused(error_code::value, "separation.m", "0, supported: at least 1");
  args.separation.m = -4;
  expect_refused(error_code::value, "separation.m", "-4, supported: at least 1");
  args.moments.divide_by = divide_by::count;
  expect_refused(error_code::value, "moments.divide_by", "supported with this moment_rule: m");
  args.moments.l2norm_eps = -1;
  expect_refused(error_code::value, "moments.l2norm_eps", "at least 0");
}

TEST_F(SegmentMomentsCheck, Overlap) {
  args.Sigma = {mu.view().data(), {2, 3, 2, 5, 5}};
  expect_refused(error_code::overlap, "Sigma", "mu");
  args.moments.k = {mu.view().data(), {2, 11, 2, 5}};
  expect_refused(error_code::overlap, "mu", "moments.k");
}

TEST_F(SegmentMomentsCheck, PackedSequences) {
  tensor<std::int32_t, 1> cu({3});
  cu.assign({0, 5, 11});
  args.cu_seqlens = cu.view();
  expect_refused(error_code::shape, "cu_seqlens", "batch size 2");

  const auto packed = [&] {
    auto a = good();
    a.moments.k = a.moments.k.slice(0, 0, 1);
    a.moments.g = a.moments.g.slice(0, 0, 1);
    a.moments.beta = a.moments.beta.slice(0, 0, 1);
    a.mu = {mu.view().data(), {1, 4, 2, 5}};  // 2 and 2 segments
    a.Sigma = {};
    a.cu_seqlens = cu.view();
    return a;
  };
  args = packed();
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.mu = {mu.view().data(), {1, 3, 2, 5}};
  EXPECT_TRUE(check(args).ok());  // how many segments there are is told by contents
  expect_refused(error_code::shape, "mu", "(B, L, HR, dr) = (1, 4, ");
  cu.assign({0, 5, 10});
  args = packed();
  expect_refused(error_code::value, "cu_seqlens", "entry 2 is 10, supported: T = 11");
}

TEST(SegmentMomentsBoundariesCheck, Contents) {
  std::mt19937 rng(2);
  const routing_keys<float> keys({}, rng);
  tensor<float, 4> mu({2, 3, 2, 5});
  tensor<std::int32_t, 1> cuts({4});
  cuts.assign({0, 2, 3, 11});
  segment_moments_args<float, separation::boundaries> args{
      .moments = keys.view(), .separation = {cuts.view()}, .mu = mu.view()};
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  const auto refused_contents = [&](const std::vector<std::int32_t>& contents, const std::string& text) {
    cuts.assign(contents);
    EXPECT_TRUE(check(args).ok());  // contents are no business of the shape check
    EXPECT_TRUE(refuses(check(on_reference{}, args), error_code::value, "separation.boundaries", text));
    EXPECT_THROW(segment_moments(on_reference{}, args), argument_error);
  };
  refused_contents({1, 2, 3, 11}, "entry 0 is 1, supported: 0");
  refused_contents({0, 3, 3, 11}, "entry 2 is 3, supported: more than the entry before, 3");
  refused_contents({0, 2, 3, 12}, "entry 3 is 12, supported: T = 11");
  EXPECT_TRUE(bitwise_equal(mu, tensor<float, 4>(mu.extents()))) << "written to";

  args.cu_seqlens = cuts.view();
  EXPECT_TRUE(refuses(check(args), error_code::unexpected, "cu_seqlens", "boundaries"));
  args.cu_seqlens = {};
  args.separation = {};
  EXPECT_TRUE(refuses(check(args), error_code::missing, "separation.boundaries", "(L+1)"));
}

// dims<dr> accepts its size and refuses others, in both passes.
TEST_F(SegmentMomentsCheck, FixedDims) {
  const auto refused = [](const status& s) {
    return refuses(s, error_code::unsupported, "moments.k", "dr = 5, supported: dims<8> only");
  };
  EXPECT_TRUE(check<dims<5>>(on_reference{}, args).ok());
  EXPECT_TRUE(refused(try_segment_moments<dims<8>>(on_reference{}, args)));
  EXPECT_TRUE(refused(try_segment_moments_backward<dims<8>>(on_reference{}, args, segment_moments_grads<float>{})));
  EXPECT_TRUE(bitwise_equal(mu, tensor<float, 4>(mu.extents()))) << "written to";
}

}  // namespace
}  // namespace polystate::testing
