# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, keys and queries normalised beforehand: ours and FLA's."""
import torch

from contest import Case, Contender
from operands import Random, once
from polystate_c import GatedDeltaRule, GatedDeltaRuleGrads, GatedDeltaRuleStep, why_not
from recurrence import MatrixRecurrence

# B, T, HK, HV, dk, dv
SHAPES = [(8, 2048, 16, 16, 128, 128), (1, 32768, 16, 32, 128, 128), (1, 16384, 6, 6, 256, 512),
          (1, 8192, 4, 4, 128, 128)]
QUICK_SHAPES = [(2, 100, 2, 4, 128, 128), (1, 70, 2, 2, 256, 512)]
TARGET = 5  # times the peer's time
# B, H, d, state, target in ms
STEPS = [(64, 32, 128, torch.float32, 0.075), (64, 32, 128, torch.bfloat16, 0.042), (1, 32, 128, torch.float32, None),
         (1, 32, 128, torch.bfloat16, None)]
QUICK_STEPS = [(3, 4, 128, torch.float32, None), (3, 4, 128, torch.bfloat16, None), (1, 4, 128, torch.float32, None)]
SINGLE_STEP_TARGET_MS = 0.002  # more than an empty launch

OPERANDS = ("q", "k", "v", "g", "beta")


def make(seed, B, T, HK, HV, dk, dv):
    r = Random(seed)
    return {"q": r.unit(B, T, HK, dk).bfloat16(), "k": r.unit(B, T, HK, dk).bfloat16(),
            "v": r.normal(B, T, HV, dv).bfloat16(), "g": -r.uniform(B, T, HV) * 0.1, "beta": r.uniform(B, T, HV),
            "d_o": r.normal(B, T, HV, dv).bfloat16()}


def scale(v):
    return v["q"].shape[-1] ** -0.5


