// SPDX-License-Identifier: Apache-2.0

// The adapters on CUDA against the reference, compiled once for each element type: POLYSTATE_TEST_DATA.

#include "adapters/cuda_problem.cuh"
#include "adapters/oracle.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/recurrence_properties.hpp"
#include "support/refusal.hpp"
#include "support/workspace.cuh"

#include <polystate/cuda/adapters/token_modulation.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::testing {
namespace {

using Data = POLYSTATE_TEST_DATA;

/// Relative L2 error of a tensor. Of 16-bit data about ten roundings lie on the way of a token; of float the sums of
/// the products and the scan's exponentials weigh more.
constexpr double bound = (std::is_same_v<Data, float> ? 64 : 16) * roundoff<Data>::unit;

template <class T, int Rank>
void expect_close(const tensor<T, Rank>& got, const tensor<double, Rank>& want, const char* name) {
  if (!got) return;
  const double error = relative_l2(got, want);
  ::testing::Test::RecordProperty(std::string("error_of_") + name, std::to_string(error));
  EXPECT_LE(error, bound) << name;
  EXPECT_TRUE(got.untouched_outside()) << name;
}

void judge(const malora_problem<Data>& got, const malora_problem<double>& want) {
  expect_close(got.h, want.h, "h");
  expect_close(got.lam, want.lam, "lam");
  expect_close(got.after.conv, want.after.conv, "final_conv_state");
  expect_close(got.after.scan, want.after.scan, "final_scan_state");
}

malora_problem<Data> on_device(malora_problem<Data> p, const device_malora<Data>& device, const on_cublas& exec) {
  malora(exec, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  device.download(p);
  return p;
}

modulation_shape large(bool diagonal) {
  return {.B = 3,
          .T = 70,
          .din = 48,
          .dout = 40,
          .r = 8,
          .diagonal = diagonal,
          .block = {.d = 12, .di = 24, .W = 4, .R = 2, .N = 16}};
}

TEST(MaloraCuda, EqualsTheReference) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(1);
  std::vector<modulation_shape> shapes;
  for (const bool diagonal : {false, true}) {
    shapes.push_back(large(diagonal));
    shapes.push_back({.diagonal = diagonal});  // sizes that are multiples of nothing
    shapes.push_back({.B = 1, .T = 1, .diagonal = diagonal, .base = false});
    shapes.push_back({.T = 0, .diagonal = diagonal});
    auto packed = large(diagonal);
    packed.B = 1;
    packed.lengths = {30, 0, 1, 39};
    shapes.push_back(packed);
    auto without = large(diagonal);
    without.initial_states = without.final_states = false;
    without.memory = {{1, 0, 2}, 3};  // time first, gaps
    shapes.push_back(without);
    auto transposed = large(diagonal);
    transposed.memory = {{0, 2, 1}, 0};  // tokens together
    shapes.push_back(transposed);
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(i);
    const malora_problem<Data> p(shapes[i], rng);
    const device_malora<Data> device(p);
    const auto got = on_device(p, device, exec);
    judge(got, run_reference(p.in_double()));
    EXPECT_TRUE(device.inputs_unchanged());
    EXPECT_TRUE(bitwise_equal(on_device(p, device_malora<Data>(p), exec).h, got.h)) << "the same bits again";
  }
}

// Token by token, and 8 at a time: the reference's full pass.
TEST(MaloraCuda, DecodingEqualsTheFullPass) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(2);
  for (const bool diagonal : {false, true}) {
    const malora_problem<Data> p(large(diagonal), rng);
    const auto want = run_reference(p.in_double());
    for (const std::int64_t tokens : {1, 8}) {
      const device_malora<Data> device(p);
      for (std::int64_t t = 0; t < 70; t += tokens) {
        malora_step(exec, device.step_args(t, std::min<std::int64_t>(70, t + tokens)));
      }
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      auto got = p;
      device.download(got);
      device.conv_before.download(got.after.conv);
      device.scan_before.download(got.after.scan);
      SCOPED_TRACE(tokens);
      judge(got, want);
    }
  }
}

