# SPDX-License-Identifier: Apache-2.0
"""SSD (Mamba-2) with D, dt_bias and softplus, the step with a gate too: ours and mamba-ssm's."""
import torch

from contest import Case, Contender
from operands import Random, once
from polystate_c import Ssd, SsdGrads, SsdStep, why_not
from recurrence import MatrixRecurrence, softplus

# B, T, H, P, N; one group
SHAPES = [(8, 2048, 48, 64, 128), (1, 16384, 48, 64, 128)]
QUICK_SHAPES = [(2, 300, 4, 64, 128)]
TARGET = 5  # times the peer's time
# B, H, P, N, state, target in ms
STEPS = [(64, 48, 64, 128, torch.float32, 0.060), (64, 48, 64, 128, torch.bfloat16, 0.034),
         (1, 48, 64, 128, torch.float32, None), (1, 48, 64, 128, torch.bfloat16, None)]
QUICK_STEPS = [(3, 4, 64, 128, torch.float32, None), (3, 4, 64, 128, torch.bfloat16, None),
               (1, 4, 64, 128, torch.float32, None)]
SINGLE_STEP_TARGET_MS = 0.002  # more than an empty launch

GRADIENTS = ("x", "dt", "A", "B", "C", "D", "dt_bias")


def make(seed, B, T, H, P, N):
    """One D a head."""
    r = Random(seed)
    return {"x": r.normal(B, T, H, P).bfloat16(), "dt": r.normal(B, T, H).bfloat16() * 0.5, "A": -r.uniform(H) - 0.1,
            "B": r.normal(B, T, 1, N).bfloat16() * 0.2, "C": r.normal(B, T, 1, N).bfloat16() * 0.2, "D": r.normal(H),
            "dt_bias": r.normal(H) * 0.1 - 2, "d_y": r.normal(B, T, H, P).bfloat16()}


def reference(operands):
    leaves = {k: operands[k].double().requires_grad_() for k in GRADIENTS}
    v = leaves
    B, T, H, P = v["x"].shape

    def each_head(x):  # (T, B H, ...)
        return x.expand(-1, -1, H, *x.shape[3:]).transpose(0, 1).flatten(1, 2)

    d = softplus(v["dt"] + v["dt_bias"])
    y, state = MatrixRecurrence.apply(each_head(v["C"]), each_head(v["B"]), each_head(d[..., None] * v["x"]),
                                      each_head((d * v["A"]).exp()), None)
    y = y.unflatten(1, (B, H)).transpose(0, 1) + v["D"][:, None] * v["x"]
    gradients = torch.autograd.grad(y, list(leaves.values()), operands["d_y"].double())
    return {"y": y.detach(), "final_state": state.detach().unflatten(0, (B, H)),
            **{"d_" + k: g for k, g in zip(leaves, gradients)}}


def make_step(seed, B, H, P, N, state):
    """One token, without its index."""
    r = Random(seed)
    return {"x": r.normal(B, H, P).bfloat16(), "dt": r.normal(B, H).bfloat16(), "A": -r.uniform(H) - 0.1,
            "B": r.normal(B, 1, N).bfloat16(), "C": r.normal(B, 1, N).bfloat16(), "D": r.normal(H),
            "z": r.normal(B, H, P).bfloat16(), "dt_bias": r.normal(H), "state": r.normal(B, H, P, N).to(state)}


def step_reference(operands):
    v = {k: t.double() for k, t in operands.items()}
    d = softplus(v["dt"] + v["dt_bias"])
    state = (d * v["A"]).exp()[..., None, None] * v["state"]
    state = state + (d[..., None] * v["x"])[..., None] * v["B"][:, :, None]
    y = (state * v["C"][:, :, None]).sum(-1) + v["D"][:, None] * v["x"]
    return {"y": (y * torch.nn.functional.silu(v["z"]))[:, None], "state": state}


class Ours:
    """Calls of libpolystate_c.so."""

    def __init__(self, library):
        self.polystate = library

    def forward(self, v, fresh):
        (B, _, H, P), N = v["x"].shape, v["B"].shape[-1]
        result = {"y": fresh.like(v["x"]), "final_state": fresh(B, H, P, N, dtype=torch.float32)}
        self.polystate.call("ssd", Ssd(**self._inputs(v), **result))
        return result

    def forward_backward(self, v, fresh):
        y = fresh.like(v["x"])
        self.polystate.call("ssd", Ssd(**self._inputs(v), y=y))
        gradients = {"d_" + k: fresh.like(v[k]) for k in GRADIENTS}
        args = Ssd(**self._inputs(v))
        grads = SsdGrads(d_y=v["d_y"], **{**gradients, "d_D": gradients["d_D"][:, None]})
        function = "ssd_backward"
        workspace = self.polystate.workspace(function, args, grads, empty=fresh)
        self.polystate.call(function, args, grads, workspace=workspace)
        return {"y": y, **gradients}

    def step(self, v, fresh):
        tokens = {k: v[k][:, None] for k in ("x", "dt", "B", "C", "z")}
        y = fresh.like(tokens["x"])
        self.polystate.call("ssd_step", SsdStep(**{**self._inputs(v), **tokens}, state=v["state"], y=y))
        return {"y": y, "state": v["state"]}

    @staticmethod
    def _inputs(v):
        given = {k: v[k] for k in (*GRADIENTS, "z") if k in v}
        D = v["D"][:, None].expand(-1, v["x"].shape[-1])
        return {**given, "D": D, "dt_softplus": True}


