# SPDX-License-Identifier: Apache-2.0
"""The peers' own kernels behind a C interface, in a folder that README.md describes."""
import ctypes
import json
import pathlib
import sys

import torch


class Peer:
    """A peer's library. What it lacks is empty or else the reason."""

    def __init__(self, name, folder, file, version):
        self.name, self.version, self.why_not, self.why_no_steps = name, version, "", ""
        if folder is None:
            self.why_not = "no folder of peers given (--peers)"
        elif not (folder / file).exists():
            self.why_not = f"no {file} in {folder}"
        else:
            try:
                self.lib = ctypes.CDLL(str((folder / file).resolve()))
            except OSError as e:
                self.why_not = str(e)
        if self.why_not:
            self.why_not = f"{name} is not measured: {self.why_not}"

    @property
    def works(self):
        return not self.why_not

    @property
    def steps(self):
        return not self.why_no_steps

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
    try:
        if folder:
            sys.path.insert(0, str((folder / "python").resolve()))
        from mamba_ssm.ops.triton.selective_state_update import selective_state_update
        mamba.selective_state_update = selective_state_update
    except ImportError as e:
        mamba.why_no_steps = f"mamba-ssm's step is not measured: {e}"
    return peers
