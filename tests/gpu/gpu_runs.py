# SPDX-License-Identifier: Apache-2.0
"""Runs CUDA test programs and mutants on this machine's GPU."""

import concurrent.futures
import json
import re
import shutil
import subprocess
import sys
import time

import programs

sys.path.insert(0, str(programs.ROOT / "tests" / "support"))
import googletest  # noqa: E402

MUTANTS = "gpu_mutants.json"  # in the build folder, by tests/mutants/mutants.cmake
# GoogleTest patterns know no character classes: this is "sanitizer", with either capital, or all capitals.
SANITIZER_FILTER = "*anitizer*:*SANITIZER*"
SANITIZERS = {
    "memcheck": ["--tool", "memcheck"],
    "racecheck": ["--tool", "racecheck", "--racecheck-report", "all"],
    "initcheck": ["--tool", "initcheck"],
}
SANITIZER_ERROR = 86  # an exit status of neither GoogleTest nor a signal


def device_and_driver():
    answer = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                            stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    device, driver = (part.strip() for part in answer[0].rsplit(",", 1))
    return device, driver


def find_sanitizer():
    for candidate in ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"):
        if shutil.which(candidate):
            return shutil.which(candidate)
    raise SystemExit("compute-sanitizer not found; --no-sanitizer runs the tests without it")


def _run_command(command):
    """A command that is no GoogleTest program, as a run of one test."""
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=programs.ROOT, check=False)
    outcome = {0: "passed", 77: "skipped"}.get(done.returncode, "failed")
    test = {"name": "command", "seconds": time.monotonic() - started, "outcome": outcome}
    return googletest.Run(done.returncode, done.stdout.decode(errors="replace"), True, [test])


def _sanitize(sanitizer, tool, program):
    done = googletest.run(program, SANITIZER_FILTER, timeout=1800, prefix=[
        sanitizer, *SANITIZERS[tool], "--error-exitcode", str(SANITIZER_ERROR)])
    summaries = re.findall(r"=+ (?:\w+ )?SUMMARY: (.*)", done.output)
    clean = done.outcome() == "passed" and bool(summaries) and all(s.startswith("0 ") for s in summaries)
    return {"tests": len(done.tests), "clean": clean,
            "summary": "; ".join(summaries) or "no summary"}, "" if clean else done.output[-8000:]


def summary_of(outcome, tests):
    """What the record keeps of a run: the tests that passed are counted, the others named."""
    kept = {"outcome": outcome, "passed": sum(t["outcome"] == "passed" for t in tests)}
    for kind in ("failed", "skipped"):
        names = [t["name"] for t in tests if t["outcome"] == kind]
        if names:
            kept[kind] = names
    return {**kept, "seconds": round(sum(t["seconds"] for t in tests), 1)}


def run_program(name, command, sanitizer):
    """What the record keeps of the program's run, and what is to be said of it."""
    path, *arguments = command
    done = _run_command(command) if arguments else googletest.run(path, timeout=3600)
    outcome = done.outcome()
    said = [f"-- {name}"] + ([done.output[-8000:]] if outcome != "passed" else [])
    entry = {**summary_of(outcome, done.tests), "sanitizer": {}}
    if sanitizer and outcome == "passed" and not arguments and googletest.list_tests(path, SANITIZER_FILTER):
        for tool in SANITIZERS:
            result, output = _sanitize(sanitizer, tool, path)
            entry["sanitizer"][tool] = result
            said += ([output] if output else []) + [f"   {tool}: {result['tests']} tests, {result['summary']}"]
    counts = ", ".join(f"{len(done.named(kind))} {kind}" for kind in ("passed", "failed", "skipped"))
    return entry, "\n".join([*said, f"   {outcome}: {counts}"])


def known_mutants(build):
    """name -> path of its program in the build folder"""
    return json.loads((build / MUTANTS).read_text())


def run_mutants(build, wanted, jobs):
    """name -> whether its tests failed, by assertions, as they must."""
    def run(path):
        if not (build / path).exists():
            raise SystemExit(f"{build / path}: not there; build the target gpu_mutants")
        return googletest.run(build / path, timeout=3600)

    results = {}
    paths = {name: path for name, path in known_mutants(build).items() if not wanted or re.search(wanted, name)}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, done in zip(paths, pool.map(run, paths.values())):
            red = done.reported and bool(done.named("failed"))
            results[name] = {"red": red, "failed_tests": done.named("failed")[:8]}
            print(f"-- mutant {name}: " + ("red" if red else f"NOT RED ({done.outcome()})"), flush=True)
            if not red:
                print(done.output[-4000:])
    return results
