// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The few macros of the library.

#include <polystate/version.hpp>

// A compiler goes on after #error, and reports the rest of the header too. It stops at an include that it cannot find:
// the name says what is wrong, and is the only error.
// clang-format off
#if __cplusplus < 202002L
#  if defined(__NVCC__)
#    include "polystate needs CUDA sources compiled as C++20: link polystate::cuda, or give nvcc -std=c++20 (CMake before 3.27 drops CMAKE_CUDA_STANDARD 20 for nvcc 13)"
#  else
#    include "polystate needs C++20: compile with -std=c++20, or link a polystate:: target"
#  endif
#endif
// clang-format on

#if defined(__CUDACC__)
#  define POLYSTATE_HOST_DEVICE __host__ __device__
#else
#  define POLYSTATE_HOST_DEVICE
#endif

/// Kept out of a shared library's symbol table: kernels and their launchers.
#define POLYSTATE_HIDDEN __attribute__((visibility("hidden")))
