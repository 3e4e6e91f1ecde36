// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The version, and the two namespace names derived from it. Nothing else states the version: CMake reads it
/// here.

#include <version>  // defines the standard library's configuration macros

#define POLYSTATE_VERSION_MAJOR 0
#define POLYSTATE_VERSION_MINOR 1
#define POLYSTATE_VERSION_PATCH 0

// A status holds strings and a state_bank holds vectors. libstdc++ has two kinds of the strings (PyTorch's wheels were
// long built with the old one) and, in its debug mode, larger vectors.
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#  define POLYSTATE_DETAIL_TAG_STRING _old_string
#else
#  define POLYSTATE_DETAIL_TAG_STRING
#endif
#if defined(_GLIBCXX_DEBUG)
#  define POLYSTATE_DETAIL_TAG_CONTAINERS _debug
#else
#  define POLYSTATE_DETAIL_TAG_CONTAINERS
#endif

#define POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch, string, containers) \
  v##major##_##minor##_##patch##string##containers
#define POLYSTATE_DETAIL_PASTE_VERSION(major, minor, patch, string, containers) \
  POLYSTATE_DETAIL_PASTE_VERSION_(major, minor, patch, string, containers)

/// Inline namespace of everything that units built by different compilers may pass to each other: args,
/// views, status, errors. Two versions in one process share no symbol.
#define POLYSTATE_ABI                                                                                       \
  POLYSTATE_DETAIL_PASTE_VERSION(POLYSTATE_VERSION_MAJOR, POLYSTATE_VERSION_MINOR, POLYSTATE_VERSION_PATCH, \
                                 POLYSTATE_DETAIL_TAG_STRING, POLYSTATE_DETAIL_TAG_CONTAINERS)

// What changes the code that a header compiles to, without changing its text.
#if defined(_OPENMP)
#  define POLYSTATE_DETAIL_TAG_OPENMP openmp
#else
#  define POLYSTATE_DETAIL_TAG_OPENMP serial
#endif

#if defined(__cpp_exceptions)
#  define POLYSTATE_DETAIL_TAG_EXCEPTIONS exceptions
#else
#  define POLYSTATE_DETAIL_TAG_EXCEPTIONS noexceptions
#endif

// The parts of -ffast-math that compilers define macros for: finite (no NaN, no infinity), associative (sums in any
// order), unsigned zeros, reciprocal (a/b as a * (1/b)).
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#  define POLYSTATE_DETAIL_TAG_FINITE f
#else
#  define POLYSTATE_DETAIL_TAG_FINITE
#endif
#if defined(__ASSOCIATIVE_MATH__)
#  define POLYSTATE_DETAIL_TAG_ASSOCIATIVE a
#else
#  define POLYSTATE_DETAIL_TAG_ASSOCIATIVE
#endif
#if defined(__NO_SIGNED_ZEROS__)
#  define POLYSTATE_DETAIL_TAG_ZEROS z
#else
#  define POLYSTATE_DETAIL_TAG_ZEROS
#endif
#if defined(__RECIPROCAL_MATH__)
#  define POLYSTATE_DETAIL_TAG_RECIPROCAL r
#else
#  define POLYSTATE_DETAIL_TAG_RECIPROCAL
#endif

#define POLYSTATE_DETAIL_PASTE_MATH_(finite, associative, zeros, reciprocal) \
  math##finite##associative##zeros##reciprocal
#define POLYSTATE_DETAIL_PASTE_MATH(...) POLYSTATE_DETAIL_PASTE_MATH_(__VA_ARGS__)
#define POLYSTATE_DETAIL_TAG_MATH                                                            \
  POLYSTATE_DETAIL_PASTE_MATH(POLYSTATE_DETAIL_TAG_FINITE, POLYSTATE_DETAIL_TAG_ASSOCIATIVE, \
                              POLYSTATE_DETAIL_TAG_ZEROS, POLYSTATE_DETAIL_TAG_RECIPROCAL)

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

// Stream 0 is one stream of the process, or one of each thread.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#  define POLYSTATE_DETAIL_TAG_STREAM _thread_stream
#else
#  define POLYSTATE_DETAIL_TAG_STREAM
#endif

// __CUDA_ARCH_LIST__ is nvcc's comma-separated list of targets, the same in its host and device passes; it counts up to
// sixteen. It has no word for the "a" of sm_90a: host code is the same with and without.
#define POLYSTATE_DETAIL_PASTE_BUILD_(openmp, exceptions, math, simd, fma, stream, a, b, c, d, e, f, g, h, i, j, k, l, \
                                      m, n, o, p, ...)                                                                 \
  build_##openmp##_##exceptions##_##math##_##simd##_##fma##stream##_cuda##a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
#define POLYSTATE_DETAIL_PASTE_BUILD(...) POLYSTATE_DETAIL_PASTE_BUILD_(__VA_ARGS__, , , , , , , , , , , , , , , , , )
#if defined(__CUDA_ARCH_LIST__)
#  define POLYSTATE_DETAIL_TAG_CUDA __CUDA_ARCH_LIST__
#else
#  define POLYSTATE_DETAIL_TAG_CUDA none
#endif

/// Inline namespace of the policies, of everything in `polystate_detail` and of every function that computes or throws.
/// Two builds have other names, so that two libraries in one process never run each other's code, where they differ in
///
/// - CUDA architectures, SIMD level, FMA, OpenMP;
/// - exceptions on or off: a refused call throws or aborts;
/// - -ffast-math or a part of it: -ffinite-math-only, -fassociative-math, -fno-signed-zeros, -freciprocal-math (clang
///   defines a macro for the whole and for the first only);
/// - stream 0: of the process, or of each thread (nvcc --default-stream).
///
/// What no macro shows is not in the name: give units that are linked into one program the same -use_fast_math, -ftz,
/// -prec-div, -prec-sqrt and -fmad of nvcc, -ffp-contract and -fno-math-errno. -fno-rtti is not in the name either, so
/// that units with and without it can catch each other's errors; to ask a caught one for its dynamic type (typeid,
/// dynamic_cast), build all units with RTTI. NDEBUG changes none of our code. Eigen has no such tag: libraries that
/// embed the host backends at different SIMD levels should be built with -fvisibility=hidden, or they share Eigen's
/// functions.
#define POLYSTATE_BUILD                                                                                        \
  POLYSTATE_DETAIL_PASTE_BUILD(POLYSTATE_DETAIL_TAG_OPENMP, POLYSTATE_DETAIL_TAG_EXCEPTIONS,                   \
                               POLYSTATE_DETAIL_TAG_MATH, POLYSTATE_DETAIL_TAG_SIMD, POLYSTATE_DETAIL_TAG_FMA, \
                               POLYSTATE_DETAIL_TAG_STREAM, POLYSTATE_DETAIL_TAG_CUDA)
