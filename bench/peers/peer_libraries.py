# SPDX-License-Identifier: Apache-2.0
"""The peers' own kernels, in a folder that README.md describes: behind a C interface, or Python packages."""
import ctypes
import importlib
import json
import os
import pathlib
import sys

import torch


class Peer:
    """What there is of a peer; if it does not work, why_not says why."""

    def __init__(self, name, version):
        self.name, self.version, self.why_not = name, version, ""

    @property
    def works(self):
        return not self.why_not

    def refuse(self, reason):
        self.why_not = f"{self.name} is not measured: {reason}"


class CudaLibrary(Peer):
    """A peer's CUDA kernels as a shared library."""

    def __init__(self, name, version, folder, file):
        super().__init__(name, version)
        if folder is None:
            self.refuse("no folder of peers given (--peers)")
        elif not (folder / file).exists():
            self.refuse(f"no {file} in {folder}")
        else:
            try:
                self.lib = ctypes.CDLL(str((folder / file).resolve()))
            except OSError as e:
                self.refuse(e)

    def call(self, function, *arguments):
        """Calls it on torch's current stream: integers as 64 or, for flags, 32 bits; tensors as pointers."""

        def convert(a):
            return ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a)

        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if getattr(self.lib, function)(*(convert(a) for a in arguments), stream) != 0:
            raise RuntimeError(f"{self.name}: {function} failed")


class PythonPackage(Peer):
    """Parts of a peer's Python package as attributes: modules, or "module:name"."""

    def __init__(self, name, version, **parts):
        super().__init__(name, version)
        for attribute, part in parts.items():
            module, _, member = part.partition(":")
            try:
                found = importlib.import_module(module)
                setattr(self, attribute, getattr(found, member) if member else found)
            except Exception as e:  # whatever it is, it must cost this peer's rows only
                self.refuse(f"{part}: {type(e).__name__}: {e}")


def find(folder):
    """The peers, or parts of them that work or fail together, by name."""
    folder = pathlib.Path(folder) if folder else None
    versions = {}
    if folder and (folder / "versions.json").exists():
        versions = json.loads((folder / "versions.json").read_text())
    os.environ["FLA_CACHE_RESULTS"] = "0"  # FLA tunes anew, whatever was chosen before or while others used the GPU
    if folder:
        sys.path.insert(0, str((folder / "python").resolve()))

    def library(name, file):
        return CudaLibrary(name, versions.get(name), folder, file)

    def package(name, **parts):
        return PythonPackage(name, versions.get(name), **parts)

    mamba_triton = "mamba_ssm.ops.triton"
    delta_rule = "fla.ops.gated_delta_rule"
    return {
        "mamba-ssm": library("mamba-ssm", "libmamba.so"),
        "mamba-ssm step": package(
            "mamba-ssm", selective_state_update=f"{mamba_triton}.selective_state_update:selective_state_update"),
        "mamba-ssm ssd": package(
            "mamba-ssm", mamba_chunk_scan_combined=f"{mamba_triton}.ssd_combined:mamba_chunk_scan_combined",
            forward=f"{mamba_triton}.ssd_combined:_mamba_chunk_scan_combined_fwd",
            backward=f"{mamba_triton}.ssd_combined:_mamba_chunk_scan_combined_bwd"),
        "causal-conv1d": library("causal-conv1d", "libcausal_conv1d.so"),
        "fla-core": package(
            "fla-core", chunk_gated_delta_rule=f"{delta_rule}:chunk_gated_delta_rule",
            fused_recurrent_gated_delta_rule=f"{delta_rule}:fused_recurrent_gated_delta_rule",
            forward=f"{delta_rule}.chunk:chunk_gated_delta_rule_fwd",
            backward=f"{delta_rule}.chunk:chunk_gated_delta_rule_bwd", chunk_o="fla.ops.common.chunk_o"),
    }