TEST(MaloraCuda, PaddingRowsOfAStep) {
  const blas_handle handle;
  std::mt19937 rng(3);
  malora_problem<Data> p({.B = 2, .T = 3}, rng);
  const device_malora<Data> device(p);
  tensor<std::int32_t, 1> slots({2});
  slots.assign({-1, 1});
  const device_tensor<std::int32_t, 1> device_slots(slots);
  auto args = device.step_args(0, 3);
  args.read_indices = device_slots.view();
  malora_step(on_cublas{.handle = handle.get()}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto got = p;
  device.download(got);
  EXPECT_TRUE(all_are(got.h.view().select(0, 0), 0) && all_are(got.lam.view().select(0, 0), 0));
  EXPECT_FALSE(all_are(got.h.view().select(0, 1), 0));
  device.scan_before.download(got.after.scan);
  EXPECT_TRUE(same_bits(got.after.scan.view().select(0, 0), p.before.scan.view().select(0, 0)));
}

TEST(ToploraCuda, EqualsTheReference) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(4);
  for (const std::int64_t r : {1, 2, 8, 33, 100}) {
    for (const bool option : {false, true}) {
      auto shape = large(true);
      shape.r = r;
      shape.base = shape.rms_w = option;
      const toplora_problem<Data> p(shape, rng);
      const device_toplora<Data> device(p);
      toplora(exec, device.args());
      POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
      auto got = p;
      device.h.download(got.h);
      device.lam.download(got.lam);
      const auto want = run_reference(p.in_double());
      SCOPED_TRACE(r);
      expect_close(got.h, want.h, "h");
      expect_close(got.lam, want.lam, "lam");
      EXPECT_TRUE(device.inputs_unchanged());
    }
  }
}

// A workspace of exactly the bytes asked for gives the same bits; a stream of the caller's.
TEST(MaloraCuda, WorkspaceAndStream) {
  const blas_handle handle;
  on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(5);
  const malora_problem<Data> p(large(true), rng);
  const auto without = on_device(p, device_malora<Data>(p), exec);
  cudaStream_t stream = nullptr;
  POLYSTATE_CUDA_REQUIRE(cudaStreamCreate(&stream));
  exec.cuda.stream = stream;
  const device_malora<Data> device(p);
  const guarded_workspace memory(workspace_bytes(exec, device.args()));
  exec.cuda.workspace = memory.whole();
  const auto got = on_device(p, device, exec);
  EXPECT_TRUE(bitwise_equal(got.h, without.h) && bitwise_equal(got.lam, without.lam));
  EXPECT_TRUE(memory.guards_untouched());
  exec.cuda.workspace.bytes -= 1;
  EXPECT_TRUE(refuses(check(exec, device.args()), error_code::workspace, "exec.workspace", "needed"));
  POLYSTATE_CUDA_REQUIRE(cudaStreamDestroy(stream));
}

TEST(MaloraCuda, Refusals) {
  const blas_handle handle;
  const on_cublas exec{.handle = handle.get()};
  std::mt19937 rng(6);
  const malora_problem<Data> p({}, rng);
  const device_malora<Data> device(p);
  auto args = device.args();
  EXPECT_TRUE(check(exec, args).ok()) << check(exec, args).message();
  EXPECT_TRUE(refuses(check(on_cublas{}, args), error_code::missing, "exec.handle", "cublasHandle_t"));
  args.x = {args.x.data(), {2, 5, 4}, {1, 2, 10}};
  EXPECT_TRUE(refuses(check(exec, args), error_code::stride, "x", "malora: x: neither rows nor columns"));
  EXPECT_THROW(malora(exec, args), argument_error);
  args = device.args();
  args.A = {};
  EXPECT_TRUE(refuses(check(exec, args), error_code::missing, "A", "(r, din)"));
  const malora_problem<Data> many({.block = {.N = 257}}, rng);
  EXPECT_TRUE(refuses(check(exec, device_malora<Data>(many).args()), error_code::unsupported, "A_log",
                      "N = 257, supported: 1 to 256"));
  auto got = p;
  device.download(got);
  EXPECT_TRUE(all_are(got.h.view(), std::nan("")));
}

}  // namespace
}  // namespace polystate::testing
