# SPDX-License-Identifier: Apache-2.0
"""Random operands, made once for both sides."""
import functools

import torch

from measure import DEVICE


class Random:
    """Draws float32 tensors on the device, the same ones for the same seed."""

    def __init__(self, seed):
        self.generator = torch.Generator(device=DEVICE).manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator, device=DEVICE)

    def uniform(self, *shape):
        return torch.rand(*shape, generator=self.generator, device=DEVICE)

    def unit(self, *shape):
        """Vectors of length 1 along the last index."""
        return torch.nn.functional.normalize(self.normal(*shape), dim=-1)


def once(function, /, *arguments, **sizes):
    """The function with these arguments; a further call with the same ones gives the same tensors."""
    return functools.lru_cache(maxsize=None)(functools.partial(function, *arguments, **sizes))
