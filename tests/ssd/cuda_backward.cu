// SPDX-License-Identifier: Apache-2.0

// The CUDA backward of ssd against the reference.

#include "ssd/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <cmath>
#include <vector>

namespace polystate::testing {
namespace {

/// Sums of gradients in float; those of 16-bit operands are rounded once.
template <class T>
inline constexpr double gradient_bound = std::is_same_v<T, float> ? 5e-5 : 1.1 * roundoff<T>::unit;

template <class Data>
struct device_gradients {
  device_tensor<Data, 4> d_y, d_x, d_B, d_C, d_z;
  device_tensor<Data, 3> d_dt;
  device_tensor<float, 1> d_A, d_dt_bias;
  device_tensor<float, 2> d_D;
  device_tensor<float, 4> d_final_state, d_initial_state;

  explicit device_gradients(const ssd_gradients<Data>& g)
      : d_y(g.d_y),
        d_x(g.d_x),
        d_B(g.d_B),
        d_C(g.d_C),
        d_z(g.d_z),
        d_dt(g.d_dt),
        d_A(g.d_A),
        d_dt_bias(g.d_dt_bias),
        d_D(g.d_D),
        d_final_state(g.d_final_state),
        d_initial_state(g.d_initial_state) {}

  [[nodiscard]] ssd_grads<Data> views() const {
    return {.d_y = d_y.view(),
            .d_final_state = d_final_state.view(),
            .d_x = d_x.view(),
            .d_dt = d_dt.view(),
            .d_A = d_A.view(),
            .d_B = d_B.view(),
            .d_C = d_C.view(),
            .d_D = d_D.view(),
            .d_z = d_z.view(),
            .d_dt_bias = d_dt_bias.view(),
            .d_initial_state = d_initial_state.view()};
  }
  void download(ssd_gradients<Data>& g) const {
    d_x.download(g.d_x);
    d_dt.download(g.d_dt);
    d_A.download(g.d_A);
    d_B.download(g.d_B);
    d_C.download(g.d_C);
    d_D.download(g.d_D);
    d_z.download(g.d_z);
    d_dt_bias.download(g.d_dt_bias);
    d_initial_state.download(g.d_initial_state);
  }
};

template <class Data>
void judge(const ssd_gradients<Data>& got, const ssd_problem<Data>& p, const ssd_gradients<Data>& upstream) {
  ssd_problem<double> q = p.in_double();
  ssd_gradients<double> want = upstream.in_double();
  run_reference_backward(q, want);
  const auto rows = [](const char* name, const auto& x, const auto& y) {
    if (x) EXPECT_TRUE(within_relative_blocks(x, y, gradient_bound<Data>, 2)) << name;
    EXPECT_TRUE(x.untouched_outside()) << name;
  };
  rows("d_x", got.d_x, want.d_x);
  rows("d_B", got.d_B, want.d_B);
  rows("d_C", got.d_C, want.d_C);
  rows("d_z", got.d_z, want.d_z);
  if (got.d_dt) EXPECT_TRUE(within_relative_blocks(got.d_dt, want.d_dt, gradient_bound<Data>)) << "d_dt";
  EXPECT_TRUE(got.d_dt.untouched_outside());
  const auto sums = [](const char* name, const auto& x, const auto& y) {
    if (x) EXPECT_LE(relative_l2(x, y), gradient_bound<float>) << name;
    EXPECT_TRUE(x.untouched_outside()) << name;
  };
  sums("d_A", got.d_A, want.d_A);
  sums("d_dt_bias", got.d_dt_bias, want.d_dt_bias);
  sums("d_D", got.d_D, want.d_D);
  if (got.d_initial_state) {
    EXPECT_TRUE(within_relative_blocks(got.d_initial_state, want.d_initial_state, gradient_bound<float>, 1))
        << "d_initial_state";
  }
  EXPECT_TRUE(got.d_initial_state.untouched_outside());
}

/// Runs the backward; with `window` in windows of so many tokens, whatever the memory.
template <class Data>
ssd_gradients<Data> backward_on_device(const ssd_problem<Data>& p, ssd_gradients<Data> g, std::int64_t window = 0,
                                       const on_cuda& exec = {}) {
  const device_ssd<Data> device(p);
  const device_gradients<Data> gradients(g);
  if (window == 0) {
    ssd_backward(exec, device.args(), gradients.views());
  } else {
    namespace rec = polystate_detail::cuda::recurrence;
    const auto call = rec::make_backward_call(device.args(), gradients.views());
    const rec::backward_plan plan =
        rec::with_window(rec::make_plan(call, polystate_detail::cuda::limits_of({})), call.all, window);
    const device_memory scratch(rec::scratch_bytes(plan));
    EXPECT_TRUE(
        rec::run_backward<rec::any_shape>("test", on_cuda{}, call, plan, scratch.data(), gradients.views()).ok());
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  gradients.download(g);
  EXPECT_TRUE(device.inputs_unchanged());
  return g;
}

template <class Data>
void expect_gradients(const ssd_problem<Data>& p, const ssd_gradients<Data>& g, std::int64_t window = 0) {
  judge(backward_on_device(p, g, window), p, g);
}

template <class Data>
class SsdBackwardCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(SsdBackwardCuda, element_types);

// bugs B022, B055, B067, B074, B077: any length, head dims, layout, grouping, option, and any of the gradients wanted;
// in one window and in several.
TYPED_TEST(SsdBackwardCuda, RandomProblems) {
  std::mt19937 rng(111);
  for (int i = 0; i < 60; ++i) {
    const ssd_shape s = random_ssd_shape(rng, {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 65, 130},
                                         {1, 3, 8, 16, 32, 33, 64, 65, 100, 128, 130});
    const ssd_problem<TypeParam> p(s, rng);
    ssd_gradients<TypeParam> g(s, rng);
    if (rng() % 6 == 0) g.d_y = {};
    if (rng() % 4 == 0) g.d_final_state = {};
    if (rng() % 4 == 0) g.d_x = {};
    if (rng() % 4 == 0) g.d_dt = {};
    if (rng() % 4 == 0) g.d_A = {};
    if (rng() % 4 == 0) g.d_B = {};
    if (rng() % 4 == 0) g.d_C = {};
    if (rng() % 4 == 0) g.d_D = {};
    if (rng() % 4 == 0) g.d_z = {};
    if (rng() % 4 == 0) g.d_dt_bias = {};
    if (rng() % 4 == 0) g.d_initial_state = {};
    const std::int64_t window = s.T == 0 ? 0 : pick<std::int64_t>({0, 0, 16, 24, 64}, rng);
    SCOPED_TRACE(::testing::Message() << "problem " << i << ": B " << s.B << ", T " << s.T << ", heads " << s.G << ' '
                                      << s.H << ", P " << s.P << ", N " << s.N << ", sequences " << s.lengths.size()
                                      << ", z " << s.z << ", window " << window);
    expect_gradients(p, g, window);
    if (this->HasFailure()) return;  // one report is enough
  }
}

TYPED_TEST(SsdBackwardCuda, LargeHeadDims) {
  std::mt19937 rng(112);
  for (const auto& [P, N] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 128}, {40, 200}, {512, 256}, {20, 500}, {300, 32}}) {
    SCOPED_TRACE(::testing::Message() << "P " << P << ", N " << N);
    const ssd_shape s{.B = 1, .T = 21, .H = 2, .G = 1, .P = P, .N = N};
    const ssd_problem<TypeParam> p(s, rng);
    expect_gradients(p, ssd_gradients<TypeParam>(s, rng));
  }
}

// The clamp passes the gradient at its ends, included, and blocks it elsewhere.
TYPED_TEST(SsdBackwardCuda, Clamp) {
  std::mt19937 rng(113);
  ssd_shape s{.B = 1, .T = 24, .H = 2, .G = 1, .P = 8, .N = 8, .dt_bias = false, .dt_softplus = false};
  s.dt_min = 0.125;
  s.dt_max = 0.5;
  ssd_problem<TypeParam> p(s, rng);
  const std::vector<double> steps = {0.125, 0.5, 0.0625, 0.25, 0.75};
  std::size_t i = 0;
  p.dt.for_each([&](TypeParam& x) { x = static_cast<TypeParam>(steps[i++ % steps.size()]); });
  const ssd_gradients<TypeParam> g(s, rng);
  expect_gradients(p, g);
  const auto got = backward_on_device(p, g).d_dt.values();
  for (std::size_t j = 0; j < got.size(); ++j) {
    const bool passes = j % steps.size() != 2 && j % steps.size() != 4;
    EXPECT_EQ(static_cast<float>(got[j]) != 0.0f, passes) << j;
  }
}

TYPED_TEST(SsdBackwardCuda, LongSequences) {
  std::mt19937 rng(114);
  ssd_shape s{.B = 1, .T = 9000, .H = 1, .G = 1, .P = 4, .N = 8};
  expect_gradients(ssd_problem<TypeParam>(s, rng), ssd_gradients<TypeParam>(s, rng), 1024);
  s.T = 1010;
  s.lengths = {2, 0, 1000, 1, 7};
  expect_gradients(ssd_problem<TypeParam>(s, rng), ssd_gradients<TypeParam>(s, rng), 128);
}

// Blocks enough that each works through several heads of a group.
TYPED_TEST(SsdBackwardCuda, HeadsOfAGroupInOneBlock) {
  std::mt19937 rng(117);
  for (const std::int64_t groups : {8, 16, 32}) {
    const ssd_shape s{.B = 1, .T = 2300, .H = 32, .G = groups, .P = 3, .N = 5};
    expect_gradients(ssd_problem<TypeParam>(s, rng), ssd_gradients<TypeParam>(s, rng));
  }
}

// bugs B113: same bits every time; the caller's workspace is enough, to the byte.
TYPED_TEST(SsdBackwardCuda, SameBitsInTheCallersWorkspace) {
  std::mt19937 rng(115);
  const ssd_shape s{.B = 2, .T = 70, .H = 3, .G = 1, .P = 72, .N = 40};
  const ssd_problem<TypeParam> p(s, rng);
  const ssd_gradients<TypeParam> g(s, rng);
  const auto once = backward_on_device(p, g);
  const device_ssd<TypeParam> device(p);
  const device_gradients<TypeParam> gradients(g);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args(), gradients.views()));
  ssd_backward(on_cuda{.workspace = memory.whole()}, device.args(), gradients.views());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto again = g;
  gradients.download(again);
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(bitwise_equal(again.d_x, once.d_x));
  EXPECT_TRUE(bitwise_equal(again.d_B, once.d_B));
  EXPECT_TRUE(bitwise_equal(again.d_C, once.d_C));
  EXPECT_TRUE(bitwise_equal(again.d_z, once.d_z));
  EXPECT_TRUE(bitwise_equal(again.d_dt, once.d_dt));
  EXPECT_TRUE(bitwise_equal(again.d_A, once.d_A));
  EXPECT_TRUE(bitwise_equal(again.d_D, once.d_D));
  EXPECT_TRUE(bitwise_equal(again.d_initial_state, once.d_initial_state));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args(), gradients.views()),
                      error_code::workspace, "exec.workspace", "needed"));
}

