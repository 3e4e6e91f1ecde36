# SPDX-License-Identifier: Apache-2.0
"""Multi-state gated delta rule with uniform segments and MERLIN's router, forward and decoding from a bank: ours and
what one writes with torch and FLA."""
import torch

import merlin_torch
from contest import Case, Contender
from measure import DEVICE
from operands import Random, once
from polystate_c import MultiState, MultiStateRead, MultiStateStep, why_not
from recurrence import MatrixRecurrence

# T, H, dk, dv, dr, m; one sequence
SHAPES = [(16384, 6, 256, 512, 128, 256), (16384, 16, 128, 128, 128, 256)]
QUICK_SHAPES = [(512, 2, 256, 512, 32, 64), (256, 3, 128, 128, 64, 64)]
# B, L entries (the last one open), H, dk, dv, dr, m
BANKS = [(32, 65, 6, 256, 512, 128, 4096)]
QUICK_BANKS = [(2, 10, 2, 256, 512, 32, 4096)]
OPEN_TOKENS = 9  # of the open entry, which must not close while steps are timed
TOP_K = 8
BANK_TARGET = 1 / 0.75  # of the bytes floor: 75 % of the copy rate

READ_OUTS = {"segment by segment": "segment_by_segment", "one product": "one_product"}


def make(seed, T, H, dk, dv, dr, m):
    r = Random(seed)
    return {"q": r.unit(1, T, H, dk).bfloat16(), "k": r.unit(1, T, H, dk).bfloat16(),
            "v": r.normal(1, T, H, dv).bfloat16(), "g": -r.uniform(1, T, H) * 0.1, "beta": r.uniform(1, T, H),
            "router_q": r.unit(1, T, H, dr).bfloat16(), "moments_k": r.unit(1, T, H, dr).bfloat16(),
            "gamma": r.uniform(1, T, H), "tau_mu": 0.5 + 4 * r.uniform(H), "tau_sigma": 0.5 + 4 * r.uniform(H)}


def scale(v):
    return v["q"].shape[-1] ** -0.5


def merlin(gamma, tau_mu, tau_sigma, r_mu, second):
    """Weights from scores r_mu, -inf where a segment is not visible, and q'^T Sigma q'; their last index is the
    segment."""
    return gamma * (tau_mu * r_mu).softmax(-1) + (1 - gamma) * (tau_sigma * (second - r_mu.square())).softmax(-1)


@torch.no_grad()
def reference(operands, m):
    """o in float64: the recurrence token by token, all segments at once; then head by head."""
    v = {k: t.double()[0] if t.dim() > 1 else t.double() for k, t in operands.items()}
    T, H, dv = v["v"].shape
    L = T // m

    def each_segment(x):  # (m, L H, ...)
        return x.unflatten(0, (L, m)).transpose(0, 1).flatten(1, 2).contiguous()

    recurrence = [each_segment(x) for x in (v["q"], v["k"], v["v"], v["g"].exp(), v["beta"])]
    local, states = MatrixRecurrence.apply(*recurrence)
    local = local.unflatten(1, (L, H)).transpose(0, 1).flatten(0, 1)  # (T, H, dv)
    states = states.unflatten(0, (L, H))
    segment = torch.arange(T, device=DEVICE) // m
    unseen = torch.arange(L, device=DEVICE) > segment[:, None]
    o = torch.empty_like(local)
    for h in range(H):
        q, k = v["router_q"][:, h], v["moments_k"][:, h].unflatten(0, (L, m))
        r_mu = q @ k.sum(1).mT / m
        second = torch.stack([((q @ (k[s].mT @ k[s])) * q).sum(-1) / m for s in range(L)], 1)
        inside = (q.unflatten(0, (L, m)) @ k.mT).tril()  # (L, m, m)
        r_mu[torch.arange(T), segment] = inside.sum(-1).flatten() / m
        second[torch.arange(T), segment] = inside.square().sum(-1).flatten() / m
        r_mu[unseen] = float("-inf")
        lam = merlin(v["gamma"][:, h, None], v["tau_mu"][h], v["tau_sigma"][h], r_mu, second)
        o[:, h] = lam[torch.arange(T), segment, None] * local[:, h]
        for s in range(L - 1):
            later = slice((s + 1) * m, None)
            o[later, h] += lam[later, s, None] * (v["q"][later, h] @ states[s, h].mT)
    return {"o": o[None] * scale(operands)}


