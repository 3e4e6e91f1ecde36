// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "selective_scan/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/selective_scan.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

/// A view of the same shape at the start of another buffer.
template <class T, int Rank>
tensor_view<float, Rank> moved_to(float* data, const tensor_view<T, Rank>& view) {
  std::int64_t extents[Rank];
  for (int i = 0; i < Rank; ++i) extents[i] = view.extent(i);
  return {data, extents};
}

class SelectiveScanCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  scan_problem<float> p{scan_shape{}, rng};
  selective_scan_args<float> args = p.args();

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(args), code, argument, text));
    try {
      selective_scan(on_reference{}, args);
      ADD_FAILURE() << "accepted";
    } catch (const argument_error& e) {
      EXPECT_EQ(e.status().argument, argument);
      EXPECT_EQ(std::string(e.what()).rfind("selective_scan: " + argument, 0), 0u) << e.what();
    }
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")) && all_are(p.final_state.view(), std::nan(""))) << "written to";
    args = p.args();
  }
};

TEST_F(SelectiveScanCheck, AcceptsTheProblem) {
  EXPECT_TRUE(check(args).ok()) << check(args).message();
  args.D = {};
  args.z = {};
  args.delta_bias = {};
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(check(args).ok()) << check(args).message();
}

TEST_F(SelectiveScanCheck, RequiredOperands) {
  args.u = {};
  expect_refused(error_code::missing, "u", "(B, T, D)");
  args.delta = {};
  expect_refused(error_code::missing, "delta", "(B, T, D)");
  args.A = {};
  expect_refused(error_code::missing, "A", "(D, N)");
  args.B = {};
  expect_refused(error_code::missing, "B", "(B, T, G, N)");
  args.C = {};
  expect_refused(error_code::missing, "C", "(B, T, G, N)");
  args.y = {};
  expect_refused(error_code::missing, "y", "(B, T, D)");
  args.C = {nullptr, {2, 17, 2, 5}};
  expect_refused(error_code::missing, "C", "null pointer with shape (2, 17, 2, 5)");
}

TEST_F(SelectiveScanCheck, Shapes) {
  args.delta = args.delta.slice(2, 0, 2);
  expect_refused(error_code::shape, "delta", "shape (2, 17, 2), supported: (B, T, D) = (2, 17, 6)");
  args.A = args.A.slice(0, 0, 3);
  expect_refused(error_code::shape, "A", "shape (3, 5), supported: (D, N) = (6, any)");
  args.B = args.B.slice(1, 0, 16);
  expect_refused(error_code::shape, "B", "shape (2, 16, 2, 5), supported: (B, T, G, N) = (2, 17, any, 5)");
  args.C = args.C.slice(2, 0, 1);
  expect_refused(error_code::shape, "C", "shape (2, 17, 1, 5), supported: (B, T, G, N) = (2, 17, 2, 5)");
  args.D = args.D.slice(0, 0, 1);
  expect_refused(error_code::shape, "D", "shape (1), supported: (D) = (6)");
  args.z = args.z.slice(2, 0, 2);
  expect_refused(error_code::shape, "z", "shape (2, 17, 2)");
  args.delta_bias = args.delta_bias.slice(0, 0, 1);
  expect_refused(error_code::shape, "delta_bias", "shape (1), supported: (D) = (6)");
  args.initial_state = args.initial_state.permuted({0, 2, 1});
  expect_refused(error_code::shape, "initial_state", "shape (2, 5, 6), supported: (S, D, N) = (2, 6, 5)");
  args.y = args.y.slice(2, 0, 2);
  expect_refused(error_code::shape, "y", "shape (2, 17, 2)");
  args.final_state = args.final_state.slice(0, 0, 1);
  expect_refused(error_code::shape, "final_state", "shape (1, 6, 5)");
  args.u = {p.u.view().data(), {2, -1, 6}};
  expect_refused(error_code::shape, "u", "(2, -1, 6)");
  args.u = {p.u.view().data(), {4, std::int64_t{1} << 62, 6}};
  expect_refused(error_code::shape, "u", "2^63");
}

TEST_F(SelectiveScanCheck, GroupsAndStates) {
  scan_problem<float> five(scan_shape{.D = 5, .G = 1}, rng);
  args = five.args();
  args.B = p.B.view();
  EXPECT_TRUE(refuses(check(args), error_code::shape, "u", "D = 5, supported: a multiple of G = 2"));
  args = p.args();
  args.A = args.A.slice(1, 0, 0);
  expect_refused(error_code::unsupported, "A", "N = 0, supported: at least 1");
}

