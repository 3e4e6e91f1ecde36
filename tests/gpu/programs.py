# SPDX-License-Identifier: Apache-2.0
"""Which CUDA test programs a build folder holds, and a hash of the project's files that each was compiled from."""

import hashlib
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTING = "cuda_programs.json"  # lies in the build folder and travels with it


def hash_of(files):
    """sha256 over the sorted (path in the project, content) pairs; None where a file is gone."""
    digest = hashlib.sha256()
    for name in sorted(files):
        try:
            content = (ROOT / name).read_bytes()
        except OSError:
            return None
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _ninja(build, *arguments):
    return subprocess.run(["ninja", "-C", str(build), *arguments], stdout=subprocess.PIPE, check=True).stdout.decode()


def _dependencies(build):
    """object file -> the project's files that the compiler read for it, from ninja's log of dependency files."""
    found, current = {}, None
    for line in _ninja(build, "-t", "deps").splitlines():
        if line.startswith("    "):
            path = pathlib.Path(line.strip())
            path = (path if path.is_absolute() else build / path).resolve()
            if path.is_relative_to(ROOT) and not path.is_relative_to(build):
                current.append(str(path.relative_to(ROOT)))
        elif ": #deps" in line:
            current = found.setdefault(line.split(": #deps")[0], [])
    return found


def _nvcc_release(build):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("CMAKE_CUDA_COMPILER:"):
            text = subprocess.run([line.split("=", 1)[1], "--version"], stdout=subprocess.PIPE, check=True).stdout
            return re.search(r"V(\d+\.\d+\.\d+)", text.decode()).group(1)
    raise SystemExit(f"{build} was configured without CUDA")


def _tests(build):
    """CTest's entries under the label cuda. One without arguments is a GoogleTest program; any other is a command,
    judged by its exit status."""
    shown = subprocess.run(["ctest", "--test-dir", str(build), "-L", "^cuda$", "--show-only=json-v1"],
                           stdout=subprocess.PIPE, check=True).stdout
    for test in json.loads(shown)["tests"]:
        if "command" not in test:
            raise SystemExit(f"{test['name']} is not built in {build}")
        program, *arguments = test["command"]
        # The folder may be run elsewhere: no absolute path of this machine.
        yield (test["name"], str(pathlib.Path(program).relative_to(build)),
               [a.replace(str(build), "{build}").replace(str(ROOT), "{root}") for a in arguments])


def command(build, program):
    """The command line of a listed program, on this machine."""
    return [str(build / program["path"]),
            *(a.replace("{build}", str(build)).replace("{root}", str(ROOT)) for a in program["arguments"])]


def listed(build):
    """Of a Ninja folder: {"nvcc", "programs": {name: {"path", "arguments", "hash", "files"}}}. Builds what is out of
    date, so that the hashes are those of the programs."""
    build = pathlib.Path(build).resolve()
    tests = sorted(_tests(build))
    if tests:
        _ninja(build, *{path for _, path, _ in tests})
    objects = _dependencies(build)
    programs = {}
    for name, path, arguments in tests:
        files = set()
        for item in _ninja(build, "-t", "inputs", path).splitlines():
            files.update(objects.get(item, ()))
        if not files:
            raise SystemExit(f"{name}: ninja knows no dependencies of {path}")
        programs[name] = {"path": path, "arguments": arguments, "hash": hash_of(files), "files": sorted(files)}
    return {"nvcc": _nvcc_release(build), "programs": programs}
