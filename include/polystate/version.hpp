// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The version, and the two namespace names derived from it. Nothing else states the version: CMake reads it
/// here.

#define POLYSTATE_VERSION_MAJOR 0
#define POLYSTATE_VERSION_MINOR 1
#define POLYSTATE_VERSION_PATCH 0

#define POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch) v##major##_##minor##_##patch
#define POLYSTATE_DETAIL_PASTE_VERSION(major, minor, patch) \
  POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch)

/// Inline namespace of everything that units built by different compilers may pass to each other: args,
/// views, status, errors. Two versions in one process share no symbol.
#define POLYSTATE_ABI \
  POLYSTATE_DETAIL_PASTE_VERSION(POLYSTATE_VERSION_MAJOR, POLYSTATE_VERSION_MINOR, POLYSTATE_VERSION_PATCH)

// What changes the code that a header compiles to, without changing its text.
#if defined(_OPENMP)
#  define POLYSTATE_DETAIL_TAG_OPENMP openmp
#else
#  define POLYSTATE_DETAIL_TAG_OPENMP serial
#endif

#if defined(__AVX512F__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx512
#elif defined(__AVX2__) && defined(__FMA__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx2_fma
#elif defined(__AVX2__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx2
#elif defined(__AVX__)
#  define POLYSTATE_DETAIL_TAG_SIMD avx
#elif defined(__SSE4_1__)
#  define POLYSTATE_DETAIL_TAG_SIMD sse4
#elif defined(__ARM_FEATURE_SVE)
#  define POLYSTATE_DETAIL_TAG_SIMD sve
#else
#  define POLYSTATE_DETAIL_TAG_SIMD base
#endif

// __CUDA_ARCH_LIST__ is nvcc's comma-separated list of targets, the same in its host and device passes.
#define POLYSTATE_DETAIL_PASTE_BUILD_(openmp, simd, a, b, c, d, e, f, g, h, ...) \
  build_##openmp##_##simd##_cuda##a##b##c##d##e##f##g##h
#define POLYSTATE_DETAIL_PASTE_BUILD(...) POLYSTATE_DETAIL_PASTE_BUILD_(__VA_ARGS__, , , , , , , , , )
#if defined(__CUDA_ARCH_LIST__)
#  define POLYSTATE_BUILD \
    POLYSTATE_DETAIL_PASTE_BUILD(POLYSTATE_DETAIL_TAG_OPENMP, POLYSTATE_DETAIL_TAG_SIMD, __CUDA_ARCH_LIST__)
#else
/// Inline namespace of the policies and of everything in `detail`: builds for other CUDA architectures,
/// another SIMD level, with or without OpenMP, have other names, so that two libraries in one process never
/// run each other's code.
#  define POLYSTATE_BUILD \
    POLYSTATE_DETAIL_PASTE_BUILD(POLYSTATE_DETAIL_TAG_OPENMP, POLYSTATE_DETAIL_TAG_SIMD, none)
#endif
