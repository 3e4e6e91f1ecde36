# SPDX-License-Identifier: Apache-2.0
"""Recurrences in torch, with their gradients: what references in float64 are made of."""
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


class MatrixRecurrence(torch.autograd.Function):
    """S[t] = a[t] S[t-1] (I - beta[t] k[t] k[t]^T) + beta[t] v[t] k[t]^T, or without beta S[t] = a[t] S[t-1] +
    v[t] k[t]^T, from S[-1] = 0, token by token. Of q, k (T, n, dk), v (T, n, dv), a, beta (T, n) it returns o[t] =
    S[t] q[t] and the last S (n, dv, dk). The backward recomputes the states from one in `run` tokens."""

    run = 128

    @staticmethod
    def forward(ctx, q, k, v, a, beta):
        S = q.new_zeros(v.shape[1], v.shape[2], k.shape[2])
        o, checkpoints = torch.empty_like(v), []
        for t in range(q.shape[0]):
            if t % MatrixRecurrence.run == 0:
                checkpoints.append(S)
            S, _ = _next_state(S, k[t], v[t], a[t], None if beta is None else beta[t])
            o[t] = _product(S, q[t])
        ctx.save_for_backward(q, k, v, a, beta)
        ctx.checkpoints = checkpoints
        return o, S

    @staticmethod
    def backward(ctx, d_o, d_last):
        q, k, v, a, beta = ctx.saved_tensors
        d_q, d_k, d_v, d_a = (torch.empty_like(x) for x in (q, k, v, a))
        d_beta = None if beta is None else torch.empty_like(beta)
        d_S = d_last.clone()
        for begin in reversed(range(0, q.shape[0], MatrixRecurrence.run)):
            tokens = range(begin, min(begin + MatrixRecurrence.run, q.shape[0]))
            states, surprises = [ctx.checkpoints[begin // MatrixRecurrence.run]], []
            for t in tokens:
                S, e = _next_state(states[-1], k[t], v[t], a[t], None if beta is None else beta[t])
                states.append(S)
                surprises.append(e)
            for t in reversed(tokens):
                before, S, e = states[t - begin], states.pop(), surprises.pop()
                d_S.baddbmm_(d_o[t][:, :, None], q[t][:, None])
                d_q[t] = _product(S.mT, d_o[t])
                d_e = _product(d_S, k[t])  # of the row that is written, with beta times it
                if beta is None:
                    d_k[t] = _product(d_S.mT, e)
                else:
                    d_k[t] = _product(d_S.mT, beta[t][:, None] * e)
                    d_beta[t] = (d_e * e).sum(-1)
                    d_e = beta[t][:, None] * d_e
                    d_k[t] -= a[t][:, None] * _product(before.mT, d_e)
                    d_S.baddbmm_(d_e[:, :, None], k[t][:, None], alpha=-1)
                d_v[t] = d_e
                d_a[t] = (d_S * before).sum((1, 2))
                d_S.mul_(a[t][:, None, None])
        return d_q, d_k, d_v, d_a, d_beta


def _product(S, x):
    return torch.bmm(S, x[:, :, None])[:, :, 0]


def _next_state(S, k, v, a, beta):
    """The state after a token, and the row v - (a S) k, or v, that is written under its key with beta times it."""
    S = S * a[:, None, None]
    if beta is None:
        return S.baddbmm_(v[:, :, None], k[:, None]), v
    e = v - _product(S, k)
    return S.baddbmm_((beta[:, None] * e)[:, :, None], k[:, None]), e


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))
