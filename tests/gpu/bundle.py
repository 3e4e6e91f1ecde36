# SPDX-License-Identifier: Apache-2.0
"""What another machine needs of a build folder to run its CUDA programs: a folder, or a .tar.xz file of it."""

import lzma
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

# Programs and their mutants have most of their code in common, megabytes apart: a window that holds several, and little
# effort within it.
_COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 64 * 2**20}]


def _is_archive(path):
    return pathlib.Path(path).name.endswith(".tar.xz")


def _fill(build, listings, programs, target):
    for name in (*listings, *programs):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / name, target / name)
    if shutil.which("strip"):  # of the symbols, which no run needs
        subprocess.run(["strip", *(str(target / name) for name in programs)], check=True)


def make(build, listings, programs, target):
    """Copies files of a build folder to `target`; returns its bytes."""
    build, target = pathlib.Path(build), pathlib.Path(target)
    if not _is_archive(target):
        shutil.rmtree(target, ignore_errors=True)
        _fill(build, listings, programs, target)
        return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    with tempfile.TemporaryDirectory() as folder:
        _fill(build, listings, programs, pathlib.Path(folder))
        with lzma.open(target, "wb", filters=_COMPRESSION) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            for name in (*listings, *programs):
                archive.add(pathlib.Path(folder) / name, name)
    return target.stat().st_size


def folder_of(bundle, unpacked):
    """The folder with a bundle's files: an archive is unpacked to `unpacked`."""
    if not _is_archive(bundle):
        return pathlib.Path(bundle).resolve()
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(bundle, "r:xz") as archive:
        archive.extractall(unpacked)
    return pathlib.Path(unpacked).resolve()
