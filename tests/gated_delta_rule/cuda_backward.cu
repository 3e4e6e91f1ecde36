// SPDX-License-Identifier: Apache-2.0

// The CUDA backward of the delta family against the reference.

#include "gated_delta_rule/cuda_problem.cuh"
#include "support/refusal.hpp"
#include "support/tail.hpp"
#include "support/workspace.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace polystate::testing {
namespace {

/// Sums of gradients in float; those of 16-bit operands are rounded once.
template <class T>
inline constexpr double gradient_bound = std::is_same_v<T, float> ? 5e-5 : 1.1 * roundoff<T>::unit;

template <class Data, class Rule>
struct device_gradients {
  device_tensor<Data, 4> d_o, d_q, d_k, d_v;
  device_tensor<float, 4> d_final_state, d_initial_state;
  device_tensor<float, 3> d_g, d_beta;

  explicit device_gradients(const delta_gradients<Data, Rule>& g)
      : d_o(g.d_o),
        d_q(g.d_q),
        d_k(g.d_k),
        d_v(g.d_v),
        d_final_state(g.d_final_state),
        d_initial_state(g.d_initial_state),
        d_g(g.d_g),
        d_beta(g.d_beta) {}

  [[nodiscard]] gated_delta_rule_grads<Data, Rule> views() const {
    return {.d_o = d_o.view(),
            .d_final_state = d_final_state.view(),
            .d_q = d_q.view(),
            .d_k = d_k.view(),
            .d_v = d_v.view(),
            .d_g = d_g.view(),
            .d_beta = d_beta.view(),
            .d_initial_state = d_initial_state.view()};
  }
  void download(delta_gradients<Data, Rule>& g) const {
    d_q.download(g.d_q);
    d_k.download(g.d_k);
    d_v.download(g.d_v);
    d_g.download(g.d_g);
    d_beta.download(g.d_beta);
    d_initial_state.download(g.d_initial_state);
  }
};

template <class Data, class Rule>
void judge(const delta_gradients<Data, Rule>& got, const delta_problem<Data, Rule>& p,
           const delta_gradients<Data, Rule>& upstream) {
  delta_problem<double, Rule> q = p.in_double();
  delta_gradients<double, Rule> want = upstream.in_double();
  run_reference_backward(q, want);
  if (got.d_q) EXPECT_TRUE(within_relative_blocks(got.d_q, want.d_q, gradient_bound<Data>, 2)) << "d_q";
  if (got.d_k) EXPECT_TRUE(within_relative_blocks(got.d_k, want.d_k, gradient_bound<Data>, 2)) << "d_k";
  if (got.d_v) EXPECT_TRUE(within_relative_blocks(got.d_v, want.d_v, gradient_bound<Data>, 2)) << "d_v";
  if (got.d_g) EXPECT_TRUE(within_relative_blocks(got.d_g, want.d_g, gradient_bound<float>)) << "d_g";
  if (got.d_beta) EXPECT_TRUE(within_relative_blocks(got.d_beta, want.d_beta, gradient_bound<float>)) << "d_beta";
  if (got.d_initial_state) {
    EXPECT_TRUE(within_relative_blocks(got.d_initial_state, want.d_initial_state, gradient_bound<float>, 1))
        << "d_initial_state";
  }
  EXPECT_TRUE(got.d_q.untouched_outside() && got.d_k.untouched_outside() && got.d_v.untouched_outside());
  EXPECT_TRUE(got.d_g.untouched_outside() && got.d_beta.untouched_outside());
  EXPECT_TRUE(got.d_initial_state.untouched_outside());
}

/// Runs the backward; with `window` in windows of so many tokens, whatever the memory.
template <class Data, class Rule>
delta_gradients<Data, Rule> backward_on_device(const delta_problem<Data, Rule>& p, delta_gradients<Data, Rule> g,
                                               std::int64_t window = 0, const on_cuda& exec = {}) {
  const device_delta<Data, Rule> device(p);
  const device_gradients<Data, Rule> gradients(g);
  if (window == 0) {
    gated_delta_rule_backward(exec, device.args(), gradients.views());
  } else {
    namespace rec = polystate_detail::cuda::recurrence;
    const auto call = rec::make_backward_call(device.args(), gradients.views());
    const rec::backward_plan plan =
        rec::with_window(rec::make_plan(call, polystate_detail::cuda::limits_of({})), call.all, window);
    const device_memory scratch(rec::scratch_bytes(plan));
    polystate_detail::cuda::workspace_carver hand_out(scratch.data());
    EXPECT_TRUE(rec::launch_backward<rec::any_shape>("test", on_cuda{}, call, plan, rec::carve(hand_out, plan)).ok());
  }
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  gradients.download(g);
  EXPECT_TRUE(device.inputs_unchanged());
  return g;
}

template <class Data, class Rule>
void expect_gradients(const delta_problem<Data, Rule>& p, const delta_gradients<Data, Rule>& g,
                      std::int64_t window = 0) {
  judge(backward_on_device(p, g, window), p, g);
}

template <class Data>
class GatedDeltaRuleBackwardCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, half, bfloat16>;
TYPED_TEST_SUITE(GatedDeltaRuleBackwardCuda, element_types);

// bugs B022, B035, B043, B053, B068, B074, B082: any length, head dims, layout, grouping, rule, option, and any of the
// gradients wanted; in one window and in several.
TYPED_TEST(GatedDeltaRuleBackwardCuda, RandomProblems) {
  std::mt19937 rng(101);
  for (int i = 0; i < 60; ++i) {
    delta_shape s = random_delta_shape(rng, {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 65, 130},
                                       {1, 3, 8, 16, 32, 33, 64, 65, 100, 128, 130});
    if (s.dk == 1) s.qk_l2norm = false;  // the gradient of x / |x| is 0 but for eps: a difference of equal numbers
    with_any_rule(rng, [&]<class Rule>(Rule) {
      delta_problem<TypeParam, Rule> p(s, rng);
      if (rng() % 4 == 0) forget_at_times(p, rng);
      delta_gradients<TypeParam, Rule> g(s, rng);
      if (rng() % 4 == 0) g.d_o = {};
      if (rng() % 4 == 0) g.d_final_state = {};
      if (rng() % 4 == 0) g.d_q = {};
      if (rng() % 4 == 0) g.d_k = {};
      if (rng() % 4 == 0) g.d_v = {};
      if (rng() % 4 == 0) g.d_g = {};
      if (rng() % 4 == 0) g.d_beta = {};
      if (rng() % 4 == 0) g.d_initial_state = {};
      const std::int64_t window = pick<std::int64_t>({0, 0, 16, 24, 64}, rng);
      SCOPED_TRACE(::testing::Message() << "problem " << i << ": " << Rule::name << ", B " << s.B << ", T " << s.T
                                        << ", heads " << s.HK << ' ' << s.HV << ", dk " << s.dk << ", dv " << s.dv
                                        << ", sequences " << s.lengths.size() << ", normalised " << s.qk_l2norm
                                        << ", g_min " << s.g_min << ", window " << window);
      expect_gradients(p, g, s.T == 0 ? 0 : window);
    });
    if (this->HasFailure()) return;  // one report is enough
  }
}

TYPED_TEST(GatedDeltaRuleBackwardCuda, LargeHeadDims) {
  std::mt19937 rng(102);
  for (const auto& [dk, dv] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{200, 40}, {256, 512}, {500, 20}, {512, 512}, {32, 300}}) {
    SCOPED_TRACE(::testing::Message() << "dk " << dk << ", dv " << dv);
    const delta_shape s{.B = 1, .T = 21, .HK = 1, .HV = 2, .dk = dk, .dv = dv, .qk_l2norm = true};
    const delta_problem<TypeParam, rule::gated_delta> p(s, rng);
    expect_gradients(p, delta_gradients<TypeParam, rule::gated_delta>(s, rng));
    const delta_problem<TypeParam, rule::linear> q(s, rng);
    expect_gradients(q, delta_gradients<TypeParam, rule::linear>(s, rng));
  }
}

