# SPDX-License-Identifier: Apache-2.0
"""mutant.py prepare PATCH INCLUDE DEST   DEST becomes INCLUDE with the patch applied
   mutant.py red PROGRAM                  succeeds where an assertion of the program's tests fails
   mutant.py green PROGRAM                succeeds where none does"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import googletest  # noqa: E402


def files_of(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def prepare(patch, include, destination):
    patch, include, destination = (pathlib.Path(p).resolve() for p in (patch, include, destination))
    with tempfile.TemporaryDirectory() as scratch:
        fresh = pathlib.Path(scratch) / "include"
        shutil.copytree(include, fresh)
        done = subprocess.run(["patch", "-p1", "--no-backup-if-mismatch", "-d", scratch, "-i", str(patch)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{patch.name} does not apply:\n{done.stdout.decode()}")
        # Only what differs is written, so that a mutant is rebuilt for a change of its own headers alone.
        destination.mkdir(parents=True, exist_ok=True)
        for gone in files_of(destination) - files_of(fresh):
            (destination / gone).unlink()
        for name in files_of(fresh):
            target = destination / name
            content = (fresh / name).read_bytes()
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    return 0


def judge(wanted, program):
    run = googletest.run(program)
    failed = run.named("failed")
    # A crash is not red: it would hide that no assertion noticed.
    seen = "red" if run.reported and failed else "green" if run.outcome() == "passed" else run.outcome()
    print(f"{seen}: {len(run.named('passed'))} passed, {len(failed)} failed", *failed, sep="\n  ")
    if seen != wanted:
        print(f"expected {wanted}")
    if seen not in ("red", "green"):
        print(run.output[-8000:])
    return 0 if seen == wanted else 1


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    sys.exit(prepare(*rest) if command == "prepare" else judge(command, *rest))
