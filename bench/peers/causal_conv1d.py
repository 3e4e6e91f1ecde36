# SPDX-License-Identifier: Apache-2.0
"""Causal conv1d with bias and silu: ours and causal-conv1d's."""
import torch

from contest import Case, Contender
from operands import Random, once
from polystate_c import CausalConv1d, CausalConv1dGrads, CausalConv1dStep, why_not

# B, T, D, W; targets of forward and of forward + backward in ms
SHAPES = [((8, 2048, 4096, 4), 0.075, 0.20)]
QUICK_SHAPES = [((2, 72, 64, 4), None, None)]
STEPS = [(64, 4096, 4)]
QUICK_STEPS = [(3, 64, 4)]
STEP_TARGET = 1.3  # of the bytes floor


def make(seed, channel_last, B, T, D, W):
    """x and d_y as (B, D, T), in either memory order."""
    r = Random(seed)

    def sequence():
        t = r.normal(B, D, T).bfloat16()
        return t.transpose(1, 2).contiguous().transpose(1, 2) if channel_last else t

    return {"x": sequence(), "d_y": sequence(), "weight": r.normal(D, W), "bias": r.normal(D)}


def convolve(padded, weight, bias):
    """silu of the convolution of (B, D, T + W - 1), in the operands' own type."""
    W = weight.shape[1]
    T = padded.shape[2] - (W - 1)
    y = bias[:, None] + sum(weight[:, j, None] * padded[:, :, j:j + T] for j in range(W))
    return torch.nn.functional.silu(y)


def reference(operands):
    leaves = {k: operands[k].double().detach().requires_grad_() for k in ("x", "weight", "bias")}
    padded = torch.nn.functional.pad(leaves["x"], (leaves["weight"].shape[1] - 1, 0))
    y = convolve(padded, leaves["weight"], leaves["bias"])
    d_x, d_weight, d_bias = torch.autograd.grad(y, list(leaves.values()), operands["d_y"].double())
    return {"y": y.detach().transpose(1, 2), "d_x": d_x.transpose(1, 2), "d_weight": d_weight, "d_bias": d_bias}


def make_step(seed, channel_last, B, D, W):
    """x (B, D, 1) and the last W - 1 tokens (B, D, W-1), in either memory order."""
    r = Random(seed)

    def sequence(T):
        t = r.normal(B, D, T).bfloat16()
        return t.transpose(1, 2).contiguous().transpose(1, 2) if channel_last else t

    return {"x": sequence(1), "state": sequence(W - 1), "weight": r.normal(D, W), "bias": r.normal(D)}


def step_reference(operands):
    v = {k: t.double() for k, t in operands.items()}
    p = torch.cat([v["state"], v["x"]], 2)
    return {"y": convolve(p, v["weight"], v["bias"]).transpose(1, 2), "state": p[:, :, 1:].transpose(1, 2)}


class Ours:
    def __init__(self, library):
        self.polystate = library

    def forward(self, v, fresh):
        x = v["x"].transpose(1, 2)
        y = fresh.like(x)
        self.polystate.call("causal_conv1d", CausalConv1d(x=x, weight=v["weight"], bias=v["bias"], y=y, act="silu"))
        return {"y": y}

    def forward_backward(self, v, fresh):
        result = self.forward(v, fresh)
        x = v["x"].transpose(1, 2)
        result.update(d_x=fresh.like(x), d_weight=fresh.like(v["weight"]), d_bias=fresh.like(v["bias"]))
        args = CausalConv1d(x=x, weight=v["weight"], bias=v["bias"], act="silu")
        grads = CausalConv1dGrads(d_y=v["d_y"].transpose(1, 2), **{k: t for k, t in result.items() if k != "y"})
        function = "causal_conv1d_backward"
        workspace = self.polystate.workspace(function, args, grads, empty=fresh)
        self.polystate.call(function, args, grads, workspace=workspace)
        return result

    def step(self, v, fresh):
        x, state = v["x"].transpose(1, 2), v["state"].transpose(1, 2)
        y = fresh.like(x)
        args = CausalConv1dStep(x=x, weight=v["weight"], bias=v["bias"], state=state, y=y, act="silu")
        self.polystate.call("causal_conv1d_step", args)
        return {"y": y, "state": state}