class Mamba:
    """Calls of mamba-ssm's Triton kernels as its own Python interface makes them."""

    chunk = 256
    forward_note = f"mamba_chunk_scan_combined, chunks of {chunk}"
    forward_backward_note = f"the functions that the autograd of mamba_chunk_scan_combined calls, chunks of {chunk}"
    step_note = "selective_state_update, its Triton kernel; FlashInfer's, which is faster, is not carried here"

    def __init__(self, peer):
        self.peer = peer

    def forward(self, v, fresh):
        y, state = self.peer.mamba_chunk_scan_combined(*self._inputs(v), self.chunk, **self._options(v),
                                                       return_final_states=True)
        return {"y": y, "final_state": state}

    def forward_backward(self, v, fresh):
        y, *_ = self.peer.forward(*self._inputs(v), self.chunk, **self._options(v))
        d_x, d_dt, d_A, d_B, d_C, d_D, _, d_dt_bias, _ = self.peer.backward(
            v["d_y"], *self._inputs(v), y, self.chunk, **self._options(v))
        return {"y": y, "d_x": d_x, "d_dt": d_dt, "d_A": d_A, "d_B": d_B, "d_C": d_C, "d_D": d_D,
                "d_dt_bias": d_dt_bias}

    def step(self, v, fresh):
        _, H, P, N = v["state"].shape
        y = self.peer.selective_state_update(
            v["state"], v["x"], v["dt"][..., None].expand(-1, -1, P), v["A"][:, None, None].expand(H, P, N), v["B"],
            v["C"], D=v["D"][:, None].expand(H, P), z=v["z"], dt_bias=v["dt_bias"][:, None].expand(H, P),
            dt_softplus=True)
        return {"y": y[:, None], "state": v["state"]}

    @staticmethod
    def _inputs(v):
        return [v[k] for k in ("x", "dt", "A", "B", "C")]

    @staticmethod
    def _options(v):
        return {"D": v["D"], "dt_bias": v["dt_bias"], "dt_softplus": True}


def work(kind, B, T, H, P, N):
    """Bytes of a call, with every operand read once and every result written once."""
    sequence, parameters = 2 * B * T * H * P, 4 * 3 * H
    inputs = sequence + 2 * B * T * H + 2 * 2 * B * T * N + parameters
    if kind == "forward":
        return inputs + sequence + 4 * B * H * P * N  # y, final_state
    return inputs + sequence + inputs + sequence + inputs  # y; inputs and d_y; gradients


def cases(library, peers, quick):
    ours, chunked, steps = library and Ours(library), peers["mamba-ssm ssd"], peers["mamba-ssm step"]
    for shape in QUICK_SHAPES if quick else SHAPES:
        sizes = dict(zip(("B", "T", "H", "P", "N"), shape))
        sets = once(make, **sizes)
        expected = once(lambda sets=sets: reference(sets(0)))
        for kind in ("forward", "forward_backward"):
            reason = why_not(library, {"forward": "ssd"}.get(kind, "ssd_backward"))
            yield Case(
                kind, "channel_last", sizes, {"data": "bf16", "parameters": "f32"}, expected,
                None if reason else Contender("polystate", "channel_last", sets, getattr(ours, kind)),
                Contender("mamba-ssm", "channel_last", sets, getattr(Mamba(chunked), kind),
                          note=getattr(Mamba, kind + "_note")) if chunked.works else None,
                work(kind, **sizes), target_of_peer=TARGET, no_ours=reason, no_peer=chunked.why_not)
    for B, H, P, N, state, target in QUICK_STEPS if quick else STEPS:
        sets = once(make_step, B=B, H=H, P=P, N=N, state=state)
        expected = once(lambda sets=sets: step_reference(sets(0)))
        reason = why_not(library, "ssd_step")
        single = B == 1
        yield Case(
            "step", "channel_last", {"B": B, "T": 1, "H": H, "P": P, "N": N},
            {"data": "bf16", "parameters": "f32", "state": "f32" if state == torch.float32 else "bf16"}, expected,
            None if reason else Contender("polystate", "channel_last", sets, ours.step, ("state",)),
            Contender("mamba-ssm", "channel_last", sets, Mamba(steps).step, ("state",),
                      note=Mamba.step_note) if steps.works else None,
            2 * B * H * P * N * state.itemsize + 2 * B * H * (3 * P + 1) + 2 * 2 * B * N + 4 * 3 * H, target_ms=target,
            target_over_launch_ms=SINGLE_STEP_TARGET_MS if single else None, basis="call" if single else None,
            no_ours=reason, no_peer=steps.why_not)