TYPED_TEST(SsdBackwardCuda, GraphReplay) {
  std::mt19937 rng(116);
  const ssd_shape s{.B = 2, .T = 40, .H = 2, .G = 2, .P = 32, .N = 32};
  const ssd_problem<TypeParam> p(s, rng);
  const ssd_gradients<TypeParam> g(s, rng);
  const auto want = backward_on_device(p, g);
  const device_ssd<TypeParam> device(p);
  device_gradients<TypeParam> gradients(g);
  const device_stream stream;
  const captured_graph graph(stream, [&] { ssd_backward(stream.exec(), device.args(), gradients.views()); });
  for (int i = 0; i < 2; ++i) {
    gradients.d_x.upload(g.d_x);  // poison again
    graph.replay(stream);
    auto got = g;
    gradients.download(got);
    EXPECT_TRUE(bitwise_equal(got.d_x, want.d_x));
    EXPECT_TRUE(bitwise_equal(got.d_A, want.d_A));
  }
}

// Small ones for the sanitizers.
TYPED_TEST(SsdBackwardCuda, SanitizerBackward) {
  std::mt19937 rng(117);
  ssd_shape s{.B = 1, .T = 21, .H = 2, .G = 1, .P = 24, .N = 40};
  expect_gradients(ssd_problem<TypeParam>(s, rng), ssd_gradients<TypeParam>(s, rng), 16);
  s.lengths = {3, 0, 18};
  s.memory = {{0, 2, 3, 1}, 3};
  s.D = skip::per_head;
  expect_gradients(ssd_problem<TypeParam>(s, rng), ssd_gradients<TypeParam>(s, rng), 16);
}

