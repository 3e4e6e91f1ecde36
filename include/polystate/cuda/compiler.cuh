// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the CUDA backend asks of a compiler, in one error instead of one for each line that the compiler cannot take.

#include <polystate/core/macros.hpp>

// nvcc lists its targets in ascending order.
#define POLYSTATE_DETAIL_FIRST_(first, ...) first
#define POLYSTATE_DETAIL_FIRST(...) POLYSTATE_DETAIL_FIRST_(__VA_ARGS__, )

// An include that is not there stops the compiler, which #error does not (core/macros.hpp).
// clang-format off
#if !defined(__CUDACC__)
#  include "polystate/cuda needs a CUDA compiler: include its .cuh headers in .cu files, compiled by nvcc"
#elif defined(__CUDA_ARCH_LIST__)
#  if POLYSTATE_DETAIL_FIRST(__CUDA_ARCH_LIST__) < 800
#    include "polystate/cuda needs sm_80 or newer: set CMAKE_CUDA_ARCHITECTURES, or give nvcc -arch (its default is older)"
#  endif
#endif
// clang-format on

#undef POLYSTATE_DETAIL_FIRST
#undef POLYSTATE_DETAIL_FIRST_
