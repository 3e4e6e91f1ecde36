#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The record of what was verified on a GPU: tests/gpu_verified.json.

  record.py verify [--build BUILD]   anywhere: one line a program, then the line "CUDA programs: N"
  record.py stale BUILD              the programs of a build folder that verify has to compile, one path a line
  record.py renew BUILD              without a GPU: takes over changed sources where the device code is the same
  record.py hashes BUILD [...]       on the building machine: builds and lists the CUDA test programs of a folder
  record.py write BUILD [...]        on the machine with the GPU: runs them and writes the record (tests/gpu/run.sh)

A program is verified while every test of its recorded run passed or was skipped with at least one passed, no sanitizer
reported an error, and either
  - the text that it is compiled from, options and nvcc are those of that run. Comments, white space and include lines do
    not count (source_text.py). Nothing is compiled to find that out; or
  - its device code, compiled now by the same nvcc, is that of the run (device_code.py).
So a change of host code or of a test's text costs nothing but compiling. Without --build nothing is compiled, and options
and nvcc are not known: verify then looks at the text alone, of the sources that the record lists.
"""

import argparse
import concurrent.futures
import datetime
import json
import pathlib
import re
import sys

import bundle
import gpu_runs
import programs
import record_file
import source_text

RECORD = programs.ROOT / "tests" / "gpu_verified.json"
COMPILED_FROM = ("sources", "text", "options")  # of a described program, in its entry


def command_hashes(options):
    build = pathlib.Path(options.build)
    listing = programs.listed(build)
    (build / programs.LISTING).write_text(json.dumps(listing, indent=1) + "\n")
    print(f"{len(listing['programs'])} CUDA test programs: {build / programs.LISTING}")
    if options.bundle:
        ran = {program["path"] for program in listing["programs"].values()}
        mutants = {path for path in gpu_runs.known_mutants(build).values() if (build / path).exists()}
        carried = sorted(ran | mutants, key=lambda path: path.rpartition("/")[2].removeprefix("mutant_"))
        size = bundle.make(build, [programs.LISTING, gpu_runs.MUTANTS], carried, options.bundle)
        print(f"{len(carried)} programs to carry, {size / 2**20:.1f} MiB: {options.bundle}")
    return 0


def command_write(options):
    build = bundle.folder_of(options.build, programs.ROOT / "build" / "gpu_bundle")
    listing = json.loads((build / programs.LISTING).read_text())
    tree = source_text.Tree(programs.ROOT)
    changed = [name for name, p in listing["programs"].items() if tree.hash(p["sources"]) != p["text"]]
    if changed:
        raise SystemExit(f"sources changed since {build} was built: {', '.join(changed)}")

    device, driver = gpu_runs.device_and_driver()
    circumstances = {"device": device, "driver": driver, "nvcc": listing["nvcc"],
                     "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    sanitizer = None if options.no_sanitizer else gpu_runs.find_sanitizer()
    record = record_file.read(options.record)
    # Programs that were not run now keep the circumstances of their own last run; those that are gone leave.
    record["programs"] = {name: entry for name, entry in record["programs"].items() if name in listing["programs"]}

    failed = []
    wanted = {name: p for name, p in listing["programs"].items()
              if not options.only or re.search(options.only, name)}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(gpu_runs.run_program, name, programs.command(build, p), sanitizer): name
                for name, p in wanted.items()}
        for run in concurrent.futures.as_completed(runs):
            entry, said = run.result()
            print(said, flush=True)
            name = runs[run]
            compiled = {key: wanted[name][key] for key in (*COMPILED_FROM, "sass")}
            record["programs"][name] = {**circumstances, **entry, **compiled}
            record_file.write(options.record, record)  # after each: a run that is cut short leaves what it saw
            failed += [] if record_file.good(entry) else [name]
    if options.mutants:
        results = gpu_runs.run_mutants(build, options.only_mutants, options.jobs)
        known = gpu_runs.known_mutants(build)
        record["mutants"] = {name: entry for name, entry in record["mutants"].items() if name in known}
        record["mutants"].update({name: {**circumstances, **result} for name, result in results.items()})
        failed += [f"mutant {name}" for name, result in results.items() if not result["red"]]
        record_file.write(options.record, record)

    print(f"-- {device}, driver {driver}, nvcc {listing['nvcc']}: written to {options.record}")
    if failed:
        print(f"-- not good: {', '.join(failed)}")
    return 1 if failed else 0


def command_stale(options):
    build = pathlib.Path(options.build)
    recorded = record_file.read(options.record)["programs"]
    stale = record_file.stale(recorded, programs.described(build), programs.nvcc_release(build))
    for path in sorted({program["path"] for program in stale.values()}):
        print(path)
    return 0


def known_by_record(recorded):
    """The recorded programs as they are now, as far as it is known without a build."""
    tree = source_text.Tree(programs.ROOT)
    return {name: {"text": tree.hash(entry["sources"])} for name, entry in recorded.items()}


def command_verify(options):
    recorded = record_file.read(options.record)["programs"]
    current, nvcc, code = known_by_record(recorded), None, {}
    if options.build:
        build = pathlib.Path(options.build)
        nvcc = programs.nvcc_release(build)
        described = programs.described(build)
        code = programs.built(build, record_file.stale(recorded, described, nvcc).values())
        current.update(described)
    for name, program in sorted(current.items()):
        release = nvcc if "path" in program else None
        said = record_file.verdict(recorded.get(name), program, release, code.get(program.get("path")))
        print(f"   {name}: {said}")
    print(f"CUDA programs: {len(current)}")
    return 0


def command_renew(options):
    build = pathlib.Path(options.build)
    record = record_file.read(options.record)
    recorded, nvcc = record["programs"], programs.nvcc_release(build)
    described = programs.described(build)
    stale = record_file.stale(recorded, described, nvcc)
    code = programs.built(build, [program for name, program in stale.items() if name in recorded])
    renewed = [name for name, program in stale.items()
               if name in recorded and record_file.same_code(recorded[name], code[program["path"]], nvcc)]
    for name in renewed:
        recorded[name].update({key: stale[name][key] for key in COMPILED_FROM})
    if renewed:
        record_file.write(options.record, record)
    for name in sorted(stale):
        print(f"   {name}: {'renewed' if name in renewed else 'needs a GPU'}")
    print(f"{len(described) - len(stale)} programs unchanged, {len(renewed)} renewed, "
          f"{len(stale) - len(renewed)} need a GPU")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def add(name, run):
        command = commands.add_parser(name)
        command.add_argument("--record", default=RECORD)
        command.set_defaults(command=run)
        return command

    for name, run in (("stale", command_stale), ("renew", command_renew)):
        add(name, run).add_argument("build")
    add("verify", command_verify).add_argument("--build")

    hashes = add("hashes", command_hashes)
    hashes.add_argument("build")
    hashes.add_argument("--bundle", metavar="TARGET", help="copies what another machine needs to this folder or .tar.xz file")

    write = add("write", command_write)
    write.add_argument("build")
    write.add_argument("--no-sanitizer", action="store_true")
    write.add_argument("--only", metavar="REGEX", help="of the programs, those whose name it finds")
    write.add_argument("--jobs", type=int, default=1, help="programs at once")
    write.add_argument("--mutants", action="store_true", help="also the CUDA mutants, which must be red")
    write.add_argument("--only-mutants", metavar="REGEX")

    options = parser.parse_args()
    return options.command(options)


if __name__ == "__main__":
    sys.exit(main())
