// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Matrix products of views by cuBLAS, and the policy of operators that need them. Link CUDA::cublas.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/cuda/error.cuh>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

inline namespace POLYSTATE_BUILD {

/// CUDA with cuBLAS for the matrix products. The handle is of the current device and stays the caller's, who uses it
/// for one call at a time; its pointer mode is the default, host. It is put on cuda.stream where it is on another,
/// which takes a workspace of the handle's away: for graph capture put it there, and give it one, before. Its math mode
/// is kept: float products are in float unless it allows TF32. Sums of 16-bit data are in float.
struct on_cublas {
  cublasHandle_t handle = nullptr;
  on_cuda cuda = {};
};

}  // namespace POLYSTATE_BUILD

namespace polystate_detail::inline POLYSTATE_BUILD::cuda::blas {

inline status blas_status(const char* op, cublasStatus_t result) {
  if (result == CUBLAS_STATUS_SUCCESS) return {};
  return {error_code::cuda, op, "cublas", cublasGetStatusString(result)};
}

/// Puts the handle on the call's stream.
inline status set_stream(const char* op, const on_cublas& exec) {
  if (exec.handle == nullptr) return {error_code::missing, op, "exec.handle", "not given; a cublasHandle_t"};
  cudaStream_t now = nullptr;
  status s = blas_status(op, cublasGetStream(exec.handle, &now));
  if (!s.ok() || now == exec.cuda.stream) return s;
  return blas_status(op, cublasSetStream(exec.handle, exec.cuda.stream));
}

template <class Data>
inline constexpr cudaDataType_t data_type = std::is_same_v<Data, float>  ? CUDA_R_32F
                                            : std::is_same_v<Data, half> ? CUDA_R_16F
                                                                         : CUDA_R_16BF;

/// How cuBLAS sees a matrix: rows together, or columns together, `ld` elements apart.
struct storage {
  bool supported = false;
  bool rows_together = true;
  std::int64_t ld = 1;
};
inline storage storage_of(std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                          std::int64_t column_stride) {
  const std::int64_t least_row = std::max<std::int64_t>(1, columns);
  const std::int64_t least_column = std::max<std::int64_t>(1, rows);
  const std::int64_t by_row = rows > 1 ? row_stride : least_row;
  const std::int64_t by_column = columns > 1 ? column_stride : least_column;
  if ((columns <= 1 || column_stride == 1) && by_row >= least_row) return {true, true, by_row};
  if ((rows <= 1 || row_stride == 1) && by_column >= least_column) return {true, false, by_column};
  return {};
}
template <class T>
storage storage_of(const tensor_view<T, 2>& m) {
  return storage_of(m.extent(0), m.extent(1), m.stride(0), m.stride(1));
}
/// Of the tokens of each batch entry.
template <class T>
storage storage_of(const tensor_view<T, 3>& x) {
  return storage_of(x.extent(1), x.extent(2), x.stride(1), x.stride(2));
}

/// An operand of a product: one of its two inner strides is 1, the other no smaller than a row, or a column, is long.
template <class View>
void check_storage(argument_checks& c, const char* name, const View& view) {
  if (!view || view.size() == 0) return;
  c.expect(storage_of(view).supported, error_code::stride, name,
           "neither rows nor columns lie together, supported on cublas: stride 1 along one of the last two indices");
}

/// C (m, n) = A (m, k) B (k, n), added to C where `add`.
template <class Data>
status multiply(const char* op, const on_cublas& exec, const tensor_view<const Data, 2>& A,
                const tensor_view<const Data, 2>& B, const tensor_view<Data, 2>& C, bool add) {
  const std::int64_t m = C.extent(0), n = C.extent(1), k = A.extent(1);
  if (m == 0 || n == 0) return {};
  const storage c = storage_of(C);
  // cuBLAS writes columns that lie together: rows that do are those of C^T = B^T A^T.
  if (c.rows_together) {
    const storage a = storage_of(A), b = storage_of(B);
    const float one = 1.0f, before = add ? 1.0f : 0.0f;
    if (k == 0) {
      if (add) return {};
      return runtime_status(
          op, "products",
          cudaMemset2DAsync(C.data(), static_cast<std::size_t>(c.ld) * sizeof(Data), 0,
                            static_cast<std::size_t>(n) * sizeof(Data), static_cast<std::size_t>(m), exec.cuda.stream));
    }
    const cudaDataType_t type = data_type<Data>;
    return blas_status(
        op, cublasGemmEx_64(exec.handle, b.rows_together ? CUBLAS_OP_N : CUBLAS_OP_T,
                            a.rows_together ? CUBLAS_OP_N : CUBLAS_OP_T, n, m, k, &one, B.data(), type, b.ld, A.data(),
                            type, a.ld, &before, C.data(), type, c.ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  constexpr int swapped[] = {1, 0};
  return multiply<Data>(op, exec, B.permuted(swapped), A.permuted(swapped), C.permuted(swapped), add);
}

}  // namespace polystate_detail::inline POLYSTATE_BUILD::cuda::blas

}  // namespace polystate::inline POLYSTATE_ABI
