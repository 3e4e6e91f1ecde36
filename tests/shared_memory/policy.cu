// SPDX-License-Identifier: Apache-2.0

// No kernel takes more shared memory than the device has: a smaller tile is chosen, or check() refuses with size and
// limit. bugs B121, B122.

#include "support/refusal.hpp"

#include <polystate/cuda/gated_delta_rule.cuh>
#include <polystate/cuda/multi_state.cuh>
#include <polystate/cuda/selective_scan.cuh>
#include <polystate/cuda/ssd.cuh>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace polystate::testing {
namespace {

using polystate_detail::cuda::device_limits;
namespace rec = polystate_detail::cuda::recurrence;
namespace scan = polystate_detail::cuda::scan;
namespace layer = polystate_detail::cuda::layer;

constexpr std::size_t kib = 1024;
/// sm_86, sm_89, sm_120; one more; sm_80, sm_87; sm_90, sm_100; more than any device has.
constexpr std::size_t limits_of_devices[] = {99 * kib, 100 * kib, 163 * kib, 227 * kib, std::size_t{1} << 30};
constexpr std::size_t largest_limit = 227 * kib;

const std::vector<std::int64_t> head_dims = {1, 3, 8, 16, 24, 32, 33, 64, 65, 96, 128, 130, 192, 256, 257, 400, 512};

template <class F>
void for_each_problem(F&& f) {
  for (const std::size_t bytes : limits_of_devices) {
    for (const std::int64_t dk : head_dims) {
      for (const std::int64_t dv : head_dims) {
        for (const std::int64_t states : {1, 6, 40, 128, 5000}) f(device_limits{132, bytes}, dk, dv, states);
      }
    }
  }
}

/// The tile fits where check() says so; a device with 163 KiB takes every size.
void expect_fits(std::size_t chosen, const status& checked, const device_limits& limits) {
  if (checked.ok()) {
    EXPECT_LE(chosen, limits.shared_bytes);
    EXPECT_LE(chosen, largest_limit);
  } else {
    EXPECT_LT(limits.shared_bytes, 163 * kib) << checked.message();
    EXPECT_TRUE(refuses(checked, error_code::unsupported, "q", std::to_string(limits.shared_bytes)));
    EXPECT_NE(checked.detail.find("dk = "), std::string::npos) << checked.detail;
  }
}

template <class Form>
void expect_recurrence_fits() {
  for_each_problem([](const device_limits& limits, std::int64_t dk, std::int64_t dv, std::int64_t states) {
    for (const int bytes : {2, 4}) {
      for (const bool gated : {false, true}) {
        if (gated && !Form::finishes) continue;
        SCOPED_TRACE(::testing::Message() << "limit " << limits.shared_bytes << ", dk " << dk << ", dv " << dv
                                          << ", states " << states << ", bytes " << bytes << ", gated " << gated);
        const int d_o_bytes = gated ? 4 : bytes;
        const status forward = rec::check_forward_fits<Form>("op", "q", "dk", dk, bytes, gated, limits);
        const status backward = rec::check_backward_fits<Form>("op", "q", "dk", dk, bytes, d_o_bytes, limits);
        static_cast<void>(dispatch(rec::padded_key_dim(dk), rec::key_dims{}, [&](auto padded) {
          const auto walk = rec::choose_forward<Form, padded>(states, dv, bytes, gated, limits);
          expect_fits(walk.shared_bytes, forward, limits);
          const auto again = rec::choose_forward<Form, padded>(states, dv, bytes, false, limits);
          expect_fits(again.shared_bytes, backward, limits);
          const auto reverse = rec::choose_reverse<Form, padded>(states, dv, bytes, d_o_bytes, limits);
          expect_fits(reverse.shared_bytes, backward, limits);
          const int rows = rec::gradient_tile::rows_within(padded, Form::erases, limits.shared_bytes);
          EXPECT_GE(rows, rec::least_gradient_rows);
          expect_fits(rec::gradient_tile::bytes(padded, static_cast<int>(dv), rows, Form::erases), backward, limits);
        }));
        // What shared memory of 99 KiB has room for: dk up to 256.
        if (dk <= 256) EXPECT_TRUE(forward.ok() && backward.ok());
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}
TEST(SharedMemory, DeltaFormFits) { expect_recurrence_fits<rec::delta_form<true>>(); }
TEST(SharedMemory, FormWithoutErasureFits) { expect_recurrence_fits<rec::delta_form<false>>(); }
TEST(SharedMemory, SsdFits) { expect_recurrence_fits<rec::ssd_form>(); }

TEST(SharedMemory, WideKeysAreRefusedWithSizeAndLimit) {
  const device_limits small{80, 99 * kib};
  EXPECT_TRUE(
      refuses(rec::check_forward_fits<rec::delta_form<true>>("gated_delta_rule", "q", "dk", 512, 4, false, small),
              error_code::unsupported, "q",
              "dk = 512 takes 145952 bytes of shared memory a block, supported on this device: up to 101376"));
  EXPECT_TRUE(rec::check_forward_fits<rec::delta_form<true>>("", "q", "dk", 512, 4, false, {132, 163 * kib}).ok());
}

/// Problems of every kind of block: batches, channels, lengths, packed or not.
template <class Data>
void expect_scan_fits() {
  int compact = 0;
  for (const std::size_t bytes : limits_of_devices) {
    const device_limits limits{132, bytes};
    for (const std::int64_t N : {1, 2, 5, 16, 17, 64, 65, 128, 256}) {
      for (const std::int64_t T : {1, 20, 96, 97, 600, 20000}) {
        for (const std::int64_t D : {1, 8, 37, 256, 4096}) {
          for (const std::int64_t B : {1, 8, 64}) {
            const selective_scan_args<Data> args{.u = {nullptr, {B, T, D}},
                                                 .delta = {nullptr, {B, T, D}},
                                                 .A = {nullptr, {D, N}},
                                                 .B = {nullptr, {B, T, 1, N}},
                                                 .C = {nullptr, {B, T, 1, N}},
                                                 .y = {nullptr, {B, T, D}}};
            const selective_scan_grads<Data> grads{.d_u = {nullptr, {B, T, D}}, .d_B = {nullptr, {B, T, 1, N}}};
            SCOPED_TRACE(::testing::Message()
                         << "limit " << bytes << ", B " << B << ", T " << T << ", D " << D << ", N " << N);
            const auto forward = scan::plan_forward(args, limits, false);
            if (forward.along_time) EXPECT_LE(scan::wide_time_forward<Data>::shared_bytes(N), bytes);
            const auto plan = scan::plan_backward(args, grads, limits, false);
            const std::int64_t channels = plan.backward.schedule.tile_channels;
            const std::size_t taken = plan.block == scan::backward_block::wide
                                          ? scan::wide_backward<Data>::shared_bytes(channels, N)
                                      : plan.block == scan::backward_block::few_lanes
                                          ? scan::short_backward<Data>::shared_bytes(channels, N)
                                          : scan::compact_backward<Data>::shared_bytes(channels, N);
            EXPECT_LE(taken, bytes);
            EXPECT_LE(plan.compact_forward ? scan::compact_time_forward<Data>::shared_bytes(N)
                                           : scan::wide_time_forward<Data>::shared_bytes(N),
                      bytes);
            EXPECT_TRUE(scan::check_backward_fits<Data>("op", N, limits).ok());
            if (bytes >= largest_limit) EXPECT_NE(plan.block, scan::backward_block::compact);
            compact += plan.block == scan::backward_block::compact;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(compact, 0);
}
TEST(SharedMemory, ScanOfFloatFits) { expect_scan_fits<float>(); }
TEST(SharedMemory, ScanOfBfloat16Fits) { expect_scan_fits<bfloat16>(); }

template <std::size_t... Choices>
std::size_t largest_scan_tile(std::index_sequence<Choices...>) {
  std::size_t bytes = 0;
  ((bytes = std::max(bytes, sizeof(scan::tile<float, scan::splits[Choices].lanes, scan::splits[Choices].states>))),
   ...);
  return bytes;
}
// The forward with lanes over states is what runs where lanes along time have no room: any device has room for it.
TEST(SharedMemory, LanesOverStatesFitEverywhere) {
  EXPECT_LE(largest_scan_tile(std::make_index_sequence<sizeof(scan::splits) / sizeof(scan::splits[0])>{}), 99 * kib);
}

// bugs B122: a driver that reports nothing, 4 GiB as 1, or a gigabyte.
TEST(SharedMemory, AbsurdReportsAreCutToWhatIsSane) {
  for (const long long reported : {-1LL, 0LL, 1LL, 47LL * 1024}) {
    EXPECT_EQ(polystate_detail::cuda::sane_shared_bytes(reported), 48 * kib);
  }
  EXPECT_EQ(polystate_detail::cuda::sane_shared_bytes(99 * 1024), 99 * kib);
  EXPECT_EQ(polystate_detail::cuda::sane_shared_bytes(1LL << 30), largest_limit);
  EXPECT_EQ(polystate_detail::cuda::sane_shared_bytes(0x100000001LL), largest_limit);
}

TEST(SharedMemory, ReadOutFits) {
  for (const std::size_t bytes : limits_of_devices) {
    for (const std::int64_t dk : head_dims) {
      const status s = layer::check_read_out_fits("multi_state", dk, {132, bytes});
      EXPECT_EQ(s.ok(), layer::read_out_tile::bytes(static_cast<int>(dk)) <= bytes);
      if (dk <= 256 || bytes >= 163 * kib) EXPECT_TRUE(s.ok()) << s.message();
    }
  }
  EXPECT_LE(sizeof(layer::block_tile<512>), 99 * kib);
}

}  // namespace
}  // namespace polystate::testing
