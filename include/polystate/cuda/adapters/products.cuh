// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The matrix products and decays that adapters are composed of, as adapters/compose_mamba_block.hpp asks.

#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/adapters/cublas.cuh>
#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/tiling.hpp>

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters {

inline constexpr int threads = 256;

struct decay_params {
  tensor_view<const float, 2> from;  ///< A_log, or A
  tensor_view<const float, 2> d;     ///< dA; absent in the forward
  tensor_view<float, 2> to;
};

/// A = -exp(A_log), or the derivative with respect to A_log, A dA. A thread has an element.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    adapter_decay_kernel(const __grid_constant__ decay_params p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x;
  if (i >= p.to.size()) return;
  const std::int64_t row = i / p.to.extent(1), column = i % p.to.extent(1);
  const float x = p.from(row, column);
  p.to(row, column) = p.d ? x * p.d(row, column) : -expf(x);
}

template <class Data>
class cublas_products {
 public:
  cublas_products(const char* op, const on_cublas& exec) : op_(op), exec_(exec) {}

  status product(const tensor_view<const Data, 2>& W, const tensor_view<const Data, 3>& x,
                 const tensor_view<Data, 3>& y, bool add) const {
    return by_tokens(x, y, [&](const auto& x2, const auto& y2) {
      return blas::multiply<Data>(op_, exec_, x2, W.permuted(swapped), y2, add);
    });
  }
  status transposed(const tensor_view<const Data, 2>& W, const tensor_view<const Data, 3>& dy,
                    const tensor_view<Data, 3>& dx, bool add) const {
    return by_tokens(
        dy, dx, [&](const auto& dy2, const auto& dx2) { return blas::multiply<Data>(op_, exec_, dy2, W, dx2, add); });
  }
  status outer(const tensor_view<const Data, 3>& dy, const tensor_view<const Data, 3>& x,
               const tensor_view<Data, 2>& dW) const {
    bool add = false;
    status s = by_tokens(dy, x, [&](const auto& dy2, const auto& x2) {
      const bool later = add;
      add = true;
      return blas::multiply<Data>(op_, exec_, dy2.permuted(swapped), x2, dW, later);
    });
    if (!s.ok() || add) return s;
    const tensor_view<const Data, 2> none_dy(nullptr, {dW.extent(0), 0}), none_x(nullptr, {0, dW.extent(1)});
    return blas::multiply<Data>(op_, exec_, none_dy, none_x, dW, false);
  }
  status decay(const tensor_view<const float, 2>& A_log, const tensor_view<float, 2>& A) const {
    return launch_decay({A_log, {}, A});
  }
  status decay_adjoint(const tensor_view<const float, 2>& A, const tensor_view<const float, 2>& dA,
                       const tensor_view<float, 2>& d_A_log) const {
    return launch_decay({A, dA, d_A_log});
  }

 protected:
  [[nodiscard]] const char* op() const { return op_; }
  [[nodiscard]] const on_cuda& cuda() const { return exec_.cuda; }
  [[nodiscard]] static grid grid_of(std::int64_t elements) {
    return {.blocks = tiles_of(elements, threads), .threads = threads};
  }

 private:
  static constexpr int swapped[2] = {1, 0};  // without the 2, nvcc hands g++ 13 an array without a length

  /// Whether the tokens of all batch entries are rows of one matrix.
  template <class T>
  static bool one_matrix(const tensor_view<T, 3>& x) {
    if (x.extent(0) <= 1) return true;
    const bool even = x.extent(1) <= 1 ? x.stride(0) >= x.extent(2) : x.stride(0) == x.extent(1) * x.stride(1);
    return even && x.stride(2) == 1;
  }
  template <class T>
  static tensor_view<T, 2> all_tokens(const tensor_view<T, 3>& x) {
    const std::int64_t apart = x.extent(1) <= 1 ? x.stride(0) : x.stride(1);
    return {x.data(), {x.extent(0) * x.extent(1), x.extent(2)}, {apart, x.stride(2)}};
  }
  /// f on the tokens of both, all at once where they can be, else one batch entry after the other.
  template <class X, class Y, class F>
  static status by_tokens(const tensor_view<X, 3>& x, const tensor_view<Y, 3>& y, F&& f) {
    if (x.extent(0) == 0 || x.extent(1) == 0) return {};
    if (one_matrix(x) && one_matrix(y)) return f(all_tokens(x), all_tokens(y));
    status s;
    for (std::int64_t b = 0; b < x.extent(0) && s.ok(); ++b) s = f(x.select(0, b), y.select(0, b));
    return s;
  }
  status launch_decay(const decay_params& p) const {
    return launch(op_, exec_.cuda, grid_of(p.to.size()), adapter_decay_kernel<threads>, p);
  }

  const char* op_;
  const on_cublas& exec_;
};

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::adapters
