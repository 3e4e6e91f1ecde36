# SPDX-License-Identifier: Apache-2.0
"""The CUDA test programs of a build folder (Ninja): what each is compiled from and with, and what its code is."""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess

import device_code
import source_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = "gpu_runs.json"  # in the build folder, by tests/CMakeLists.txt: what a GPU is to run
LISTING = "cuda_programs.json"  # in the build folder, and travels with the programs: listed()

# Of a command line, what is no setting of the program: paths, files, warnings, and the host's compiler and optimisation.
_WITH_VALUE = ("-MT", "-MF", "-o", "-x", "-isystem", "-I", "-ccbin")
_NO_SETTING = re.compile(r"-I.+|-isystem=.+|-ccbin=.+|--param=.+|-MD|-c|-W.*|-Xcompiler=-W.*|-w|--Werror=.*|-O\w*|-g")


def ninja(build, *arguments):
    done = subprocess.run(["ninja", "-C", str(build), *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"ninja failed in {build}:\n{done.stdout.decode(errors='replace')[-4000:]}")
    return done.stdout.decode()


def _cached(build, name):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    return ""


def nvcc_release(build):
    compiler = _cached(build, "CMAKE_CUDA_COMPILER")
    if not compiler:
        raise SystemExit(f"{build} was configured without CUDA")
    text = subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return re.search(r"V(\d+\.\d+\.\d+)", text).group(1)


def settings_of(command, compilers, source):
    """Of a compiler's command line, the options that decide what the program is: each once and sorted, since CMake's
    versions differ in their order and give some of them twice."""
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if word in compilers) + 1:]
    kept = []
    while words:
        word = words.pop(0)
        if word in _WITH_VALUE:
            words.pop(0)
        elif word != source and not _NO_SETTING.fullmatch(word):
            kept.append(word)
    return " ".join(sorted(set(kept)))


def _placeless(text, build):
    """Without the absolute paths of this machine."""
    return text.replace(str(build), "{build}").replace(str(ROOT), "{root}")


def _compiled(build):
    """object file -> (source in the project, settings)"""
    compilers = (_cached(build, "CMAKE_CXX_COMPILER"), _cached(build, "CMAKE_CUDA_COMPILER"))
    found = {}
    for edge in json.loads(ninja(build, "-t", "compdb")):
        if not edge["output"].endswith(".o"):
            continue
        source = (build / edge["file"]).resolve()
        if source.is_relative_to(ROOT) and not source.is_relative_to(build):
            settings = _placeless(settings_of(edge["command"], compilers, edge["file"]), build)
            found[edge["output"]] = (str(source.relative_to(ROOT)), settings)
        else:
            found[edge["output"]] = (None, edge["file"])
    return found


def described(build):
    """{name: {"path", "arguments", "sources", "options", "text"}} of what a GPU is to run; compiles nothing."""
    build = pathlib.Path(build).resolve()
    ninja(build, "build.ninja")  # as CMake would have it now
    tree = source_text.Tree(ROOT)
    objects = _compiled(build)
    units = {}

    def units_of(path):
        if path not in units:
            names = ninja(build, "-t", "inputs", path).splitlines()
            units[path] = sorted({objects[name] for name in names if name in objects}, key=str)
            generated = [file for source, file in units[path] if source is None]
            if generated:
                raise SystemExit(f"{path}: compiled from {generated[0]}, and the record knows only files of the project")
        return units[path]

    found = {}
    for name, run in sorted(json.loads((build / RUNS).read_text()).items()):
        path = str(pathlib.Path(run["program"]).relative_to(build))
        sources = sorted({source for source, _ in units_of(path)})
        options = hashlib.sha256(repr(units_of(path)).encode()).hexdigest()[:32]
        found[name] = {"path": path, "arguments": [_placeless(a, build) for a in run["arguments"]],
                       "sources": sources, "options": options, "text": tree.hash(sources)}
    return found


def command(build, program):
    """The command line of a described program, on this machine."""
    return [str(build / program["path"]),
            *(a.replace("{build}", str(build)).replace("{root}", str(ROOT)) for a in program["arguments"])]


def built(build, described_programs):
    """path -> hash of its device code, of described programs, which this builds where they are out of date."""
    build = pathlib.Path(build).resolve()
    paths = sorted({program["path"] for program in described_programs})
    if paths:
        ninja(build, *paths)

    def code(path):
        try:
            return device_code.hash_of(build / path)
        except device_code.CodeError as error:
            raise SystemExit(f"{path}: {error}") from None

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(zip(paths, pool.map(code, paths)))


def listed(build):
    """{"nvcc", "programs": those described, each with "sass" too}. Builds what is out of date."""
    build = pathlib.Path(build).resolve()
    found = described(build)
    code = built(build, found.values())
    return {"nvcc": nvcc_release(build),
            "programs": {name: {**program, "sass": code[program["path"]]} for name, program in found.items()}}
