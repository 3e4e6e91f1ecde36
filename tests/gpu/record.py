#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The record of what was verified on a GPU: tests/gpu_verified.json.

  record.py hashes BUILD [...]       on the building machine: builds and lists the CUDA test programs of a folder
  record.py write BUILD [...]        on the machine with the GPU: runs them and writes the record (tests/gpu/run.sh)
  record.py verify [--build BUILD]   anywhere: one line a program, then the line "CUDA programs: N"

A program is verified while the files that it is compiled from are those of its recorded run, every test of that
run passed or was skipped with at least one passed, and no sanitizer reported an error. With --build the files are
those of the compiler's dependency files, which also finds programs that the record does not know; without, and for
programs that the build leaves out, those that the record lists, which is as good for the programs that it knows: to
include another file, one of them must change.
"""

import argparse
import concurrent.futures
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import programs

sys.path.insert(0, str(programs.ROOT / "tests" / "support"))
import googletest  # noqa: E402

RECORD = programs.ROOT / "tests" / "gpu_verified.json"
MUTANTS = "gpu_mutants.json"  # in the build folder, by tests/mutants/CMakeLists.txt
FORMAT = "polystate-gpu-record-1"
# GoogleTest patterns know no character classes: this is "sanitizer", with either capital, or all capitals.
SANITIZER_FILTER = "*anitizer*:*SANITIZER*"
SANITIZERS = {
    "memcheck": ["--tool", "memcheck"],
    "racecheck": ["--tool", "racecheck", "--racecheck-report", "all"],
    "initcheck": ["--tool", "initcheck"],
}
SANITIZER_ERROR = 86  # an exit status of neither GoogleTest nor a signal


def read_record(path):
    try:
        record = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        return {"format": FORMAT, "programs": {}, "mutants": {}}
    if record.get("format") != FORMAT:
        raise SystemExit(f"{path}: not a {FORMAT} file")
    return record


def write_record(path, record):
    record["programs"] = dict(sorted(record["programs"].items()))
    text = json.dumps(record, indent=1) + "\n"
    # One line a test.
    text = re.sub(r'\{\s+("name": [^{}]*?)\s+\}', lambda m: "{" + re.sub(r",\s+", ", ", m.group(1)) + "}", text)
    pathlib.Path(path).write_text(text)


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


def run_command(command):
    """A command that is no GoogleTest program, as a run of one test."""
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=programs.ROOT, check=False)
    outcome = {0: "passed", 77: "skipped"}.get(done.returncode, "failed")
    test = {"name": "command", "seconds": round(time.monotonic() - started, 3), "outcome": outcome}
    return googletest.Run(done.returncode, done.stdout.decode(errors="replace"), True, [test])


def sanitize(sanitizer, tool, program):
    done = googletest.run(program, SANITIZER_FILTER, timeout=1800, prefix=[
        sanitizer, *SANITIZERS[tool], "--error-exitcode", str(SANITIZER_ERROR)])
    summaries = re.findall(r"=+ (?:\w+ )?SUMMARY: (.*)", done.output)
    clean = done.outcome() == "passed" and bool(summaries) and all(s.startswith("0 ") for s in summaries)
    return {"tests": len(done.tests), "clean": clean,
            "summary": "; ".join(summaries) or "no summary"}, "" if clean else done.output[-8000:]


def run_program(name, command, sanitizer, known):
    """The program's entry in the record, and what is to be said of it."""
    path, *arguments = command
    done = run_command(command) if arguments else googletest.run(path, timeout=3600)
    outcome = done.outcome()
    said = [f"-- {name}"] + ([done.output[-8000:]] if outcome != "passed" else [])
    entry = {**known, "outcome": outcome, "sanitizer": {}, "tests": done.tests}
    if sanitizer and outcome == "passed" and not arguments and googletest.list_tests(path, SANITIZER_FILTER):
        for tool in SANITIZERS:
            result, output = sanitize(sanitizer, tool, path)
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


def good(entry):
    return entry["outcome"] == "passed" and all(result["clean"] for result in entry["sanitizer"].values())


