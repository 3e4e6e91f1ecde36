# SPDX-License-Identifier: Apache-2.0
"""Multi-state gated delta rule with MERLIN's router as one writes it with torch and FLA: FLA's kernels on segments as
batch entries, einsums for moments and weights, and the read-out either segment by segment or as one product. Operands
as in polystate's header, one batch entry, T a multiple of the segments' m; sums in bf16 or float32 as torch does
them."""
import torch


def segments(x, m):
    """(1, T, ...) as (L, m, ...)."""
    return x.reshape(-1, m, *x.shape[2:])


def weights(v, m):
    """lam (H, L, m, L) in float32: of query segment j and its token, over segments; j itself is the open one."""
    q, k = segments(v["router_q"], m), segments(v["moments_k"], m)
    index = torch.arange(len(q), device=q.device)
    is_open = (index[None] == index[:, None])[:, None]
    unseen = (index[None] > index[:, None])[:, None]
    mu = (k.float().sum(1) / m).to(k.dtype)
    Sigma = torch.einsum("slhd,slhe->shde", k, k) / m
    r_mu = torch.einsum("jlhd,shd->hjls", q, mu).float()
    second = torch.einsum("hsjle,jlhe->hjls", torch.einsum("jlhd,shde->hsjle", q, Sigma), q).float()
    inside = torch.einsum("jlhd,jnhd->hjln", q, k).float().tril()
    r_mu = torch.where(is_open, inside.sum(-1, keepdim=True) / m, r_mu)
    second = torch.where(is_open, inside.square().sum(-1, keepdim=True) / m, second)
    gamma = segments(v["gamma"], m).permute(2, 0, 1)[..., None]

    def softmax(tau, r):
        return (tau[:, None, None, None] * r).masked_fill(unseen, float("-inf")).softmax(-1)

    return gamma * softmax(v["tau_mu"], r_mu) + (1 - gamma) * softmax(v["tau_sigma"], second - r_mu.square())


class Layer:
    """The forward; `chunk_gated_delta_rule` is FLA's, or a function like it."""

    def __init__(self, chunk_gated_delta_rule, m):
        self.chunk_gated_delta_rule, self.m = chunk_gated_delta_rule, m

    def _parts(self, v):
        """Read-outs of each segment alone, states (L, H, dk, dv), lam, the open segment's weights, scaled queries."""
        local = [segments(v[k], self.m) for k in ("q", "k", "v", "g", "beta")]
        o, states = self.chunk_gated_delta_rule(*local, output_final_state=True)
        lam = weights(v, self.m)
        current = lam.diagonal(dim1=1, dim2=3).permute(2, 1, 0)[..., None].to(o.dtype)  # (L, m, H, 1)
        return o, states.to(o.dtype), lam, current, local[0] * local[0].shape[-1] ** -0.5

    def segment_by_segment(self, v):
        """Segment j reads the states 0 .. j-1: half the work, small buffers."""
        o, states, lam, current, q = self._parts(v)
        L, H, dk, dv = states.shape
        q, states = q.transpose(1, 2), states.transpose(0, 1).contiguous()
        outputs = []
        for j in range(L):
            read = o[j] * current[j]
            if j:
                weighted = lam[:, j, :, :j, None].to(o.dtype) * q[j][:, :, None]
                read = read + torch.bmm(weighted.reshape(H, self.m, j * dk),
                                        states[:, :j].reshape(H, j * dk, dv)).transpose(0, 1)
            outputs.append(read)
        return torch.stack(outputs).reshape(1, L * self.m, H, dv)

    def one_product(self, v):
        """All segments read all states, those that they must not see with weight 0."""
        o, states, lam, current, q = self._parts(v)
        L, H, dk, dv = states.shape
        closed = lam.masked_fill(torch.eye(L, dtype=torch.bool, device=lam.device)[:, None], 0).to(o.dtype)
        weighted = torch.einsum("hjls,jlhk->hjlsk", closed, q).reshape(H, L * self.m, L * dk)
        read = torch.bmm(weighted, states.transpose(0, 1).reshape(H, L * dk, dv))
        return (o * current + read.reshape(H, L, self.m, dv).permute(1, 2, 0, 3)).reshape(1, L * self.m, H, dv)


def read(v, top_k=0):
    """One query a sequence (B, 1, H, ...) against a bank, by einsums."""
    q, router_q = v["q"][:, 0], v["router_q"][:, 0].float()
    r_mu = torch.einsum("blhd,bhd->bhl", v["mu"], router_q)
    second = torch.einsum("blhd,bhd->bhl", (v["Sigma"] @ router_q[:, None, ..., None])[..., 0], router_q)
    gamma = v["gamma"][:, 0, :, None]
    lam = gamma * (v["tau_mu"][:, None] * r_mu).softmax(-1)
    lam = lam + (1 - gamma) * (v["tau_sigma"][:, None] * (second - r_mu.square())).softmax(-1)
    if top_k:
        lam, entries = lam.topk(top_k)
        lam = lam / lam.sum(-1, keepdim=True)
        B, H, _ = lam.shape
        sequence = torch.arange(B, device=q.device)[:, None, None]
        states = v["S"][sequence, entries, torch.arange(H, device=q.device)[None, :, None]]  # (B, H, k, dv, dk)
        each = (states @ q[:, :, None, :, None])[..., 0]
    else:
        each = (v["S"] @ q[:, None, ..., None])[..., 0].transpose(1, 2)
    return ((lam[..., None] * each).sum(2) * q.shape[-1] ** -0.5).to(q.dtype)[:, None]
