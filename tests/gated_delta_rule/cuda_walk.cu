// SPDX-License-Identifier: Apache-2.0

// The walks of the recurrences where shared memory has room for one buffer of keys only, as on sm_80 with wide heads:
// the kernels are launched as launch_forward() and launch_reverse() do on such a device.

#include "gated_delta_rule/cuda_problem.cuh"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace polystate::testing {
namespace {

namespace rec = polystate_detail::cuda::recurrence;
using form = rec::form_of_rule<rule::gated_delta>;
constexpr int padded = 64;
constexpr int walkers = 4;
using split = rec::tensor_split<padded, walkers, form::erases>;

template <class Data>
class RecurrenceWalkCuda : public ::testing::Test {};
using element_types = ::testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(RecurrenceWalkCuda, element_types);

template <class Params>
void launch_walk(void (*kernel)(Params), const Params& p, std::size_t shared_bytes) {
  const polystate_detail::cuda::grid g{
      .blocks = p.items.size() * p.in.heads() * polystate_detail::cuda::tiles_of(p.in.dv(), split::block_rows),
      .threads = split::threads,
      .shared_bytes = shared_bytes};
  EXPECT_TRUE(polystate_detail::cuda::launch("walk", on_cuda{}, g, kernel, p).ok());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
}

/// Three tiles and a part of one, blocks with and without all their rows, and an empty sequence.
template <class Data>
void expect_same_bits(std::mt19937& rng) {
  using problem = delta_problem<Data, rule::gated_delta>;
  const problem p(delta_shape{.B = 1, .T = 77, .HK = 1, .HV = 2, .dk = 50, .dv = 70, .lengths = {55, 0, 22}}, rng);
  const device_delta<Data, rule::gated_delta> device(p);
  gated_delta_rule(on_cuda{}, device.args());
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  problem want = p;
  device.download(want);

  const auto args = device.args();
  const auto in = operands_of(args);
  const rec::work_items items(sequences(args.q.extent(0), args.q.extent(1), args.cu_seqlens), args.q.extent(1));
  rec::forward_params<form> forward = {.in = rec::make_shared_operands(in, args.o),
                                       .form = rec::make_form(in),
                                       .items = items,
                                       .initial_state = polystate_detail::cuda::any_element_view<4>(args.initial_state),
                                       .final_state = polystate_detail::cuda::any_element_view<4>(args.final_state),
                                       .carry_in = {},
                                       .carry_out = {},
                                       .record = {}};
  const int bytes = polystate_detail::cuda::bytes_of(forward.in.key.type());
  const std::int64_t states = items.tiles(rec::record_tokens) * 2 * rec::recorded_rows(70) * padded;
  tensor<float, 1> d_states[2] = {tensor<float, 1>({states}), tensor<float, 1>({states})};
  tensor<float, 1> d_written[2] = {tensor<float, 1>({77 * 2 * 70}), tensor<float, 1>({77 * 2 * 70})};
  for (const int buffers : {1, 2}) {
    SCOPED_TRACE(::testing::Message() << buffers << " buffers");
    const device_delta<Data, rule::gated_delta> fresh(p);
    forward.in.out = polystate_detail::cuda::any_element_view<4>(fresh.args().o);
    forward.final_state = polystate_detail::cuda::any_element_view<4>(fresh.args().final_state);
    forward.key_buffers = buffers;
    launch_walk(rec::recurrence_fwd_kernel<form, padded, walkers, rec::work_items>, forward,
                rec::forward_tile<form::erases, padded, walkers>::bytes(bytes, false, buffers));
    problem got = p;
    fresh.download(got);
    EXPECT_TRUE(bitwise_equal(got.o, want.o));
    EXPECT_TRUE(bitwise_equal(got.final_state, want.final_state));

    const device_tensor<float, 1> device_states(d_states[buffers - 1]);
    const device_tensor<float, 1> device_written(d_written[buffers - 1]);
    const rec::reverse_params<form> reverse = {
        .in = forward.in,
        .form = forward.form,
        .items = items,
        .d_o = {.values = forward.in.value, .first = 0, .whole = forward.in.whole_values},
        .d_final_state = {},
        .d_initial_state = {},
        .carry_in = {},
        .carry_out = {},
        .d_states = device_states.view().data(),
        .d_written = device_written.view().data(),
        .key_buffers = buffers};
    launch_walk(rec::recurrence_reverse_kernel<form, padded, walkers>, reverse,
                rec::reverse_tile<form::erases, padded, walkers>::bytes(bytes, bytes, buffers));
    device_states.download(d_states[buffers - 1]);
    device_written.download(d_written[buffers - 1]);
  }
  for_each(d_written[0].view(), [](const float& x) { EXPECT_TRUE(std::isfinite(x)); });
  EXPECT_TRUE(bitwise_equal(d_written[0], d_written[1]));
  EXPECT_TRUE(bitwise_equal(d_states[0], d_states[1]));
}

TYPED_TEST(RecurrenceWalkCuda, SanitizerOneBufferOfKeys) {
  std::mt19937 rng(68);
  expect_same_bits<TypeParam>(rng);
}

}  // namespace
}  // namespace polystate::testing