def command_hashes(options):
    build = pathlib.Path(options.build)
    listing = programs.listed(build)
    (build / programs.LISTING).write_text(json.dumps(listing, indent=1) + "\n")
    print(f"{len(listing['programs'])} CUDA test programs: {build / programs.LISTING}")
    if options.bundle:
        mutants = known_mutants(build).values()
        kept = [programs.LISTING, MUTANTS, *(p["path"] for p in listing["programs"].values()),
                *(path for path in mutants if (build / path).exists())]
        shutil.rmtree(options.bundle, ignore_errors=True)
        for name in dict.fromkeys(kept):
            target = pathlib.Path(options.bundle) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(build / name, target)
        print(f"{len(set(kept))} files to carry: {options.bundle}")
    return 0


def command_write(options):
    build = pathlib.Path(options.build).resolve()
    listing = json.loads((build / programs.LISTING).read_text())
    stale = [name for name, p in listing["programs"].items() if programs.hash_of(p["files"]) != p["hash"]]
    if stale:
        raise SystemExit(f"sources changed since {build} was built: {', '.join(stale)}")

    device, driver = device_and_driver()
    circumstances = {"device": device, "driver": driver, "nvcc": listing["nvcc"],
                     "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    sanitizer = None if options.no_sanitizer else find_sanitizer()
    record = read_record(options.record)
    record.update(circumstances)
    # Programs that were not run now keep the circumstances of their own last run; those that are gone leave.
    record["programs"] = {name: entry for name, entry in record["programs"].items() if name in listing["programs"]}

    failed = []
    wanted = {name: p for name, p in listing["programs"].items()
              if not options.only or re.search(options.only, name)}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(run_program, name, programs.command(build, p), sanitizer,
                            {**circumstances, "hash": p["hash"], "files": p["files"]}): name
                for name, p in wanted.items()}
        for run in concurrent.futures.as_completed(runs):
            entry, said = run.result()
            print(said, flush=True)
            record["programs"][runs[run]] = entry
            write_record(options.record, record)  # after each, so that a run that is cut short leaves what it saw
            failed += [] if good(entry) else [runs[run]]
    if options.mutants:
        results = run_mutants(build, options.only_mutants, options.jobs)
        record["mutants"] = {name: entry for name, entry in record["mutants"].items() if name in known_mutants(build)}
        record["mutants"].update({name: {**result, **circumstances} for name, result in results.items()})
        failed += [f"mutant {name}" for name, result in results.items() if not result["red"]]

        write_record(options.record, record)

    print(f"-- {device}, driver {driver}, nvcc {listing['nvcc']}: written to {options.record}")
    if failed:
        print(f"-- not good: {', '.join(failed)}")
    return 1 if failed else 0


def verdict(entry, current_hash):
    if entry is None:
        return "UNVERIFIED (not in the record)"
    if current_hash is None or current_hash != entry["hash"]:
        return f"UNVERIFIED (sources changed since {entry['device']}, {entry['date']})"
    if not good(entry):
        return f"UNVERIFIED (not clean on {entry['device']}, {entry['date']})"
    return f"verified on {entry['device']}, {entry['date']}"


def command_verify(options):
    recorded = read_record(options.record)["programs"]
    current = {name: programs.hash_of(entry["files"]) for name, entry in recorded.items()}
    if options.build:
        for name, p in programs.listed(options.build)["programs"].items():
            # A build with fewer units of a program than the recorded one knows of the others by the record.
            if name not in recorded or not set(p["files"]) <= set(recorded[name]["files"]):
                current[name] = p["hash"]
    for name, current_hash in sorted(current.items()):
        print(f"   {name}: {verdict(recorded.get(name), current_hash)}")
    print(f"CUDA programs: {len(current)}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    hashes = commands.add_parser("hashes")
    hashes.add_argument("build")
    hashes.add_argument("--bundle", metavar="DIR", help="copies what another machine needs of the folder to DIR")
    hashes.set_defaults(command=command_hashes)

    write = commands.add_parser("write")
    write.add_argument("build")
    write.add_argument("--record", default=RECORD)
    write.add_argument("--no-sanitizer", action="store_true")
    write.add_argument("--only", metavar="REGEX", help="of the programs, those whose name it finds")
    write.add_argument("--jobs", type=int, default=1, help="programs at once")
    write.add_argument("--mutants", action="store_true", help="also the CUDA mutants, which must be red")
    write.add_argument("--only-mutants", metavar="REGEX")
    write.set_defaults(command=command_write)

    verify = commands.add_parser("verify")
    verify.add_argument("--record", default=RECORD)
    verify.add_argument("--build")
    verify.set_defaults(command=command_verify)

    options = parser.parse_args()
    return options.command(options)


if __name__ == "__main__":
    sys.exit(main())
