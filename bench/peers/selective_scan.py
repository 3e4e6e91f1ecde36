# SPDX-License-Identifier: Apache-2.0
"""Selective scan (Mamba-1) with D, gate, delta_bias and softplus: ours and mamba-ssm's."""
import torch

from contest import Case, Contender
from measure import DEVICE
from operands import Random, once
from polystate_c import SelectiveScan, SelectiveScanGrads, SelectiveScanStep, why_not
from recurrence import LinearRecurrence, softplus

# B, T, D, N; targets of forward and of forward + backward in ms
SHAPES = [((8, 2048, 4096, 16), 0.42, 2.0), ((1, 16384, 5120, 16), 0.72, 3.0), ((1, 131072, 4096, 16), 5.0, 20.0),
          ((64, 20, 256, 64), 0.017, 0.10)]
QUICK_SHAPES = [((2, 300, 64, 16), None, None), ((3, 20, 32, 64), None, None)]
STEPS = [(64, 4096, 16, torch.float32), (64, 4096, 16, torch.bfloat16)]
QUICK_STEPS = [(3, 64, 16, torch.float32), (3, 64, 16, torch.bfloat16)]
STEP_TARGET = 1.3  # of the bytes floor

SEQUENCES = ("u", "delta", "z", "d_y")  # (B, D, T) in the peer's order, (B, T, D) in the headers'
GRADIENTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def make(seed, B, T, D, N):
    """Operands in the order (B, D, T), with B and C (B, 1, N, T)."""
    r = Random(seed)
    normal = r.normal
    return {"u": normal(B, D, T).bfloat16(), "delta": normal(B, D, T).bfloat16() * 0.5,
            "A": -r.uniform(D, N) * N - 0.5, "B": normal(B, 1, N, T).bfloat16(),
            "C": normal(B, 1, N, T).bfloat16(), "D": normal(D), "z": normal(B, D, T).bfloat16(),
            "delta_bias": normal(D) * 0.1 - 2, "d_y": normal(B, D, T).bfloat16()}


def channel_last(operands):
    """The same values, channels contiguous: (B, T, D), B and C (B, T, 1, N)."""
    order = {"B": (0, 3, 1, 2), "C": (0, 3, 1, 2), **{k: (0, 2, 1) for k in SEQUENCES}}
    return {k: t.permute(order[k]).contiguous() if k in order else t for k, t in operands.items()}


def logical(operands):
    """Views of operands in the order (B, D, T) with the headers' order of indices."""
    order = {"B": (0, 3, 1, 2), "C": (0, 3, 1, 2), **{k: (0, 2, 1) for k in SEQUENCES}}
    return {k: t.permute(order[k]) if k in order else t for k, t in operands.items()}


