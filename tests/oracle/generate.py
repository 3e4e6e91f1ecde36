# SPDX-License-Identifier: Apache-2.0
"""Makes fresh random case files with the oracle's results, and can have `replay` judge them. A run prints its seed,
which makes the same files again."""

import argparse
import pathlib
import secrets
import subprocess
import sys

import numpy

import operators
import safetensors

# Tokens: none, one, and both sides of the chunk sizes that fast paths use.
TOKENS = (0, 1, 2, 5, 15, 16, 17, 31, 33, 63, 64, 65, 70, 127, 129, 150)


class Draw:
    """Random operands in float32; on the bfloat16 grid for a case of that dtype."""

    def __init__(self, rng, dtype):
        self.rng, self.dtype = rng, dtype

    def one_of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def maybe(self):
        return bool(self.rng.integers(2))

    def _rounded(self, values):
        values = numpy.asarray(values, numpy.float32)
        if self.dtype == "f32":
            return values
        bits = values.view(numpy.uint32).astype(numpy.uint64)
        bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
        return (bits & 0xFFFF0000).astype(numpy.uint32).view(numpy.float32)

    def normal(self, *shape, size=1.0):
        return self._rounded(size * self.rng.standard_normal(shape))

    def unit_rows(self, *shape):
        rows = self.rng.standard_normal(shape)
        return self._rounded(rows / numpy.linalg.norm(rows, axis=-1, keepdims=True))

    def uniform(self, low, high, *shape):
        return self._rounded(self.rng.uniform(low, high, shape))

    def log_decay(self, *shape):
        g = -numpy.exp(self.rng.uniform(numpy.log(1e-4), numpy.log(self.one_of(0.1, 3.0, 30.0)), shape))
        if self.one_of(True, False, False):
            g[self.rng.random(shape) < 0.05] = -numpy.inf
        return self._rounded(g)

    def packed(self, tokens):
        """Offsets of a few sequences, some of them empty."""
        cuts = numpy.sort(self.rng.integers(0, tokens + 1, self.rng.integers(0, 5)))
        return numpy.concatenate([[0], cuts, [tokens]]).astype(numpy.int32)


def batch(draw, inputs, tokens):
    """(batch size, number of sequences); adds cu_seqlens to the inputs for a packed case."""
    if draw.one_of(True, False, False):
        inputs["cu_seqlens"] = draw.packed(tokens)
        return 1, len(inputs["cu_seqlens"]) - 1
    size = draw.one_of(1, 2, 3)
    return size, size


def causal_conv1d(draw):
    inputs, T, D, W = {}, draw.one_of(*TOKENS), draw.one_of(1, 3, 8, 17), draw.one_of(1, 2, 3, 4, 5, 9)
    B, S = batch(draw, inputs, T)
    inputs |= {"x": draw.normal(B, D, T), "weight": draw.normal(D, W, size=0.5)}
    if draw.maybe():
        inputs["bias"] = draw.normal(D)
    if draw.maybe():
        inputs["initial_state"] = draw.normal(S, D, W - 1)
    return inputs, {"activation": draw.one_of("none", "silu")}


def backbone(draw, inputs, B, T, groups=(1, 2, 3)):
    """Adds the operands of a delta family backbone; returns (parameters, heads, dv, dk)."""
    HK, dk, dv = draw.one_of(1, 2), draw.one_of(3, 8, 16, 24), draw.one_of(1, 5, 8, 20)
    H = HK * draw.one_of(*groups)
    rule, l2norm = draw.one_of("gated_delta", "delta", "gated", "linear"), draw.maybe()
    # Without the norm, keys longer than 1 under beta near 2 would make the delta rule's state grow without bound.
    rows = draw.normal if l2norm else draw.unit_rows
    inputs |= {"q": rows(B, T, HK, dk), "k": rows(B, T, HK, dk), "v": draw.normal(B, T, H, dv)}
    if rule in ("gated_delta", "gated"):
        inputs["g"] = draw.log_decay(B, T, H)
    if rule in ("gated_delta", "delta"):
        inputs["beta"] = draw.uniform(0, draw.one_of(1, 2), B, T, H)
    return {"rule": rule, "scale": repr(float(draw.one_of(1.0, dk ** -0.5))), "qk_l2norm": str(int(l2norm))}, H, dv, dk


def gated_delta_rule(draw):
    inputs, T = {}, draw.one_of(*TOKENS)
    B, S = batch(draw, inputs, T)
    parameters, H, dv, dk = backbone(draw, inputs, B, T)
    if draw.maybe():
        inputs["initial_state"] = draw.normal(S, H, dv, dk)
    return inputs, parameters


def segmentation(draw):
    return {"separation": "uniform", "m": str(draw.one_of(1, 3, 8, 16, 17, 64)), "moment_rule": "plain",
            "divide_by": draw.one_of("m", "count"), "qkp_l2norm": str(int(draw.maybe()))}


def segment_moments(draw):
    inputs, T = {}, draw.one_of(*TOKENS)
    B, _ = batch(draw, inputs, T)
    inputs["kp"] = draw.normal(B, T, draw.one_of(1, 2), draw.one_of(1, 5, 8, 16))
    return inputs, segmentation(draw)