TEST_F(SelectiveScanCheck, OutputWithStrideZero) {
  args.y = {p.y.view().data(), {2, 17, 6}, {102, 6, 0}};
  expect_refused(error_code::stride, "y", "stride 0 along index 2");
  args.final_state = {p.final_state.view().data(), {2, 6, 5}, {0, 5, 1}};
  expect_refused(error_code::stride, "final_state", "stride 0 along index 0");
  args.D = {p.D.view().data(), {6}, {0}};  // an input may repeat
  args.B = {p.B.view().data(), {2, 17, 2, 5}, {0, 0, 5, 1}};
  EXPECT_TRUE(check(args).ok());
}

TEST_F(SelectiveScanCheck, Overlap) {
  tensor<float, 4> big({2, 17, 6, 5});
  float* start = big.view().data();
  const auto both = [&](auto member, const std::string& output, const std::string& name) {
    args.*member = moved_to(start, args.*member);
    if (output == "y") args.y = moved_to(start, args.y);
    if (output == "final_state") args.final_state = moved_to(start, args.final_state);
    expect_refused(error_code::overlap, output, "shares memory with " + name);
  };
  using args_type = selective_scan_args<float>;
  for (const std::string output : {"y", "final_state"}) {
    both(&args_type::u, output, "u");
    both(&args_type::delta, output, "delta");
    both(&args_type::A, output, "A");
    both(&args_type::B, output, "B");
    both(&args_type::C, output, "C");
    both(&args_type::D, output, "D");
    both(&args_type::z, output, "z");
    both(&args_type::delta_bias, output, "delta_bias");
  }
  both(&args_type::initial_state, "y", "initial_state");
  both(&args_type::y, "final_state", "y");
  args.final_state = p.initial_state.view();  // the one pair that may be one view
  EXPECT_TRUE(check(args).ok());
}

// bugs B181: of two gradients in one memory one would be lost.
TEST_F(SelectiveScanCheck, TwoGradientsInOneMemory) {
  scan_problem<float> two({.B = 1, .T = 2, .D = 1, .G = 1, .N = 1}, rng);
  tensor<float, 3> d_y({1, 2, 1}), gradient({1, 2, 1});
  fill(d_y, 1);
  const auto refused = [&](const tensor_view<float, 3>& d_u, const tensor_view<float, 3>& d_delta, const char* argument,
                           const char* text) {
    const selective_scan_grads<float> grads{.d_y = d_y.view(), .d_u = d_u, .d_delta = d_delta};
    EXPECT_TRUE(
        refuses(try_selective_scan_backward(on_reference{}, two.args(), grads), error_code::overlap, argument, text));
    EXPECT_TRUE(all_are(gradient.view(), std::nan(""))) << "written to";
  };
  refused(gradient.view(), gradient.view(), "d_delta", "shares memory with d_u; outputs must not overlap");
  refused(two.u.view(), gradient.view(), "d_u", "shares memory with u;");
  refused(gradient.view(), d_y.view(), "d_delta", "shares memory with d_y;");
}

