// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The few macros of the library.

#include <polystate/version.hpp>

#if defined(__CUDACC__)
#  if defined(__NVCC__) && __cplusplus < 202002L
#    error \
        "polystate needs CUDA sources compiled as C++20. CMake before 3.27 drops CMAKE_CUDA_STANDARD 20 for nvcc 13: link polystate::cuda (which passes -std=c++20) or add -std=c++20 yourself."
#  endif
#  define POLYSTATE_HOST_DEVICE __host__ __device__
#else
#  if __cplusplus < 202002L
#    error "polystate needs C++20: compile with -std=c++20 or link a polystate:: target."
#  endif
#  define POLYSTATE_HOST_DEVICE
#endif

/// Kept out of a shared library's symbol table: kernels and their launchers.
#define POLYSTATE_HIDDEN __attribute__((visibility("hidden")))