def recurrence(q, k, v, g, beta):
    """o and the final state, in the operands' own type."""
    B, T, HV, dv = v.shape

    def each_head(x):  # (T, B HV, ...)
        return x.repeat_interleave(HV // x.shape[2], 2).transpose(0, 1).flatten(1, 2)

    o, state = MatrixRecurrence.apply(each_head(q), each_head(k), each_head(v), each_head(g.exp()), each_head(beta))
    return o.unflatten(1, (B, HV)).transpose(0, 1) * q.shape[-1] ** -0.5, state.unflatten(0, (B, HV))


def reference(operands):
    leaves = {k: operands[k].double().requires_grad_() for k in OPERANDS}
    o, state = recurrence(**leaves)
    gradients = torch.autograd.grad(o, list(leaves.values()), operands["d_o"].double())
    return {"o": o.detach(), "final_state": state.detach(), **{"d_" + k: d for k, d in zip(leaves, gradients)}}


def make_step(seed, B, H, d, state):
    """One token; states (B, H, dv, dk)."""
    operands = make(seed, B, 1, H, H, d, d)
    del operands["d_o"]
    return {**operands, "state": Random(seed + 1000).normal(B, H, d, d).to(state)}


def step_reference(operands):
    v = {k: t.double() for k, t in operands.items()}
    q, k, value, g, beta = (v[n][:, 0] for n in OPERANDS)
    state = g.exp()[..., None, None] * v["state"]
    surprise = value - (state @ k[..., None])[..., 0]
    state += (beta[..., None] * surprise)[..., None] * k[:, :, None]
    return {"o": (state @ q[..., None])[..., 0][:, None] * scale(v), "state": state}


class Ours:
    """Calls of libpolystate_c.so."""

    def __init__(self, library):
        self.polystate = library

    def forward(self, v, fresh):
        (B, _, HV, dv), dk = v["v"].shape, v["q"].shape[-1]
        result = {"o": fresh.like(v["v"]), "final_state": fresh(B, HV, dv, dk, dtype=torch.float32)}
        self.polystate.call("gated_delta_rule", GatedDeltaRule(**self._inputs(v), **result))
        return result

    def forward_backward(self, v, fresh):
        o = fresh.like(v["v"])
        self.polystate.call("gated_delta_rule", GatedDeltaRule(**self._inputs(v), o=o))
        gradients = {"d_" + k: fresh.like(v[k]) for k in OPERANDS}
        args = GatedDeltaRule(**self._inputs(v))
        grads = GatedDeltaRuleGrads(d_o=v["d_o"], **gradients)
        function = "gated_delta_rule_backward"
        workspace = self.polystate.workspace(function, args, grads, empty=fresh)
        self.polystate.call(function, args, grads, workspace=workspace)
        return {"o": o, **gradients}

    def step(self, v, fresh):
        o = fresh.like(v["v"])
        self.polystate.call("gated_delta_rule_step", GatedDeltaRuleStep(**self._inputs(v), state=v["state"], o=o))
        return {"o": o, "state": v["state"]}

    @staticmethod
    def _inputs(v):
        return {**{k: v[k] for k in OPERANDS}, "scale": scale(v)}


class Fla:
    """Calls of FLA's own functions; its states are (dk, dv)."""

    forward_note = "chunk_gated_delta_rule"
    forward_backward_note = (
        "chunk_gated_delta_rule_fwd and _bwd, which its autograd calls; it refuses this backward on Hopper with Triton "
        "3.4 to 3.7.0 as wrong (its issue 640): here that refusal is lifted, and errors tell how right it is")
    step_note = ("fused_recurrent_gated_delta_rule; it does not update states in place but writes new ones, always in "
                 "float32")

    def __init__(self, peer):
        self.peer = peer

    def forward(self, v, fresh):
        o, state = self.peer.chunk_gated_delta_rule(*self._inputs(v), scale=scale(v), output_final_state=True)
        return {"o": o, "final_state": state.transpose(2, 3)}

    def forward_backward(self, v, fresh):
        self.peer.chunk_o.TRITON_ABOVE_3_7_1 = True
        q, k, value, _, beta = self._inputs(v)
        decays, o, A, *_ = self.peer.forward(*self._inputs(v), scale=scale(v), initial_state=None,
                                             output_final_state=False)
        d_q, d_k, d_v, d_beta, d_g, *_ = self.peer.backward(
            q=q, k=k, v=value, g=decays, beta=beta, A=A, scale=scale(v), initial_state=None, do=v["d_o"], dht=None)
        gradients = zip(OPERANDS, (d_q, d_k, d_v, d_g, d_beta))
        return {"o": o, **{"d_" + n: d.to(v[n].dtype) for n, d in gradients}}

    def step(self, v, fresh):
        q, k, value, g, beta = self._inputs(v)
        o, state = self.peer.fused_recurrent_gated_delta_rule(
            q, k, value, g, beta=beta, scale=scale(v), initial_state=v["state"], output_final_state=True)
        return {"o": o, "state": state.transpose(2, 3)}

    @staticmethod
    def _inputs(v):
        return [v[k] for k in OPERANDS]


def states_of_fla(operands):
    return {**operands, "state": operands["state"].transpose(2, 3).contiguous()}


def work(kind, B, T, HK, HV, dk, dv):
    """Bytes of a call, with every operand read once and every result written once."""
    q, v, g = 2 * B * T * HK * dk, 2 * B * T * HV * dv, 4 * B * T * HV
    inputs = 2 * q + v + 2 * g
    if kind == "forward":
        return inputs + v + 4 * B * HV * dk * dv  # o, final_state
    return inputs + v + inputs + v + inputs  # o; inputs and d_o; gradients


def cases(library, peers, quick):
    ours, fla = library and Ours(library), peers["fla-core"]
    for shape in QUICK_SHAPES if quick else SHAPES:
        sizes = dict(zip(("B", "T", "HK", "HV", "dk", "dv"), shape))
        sets = once(make, **sizes)
        expected = once(lambda sets=sets: reference(sets(0)))
        for kind in ("forward", "forward_backward"):
            reason = why_not(library, {"forward": "gated_delta_rule"}.get(kind, "gated_delta_rule_backward"))
            yield Case(
                kind, "channel_last", sizes, {"data": "bf16", "parameters": "f32"}, expected,
                None if reason else Contender("polystate", "channel_last", sets, getattr(ours, kind)),
                Contender("fla-core", "channel_last", sets, getattr(Fla(fla), kind),
                          note=getattr(Fla, kind + "_note")) if fla.works else None,
                work(kind, **sizes), target_of_peer=TARGET, no_ours=reason, no_peer=fla.why_not)
    for B, H, d, state, target in QUICK_STEPS if quick else STEPS:
        sets = once(make_step, B=B, H=H, d=d, state=state)
        theirs = once(lambda i, sets=sets: states_of_fla(sets(i)))
        expected = once(lambda sets=sets: step_reference(sets(0)))
        reason = why_not(library, "gated_delta_rule_step")
        single = B == 1
        yield Case(
            "step", "channel_last", {"B": B, "T": 1, "H": H, "d": d},
            {"data": "bf16", "parameters": "f32", "state": "f32" if state == torch.float32 else "bf16"}, expected,
            None if reason else Contender("polystate", "channel_last", sets, ours.step, ("state",)),
            Contender("fla-core", "channel_last", theirs, Fla(fla).step, note=Fla.step_note) if fla.works else None,
            2 * B * H * d * d * state.itemsize + B * H * (4 * 2 * d + 2 * 4), target_ms=target,
            target_over_launch_ms=SINGLE_STEP_TARGET_MS if single else None, basis="call" if single else None,
            no_ours=reason, no_peer=fla.why_not)
