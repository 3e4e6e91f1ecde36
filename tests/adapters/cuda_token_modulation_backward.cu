// SPDX-License-Identifier: Apache-2.0

// The adapters' gradients on CUDA against the reference's, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "adapters/cuda_problem.cuh"
#include "adapters/modulation_gradients.hpp"
#include "adapters/oracle.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <polystate/cuda/adapters/token_modulation.cuh>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;

/// Relative L2 error of a gradient: those of 16-bit data pass through twice as many roundings as the outputs do.
constexpr double bound = (std::is_same_v<Data, float> ? 256 : 32) * roundoff<Data>::unit;

/// Calls f with the same gradient of each of the sets, for those that both adapters have.
template <class F, class... Sets>
void for_each_low_rank_gradient(F&& f, Sets&&... s) {
  f("d_x", s.d_x...);
  f("d_W0", s.d_W0...);
  f("d_A", s.d_A...);
  f("d_B", s.d_B...);
  f("d_P", s.d_P...);
}
template <class F, class... Sets>
void for_each_malora_gradient(F&& f, Sets&&... s) {
  for_each_low_rank_gradient(f, s...);
  for_each_weight(f, s.d_mamba...);
  f("d_phi_w", s.d_phi_w...);
  f("d_phi_b", s.d_phi_b...);
}

template <class T>
struct device_low_rank_gradients {
  device_tensor<T, 3> d_h;
  device_tensor<acc_t<T>, 3> d_lam;
  device_tensor<T, 3> d_x;
  device_tensor<T, 2> d_W0, d_A, d_B, d_P;

  explicit device_low_rank_gradients(const low_rank_gradients<T>& g)
      : d_h(g.d_h), d_lam(g.d_lam), d_x(g.d_x), d_W0(g.d_W0), d_A(g.d_A), d_B(g.d_B), d_P(g.d_P) {}
  template <class Grads>
  void show_in(Grads& v) const {
    v.d_h = d_h.view();
    v.d_lam = d_lam.view();
    v.d_x = d_x.view();
    v.d_W0 = d_W0.view();
    v.d_A = d_A.view();
    v.d_B = d_B.view();
    v.d_P = d_P.view();
  }
};

template <class T>
struct device_malora_gradients : device_low_rank_gradients<T> {
  device_tensor<T, 3> d_conv_after, d_conv_before;
  device_tensor<acc_t<T>, 3> d_scan_after, d_scan_before;
  device_mamba_weights<T> d_mamba;
  device_tensor<T, 2> d_phi_w;
  device_tensor<acc_t<T>, 1> d_phi_b;

  explicit device_malora_gradients(const malora_gradients<T>& g)
      : device_low_rank_gradients<T>(g),
        d_conv_after(g.d_after.conv),
        d_conv_before(g.d_before.conv),
        d_scan_after(g.d_after.scan),
        d_scan_before(g.d_before.scan),
        d_mamba(g.d_mamba),
        d_phi_w(g.d_phi_w),
        d_phi_b(g.d_phi_b) {}
  [[nodiscard]] malora_grads<T> views() const {
    malora_grads<T> v{};
    this->show_in(v);
    v.d_final_conv_state = d_conv_after.view();
    v.d_final_scan_state = d_scan_after.view();
    v.d_mamba = {.d_in_proj = d_mamba.in_proj.view(),
                 .d_conv_w = d_mamba.conv_w.view(),
                 .d_conv_b = d_mamba.conv_b.view(),
                 .d_x_proj = d_mamba.x_proj.view(),
                 .d_dt_proj_w = d_mamba.dt_proj_w.view(),
                 .d_dt_proj_b = d_mamba.dt_proj_b.view(),
                 .d_A_log = d_mamba.A_log.view(),
                 .d_D = d_mamba.D.view(),
                 .d_out_proj = d_mamba.out_proj.view()};
    v.d_phi_w = d_phi_w.view();
    v.d_phi_b = d_phi_b.view();
    v.d_initial_conv_state = d_conv_before.view();
    v.d_initial_scan_state = d_scan_before.view();
    return v;
  }
  void download(malora_gradients<T>& g) const {
    for_each_malora_gradient([](const char*, const auto& from, auto& to) { from.download(to); }, *this, g);
    d_conv_before.download(g.d_before.conv);
    d_scan_before.download(g.d_before.scan);
  }
};

template <class T, int Rank>
void expect_close(const char* name, const tensor<T, Rank>& got, const tensor<double, Rank>& want) {
  if (!got) return;
  const double error = relative_l2(got, want);
  ::testing::Test::RecordProperty(std::string("error_of_") + name, std::to_string(error));
  EXPECT_LE(error, bound) << name;
  EXPECT_TRUE(got.untouched_outside()) << name;
}