// bugs B166: tokens behind the last offset are of no sequence: their gradients are 0, and they add to none.
TYPED_TEST(SsdBackwardCuda, RowsOfNoSequence) {
  std::mt19937 rng(131);
  for (const bool gated : {false, true}) {
    const ssd_shape s{.B = 1, .T = 48, .H = 2, .G = 1, .P = 20, .N = 24, .z = gated, .lengths = {20, 28}};
    const ssd_problem<TypeParam> whole(s, rng);
    ssd_gradients<TypeParam> g(s, rng);
    g.d_final_state = {};
    auto cut = whole;
    cut.cu_seqlens.assign({0, 20, 31});
    const auto got = backward_on_device(cut, g);
    clear_from(31, g.d_y);
    judge(got, whole, g);
  }
}

// Devices with less shared memory run other tiles, to the same values.
TYPED_TEST(SsdBackwardCuda, LessSharedMemory) {
  std::mt19937 rng(132);
  for (const std::size_t kib : {99, 163}) {
    for (const std::int64_t N : {64, 128, 200}) {
      SCOPED_TRACE(::testing::Message() << kib << " KiB, N " << N);
      const ssd_shape s{.B = 1, .T = 37, .H = 4, .G = 1, .P = 300, .N = N};
      const ssd_problem<TypeParam> p(s, rng);
      const ssd_gradients<TypeParam> g(s, rng);
      judge(backward_on_device(p, g, 0, {.shared_memory_limit = kib * 1024}), p, g);
    }
  }
}

}  // namespace
}  // namespace polystate::testing