class Peer:
    """Calls of causal-conv1d as its own Python interface makes them."""

    def __init__(self, peer, channel_last):
        self.peer = peer
        self.channel_last = channel_last

    def _call(self, function, v, *tensors):
        B, D, T = v["x"].shape
        self.peer.call(function, B, D, T, v["weight"].shape[1], int(self.channel_last), 1, v["x"], *tensors)

    def forward(self, v, fresh):
        y = fresh.like(v["x"])
        self._call("causal_conv1d_fwd", v, v["weight"], v["bias"], y)
        return {"y": y.transpose(1, 2)}

    def forward_backward(self, v, fresh):
        result = self.forward(v, fresh)
        d_x, d_weight, d_bias = fresh.like(v["x"]), torch.zeros_like(v["weight"]), torch.zeros_like(v["bias"])
        self._call("causal_conv1d_bwd", v, v["weight"], v["bias"], v["d_y"], d_x, d_weight, d_bias)
        return {**result, "d_x": d_x.transpose(1, 2), "d_weight": d_weight, "d_bias": d_bias}

    def step(self, v, fresh):
        y = fresh.like(v["x"])
        self._call("causal_conv1d_update", v, v["state"], v["weight"], v["bias"], y)
        return {"y": y.transpose(1, 2), "state": v["state"].transpose(1, 2)}


def cases(library, peers, quick):
    ours, theirs = library and Ours(library), peers["causal-conv1d"]
    for (B, T, D, W), *targets in QUICK_SHAPES if quick else SHAPES:
        for layout in ("channel_first", "channel_last"):
            last = layout == "channel_last"
            sets = once(make, channel_last=last, B=B, T=T, D=D, W=W)
            expected = once(lambda sets=sets: reference(sets(0)))
            for kind, target in zip(("forward", "forward_backward"), targets):
                function = {"forward": "causal_conv1d", "forward_backward": "causal_conv1d_backward"}[kind]
                reason = why_not(library, function)
                sequences = 2 if kind == "forward" else 5  # x, y; then x, d_y, d_x
                parameters = 4 * D * (W + 1) * (1 if kind == "forward" else 3)
                peer = getattr(Peer(theirs, last), kind)
                yield Case(
                    kind, layout, {"B": B, "T": T, "D": D, "W": W}, {"data": "bf16", "parameters": "f32"}, expected,
                    None if reason else Contender("polystate", layout, sets, getattr(ours, kind)),
                    Contender("causal-conv1d", layout, sets, peer) if theirs.works else None,
                    2 * sequences * B * T * D + parameters, target_ms=target, no_ours=reason, no_peer=theirs.why_not)
    for B, D, W in QUICK_STEPS if quick else STEPS:
        for layout in ("channel_first", "channel_last"):
            last = layout == "channel_last"
            sets = once(make_step, channel_last=last, B=B, D=D, W=W)
            expected = once(lambda sets=sets: step_reference(sets(0)))
            reason = why_not(library, "causal_conv1d_step")
            yield Case(
                "step", layout, {"B": B, "T": 1, "D": D, "W": W}, {"data": "bf16", "parameters": "f32"}, expected,
                None if reason else Contender("polystate", layout, sets, ours.step, ("state",)),
                Contender("causal-conv1d", layout, sets, Peer(theirs, last).step, ("state",)) if theirs.works else None,
                2 * (2 * B * D + 2 * B * D * (W - 1)) + 4 * D * (W + 1), target_of_bytes_floor=STEP_TARGET,
                no_ours=reason, no_peer=theirs.why_not)
