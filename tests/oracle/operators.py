# SPDX-License-Identifier: Apache-2.0
"""The forward recurrences, a loop over tokens in numpy, in the floating-point type of the inputs. They are written
from the formulas in docs/, not from the C++, so that a mistake has to be made twice to stay unseen.

Each operator takes (inputs, parameters) as a case file holds them, parameters as strings, and returns its outputs.
NotCovered: the case has an option that this oracle does not know."""

import numpy


class NotCovered(Exception):
    pass


def flag(parameters, name):
    return parameters.get(name, "0") == "1"


def number(parameters, name, default="0"):
    return int(parameters.get(name, default))


def same_type(value, like):
    """A Python or numpy scalar as an array scalar of like's type: older numpy would widen float32 to float64."""
    return like.dtype.type(value)


def silu(a):
    with numpy.errstate(over="ignore"):
        return a / (1 + numpy.exp(-a))


def softmax(a, axis=-1):
    e = numpy.exp(a - a.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def normalise(rows, parameters):
    eps = same_type(float(parameters.get("l2norm_eps", "1e-6")), rows)
    return rows / numpy.sqrt((rows * rows).sum(axis=-1, keepdims=True) + eps)


def spread(tensor, heads, axis):
    """Grouped heads: consecutive heads share a group."""
    return numpy.repeat(tensor, heads // tensor.shape[axis], axis=axis)


def sequences(inputs, batch, tokens):
    """(batch entry, first token, end, index of the sequence's states)"""
    if "cu_seqlens" not in inputs:
        return [(b, 0, tokens, b) for b in range(batch)]
    cu = inputs["cu_seqlens"]
    return [(0, int(cu[s]), int(cu[s + 1]), s) for s in range(len(cu) - 1)]


def causal_conv1d(inputs, parameters):
    x, weight = inputs["x"], inputs["weight"]
    B, D, T = x.shape
    history = weight.shape[1] - 1
    runs = sequences(inputs, B, T)
    y = numpy.zeros_like(x)
    final_state = numpy.zeros((len(runs), D, history), x.dtype)
    for b, begin, end, s in runs:
        state = inputs["initial_state"][s] if "initial_state" in inputs else numpy.zeros((D, history), x.dtype)
        p = numpy.concatenate([state, x[b, :, begin:end]], axis=1)
        for t in range(begin, end):
            window = p[:, t - begin:t - begin + history + 1]
            a = (weight * window).sum(axis=1)
            if "bias" in inputs:
                a = a + inputs["bias"]
            y[b, :, t] = silu(a) if parameters["activation"] == "silu" else a
        final_state[s] = p[:, p.shape[1] - history:]
    return {"y": y, "final_state": final_state}


def delta_step(state, k, v, g, beta):
    """One token of the gated delta rule on every head: state (H, dv, dk), k (H, dk), v (H, dv), g and beta (H) or
    None where the rule has none."""
    if g is not None:
        state = numpy.exp(g)[:, None, None] * state
    if beta is not None:
        v = beta[:, None] * (v - numpy.einsum("hij,hj->hi", state, k))
    return state + v[:, :, None] * k[:, None, :]


def backbone(inputs, parameters):
    """(q, k, v, g, beta) with the operands that the rule uses, q and k normalised and spread over the heads."""
    rule = parameters["rule"]
    if rule not in ("gated_delta", "delta", "gated", "linear"):
        raise NotCovered(f"rule {rule}")
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    if flag(parameters, "qk_l2norm"):
        q, k = normalise(q, parameters), normalise(k, parameters)
    heads = v.shape[2]
    return (spread(q, heads, 2), spread(k, heads, 2), v, inputs["g"] if rule in ("gated_delta", "gated") else None,
            inputs["beta"] if rule in ("gated_delta", "delta") else None)


def token(operand, b, t):
    return None if operand is None else operand[b, t]


def gated_delta_rule(inputs, parameters):
    q, k, v, g, beta = backbone(inputs, parameters)
    scale = same_type(float(parameters["scale"]), v)
    B, T, H, dv = v.shape
    runs = sequences(inputs, B, T)
    o = numpy.zeros_like(v)
    final_state = numpy.zeros((len(runs), H, dv, q.shape[3]), v.dtype)
    for b, begin, end, s in runs:
        state = inputs["initial_state"][s] if "initial_state" in inputs else final_state[s]
        for t in range(begin, end):
            state = delta_step(state, k[b, t], v[b, t], token(g, b, t), token(beta, b, t))
            o[b, t] = scale * numpy.einsum("hij,hj->hi", state, q[b, t])
        final_state[s] = state
    return {"o": o, "final_state": final_state}


class Segments:
    """Uniform segments of one sequence, or of those packed: numbers them one after the other in the output."""

    def __init__(self, inputs, parameters, batch, tokens):
        if parameters.get("separation", "uniform") != "uniform":
            raise NotCovered(f"separation {parameters['separation']}")
        self.m = number(parameters, "m")
        self.runs = []  # (batch entry, first token, end, output index of its first segment)
        first = 0
        for b, begin, end, _ in sequences(inputs, batch, tokens):
            self.runs.append((b, begin, end, first if "cu_seqlens" in inputs else 0))
            first += -(-(end - begin) // self.m)
        self.count = first if "cu_seqlens" in inputs else -(-tokens // self.m)


class Moments:
    """Running plain moments of the segments opened so far: mu (L, HR, dr), Sigma (L, HR, dr, dr)."""

    def __init__(self, parameters, m, heads, size, dtype):
        if parameters["moment_rule"] != "plain":
            raise NotCovered(f"moment rule {parameters['moment_rule']}")
        self.by_count = parameters["divide_by"] == "count"
        self.m, self.seen = dtype.type(m), []
        self.sums = numpy.zeros((0, heads, size), dtype)
        self.products = numpy.zeros((0, heads, size, size), dtype)

    def open(self):
        self.sums = numpy.concatenate([self.sums, numpy.zeros_like(self.sums, shape=(1, *self.sums.shape[1:]))])
        self.products = numpy.concatenate(
            [self.products, numpy.zeros_like(self.products, shape=(1, *self.products.shape[1:]))])
        self.seen.append(0)

    def add(self, k):
        self.sums[-1] += k
        self.products[-1] += k[:, :, None] * k[:, None, :]
        self.seen[-1] += 1

    def _divide(self, sums):
        by = numpy.array(self.seen, sums.dtype) if self.by_count else self.m
        return sums / (by.reshape(-1, *[1] * (sums.ndim - 1)) if self.by_count else by)

    @property
    def mu(self):
        return self._divide(self.sums)

    @property
    def Sigma(self):
        return self._divide(self.products)


def moment_keys(inputs, parameters):
    k = inputs["kp"]
    return normalise(k, parameters) if flag(parameters, "qkp_l2norm") else k


def segment_moments(inputs, parameters):
    k = moment_keys(inputs, parameters)
    B, T, HR, dr = k.shape
    segments = Segments(inputs, parameters, B, T)
    mu = numpy.zeros((B, segments.count, HR, dr), k.dtype)
    Sigma = numpy.zeros((B, segments.count, HR, dr, dr), k.dtype)
    for b, begin, end, first in segments.runs:
        moments = Moments(parameters, segments.m, HR, dr, k.dtype)
        for t in range(begin, end):
            if (t - begin) % segments.m == 0:
                moments.open()
            moments.add(k[b, t])
        L = len(moments.seen)
        mu[b, first:first + L], Sigma[b, first:first + L] = moments.mu, moments.Sigma
    return {"mu": mu, "Sigma": Sigma}


class Router:
    """Weights of one token over the segments opened so far."""

    def __init__(self, inputs, parameters, heads):
        self.kind = parameters["routing"]
        if self.kind not in ("merlin", "meanpool", "position", "uniform"):
            raise NotCovered(f"routing {self.kind}")
        self.inputs, self.parameters, self.heads = inputs, parameters, heads
        self.reads_moments = self.kind in ("merlin", "meanpool")
        if self.kind == "merlin":
            self.query = inputs["qp"]
            if flag(parameters, "qkp_l2norm"):
                self.query = normalise(self.query, parameters)
        elif self.kind == "meanpool":
            self.query = inputs["u"]

    def weights(self, b, t, opened, moments, dtype):
        """(lam (H, opened), r_mu (HR, opened) or None, r_sigma likewise)"""
        window = number(self.parameters, "max_visible")
        oldest = max(0, opened - window) if window > 0 else 0
        visible = slice(oldest, opened)
        lam = numpy.zeros((self.heads, opened), dtype)
        r_mu = r_sigma = None
        if self.kind == "uniform":
            lam[:, visible] = dtype.type(1) / dtype.type(opened - oldest)
        elif self.kind == "position":
            index = numpy.arange(oldest, opened)
            if self.parameters["position_index"] == "age":
                index = opened - 1 - index
            given = self.inputs["weights"][b, t][:, index]
            lam[:, visible] = softmax(given) if self.parameters["position_norm"] == "softmax" else given
        else:
            query = self.query[b, t]
            r_mu = numpy.zeros((query.shape[0], opened), dtype)
            r_mu[:, visible] = numpy.einsum("lhi,hi->hl", moments.mu[visible], query)
            scores = spread(r_mu, self.heads, 0)[:, visible]
            if self.kind == "meanpool":
                lam[:, visible] = softmax(scores)
            else:
                r_sigma = numpy.zeros_like(r_mu)
                second = numpy.einsum("hi,lhij,hj->hl", query, moments.Sigma[visible], query)
                r_sigma[:, visible] = second - r_mu[:, visible] ** 2
                gamma = self.inputs["gamma"][b, t][:, None]
                spreads = spread(r_sigma, self.heads, 0)[:, visible]
                lam[:, visible] = (gamma * softmax(self.inputs["tau_mu"][:, None] * scores) +
                                   (1 - gamma) * softmax(self.inputs["tau_sigma"][:, None] * spreads))
        return self._keep_largest(lam, oldest, opened), r_mu, r_sigma

    def _keep_largest(self, lam, oldest, opened):
        k = number(self.parameters, "topk")
        if k == 0 or opened - oldest <= k:
            return lam
        for weights in lam:
            newest_first = list(range(opened - 1, oldest - 1, -1))
            keep_current = flag(self.parameters, "topk_keep_current")
            kept = [newest_first.pop(0)] if keep_current else []
            newest_first.sort(key=lambda l: -weights[l])  # stable: of equals, the more recent one first
            kept += newest_first[:k - len(kept)]
            chosen = weights[kept]
            weights[:] = 0
            weights[kept] = chosen / chosen.sum()
        return lam


def routing_shape(inputs):
    for name in ("kp", "gamma", "weights"):
        if name in inputs:
            return inputs[name].shape[0], inputs[name].shape[1], inputs[name].dtype
    raise NotCovered("a routing case without kp, gamma or weights")


def routing(inputs, parameters):
    B, T, dtype = routing_shape(inputs)
    H = number(parameters, "H")
    router = Router(inputs, parameters, H)
    segments = Segments(inputs, parameters, B, T)
    k = moment_keys(inputs, parameters) if router.reads_moments else None
    out = {"lam": numpy.zeros((B, T, H, segments.count), dtype)}
    if router.reads_moments:
        out["r_mu"] = numpy.zeros((B, T, k.shape[2], segments.count), dtype)
    if router.kind == "merlin":
        out["r_sigma"] = numpy.zeros_like(out["r_mu"])
    for b, begin, end, _ in segments.runs:
        moments = Moments(parameters, segments.m, *k.shape[2:], dtype) if router.reads_moments else None
        for t in range(begin, end):
            if moments is not None:
                if t % segments.m == 0:
                    moments.open()
                moments.add(k[b, t])
            opened = t // segments.m + 1
            for name, values in zip(("lam", "r_mu", "r_sigma"), router.weights(b, t, opened, moments, dtype)):
                if values is not None:
                    out[name][b, t, :, :opened] = values
    return out


def multi_state(inputs, parameters):
    if flag(parameters, "shared_kq"):
        raise NotCovered("shared_kq")
    q, k, v, g, beta = backbone(inputs, parameters)
    scale = same_type(float(parameters["scale"]), v)
    B, T, H, dv = v.shape
    router = Router(inputs, parameters, H)
    segments = Segments(inputs, parameters, B, T)
    kp = moment_keys(inputs, parameters) if "kp" in inputs else None
    L = segments.count
    out = {"o": numpy.zeros_like(v)}
    if flag(parameters, "return_lam"):
        out["lam"] = numpy.zeros((B, T, H, L), v.dtype)
    if flag(parameters, "return_bank"):
        out["S"] = numpy.zeros((B, L, H, dv, q.shape[3]), v.dtype)
        if kp is not None:
            out["mu"] = numpy.zeros((B, L, *kp.shape[2:]), v.dtype)
            out["Sigma"] = numpy.zeros((B, L, *kp.shape[2:], kp.shape[3]), v.dtype)
    for b, begin, end, first in segments.runs:
        states = []
        moments = Moments(parameters, segments.m, *kp.shape[2:], v.dtype) if kp is not None else None
        for t in range(begin, end):
            if (t - begin) % segments.m == 0:
                states.append(numpy.zeros((H, dv, q.shape[3]), v.dtype))
                if moments is not None:
                    moments.open()
            states[-1] = delta_step(states[-1], k[b, t], v[b, t], token(g, b, t), token(beta, b, t))
            if moments is not None:
                moments.add(kp[b, t])
            lam, _, _ = router.weights(b, t, len(states), moments, v.dtype)
            reads = numpy.einsum("lhij,hj->lhi", numpy.stack(states), q[b, t])
            out["o"][b, t] = scale * numpy.einsum("hl,lhi->hi", lam, reads)
            if "lam" in out:
                out["lam"][b, t, :, :len(states)] = lam
        if "S" in out and states:
            out["S"][b, first:first + len(states)] = numpy.stack(states)
            if moments is not None:
                out["mu"][b, first:first + len(states)] = moments.mu
                out["Sigma"][b, first:first + len(states)] = moments.Sigma
    return out


OPERATORS = {operator.__name__: operator
             for operator in (causal_conv1d, gated_delta_rule, segment_moments, routing, multi_state)}
