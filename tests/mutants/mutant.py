# SPDX-License-Identifier: Apache-2.0
"""mutant.py check MUTANT...               succeeds where every mutant applies to this project, and
                                           few enough are CUDA mutants
   mutant.py prepare MUTANT INCLUDE DEST   DEST becomes INCLUDE with the mutant's edits
   mutant.py red PROGRAM                   succeeds where an assertion of the program's tests fails
   mutant.py green PROGRAM                 succeeds where none does"""

import collections
import pathlib
import re
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import googletest  # noqa: E402

MOST_ON_GPU = 2  # of one file
_HEADER = re.compile(r"(Test|CUDA test|Why|File): *(\S.*)")


class MutantError(Exception):
    """A mutant that cannot be read or does not apply; says why."""


@dataclass
class Edit:
    """Of one file: consecutive lines, and what stands there instead."""

    find: list = field(default_factory=list)
    replace: list = field(default_factory=list)


@dataclass
class Mutant:
    name: str
    headers: dict
    edits: list

    @property
    def file(self):
        return self.headers["File"]


def parse(path):
    """The format stands in CMakeLists.txt."""
    path = pathlib.Path(path)
    headers, edits, lines = {}, [], None
    for line in path.read_text().splitlines():
        if line == "Find:":
            edits.append(Edit())
            lines = edits[-1].find
        elif line == "Replace:" and edits:
            lines = edits[-1].replace
        elif lines is not None:
            lines.append(line)
        elif found := _HEADER.fullmatch(line):
            headers[found[1]] = found[2]
        elif line and not line.startswith("#"):
            raise MutantError(f"{path.name}: unknown line {line!r}")
    for wanted in ("Why", "File"):
        if wanted not in headers:
            raise MutantError(f"{path.name}: no line \"{wanted}:\"")
    if ("Test" in headers) == ("CUDA test" in headers):
        raise MutantError(f"{path.name}: needs one line \"Test:\" or \"CUDA test:\"")
    if not edits or any(not edit.find for edit in edits):
        raise MutantError(f"{path.name}: needs the lines to find, behind \"Find:\"")
    return Mutant(path.stem, headers, edits)


def apply(mutant, text):
    """The text of the mutant's file with its edits. What an edit finds stands in the text exactly once, where the white
    space before and after a line does not count."""
    lines = text.split("\n")
    stripped = [line.strip() for line in lines]
    places = []
    for edit in mutant.edits:
        wanted = [line.strip() for line in edit.find]
        found = [i for i in range(len(lines)) if stripped[i:i + len(wanted)] == wanted]
        if len(found) != 1:
            raise MutantError(f"{mutant.name}: {mutant.file} holds {len(found)} times what is to be found once:\n"
                              + "\n".join(edit.find))
        places.append((found[0], edit))
    places.sort(key=lambda place: place[0])
    for (first, edit), (second, _) in zip(places, places[1:]):
        if first + len(edit.find) > second:
            raise MutantError(f"{mutant.name}: its edits overlap in {mutant.file}")
    for at, edit in reversed(places):
        lines[at:at + len(edit.find)] = edit.replace
    mutated = "\n".join(lines)
    if mutated == text:
        raise MutantError(f"{mutant.name}: changes nothing")
    return mutated


def read_file(mutant, folder):
    path = folder / mutant.file
    if not path.is_file():
        raise MutantError(f"{mutant.name}: there is no {mutant.file}")
    return path.read_text()


def check(*paths):
    faults, on_gpu = [], collections.Counter()
    for path in paths:
        try:
            mutant = parse(path)
            apply(mutant, read_file(mutant, ROOT))
        except MutantError as error:
            faults.append(str(error))
        else:
            on_gpu.update([mutant.file] if "CUDA test" in mutant.headers else [])
    faults += [f"{file} has {n} CUDA mutants, and may have {MOST_ON_GPU}" for file, n in on_gpu.items() if n > MOST_ON_GPU]
    print(*faults, f"{len(paths)} mutants, {len(faults)} faults", sep="\n")
    return 1 if faults or not paths else 0


def prepare(path, include, destination):
    include, destination = pathlib.Path(include).resolve(), pathlib.Path(destination).resolve()
    mutant = parse(path)
    mutated = (include.parent / mutant.file).resolve()
    if not mutated.is_relative_to(include):
        raise MutantError(f"{mutant.name}: {mutant.file} is not in {include.name}/")
    fresh = {file.relative_to(include): file.read_bytes() for file in include.rglob("*") if file.is_file()}
    fresh[mutated.relative_to(include)] = apply(mutant, read_file(mutant, include.parent)).encode()
    # Only what differs is written, so that a mutant is rebuilt for a change of its own headers alone.
    destination.mkdir(parents=True, exist_ok=True)
    for file in [file for file in destination.rglob("*") if file.is_file()]:
        if file.relative_to(destination) not in fresh:
            file.unlink()
    for name, content in fresh.items():
        target = destination / name
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


def main(command, *rest):
    try:
        if command in ("red", "green"):
            return judge(command, *rest)
        return {"check": check, "prepare": prepare}[command](*rest)
    except MutantError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
