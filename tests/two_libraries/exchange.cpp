// SPDX-License-Identifier: Apache-2.0
// Args go into the two libraries, a status and an exception come out, whatever each was built with.

#include "library.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#if defined(ON_CUDA)
#  include <cuda_runtime_api.h>
#endif

namespace ps = polystate;

namespace {

#if defined(ON_CUDA)

/// Memory that host and device see.
template <class T>
struct shared_memory {
  using value_type = T;
  T* allocate(std::size_t n) {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, n * sizeof(T), cudaMemAttachGlobal) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { cudaFree(memory); }
  bool operator==(const shared_memory&) const = default;
};

void finish() { ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess); }

#else

template <class T>
using shared_memory = std::allocator<T>;

void finish() {}

#endif

using buffer = std::vector<float, shared_memory<float>>;

struct problem {
  buffer x{1, 2, 3};
  buffer weight{0.5F, 2};
  buffer y = buffer(3);
  ps::causal_conv1d_args<float> args{
      .x = {x.data(), {1, 3, 1}}, .weight = {weight.data(), {1, 2}}, .y = {y.data(), {1, 3, 1}}};
};

}  // namespace

TEST(two_libraries, take_the_same_args) {
  for (auto* convolve : {&first::convolve, &second::convolve}) {
    problem p;
    convolve(p.args);
    finish();
    EXPECT_EQ(p.y, (buffer{2, 4.5F, 7}));
  }
}

TEST(two_libraries, return_the_same_status) {
  problem p;
  p.args.weight = {p.weight.data(), {2, 1}};
  const ps::status ours = ps::check(p.args);
  EXPECT_EQ(ours.code, ps::error_code::shape);
  EXPECT_EQ(first::check(p.args).message(), ours.message());
  EXPECT_EQ(second::check(p.args).message(), ours.message());
}

TEST(two_libraries, throw_the_same_exception) {
  for (auto* convolve : {&first::convolve, &second::convolve}) {
    problem p;
    p.args.weight = {};
    try {
      convolve(p.args);
      FAIL() << "accepted an absent weight";
    } catch (const ps::argument_error& error) {
      EXPECT_EQ(error.status().code, ps::error_code::missing);
      EXPECT_EQ(error.status().argument, "weight");
    }
  }
}