// bugs B038, B041, B043, B047: decays of every strength, also beside each other in one chunk. At -inf dg is 0.
TYPED_TEST(GatedDeltaRuleBackwardCuda, DecayOfAnyStrength) {
  std::mt19937 rng(103);
  const std::vector<std::vector<float>> patterns = {
      {-20}, {-3}, {-1000, -1e-4f}, {-80, -1e-4f, -1e-4f, -1e-4f, -1e-4f}, {0}, {-INFINITY, 0, 0, -INFINITY}};
  for (const auto& pattern : patterns) {
    const delta_shape s{.B = 1, .T = 70, .HK = 1, .HV = 2, .dk = 16, .dv = 16, .qk_l2norm = true};
    delta_problem<TypeParam, rule::gated_delta> p(s, rng);
    std::size_t i = 0;
    p.g.for_each([&](float& g) { g = pattern[i++ % pattern.size()]; });
    SCOPED_TRACE(::testing::Message() << "decays from " << pattern.front());
    const delta_gradients<TypeParam, rule::gated_delta> g(s, rng);
    expect_gradients(p, g);
    const auto got = backward_on_device(p, g);
    const auto decays = p.g.values();
    const auto gradients = got.d_g.values();
    for (std::size_t t = 0; t < decays.size(); ++t) {
      if (std::isinf(decays[t])) {
        EXPECT_EQ(gradients[t], 0.0f);
      }
    }
  }
}

