// SPDX-License-Identifier: Apache-2.0

// torch.ops.polystate.selective_scan and its backward: views in, outputs allocated, nothing else. Autograd is in
// selective_scan.py.

#include <polystate/cuda/selective_scan.cuh>
#include <polystate/interop/torch.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace ps = polystate;
using at::Tensor;
using optional_tensor = std::optional<Tensor>;

namespace {

struct operands {
  const Tensor &u, &delta, &A, &B, &C;
  const optional_tensor &D, &z, &delta_bias, &initial_state;
  bool delta_softplus;
};

template <class Data>
ps::selective_scan_args<Data> args_of(const ps::torch_operands& of, const operands& o, const Tensor& y = {},
                                      const Tensor& final_state = {}) {
  return {.u = of("u", o.u),
          .delta = of("delta", o.delta),
          .A = of("A", o.A),
          .B = of("B", o.B),
          .C = of("C", o.C),
          .D = of("D", o.D),
          .z = of("z", o.z),
          .delta_bias = of("delta_bias", o.delta_bias),
          .initial_state = of("initial_state", o.initial_state),
          .y = of("y", y),
          .final_state = of("final_state", final_state),
          .delta_softplus = o.delta_softplus};
}

Tensor scratch(std::size_t bytes, const Tensor& beside) {
  return at::empty({static_cast<std::int64_t>(bytes)}, beside.options().dtype(at::kByte));
}

/// Calls f with a value of the element type of u.
template <class F>
void visit_data(const Tensor& u, F&& f) {
  switch (u.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(ps::bfloat16{});
    default:
      TORCH_CHECK_VALUE(false, "selective_scan: u: dtype ", u.scalar_type(), ", supported: float32, bfloat16");
  }
}

std::tuple<Tensor, Tensor> forward(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                   const Tensor& C, const optional_tensor& D, const optional_tensor& z,
                                   const optional_tensor& delta_bias, const optional_tensor& initial_state,
                                   bool delta_softplus) {
  const c10::cuda::CUDAGuard guard(u.device());
  const ps::torch_operands of("selective_scan", u.device());
  const Tensor y = at::empty_like(u);
  const Tensor final_state = at::empty({u.size(0), A.size(0), A.size(1)}, A.options());
  visit_data(u, [&]<class Data>(Data) {
    const auto args =
        args_of<Data>(of, {u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus}, y, final_state);
    const Tensor memory = scratch(ps::workspace_bytes(ps::on_cuda{}, args), u);
    ps::selective_scan(ps::torch_stream(u.device(), memory), args);
  });
  return {y, final_state};
}

using nine_tensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

nine_tensors backward(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                      const optional_tensor& D, const optional_tensor& z, const optional_tensor& delta_bias,
                      const optional_tensor& initial_state, bool delta_softplus, const optional_tensor& d_y,
                      const optional_tensor& d_final_state) {
  const c10::cuda::CUDAGuard guard(u.device());
  const ps::torch_operands of("selective_scan_backward", u.device());
  const auto like = [](const optional_tensor& t) { return t.has_value() ? at::empty_like(*t) : Tensor{}; };
  const Tensor d_u = at::empty_like(u), d_delta = at::empty_like(delta), d_A = at::empty_like(A),
               d_B = at::empty_like(B), d_C = at::empty_like(C), d_D = like(D), d_z = like(z),
               d_delta_bias = like(delta_bias), d_initial_state = like(initial_state);
  visit_data(u, [&]<class Data>(Data) {
    const auto args = args_of<Data>(of, {u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus});
    const ps::selective_scan_grads<Data> grads{.d_y = of("d_y", d_y),
                                               .d_final_state = of("d_final_state", d_final_state),
                                               .d_u = of("d_u", d_u),
                                               .d_delta = of("d_delta", d_delta),
                                               .d_A = of("d_A", d_A),
                                               .d_B = of("d_B", d_B),
                                               .d_C = of("d_C", d_C),
                                               .d_D = of("d_D", d_D),
                                               .d_z = of("d_z", d_z),
                                               .d_delta_bias = of("d_delta_bias", d_delta_bias),
                                               .d_initial_state = of("d_initial_state", d_initial_state)};
    const Tensor memory = scratch(ps::workspace_bytes(ps::on_cuda{}, args, grads), u);
    ps::selective_scan_backward(ps::torch_stream(u.device(), memory), args, grads);
  });
  return {d_u, d_delta, d_A, d_B, d_C, d_D, d_z, d_delta_bias, d_initial_state};
}

}  // namespace

TORCH_LIBRARY(polystate, m) {
  const std::string operands =
      "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
      "Tensor? initial_state, bool delta_softplus";
  m.def(("selective_scan(" + operands + ") -> (Tensor, Tensor)").c_str());
  m.def(("selective_scan_backward(" + operands +
         ", Tensor? d_y, Tensor? d_final_state) -> "
         "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
}

TORCH_LIBRARY_IMPL(polystate, CUDA, m) {
  m.impl("selective_scan", &forward);
  m.impl("selective_scan_backward", &backward);
}
