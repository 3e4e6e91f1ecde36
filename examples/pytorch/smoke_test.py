#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the extension's outputs and gradients with a loop over time in float64."""
import sys

import torch

from selective_scan import selective_scan

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
PARAMETERS = ("A", "D", "delta_bias", "initial_state")


def loop(u, delta, A, B, C, D, z, delta_bias, h):
    """The definition, with groups of channels."""
    channels_of_group = u.shape[2] // B.shape[2]
    y = []
    for t in range(u.shape[1]):
        dt = delta[:, t] + delta_bias
        dt = torch.logaddexp(dt, torch.zeros_like(dt))
        b, c = (x[:, t].repeat_interleave(channels_of_group, 1) for x in (B, C))
        h = torch.exp(dt[..., None] * A) * h + (dt * u[:, t])[..., None] * b
        y.append(((h * c).sum(-1) + D * u[:, t]) * torch.nn.functional.silu(z[:, t]))
    return torch.stack(y, 1), h


def make(dtype, batch, time, channels, groups, states, channel_first):
    torch.manual_seed(0)

    def sequence(*shape):
        t = torch.randn(batch, time, *shape, device="cuda")
        return t.movedim(1, -1).contiguous().movedim(-1, 1) if channel_first else t

    values = {"u": sequence(channels), "delta": sequence(channels) * 0.5,
              "A": -torch.rand(channels, states, device="cuda") * states - 0.5, "B": sequence(groups, states),
              "C": sequence(groups, states), "D": torch.randn(channels, device="cuda"), "z": sequence(channels),
              "delta_bias": torch.randn(channels, device="cuda") - 2,
              "initial_state": torch.randn(batch, channels, states, device="cuda")}
    return [v if n in PARAMETERS else v.to(dtype) for n, v in values.items()]


def run(function, operands, d_y, d_state):
    leaves = [t.detach().requires_grad_() for t in operands]
    y, state = function(*leaves)
    gradients = torch.autograd.grad((y, state), leaves, (d_y.to(y.dtype), d_state.to(state.dtype)))
    return dict(zip(("y", "final_state", *("d_" + n for n in NAMES)), (y, state, *gradients)))


def main():
    worst = 0.0
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3)):
        for shape in ((2, 33, 8, 2, 16), (1, 300, 40, 1, 20)):
            for channel_first in (False, True):
                operands = make(dtype, *shape, channel_first)
                d_y, d_state = torch.randn_like(operands[0]), torch.randn_like(operands[-1])
                got = run(lambda *t: selective_scan(*t, delta_softplus=True), operands, d_y, d_state)
                expected = run(loop, [t.double() for t in operands], d_y, d_state)
                for name, value in got.items():
                    error = ((value.double() - expected[name]).norm() / expected[name].norm()).item()
                    ok = error <= bound  # false for NaN too
                    worst = max(worst, error / bound) if ok else float("inf")
                    if not ok:
                        order = "channel-first" if channel_first else "channel-last"
                        print(f"{name}: relative error {error:.2g}, bound {bound:g} ({dtype}, {shape}, {order})")
    try:
        selective_scan(*(t.double() for t in operands))
        print("float64 was not refused")
        worst = float("inf")
    except ValueError as e:
        print("refused as it should be:", e)
    print("largest error / bound:", f"{worst:.2f}")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