// bugs B044, B088: the call's own windows, and a sequence longer than all others together.
TYPED_TEST(GatedDeltaRuleBackwardCuda, LongSequences) {
  std::mt19937 rng(104);
  delta_shape s{.B = 1, .T = 9000, .HK = 1, .HV = 1, .dk = 8, .dv = 4, .qk_l2norm = true};
  expect_gradients(delta_problem<TypeParam, rule::gated_delta>(s, rng),
                   delta_gradients<TypeParam, rule::gated_delta>(s, rng), 1024);
  s.T = 1010;
  s.lengths = {2, 0, 1000, 1, 7};
  expect_gradients(delta_problem<TypeParam, rule::gated_delta>(s, rng),
                   delta_gradients<TypeParam, rule::gated_delta>(s, rng), 128);
}

// Blocks enough that each works through several heads of a group.
TYPED_TEST(GatedDeltaRuleBackwardCuda, HeadsOfAGroupInOneBlock) {
  std::mt19937 rng(107);
  for (const std::int64_t key_heads : {8, 16, 32}) {
    const delta_shape s{.B = 1, .T = 2300, .HK = key_heads, .HV = 32, .dk = 5, .dv = 3, .qk_l2norm = true};
    expect_gradients(delta_problem<TypeParam, rule::gated_delta>(s, rng),
                     delta_gradients<TypeParam, rule::gated_delta>(s, rng));
  }
}

// bugs B113: same bits every time; the caller's workspace is enough, to the byte.
TYPED_TEST(GatedDeltaRuleBackwardCuda, SameBitsInTheCallersWorkspace) {
  std::mt19937 rng(105);
  const delta_shape s{.B = 2, .T = 70, .HK = 1, .HV = 3, .dk = 40, .dv = 72};
  const delta_problem<TypeParam, rule::gated_delta> p(s, rng);
  const delta_gradients<TypeParam, rule::gated_delta> g(s, rng);
  const auto once = backward_on_device(p, g);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  const device_gradients<TypeParam, rule::gated_delta> gradients(g);
  const guarded_workspace memory(workspace_bytes(on_cuda{}, device.args(), gradients.views()));
  gated_delta_rule_backward(on_cuda{.workspace = memory.whole()}, device.args(), gradients.views());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto again = g;
  gradients.download(again);
  EXPECT_TRUE(memory.guards_untouched());
  EXPECT_TRUE(bitwise_equal(again.d_q, once.d_q));
  EXPECT_TRUE(bitwise_equal(again.d_k, once.d_k));
  EXPECT_TRUE(bitwise_equal(again.d_v, once.d_v));
  EXPECT_TRUE(bitwise_equal(again.d_g, once.d_g));
  EXPECT_TRUE(bitwise_equal(again.d_beta, once.d_beta));
  EXPECT_TRUE(bitwise_equal(again.d_initial_state, once.d_initial_state));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.too_small()}, device.args(), gradients.views()),
                      error_code::workspace, "exec.workspace", "needed"));
  EXPECT_TRUE(refuses(check(on_cuda{.workspace = memory.misaligned()}, device.args(), gradients.views()),
                      error_code::workspace, "exec.workspace", "misaligned"));
}

