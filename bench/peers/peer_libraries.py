# SPDX-License-Identifier: Apache-2.0
"""The peers' own kernels behind a C interface, in a folder that README.md describes."""
import ctypes
import json
import pathlib
import sys

import torch


class Peer:
    """A peer's library, or why there is none."""

    def __init__(self, name, folder, file, version):
        self.name, self.version, self.works, self.steps = name, version, False, False
        self.why_not = self.why_no_steps = f"{name} is not measured: " + (
            f"no {file} in {folder}" if folder else "no folder of peers given (--peers)")
        if folder and (folder / file).exists():
            try:
                self.lib = ctypes.CDLL(str((folder / file).resolve()))
                self.works = True
            except OSError as e:
                self.why_not = f"{name} is not measured: {e}"

    def call(self, function, *arguments):
        """Calls it on torch's current stream: integers as 64 or, for flags, 32 bits; tensors as pointers."""
        def convert(a):
            return ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if getattr(self.lib, function)(*(convert(a) for a in arguments), stream) != 0:
            raise RuntimeError(f"{self.name}: {function} failed")


def find(folder):
    """The peers by name."""
    folder = pathlib.Path(folder) if folder else None
    versions = {}
    if folder and (folder / "versions.json").exists():
        versions = json.loads((folder / "versions.json").read_text())
    files = {"mamba-ssm": "libmamba.so", "causal-conv1d": "libcausal_conv1d.so"}
    peers = {name: Peer(name, folder, file, versions.get(name)) for name, file in files.items()}

    mamba = peers["mamba-ssm"]
    if folder and (folder / "python" / "mamba_ssm").is_dir():
        sys.path.insert(0, str(folder / "python"))
        try:
            from mamba_ssm.ops.triton.selective_state_update import selective_state_update
            mamba.selective_state_update = selective_state_update
            mamba.steps = True
        except ImportError as e:
            mamba.why_no_steps = f"mamba-ssm's step is not measured: {e}"
    else:
        mamba.why_no_steps = f"mamba-ssm's step is not measured: no python/mamba_ssm in {folder}"
    return peers