def router(draw, inputs, parameters, B, T, H, HR):
    """Adds the operands and parameters of a router over uniform segments."""
    kind, dr = draw.one_of("merlin", "meanpool", "position", "uniform"), draw.one_of(3, 8, 13)
    parameters |= segmentation(draw)
    parameters |= {"routing": kind, "topk": str(draw.one_of(0, 0, 1, 2, 3)), "max_visible": str(draw.one_of(0, 0, 1, 4)),
                   "topk_keep_current": str(int(draw.maybe()))}
    if kind in ("merlin", "meanpool"):
        inputs["kp"] = draw.normal(B, T, HR, dr)
    if kind == "merlin":
        inputs |= {"qp": draw.normal(B, T, HR, dr), "gamma": draw.uniform(0, 1, B, T, H),
                   "tau_mu": draw.uniform(0.5, 8, H), "tau_sigma": draw.uniform(0.5, 8, H)}
    elif kind == "meanpool":
        inputs["u"] = draw.normal(B, T, HR, dr)
    elif kind == "position":
        ages = -(-T // int(parameters["m"])) + draw.one_of(0, 3)
        parameters |= {"position_index": draw.one_of("age", "absolute"),
                       "position_norm": draw.one_of("softmax", "none")}
        # Raw weights are positive, so that the kept ones of a top-k never sum to 0.
        inputs["weights"] = (draw.normal(B, T, H, ages) if parameters["position_norm"] == "softmax" else
                             draw.uniform(0.1, 1, B, T, H, ages))


def routing(draw):
    inputs, T, B, HR = {}, draw.one_of(*TOKENS), draw.one_of(1, 2), draw.one_of(1, 2)
    H = HR * draw.one_of(1, 2, 3)
    parameters = {"H": str(H)}
    router(draw, inputs, parameters, B, T, H, HR)
    if parameters["routing"] == "uniform":
        inputs["gamma"] = draw.uniform(0, 1, B, T, H)  # says how many tokens and heads there are
    return inputs, parameters


def multi_state(draw):
    inputs, T = {}, draw.one_of(*TOKENS)
    B, _ = batch(draw, inputs, T)
    parameters, H, _, _ = backbone(draw, inputs, B, T)
    HR = draw.one_of(*(n for n in (1, 2, H) if H % n == 0))
    router(draw, inputs, parameters, B, T, H, HR)
    packed = "cu_seqlens" in inputs
    return inputs, parameters | {"return_lam": str(int(not packed)), "return_bank": str(int(draw.maybe()))}


MAKERS = {maker.__name__: maker
          for maker in (causal_conv1d, gated_delta_rule, segment_moments, routing, multi_state)}


def cast(inputs, dtype):
    return {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in inputs.items()}


def perturbed(inputs, rng):
    return {name: a * (1 + rng.uniform(-2.0 ** -9, 2.0 ** -9, a.shape)) if a.dtype.kind == "f" else a
            for name, a in inputs.items()}


def relative_errors(got, want):
    errors = {}
    for name, reference in want.items():
        size = numpy.linalg.norm(reference.ravel())
        error = numpy.linalg.norm((got[name] - reference).ravel())
        errors[name] = f"{error / size if size > 0 else 0.0:.3g}"
    return errors


def make_case(op, seed, index):
    """(metadata, tensors); a function of its arguments alone."""
    rng = numpy.random.default_rng([seed, index])
    dtype = ("f32", "f32", "bf16")[rng.integers(3)]
    inputs, parameters = MAKERS[op](Draw(rng, dtype))
    operator = operators.OPERATORS[op]
    want = operator(cast(inputs, numpy.float64), parameters)
    in_float = operator(inputs, parameters)
    assert all(a.dtype == numpy.float32 for a in in_float.values()), "the float32 run left float32"
    f32_errors = relative_errors(in_float, want)
    bf16_errors = relative_errors(operator(perturbed(cast(inputs, numpy.float64), rng), parameters), want)

    metadata = {"format": "polystate-case-1", "op": op, "name": f"{op}__random_{index:03}", "set": "nightly",
                "seed": str(seed), "description": "random: tests/oracle/generate.py", "source": "tests/oracle",
                "dtype": dtype}
    metadata |= {f"param.{name}": value for name, value in parameters.items()}
    metadata |= {f"f32_err.out.{name}": error for name, error in f32_errors.items()}
    metadata |= {f"bf16_err.out.{name}": error for name, error in bf16_errors.items()}
    tensors = {f"in.{name}": a for name, a in inputs.items()} | {f"out.{name}": a for name, a in want.items()}
    return metadata, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where the files go; its earlier ones are removed")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--operators", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--replay", metavar="PROGRAM", help="judge the files with this replay program")
    options = parser.parse_args()
    seed = secrets.randbelow(2 ** 32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.count} cases of {', '.join(options.operators)}", flush=True)

    options.folder.mkdir(parents=True, exist_ok=True)
    for earlier in options.folder.glob("*__random_*.safetensors"):
        earlier.unlink()
    files = []
    for index in range(options.count):
        metadata, tensors = make_case(options.operators[index % len(options.operators)], seed, index)
        files.append(options.folder / f"{metadata['name']}.safetensors")
        safetensors.write(files[-1], metadata, tensors)
    if options.replay:
        return subprocess.run([options.replay, "--exec", "reference", "--no-skip", *files], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