def reference(operands):
    """y and all gradients in float64, from logical views; some channels at a time."""
    B, T, D = operands["u"].shape
    N = operands["A"].shape[1]
    result = {k: torch.empty(B, T, D, dtype=torch.float64, device=DEVICE) for k in ("y", "d_u", "d_delta", "d_z")}
    result["d_A"] = torch.empty(D, N, dtype=torch.float64, device=DEVICE)
    result["d_D"], result["d_delta_bias"] = (torch.empty(D, dtype=torch.float64, device=DEVICE) for _ in range(2))
    result["d_B"], result["d_C"] = (torch.zeros(B, T, 1, N, dtype=torch.float64, device=DEVICE) for _ in range(2))
    channels = max(1, (1 << 26) // (B * T * N))
    for first in range(0, D, channels):
        some = slice(first, first + channels)

        def of_sequence(name):
            return operands[name][:, :, some].double().transpose(0, 1).contiguous()

        leaves = {n: of_sequence(n).requires_grad_() for n in ("u", "delta", "z")}
        leaves.update({n: operands[n][some].double().requires_grad_() for n in ("A", "D", "delta_bias")})
        leaves.update({n: operands[n][:, :, 0].double().transpose(0, 1).contiguous().requires_grad_() for n in "BC"})
        v = leaves
        dt = softplus(v["delta"] + v["delta_bias"])
        h = LinearRecurrence.apply(torch.exp(dt[..., None] * v["A"]), (dt * v["u"])[..., None] * v["B"][:, :, None])
        y = (h * v["C"][:, :, None]).sum(-1) + v["D"] * v["u"]
        y = y * torch.nn.functional.silu(v["z"])
        gradients = torch.autograd.grad(y, [v[n] for n in GRADIENTS], of_sequence("d_y"))
        result["y"][:, :, some] = y.detach().transpose(0, 1)
        for name, gradient in zip(GRADIENTS, gradients):
            if name in ("u", "delta", "z"):
                result["d_" + name][:, :, some] = gradient.transpose(0, 1)
            elif name in ("B", "C"):
                result["d_" + name][:, :, 0] += gradient.transpose(0, 1)
            else:
                result["d_" + name][some] = gradient
    return result


def make_step(seed, B, D, N, state):
    r = Random(seed)
    normal = r.normal
    return {"u": normal(B, D).bfloat16(), "delta": normal(B, D).bfloat16() * 0.5,
            "A": -r.uniform(D, N) * N - 0.5, "B": normal(B, 1, N).bfloat16(),
            "C": normal(B, 1, N).bfloat16(), "D": normal(D), "z": normal(B, D).bfloat16(),
            "delta_bias": normal(D) * 0.1 - 2, "state": normal(B, D, N).to(state)}


def step_reference(operands):
    v = {k: t.double() for k, t in operands.items()}
    dt = softplus(v["delta"] + v["delta_bias"])
    state = torch.exp(dt[..., None] * v["A"]) * v["state"] + (dt * v["u"])[..., None] * v["B"]
    y = ((state * v["C"]).sum(-1) + v["D"] * v["u"]) * torch.nn.functional.silu(v["z"])
    return {"y": y[:, None], "state": state}


class Ours:
    """Calls of libpolystate_c.so on logical views."""

    def __init__(self, library):
        self.polystate = library

    def forward(self, v, fresh):
        y = fresh.like(v["u"])
        args = SelectiveScan(**{k: v[k] for k in v if k != "d_y"}, y=y, delta_softplus=True)
        self._call("selective_scan", fresh, args)
        return {"y": y}

    def forward_backward(self, v, fresh):
        result = self.forward(v, fresh)
        result.update({"d_" + k: fresh.like(v[k]) for k in GRADIENTS})
        args = SelectiveScan(**{k: v[k] for k in v if k != "d_y"}, delta_softplus=True)
        grads = SelectiveScanGrads(d_y=v["d_y"], **{k: t for k, t in result.items() if k != "y"})
        self._call("selective_scan_backward", fresh, args, grads)
        return result

    def step(self, v, fresh):
        sequence = {k: v[k][:, None] for k in ("u", "delta", "z", "B", "C")}
        y = fresh.like(sequence["u"])
        args = SelectiveScanStep(**{**v, **sequence}, y=y, delta_softplus=True)
        self.polystate.call("selective_scan_step", args)
        return {"y": y, "state": v["state"]}

    def _call(self, function, fresh, *operands):
        self.polystate.call(function, *operands, workspace=self.polystate.workspace(function, *operands, empty=fresh))


class Mamba:
    """Calls of mamba-ssm as its own Python interface makes them, on operands in the order (B, D, T)."""

    chunk = 2048  # tokens between two checkpoints of its states

    def __init__(self, peer, steps):
        self.peer, self.steps = peer, steps

    def _forward(self, v, fresh):
        B, D, T = v["u"].shape
        N = v["A"].shape[1]
        out, out_z = fresh.like(v["u"]), fresh.like(v["u"])
        checkpoints = fresh(B, D, -(-T // self.chunk), 2 * N, dtype=torch.float32)
        self.peer.call("mamba_selective_scan_fwd", B, D, T, N, 1, *self._operands(v), out, out_z, checkpoints)
        return out, out_z, checkpoints

    def forward(self, v, fresh):
        return {"y": self._forward(v, fresh)[1].transpose(1, 2)}

    def forward_backward(self, v, fresh):
        B, D, T = v["u"].shape
        N = v["A"].shape[1]
        out, out_z, checkpoints = self._forward(v, fresh)
        g = {k: fresh.like(v[k]) for k in ("u", "delta", "z")}
        g.update({k: torch.zeros_like(v[k], dtype=torch.float32) for k in ("A", "B", "C", "D", "delta_bias")})
        self.peer.call("mamba_selective_scan_bwd", B, D, T, N, 1, *self._operands(v), out, checkpoints, v["d_y"],
                       g["u"], g["delta"], g["A"], g["B"], g["C"], g["D"], g["z"], g["delta_bias"])
        g["B"], g["C"] = g["B"].to(v["B"].dtype), g["C"].to(v["C"].dtype)
        result = logical(g)
        return {"y": out_z.transpose(1, 2), **{"d_" + k: t for k, t in result.items()}}

    def step(self, v, fresh):
        y = self.steps.selective_state_update(v["state"], v["u"], v["delta"], v["A"], v["B"][:, 0], v["C"][:, 0],
                                              D=v["D"], z=v["z"], dt_bias=v["delta_bias"], dt_softplus=True)
        return {"y": y[:, None], "state": v["state"]}

    @staticmethod
    def _operands(v):
        return [v[k] for k in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]


def work(kind, B, T, D, N):
    """Bytes and exponentials of a call, with every operand read once and every result written once."""
    sequences, groups = 2 * B * T * D, 2 * 2 * B * T * N  # of u and its like; of B and C
    parameters = 4 * (D * N + 2 * D)
    forward = 4 * sequences + groups + parameters
    if kind == "forward":
        return forward, B * T * D * N
    return forward + 7 * sequences + 2 * groups + 2 * parameters, 2 * B * T * D * N


def cases(library, peers, quick):
    ours, mamba, steps = library and Ours(library), peers["mamba-ssm"], peers["mamba-ssm step"]
    for (B, T, D, N), *targets in QUICK_SHAPES if quick else SHAPES:
        sets = once(make, B=B, T=T, D=D, N=N)
        last = once(lambda i, sets=sets: channel_last(sets(i)))
        orders = {"channel_first": lambda i, sets=sets: logical(sets(i)), "channel_last": last}
        expected = once(lambda sets=sets: reference(logical(sets(0))))
        for kind, target in zip(("forward", "forward_backward"), targets):
            function = {"forward": "selective_scan", "forward_backward": "selective_scan_backward"}[kind]
            size, exponentials = work(kind, B, T, D, N)
            peer = Contender("mamba-ssm", "channel_first", sets, getattr(Mamba(mamba, steps), kind),
                             note="selective_scan_cuda; it takes (B, D, T) only, so both rows of a shape hold its time "
                                  "in that layout") if mamba.works else None
            for layout, operands in orders.items():
                reason = why_not(library, function)
                yield Case(
                    kind, layout, {"B": B, "T": T, "D": D, "N": N}, {"data": "bf16", "parameters": "f32"}, expected,
                    None if reason else Contender("polystate", layout, operands, getattr(ours, kind)), peer, size,
                    exponentials, target_ms=target, no_ours=reason, no_peer=mamba.why_not)
    for B, D, N, state in QUICK_STEPS if quick else STEPS:
        sets = once(make_step, B=B, D=D, N=N, state=state)
        expected = once(lambda sets=sets: step_reference(sets(0)))
        size = 2 * B * D * N * state.itemsize + 4 * 2 * B * D + 2 * 2 * B * N + 4 * (D * N + 2 * D)
        reason = why_not(library, "selective_scan_step")
        yield Case(
            "step", "channel_last", {"B": B, "T": 1, "D": D, "N": N},
            {"data": "bf16", "parameters": "f32", "state": "f32" if state == torch.float32 else "bf16"}, expected,
            None if reason else Contender("polystate", "channel_last", sets, ours.step, ("state",)),
            Contender("mamba-ssm", "channel_last", sets, Mamba(mamba, steps).step, ("state",),
                      note="selective_state_update, its Triton kernel") if steps.works else None,
            size, target_of_bytes_floor=STEP_TARGET, no_ours=reason, no_peer=steps.why_not)