TEST_F(SelectiveScanCheck, PackedSequences) {
  auto cu = cu_seqlens_of({9, 8});
  args.cu_seqlens = cu.view();
  expect_refused(error_code::shape, "cu_seqlens", "batch size 2");

  args = p.part(args, 0, 0, 1);
  args.cu_seqlens = cu.view();
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.final_state = args.final_state.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "final_state", "(S, D, N) = (2, 6, 5)"));
  args.final_state = p.final_state.view();

  const auto refused_contents = [&](const std::vector<std::int32_t>& contents, const std::string& text) {
    cu.assign(contents);
    EXPECT_TRUE(check(args).ok());  // contents are no business of the shape check
    EXPECT_TRUE(refuses(check(on_reference{}, args), error_code::value, "cu_seqlens", text));
    EXPECT_THROW(selective_scan(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")));
  };
  refused_contents({1, 9, 17}, "entry 0 is 1");
  refused_contents({0, 9, 16}, "entry 2 is 16, supported: T = 17");
  refused_contents({0, 18, 17}, "entry 2 is 17, supported: at least");
  refused_contents({0, -3, 17}, "entry 1 is -3");
}

class SelectiveScanStepCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{2};
  scan_problem<float> p{scan_shape{.T = 3}, rng};
  tensor<float, 3> state{{4, 6, 5}};
  tensor<float, 4> intermediate{{2, 3, 6, 5}};
  tensor<std::int32_t, 1> read{{2}}, write{{2}};
  selective_scan_step_args<float> args = good();

  selective_scan_step_args<float> good() {
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
    EXPECT_THROW(selective_scan_step(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")) && all_are(state.view(), std::nan("")) &&
                all_are(intermediate.view(), std::nan("")))
        << "written to";
    args = good();
  }
};

TEST_F(SelectiveScanStepCheck, Operands) {
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.read_indices = {};
  expect_refused(error_code::unexpected, "write_indices", "read_indices is not");
  args.read_indices = {};
  args.write_indices = {};
  expect_refused(error_code::shape, "state", "slots = 4, supported without read_indices: B = 2");
  args.state = {};
  expect_refused(error_code::missing, "state", "(slots, D, N)");
  args.state = state.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "state", "(slots, D, N) = (4, 6, 5)");
  args.intermediate_states = intermediate.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "intermediate_states", "(B, T, D, N) = (2, 3, 6, 5)");
  args.read_indices = args.read_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "read_indices", "shape (1)");
  args.write_indices = args.write_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "write_indices", "shape (1)");
  args.u = {};
  expect_refused(error_code::missing, "u", "(B, T, D)");
  args.y = {};
  expect_refused(error_code::missing, "y", "(B, T, D)");
  args.D = args.D.slice(0, 0, 1);
  expect_refused(error_code::shape, "D", "shape (1)");
  args.state = {state.view().data(), {4, 6, 5}, {0, 5, 1}};
  expect_refused(error_code::stride, "state", "stride 0 along index 0");
}

TEST_F(SelectiveScanStepCheck, Overlap) {
  args.y = moved_to(state.view().data(), args.y);
  expect_refused(error_code::overlap, "y", "shares memory with state");
  args.y = moved_to(intermediate.view().data(), args.y);
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with y");
  args.intermediate_states = moved_to(state.view().data(), args.intermediate_states);
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with state");
  args.C = moved_to(state.view().data(), args.C);
  expect_refused(error_code::overlap, "state", "shares memory with C");
  args.u = moved_to(intermediate.view().data(), args.u);
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with u");
  args.delta = moved_to(p.y.view().data(), args.delta);
  expect_refused(error_code::overlap, "y", "shares memory with delta");
}

TEST_F(SelectiveScanStepCheck, TooManyTokens) {
  scan_problem<float> nine(scan_shape{.T = 9}, rng);
  args = nine.step_of(nine.args());
  args.state = nine.initial_state.view();
  expect_refused(error_code::unsupported, "u", "T = 9, supported: 0 to 8");
}

TEST_F(SelectiveScanStepCheck, IndexContents) {  // bugs B107
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

// dims<N> accepts its number of states and refuses others, in every pass.
TEST_F(SelectiveScanCheck, FixedDims) {
  const auto refused = [](const status& s) {
    return refuses(s, error_code::unsupported, "A", "N = 5, supported: dims<16> only");
  };
  EXPECT_TRUE(check<dims<5>>(on_reference{}, args).ok());
  EXPECT_TRUE(refused(try_selective_scan<dims<16>>(on_reference{}, args)));
  EXPECT_TRUE(refused(try_selective_scan_backward<dims<16>>(on_reference{}, args, selective_scan_grads<float>{})));
  EXPECT_TRUE(all_are(p.y.view(), std::nan("")));
  tensor<float, 3> state({2, 6, 5}), y({2, 1, 6});
  const selective_scan_step_args<float> step{.u = args.u.slice(1, 0, 1),
                                             .delta = args.delta.slice(1, 0, 1),
                                             .A = args.A,
                                             .B = args.B.slice(1, 0, 1),
                                             .C = args.C.slice(1, 0, 1),
                                             .state = state.view(),
                                             .y = y.view()};
  EXPECT_TRUE(check<dims<5>>(on_reference{}, step).ok());
  EXPECT_TRUE(refused(try_selective_scan_step<dims<16>>(on_reference{}, step)));
}

}  // namespace
}  // namespace polystate::testing
