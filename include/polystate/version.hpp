// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The version, and the two namespace names derived from it. Nothing else states the version: CMake reads it
/// here.

#include <version>  // defines the standard library's configuration macros

#define POLYSTATE_VERSION_MAJOR 0
#define POLYSTATE_VERSION_MINOR 1
#define POLYSTATE_VERSION_PATCH 0

// A status holds strings, and libstdc++ has two kinds of them (PyTorch's wheels were long built with the old
// one).
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#  define POLYSTATE_DETAIL_TAG_STRING _old_string
#else
#  define POLYSTATE_DETAIL_TAG_STRING
#endif

#define POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch, string) v##major##_##minor##_##patch##string
#define POLYSTATE_DETAIL_PASTE_VERSION(major, minor, patch, string) \
  POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch, string)

/// Inline namespace of everything that units built by different compilers may pass to each other: args,
/// views, status, errors. Two versions in one process share no symbol.
#define POLYSTATE_ABI                                                                                       \
  POLYSTATE_DETAIL_PASTE_VERSION(POLYSTATE_VERSION_MAJOR, POLYSTATE_VERSION_MINOR, POLYSTATE_VERSION_PATCH, \
                                 POLYSTATE_DETAIL_TAG_STRING)

// What changes the code that a header compiles to, without changing its text.
#if defined(_OPENMP)
#  define POLYSTATE_DETAIL_TAG_OPENMP openmp
#else
#  define POLYSTATE_DETAIL_TAG_OPENMP serial
#endif

#if defined(__FAST_MATH__)
#  define POLYSTATE_DETAIL_TAG_MATH fastmath
#else
#  define POLYSTATE_DETAIL_TAG_MATH ieee
#endif

// The levels that Eigen has code for.
#if defined(__AVX512DQ__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx512dq
#elif defined(__AVX512F__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx512
#elif defined(__AVX2__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx2
#elif defined(__AVX__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx
#elif defined(__SSE4_2__)
#  define POLYSTATE_DETAIL_TAG_SIMD sse4_2
#elif defined(__SSE4_1__)
#  define POLYSTATE_DETAIL_TAG_SIMD sse4_1
#elif defined(__SSE3__)
#  define POLYSTATE_DETAIL_TAG_SIMD sse3
#elif defined(__ARM_FEATURE_SVE)
#  define POLYSTATE_DETAIL_TAG_SIMD sve
#else
#  define POLYSTATE_DETAIL_TAG_SIMD base
#endif

#if defined(__FMA__) && defined(__F16C__)
#  define POLYSTATE_DETAIL_TAG_FMA fma_f16c
#elif defined(__FMA__)
#  define POLYSTATE_DETAIL_TAG_FMA fma
#elif defined(__F16C__)
#  define POLYSTATE_DETAIL_TAG_FMA f16c
#else
#  define POLYSTATE_DETAIL_TAG_FMA nofma
#endif

// __CUDA_ARCH_LIST__ is nvcc's comma-separated list of targets, the same in its host and device passes. It
// has no word for the "a" of sm_90a: host code is the same with and without.
#define POLYSTATE_DETAIL_PASTE_BUILD_(openmp, math, simd, fma, a, b, c, d, e, f, g, h, ...) \
  build_##openmp##_##math##_##simd##_##fma##_cuda##a##b##c##d##e##f##g##h
#define POLYSTATE_DETAIL_PASTE_BUILD(...) POLYSTATE_DETAIL_PASTE_BUILD_(__VA_ARGS__, , , , , , , , , )
#if defined(__CUDA_ARCH_LIST__)
#  define POLYSTATE_DETAIL_TAG_CUDA __CUDA_ARCH_LIST__
#else
#  define POLYSTATE_DETAIL_TAG_CUDA none
#endif

/// Inline namespace of the policies and of everything in `polystate_detail`: builds for other CUDA architectures,
/// another SIMD level, with or without OpenMP or -ffast-math, have other names, so that two libraries in one
/// process never run each other's code. Eigen has no such tag: libraries that embed the host backends at
/// different SIMD levels should be built with -fvisibility=hidden, or they share Eigen's functions.
#define POLYSTATE_BUILD                                                                                           \
  POLYSTATE_DETAIL_PASTE_BUILD(POLYSTATE_DETAIL_TAG_OPENMP, POLYSTATE_DETAIL_TAG_MATH, POLYSTATE_DETAIL_TAG_SIMD, \
                               POLYSTATE_DETAIL_TAG_FMA, POLYSTATE_DETAIL_TAG_CUDA)