def make_bank(seed, B, L, H, dk, dv, dr, m):
    """Operands of a step, which a read takes some of: one token a sequence, and banks of L entries."""
    r = Random(seed)
    mu = 0.3 * r.normal(B, L, H, dr)
    noise = 0.1 * r.normal(B, L, H, dr, dr)
    Sigma = noise + noise.mT + mu[..., None] * mu[..., None, :]
    counters = torch.tensor([[(L - 1) * m + OPEN_TOKENS, L, OPEN_TOKENS]], dtype=torch.int64, device=DEVICE)
    token = make(seed + 1000, B, H, dk, dv, dr, m)
    token = {k: t.transpose(0, 1).contiguous() if t.dim() > 1 else t for k, t in token.items()}  # (B, 1, ...)
    return {**token, "S": r.normal(B, L, H, dv, dk).bfloat16(), "mu": mu, "Sigma": Sigma,
            "counters": counters.repeat(B, 1)}


def read_reference(v, top_k=0, open_entry=None):
    """o (B, 1, H, dv) in float64, a sequence at a time; `open_entry` (S, mu, Sigma) takes the last entry's place."""
    outputs = []
    for b in range(v["q"].shape[0]):
        S, mu, Sigma = (v[k][b].double() for k in ("S", "mu", "Sigma"))
        if open_entry:
            S[-1], mu[-1], Sigma[-1] = (x[b] for x in open_entry)
        q, router_q = v["q"][b, 0].double(), v["router_q"][b, 0].double()
        r_mu = torch.einsum("lhd,hd->hl", mu, router_q)
        second = torch.einsum("hd,lhde,he->hl", router_q, Sigma, router_q)
        lam = merlin(v["gamma"][b, 0, :, None].double(), v["tau_mu"][:, None].double(),
                     v["tau_sigma"][:, None].double(), r_mu, second)
        if top_k:
            least = lam.topk(top_k).values[:, -1:]
            lam = lam * (lam >= least)
            lam = lam / lam.sum(-1, keepdim=True)
        outputs.append(torch.einsum("hl,lhvk,hk->hv", lam, S, q) * scale(v))
    return {"o": torch.stack(outputs)[:, None]}


def step_reference(operands, m):
    v = operands
    q, k, value, g, beta, router_k = (v[n][:, 0].double() for n in ("q", "k", "v", "g", "beta", "moments_k"))
    S = g.exp()[..., None, None] * v["S"][:, -1].double()
    surprise = value - (S @ k[..., None])[..., 0]
    S = S + (beta[..., None] * surprise)[..., None] * k[:, :, None]
    mu = v["mu"][:, -1].double() + router_k / m
    Sigma = v["Sigma"][:, -1].double() + router_k[..., None] * router_k[:, :, None] / m
    return {**read_reference(v, open_entry=(S, mu, Sigma)), "S": S, "mu": mu, "Sigma": Sigma}


class Ours:
    """Calls of libpolystate_c.so."""

    inputs = ("q", "k", "v", "g", "beta", "moments_k", "router_q", "gamma", "tau_mu", "tau_sigma")
    queries = ("q", "router_q", "gamma", "tau_mu", "tau_sigma")
    bank = ("S", "mu", "Sigma", "counters")

    def __init__(self, library, m, top_k=0):
        self.polystate, self.m, self.top_k = library, m, top_k

    def forward(self, v, fresh):
        o = fresh.like(v["v"])
        self._call("multi_state", fresh, MultiState(**self._of(v, self.inputs), o=o, m=self.m, scale=scale(v)))
        return {"o": o}

    def step(self, v, fresh):
        o = fresh.like(v["v"])
        operands = self._of(v, self.inputs + self.bank)
        self._call("multi_state_step", fresh, MultiStateStep(**operands, o=o, m=self.m, scale=scale(v)))
        return {"o": o, **{k: v[k][:, -1] for k in ("S", "mu", "Sigma")}}

    def read(self, v, fresh):
        o = fresh.like(v["v"])
        operands = self._of(v, self.queries + self.bank)
        self._call("multi_state_read", fresh, MultiStateRead(**operands, o=o, top_k=self.top_k, scale=scale(v)))
        return {"o": o}

    def _call(self, function, fresh, args):
        self.polystate.call(function, args, workspace=self.polystate.workspace(function, args, empty=fresh))

    @staticmethod
    def _of(v, names):
        return {k: v[k] for k in names}