void judge(const malora_gradients<Data>& got, const malora_gradients<double>& want) {
  for_each_malora_gradient([](const char* name, const auto& g, const auto& w) { expect_close(name, g, w); }, got, want);
  expect_close("d_initial_conv_state", got.d_before.conv, want.d_before.conv);
  expect_close("d_initial_scan_state", got.d_before.scan, want.d_before.scan);
}

modulation_shape large(bool diagonal) {
  return {.B = 3,
          .T = 40,
          .din = 48,
          .dout = 40,
          .r = 8,
          .diagonal = diagonal,
          .block = {.d = 12, .di = 24, .W = 4, .R = 2, .N = 16}};
}

TEST(MaloraCudaBackward, EqualsTheReference) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(1);
  std::vector<modulation_shape> shapes;
  for (const bool diagonal : {false, true}) {
    shapes.push_back(large(diagonal));
    shapes.push_back({.diagonal = diagonal, .base = false});
    shapes.push_back({.T = 0, .diagonal = diagonal});
    auto packed = large(diagonal);
    packed.B = 1;
    packed.lengths = {20, 0, 1, 19};
    shapes.push_back(packed);
    auto apart = large(diagonal);
    apart.initial_states = apart.final_states = false;
    apart.memory = {{1, 0, 2}, 3};  // time first, gaps
    shapes.push_back(apart);
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(i);
    const malora_problem<Data> p(shapes[i], rng);
    malora_gradients<Data> g(shapes[i], rng);
    const device_malora<Data> device(p);
    const device_malora_gradients<Data> device_gradients(g);
    malora_backward(exec, device.args(), device_gradients.views());
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
    const auto want = run_reference(p.in_double(), g.in_double());
    device_gradients.download(g);
    judge(g, want);
    EXPECT_TRUE(device.inputs_unchanged());
    auto outputs = p;
    device.download(outputs);
    EXPECT_TRUE(all_are(outputs.h.view(), std::nan("")) && all_are(outputs.lam.view(), std::nan("")));
  }
}

// Without an upstream gradient every gradient is zero; in a workspace of exactly the bytes asked for.
TEST(MaloraCudaBackward, NoUpstreamAndWorkspace) {
  const blas_handle handle;
  on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(2);
  const malora_problem<Data> p(large(true), rng);
  malora_gradients<Data> g(large(true), rng);
  const device_malora<Data> device(p);
  const device_malora_gradients<Data> device_gradients(g);
  auto views = device_gradients.views();
  views.d_h = {};
  views.d_lam = {};
  views.d_final_conv_state = {};
  views.d_final_scan_state = {};
  const guarded_workspace memory(workspace_bytes(exec, device.args(), views));
  exec.cuda.workspace = memory.whole();
  malora_backward(exec, device.args(), views);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device_gradients.download(g);
  for_each_malora_gradient([](const char* name, const auto& d) { EXPECT_TRUE(all_are(d.view(), 0)) << name; }, g);
  EXPECT_TRUE(memory.guards_untouched());
}

TEST(ToploraCudaBackward, EqualsTheReference) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(3);
  for (const std::int64_t r : {1, 2, 8, 33, 100}) {
    for (const bool option : {false, true}) {
      auto shape = large(true);
      shape.r = r;
      shape.base = shape.rms_w = option;
      const toplora_problem<Data> p(shape, rng);
      toplora_gradients<Data> g(shape, rng);
      const device_toplora<Data> device(p);
      const device_low_rank_gradients<Data> device_gradients(g);
      const device_tensor<float, 1> d_rms_w(g.d_rms_w);
      toplora_grads<Data> views{};
      device_gradients.show_in(views);
      views.d_rms_w = d_rms_w.view();
      toplora_backward(exec, device.args(), views);
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      const auto want = run_reference(p.in_double(), g.in_double());
      for_each_low_rank_gradient([](const char*, const auto& from, auto& to) { from.download(to); }, device_gradients,
                                 g);
      d_rms_w.download(g.d_rms_w);
      SCOPED_TRACE(r);
      for_each_low_rank_gradient([](const char* name, const auto& a, const auto& b) { expect_close(name, a, b); }, g,
                                 want);
      expect_close("d_rms_w", g.d_rms_w, want.d_rms_w);
    }
  }
}

TEST(MaloraCudaBackward, Refusals) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(4);
  const malora_problem<Data> p({}, rng);
  const malora_gradients<Data> g({}, rng);
  const device_malora<Data> device(p);
  auto views = device_malora_gradients<Data>(g).views();
  EXPECT_TRUE(check(exec, device.args(), views).ok()) << check(exec, device.args(), views).message();
  views.d_x = {views.d_x.data(), {2, 5, 4}, {1, 2, 10}};
  EXPECT_TRUE(refuses(check(exec, device.args(), views), error_code::stride, "d_x", "malora_backward: d_x: neither"));
}

}  // namespace
}  // namespace polystate::testing