TYPED_TEST(GatedDeltaRuleBackwardCuda, GraphReplay) {
  std::mt19937 rng(106);
  const delta_shape s{.B = 2, .T = 40, .HK = 2, .HV = 2, .dk = 32, .dv = 32};
  const delta_problem<TypeParam, rule::gated_delta> p(s, rng);
  const delta_gradients<TypeParam, rule::gated_delta> g(s, rng);
  const auto want = backward_on_device(p, g);
  const device_delta<TypeParam, rule::gated_delta> device(p);
  device_gradients<TypeParam, rule::gated_delta> gradients(g);
  const device_stream stream;
  const captured_graph graph(stream,
                             [&] { gated_delta_rule_backward(stream.exec(), device.args(), gradients.views()); });
  for (int i = 0; i < 2; ++i) {
    gradients.d_q.upload(g.d_q);  // poison again
    graph.replay(stream);
    auto got = g;
    gradients.download(got);
    EXPECT_TRUE(bitwise_equal(got.d_q, want.d_q));
    EXPECT_TRUE(bitwise_equal(got.d_g, want.d_g));
  }
}

// Small ones for the sanitizers.
TYPED_TEST(GatedDeltaRuleBackwardCuda, SanitizerBackward) {
  std::mt19937 rng(107);
  delta_shape s{.B = 1, .T = 21, .HK = 1, .HV = 2, .dk = 40, .dv = 24, .qk_l2norm = true};
  expect_gradients(delta_problem<TypeParam, rule::gated_delta>(s, rng),
                   delta_gradients<TypeParam, rule::gated_delta>(s, rng), 16);
  s.lengths = {3, 0, 18};
  s.memory = {{0, 2, 3, 1}, 3};
  expect_gradients(delta_problem<TypeParam, rule::gated>(s, rng), delta_gradients<TypeParam, rule::gated>(s, rng), 16);
}

// bugs B166: tokens behind the last offset are of no sequence: their gradients are 0, and they add to none.
TYPED_TEST(GatedDeltaRuleBackwardCuda, RowsOfNoSequence) {
  std::mt19937 rng(141);
  const delta_shape s{.B = 1, .T = 48, .HK = 1, .HV = 2, .dk = 24, .dv = 20, .lengths = {20, 28}};
  const delta_problem<TypeParam, rule::gated_delta> whole(s, rng);
  delta_gradients<TypeParam, rule::gated_delta> g(s, rng);
  g.d_final_state = {};
  auto cut = whole;
  cut.cu_seqlens.assign({0, 20, 31});
  const auto got = backward_on_device(cut, g);
  clear_from(31, g.d_o);
  judge(got, whole, g);
}

// Devices with less shared memory run other tiles, to the same values, or refuse what has no room.
TYPED_TEST(GatedDeltaRuleBackwardCuda, LessSharedMemory) {
  std::mt19937 rng(142);
  for (const std::size_t kib : {99, 163}) {
    for (const std::int64_t dk : {64, 128, 200, 512}) {
      if (kib == 99 && dk == 512) continue;
      SCOPED_TRACE(::testing::Message() << kib << " KiB, dk " << dk);
      const delta_shape s{.B = 1, .T = 37, .HK = 2, .HV = 4, .dk = dk, .dv = 300, .qk_l2norm = true};
      const delta_problem<TypeParam, rule::gated_delta> p(s, rng);
      const delta_gradients<TypeParam, rule::gated_delta> g(s, rng);
      judge(backward_on_device(p, g, 0, {.shared_memory_limit = kib * 1024}), p, g);
    }
  }
}

}  // namespace
}  // namespace polystate::testing
