// SPDX-License-Identifier: Apache-2.0

// Every argument refused with its name, what was given and what is supported; nothing written.

#include "ssd/cases.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"

#include <polystate/reference/ssd.hpp>

#include <gtest/gtest.h>

namespace polystate::testing {
namespace {

class SsdCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{1};
  ssd_problem<float> p{ssd_shape{}, rng};
  ssd_args<float> args = p.args();

  void expect_refused(error_code code, const std::string& argument, const std::string& text) {
    EXPECT_TRUE(refuses(check(args), code, argument, text));
    try {
      ssd(on_reference{}, args);
      ADD_FAILURE() << "accepted";
    } catch (const argument_error& e) {
      EXPECT_EQ(e.status().argument, argument);
      EXPECT_EQ(std::string(e.what()).rfind("ssd: " + argument, 0), 0u) << e.what();
    }
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")) && all_are(p.final_state.view(), std::nan(""))) << "written to";
    args = p.args();
  }
};

TEST_F(SsdCheck, AcceptsTheProblem) {
  EXPECT_TRUE(check(args).ok()) << check(args).message();
  args.D = {};
  args.z = {};
  args.dt_bias = {};
  args.initial_state = {};
  args.final_state = {};
  EXPECT_TRUE(check(args).ok()) << check(args).message();
}

TEST_F(SsdCheck, RequiredOperands) {
  args.x = {};
  expect_refused(error_code::missing, "x", "(B, T, H, P)");
  args.dt = {};
  expect_refused(error_code::missing, "dt", "(B, T, H)");
  args.A = {};
  expect_refused(error_code::missing, "A", "(H)");
  args.B = {};
  expect_refused(error_code::missing, "B", "(B, T, G, N)");
  args.C = {};
  expect_refused(error_code::missing, "C", "(B, T, G, N)");
  args.y = {};
  expect_refused(error_code::missing, "y", "(B, T, H, P)");
  args.C = {nullptr, {2, 17, 2, 5}};
  expect_refused(error_code::missing, "C", "null pointer with shape (2, 17, 2, 5)");
}

TEST_F(SsdCheck, Shapes) {
  args.dt = args.dt.slice(2, 0, 2);
  expect_refused(error_code::shape, "dt", "shape (2, 17, 2), supported: (B, T, H) = (2, 17, 4)");
  args.A = args.A.slice(0, 0, 3);
  expect_refused(error_code::shape, "A", "shape (3), supported: (H) = (4)");
  args.B = args.B.slice(1, 0, 16);
  expect_refused(error_code::shape, "B", "shape (2, 16, 2, 5), supported: (B, T, G, N) = (2, 17, any, any)");
  args.C = args.C.slice(3, 0, 4);
  expect_refused(error_code::shape, "C", "shape (2, 17, 2, 4), supported: (B, T, G, N) = (2, 17, 2, 5)");
  args.D = args.D.slice(1, 0, 1);
  expect_refused(error_code::shape, "D", "shape (4, 1), supported: (H, P) = (4, 3)");
  args.z = args.z.slice(3, 0, 2);
  expect_refused(error_code::shape, "z", "shape (2, 17, 4, 2)");
  args.dt_bias = args.dt_bias.slice(0, 0, 1);
  expect_refused(error_code::shape, "dt_bias", "shape (1), supported: (H) = (4)");
  args.initial_state = args.initial_state.permuted({0, 1, 3, 2});
  expect_refused(error_code::shape, "initial_state", "shape (2, 4, 5, 3), supported: (S, H, P, N) = (2, 4, 3, 5)");
  args.y = args.y.slice(2, 0, 2);
  expect_refused(error_code::shape, "y", "shape (2, 17, 2, 3)");
  args.final_state = args.final_state.slice(0, 0, 1);
  expect_refused(error_code::shape, "final_state", "shape (1, 4, 3, 5)");
  args.x = {p.x.view().data(), {2, -1, 4, 3}};
  expect_refused(error_code::shape, "x", "(2, -1, 4, 3)");
  args.x = {p.x.view().data(), {4, std::int64_t{1} << 62, 4, 3}};
  expect_refused(error_code::shape, "x", "2^63");
}

TEST_F(SsdCheck, HeadsAndDims) {
  ssd_problem<float> three(ssd_shape{.H = 3, .G = 1}, rng);
  args.x = three.x.view();
  args.dt = three.dt.view();
  args.A = three.A.view();
  expect_refused(error_code::shape, "x", "H = 3, supported: a multiple of G = 2");
  args.x = args.x.slice(3, 0, 0);
  expect_refused(error_code::unsupported, "x", "P = 0, supported: at least 1");
  args.B = args.B.slice(3, 0, 0);
  expect_refused(error_code::unsupported, "B", "N = 0, supported: at least 1");
}

TEST_F(SsdCheck, Options) {
  args.dt_min = 0.2;
  args.dt_max = 0.1;
  expect_refused(error_code::value, "dt_min", "0.200000, supported: at most dt_max = 0.100000");
  args.dt_max = std::nan("");
  expect_refused(error_code::value, "dt_min", "at most dt_max = nan");
  args.dt_min = args.dt_max = 0.1;
  EXPECT_TRUE(check(args).ok());
}

TEST_F(SsdCheck, OutputWithStrideZero) {
  args.y = {p.y.view().data(), {2, 17, 4, 3}, {204, 12, 0, 1}};
  expect_refused(error_code::stride, "y", "stride 0 along index 2");
  args.final_state = {p.final_state.view().data(), {2, 4, 3, 5}, {0, 15, 5, 1}};
  expect_refused(error_code::stride, "final_state", "stride 0 along index 0");
  args.D = {p.D.view().data(), {4, 3}, {3, 0}};  // an input may repeat
  args.B = {p.B.view().data(), {2, 17, 2, 5}, {0, 0, 5, 1}};
  EXPECT_TRUE(check(args).ok());
}

TEST_F(SsdCheck, Overlap) {
  tensor<float, 4> big({2, 17, 8, 8});
  const auto at = [&](auto view) {
    std::int64_t extents[decltype(view)::rank];
    for (int i = 0; i < decltype(view)::rank; ++i) extents[i] = view.extent(i);
    return tensor_view<float, decltype(view)::rank>(big.view().data(), extents);
  };
  const auto both = [&](auto& input, const std::string& output, const std::string& name) {
    input = at(input);
    if (output == "y") args.y = at(args.y);
    if (output == "final_state") args.final_state = at(args.final_state);
    expect_refused(error_code::overlap, output, "shares memory with " + name);
  };
  for (const std::string output : {"y", "final_state"}) {
    both(args.x, output, "x");
    both(args.dt, output, "dt");
    both(args.A, output, "A");
    both(args.B, output, "B");
    both(args.C, output, "C");
    both(args.D, output, "D");
    both(args.z, output, "z");
    both(args.dt_bias, output, "dt_bias");
  }
  both(args.initial_state, "y", "initial_state");
  both(args.y, "final_state", "y");
  args.final_state = p.initial_state.view();  // the one pair that may be one view
  EXPECT_TRUE(check(args).ok());
}

TEST_F(SsdCheck, PackedSequences) {
  auto cu = cu_seqlens_of({9, 8});
  args.cu_seqlens = cu.view();
  expect_refused(error_code::shape, "cu_seqlens", "batch size 2");

  args = p.part(args, 0, 0, 1);
  args.cu_seqlens = cu.view();
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.final_state = args.final_state.slice(0, 0, 1);
  EXPECT_TRUE(refuses(check(args), error_code::shape, "final_state", "(S, H, P, N) = (2, 4, 3, 5)"));
  args.final_state = p.final_state.view();

  const auto refused_contents = [&](const std::vector<std::int32_t>& contents, const std::string& text) {
    cu.assign(contents);
    EXPECT_TRUE(check(args).ok());  // contents are no business of the shape check
    EXPECT_TRUE(refuses(check(on_reference{}, args), error_code::value, "cu_seqlens", text));
    EXPECT_THROW(ssd(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")));
  };
  refused_contents({1, 9, 17}, "entry 0 is 1");
  refused_contents({0, 9, 16}, "entry 2 is 16, supported: T = 17");
  refused_contents({0, 18, 17}, "entry 2 is 17, supported: at least");
  refused_contents({0, -3, 17}, "entry 1 is -3");
}

class SsdStepCheck : public ::testing::Test {
 protected:
  std::mt19937 rng{2};
  ssd_problem<float> p{ssd_shape{.T = 3}, rng};
  tensor<float, 4> state{{4, 4, 3, 5}};
  tensor<float, 5> intermediate{{2, 3, 4, 3, 5}};
  tensor<std::int32_t, 1> read{{2}}, write{{2}};
  ssd_step_args<float> args = good();

  ssd_step_args<float> good() {
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
    EXPECT_THROW(ssd_step(on_reference{}, args), argument_error);
    EXPECT_TRUE(all_are(p.y.view(), std::nan("")) && all_are(state.view(), std::nan("")) &&
                all_are(intermediate.view(), std::nan("")))
        << "written to";
    args = good();
  }
};

TEST_F(SsdStepCheck, Operands) {
  EXPECT_TRUE(check(on_reference{}, args).ok()) << check(on_reference{}, args).message();
  args.read_indices = {};
  expect_refused(error_code::unexpected, "write_indices", "read_indices is not");
  args.read_indices = {};
  args.write_indices = {};
  expect_refused(error_code::shape, "state", "slots = 4, supported without read_indices: B = 2");
  args.state = {};
  expect_refused(error_code::missing, "state", "(slots, H, P, N)");
  args.state = state.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "state", "(slots, H, P, N) = (4, 4, 3, 5)");
  args.intermediate_states = intermediate.view().slice(1, 0, 2);
  expect_refused(error_code::shape, "intermediate_states", "(B, T, H, P, N) = (2, 3, 4, 3, 5)");
  args.read_indices = args.read_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "read_indices", "shape (1)");
  args.write_indices = args.write_indices.slice(0, 0, 1);
  expect_refused(error_code::shape, "write_indices", "shape (1)");
  args.y = {};
  expect_refused(error_code::missing, "y", "(B, T, H, P)");
  args.D = args.D.slice(0, 0, 1);
  expect_refused(error_code::shape, "D", "shape (1, 3)");
  args.dt_min = 1;
  args.dt_max = 0;
  expect_refused(error_code::value, "dt_min", "at most dt_max");
  args.state = {state.view().data(), {4, 4, 3, 5}, {0, 15, 5, 1}};
  expect_refused(error_code::stride, "state", "stride 0 along index 0");
}

TEST_F(SsdStepCheck, Overlap) {
  const auto same_start = [](const auto& view, float* data) {
    std::int64_t extents[4] = {view.extent(0), view.extent(1), view.extent(2), view.extent(3)};
    return tensor_view<float, 4>(data, extents);
  };
  args.y = same_start(args.y, state.view().data());
  expect_refused(error_code::overlap, "y", "shares memory with state");
  args.y = same_start(args.y, intermediate.view().data());
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with y");
  args.C = same_start(args.C, state.view().data());
  expect_refused(error_code::overlap, "state", "shares memory with C");
  args.x = same_start(args.x, intermediate.view().data());
  expect_refused(error_code::overlap, "intermediate_states", "shares memory with x");
}

TEST_F(SsdStepCheck, TooManyTokens) {
  ssd_problem<float> nine(ssd_shape{.T = 9}, rng);
  args = nine.step_of(nine.args());
  args.state = nine.initial_state.view();
  expect_refused(error_code::unsupported, "x", "T = 9, supported: 0 to 8");
}

TEST_F(SsdStepCheck, IndexContents) {  // bugs B107
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

// dims<P, N> accepts its shape and refuses others, transposed ones too, in every pass.
TEST_F(SsdCheck, FixedDims) {
  const auto refused = [](const status& s) {
    return refuses(s, error_code::unsupported, "x", "P, N = 3, 5, supported: dims<5, 3> only");
  };
  EXPECT_TRUE((check<dims<3, 5>>(on_reference{}, args).ok()));
  EXPECT_TRUE(refused(try_ssd<dims<5, 3>>(on_reference{}, args)));
  EXPECT_TRUE(refused(try_ssd_backward<dims<5, 3>>(on_reference{}, args, ssd_grads<float>{})));
  EXPECT_TRUE(all_are(p.y.view(), std::nan("")));
  tensor<float, 4> state({2, 4, 3, 5}), y({2, 1, 4, 3});
  const ssd_step_args<float> step{.x = args.x.slice(1, 0, 1),
                                  .dt = args.dt.slice(1, 0, 1),
                                  .A = args.A,
                                  .B = args.B.slice(1, 0, 1),
                                  .C = args.C.slice(1, 0, 1),
                                  .state = state.view(),
                                  .y = y.view()};
  EXPECT_TRUE((check<dims<3, 5>>(on_reference{}, step).ok()));
  EXPECT_TRUE(refused(try_ssd_step<dims<5, 3>>(on_reference{}, step)));
}

}  // namespace
}  // namespace polystate::testing
