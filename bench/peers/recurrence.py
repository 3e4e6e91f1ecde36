# SPDX-License-Identifier: Apache-2.0
"""A linear recurrence in torch, with its gradient: what references in float64 are made of."""
import math

import torch


def linear_recurrence(a, b):
    """h[t] = a[t] h[t-1] + b[t] along the first dimension, h[-1] = 0: in runs of about sqrt(T) tokens, all of them at
    once, and then run after run."""
    T = a.shape[0]
    length = max(1, math.isqrt(T))
    runs = -(-T // length)
    pad = runs * length - T
    if pad:
        a = torch.cat([a, a.new_ones(pad, *a.shape[1:])])
        b = torch.cat([b, b.new_zeros(pad, *b.shape[1:])])
    a, b = a.unflatten(0, (runs, length)), b.unflatten(0, (runs, length))
    h, decay = torch.empty_like(b), torch.empty_like(a)  # decay: of the whole run so far
    h[:, 0], decay[:, 0] = b[:, 0], a[:, 0]
    for t in range(1, length):
        torch.addcmul(b[:, t], a[:, t], h[:, t - 1], out=h[:, t])
        torch.mul(decay[:, t - 1], a[:, t], out=decay[:, t])
    for r in range(1, runs):
        h[r].addcmul_(decay[r], h[r - 1, -1])
    return h.flatten(0, 1)[:T]


class LinearRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        h = linear_recurrence(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, d_h):
        a, h = ctx.saved_tensors
        after = torch.cat([a[1:], torch.zeros_like(a[:1])])
        d_b = linear_recurrence(after.flip(0), d_h.flip(0)).flip(0)
        before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
        return d_b * before, d_b