def forward_bytes(T, H, dk, dv, dr, m):
    """Every operand read once, every result written once."""
    return T * H * (2 * (2 * dk + 2 * dv + 2 * dr) + 4 * 3)


def bank_bytes(kind, top_k, B, L, H, dk, dv, dr, m):
    """The same of a call on a bank, which of the states reads those with a weight."""
    state, moments = B * H * dk * dv * 2, B * H * (dr + dr * dr) * 4
    token = B * H * (2 * (dk + dv + dr) + 4)  # q, o, q', gamma
    if kind == "read":
        return state * (top_k or L) + moments * L + token
    return (state + moments) * (L + 1) + token + B * H * (2 * (dk + dv + dr) + 4 * 2)


def cases(library, peers, quick):
    fla = peers["fla-core"]
    for shape in QUICK_SHAPES if quick else SHAPES:
        sizes = dict(zip(("T", "H", "dk", "dv", "dr", "m"), shape))
        sets = once(make, **sizes)
        expected = once(lambda sets=sets, m=sizes["m"]: reference(sets(0), m))
        reason = why_not(library, "multi_state")
        ours = None if reason else Contender("polystate", "channel_last", sets, Ours(library, sizes["m"]).forward)
        for variant, read_out in READ_OUTS.items():
            peer = None
            if fla.works:
                call = getattr(merlin_torch.Layer(fla.chunk_gated_delta_rule, sizes["m"]), read_out)
                peer = Contender("torch + fla-core", "channel_last", sets, lambda v, fresh, call=call: {"o": call(v)},
                                 note="chunk_gated_delta_rule on segments as batch entries, the rest with torch; "
                                      "read-out " + variant)
            yield Case("forward", "channel_last", {"B": 1, **sizes}, {"data": "bf16", "parameters": "f32"}, expected,
                       ours, peer, forward_bytes(**sizes), variant=f"peer {variant}", no_ours=reason,
                       no_peer=fla.why_not)
    for shape in QUICK_BANKS if quick else BANKS:
        sizes = dict(zip(("B", "L", "H", "dk", "dv", "dr", "m"), shape))
        sets = once(make_bank, **sizes)
        for kind, top_k in (("read", 0), ("read", TOP_K), ("step", 0)):
            if kind == "read":
                expected = once(lambda sets=sets, top_k=top_k: read_reference(sets(0), top_k))
                peer = Contender(
                    "torch", "channel_last", sets,
                    lambda v, fresh, top_k=top_k: {"o": merlin_torch.read(v, top_k)}, note="einsums and products")
            else:
                expected = once(lambda sets=sets, m=sizes["m"]: step_reference(sets(0), m))
                peer = None
            reason = why_not(library, f"multi_state_{kind}")
            written = ("S", "mu", "Sigma", "counters") if kind == "step" else ()
            call = getattr(Ours(library, sizes["m"], top_k), kind)
            yield Case(
                kind, "channel_last", sizes, {"data": "bf16", "parameters": "f32", "state": "bf16"}, expected,
                None if reason else Contender("polystate", "channel_last", sets, call, written), peer,
                bank_bytes(kind, top_k, **sizes), target_of_bytes_floor=BANK_TARGET,
                variant=f"top {top_k}" if top_k else "", no_ours=reason,
                no_peer="nothing to compare: nobody else keeps a bank of states")
