# SPDX-License-Identifier: Apache-2.0
"""polystate's selective scan (Mamba-1) as a differentiable PyTorch function. The first import compiles it."""
import pathlib

import torch
from torch.utils import cpp_extension

_HERE = pathlib.Path(__file__).resolve().parent
cpp_extension.load(name="polystate_selective_scan", sources=[str(_HERE / "selective_scan.cu")],
                   extra_include_paths=[str(_HERE.parent.parent / "include")],
                   extra_cuda_cflags=["-O3", "-std=c++20"], is_python_module=False)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, initial_state)
        ctx.delta_softplus = delta_softplus
        ctx.set_materialize_grads(False)  # an output that nothing depends on has no gradient, and costs nothing
        return torch.ops.polystate.selective_scan(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)

    @staticmethod
    def backward(ctx, d_y, d_final_state):
        grads = torch.ops.polystate.selective_scan_backward(*ctx.saved_tensors, ctx.delta_softplus, d_y, d_final_state)
        return (*grads, None)


def selective_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, initial_state=None, delta_softplus=False):
    """y (batch, time, channels) and the final state (batch, channels, N).

    u, delta, z (batch, time, channels); B, C (batch, time, groups, N): float32 or bfloat16, any strides. A (channels,
    N), D, delta_bias (channels), initial_state (batch, channels, N): float32. Formula: polystate/selective_scan.hpp.
    """
    return _SelectiveScan.apply(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)
