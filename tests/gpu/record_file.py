# SPDX-License-Identifier: Apache-2.0
"""tests/gpu_verified.json, one line a program and a mutant, and what it says of a program as it is now.

A program's entry: what it was compiled from ("sources", "text", "options", "nvcc": see programs.py), the hash of its
device code ("sass"; null where it was not taken), and its run on the GPU."""

import json
import pathlib

FORMAT = "polystate-gpu-record-2"
SECTIONS = ("programs", "mutants")


def read(path):
    try:
        record = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        return {"format": FORMAT, **{section: {} for section in SECTIONS}}
    if record.get("format") != FORMAT:
        raise SystemExit(f"{path}: not a {FORMAT} file")
    return record


def write(path, record):
    def section(name):
        lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(record[name].items())]
        return f'"{name}": {{\n' + ",\n".join(lines) + ("\n}" if lines else "}")

    text = f'{{"format": "{FORMAT}",\n' + ",\n".join(map(section, SECTIONS)) + "}\n"
    json.loads(text)
    pathlib.Path(path).write_text(text)


def good(entry):
    return entry["outcome"] == "passed" and all(result["clean"] for result in entry["sanitizer"].values())


def unchanged(entry, program, nvcc):
    """Whether a program is compiled from what the entry's was, as far as known: `options` and `nvcc` may be None."""
    return (program["text"] is not None and entry["text"] == program["text"]
            and program.get("options") in (None, entry["options"]) and nvcc in (None, entry["nvcc"]))


def same_code(entry, sass, nvcc):
    return sass is not None and entry["sass"] == sass and entry["nvcc"] == nvcc


def stale(recorded, described, nvcc):
    """The described programs that only their device code can still verify."""
    return {name: program for name, program in described.items()
            if name not in recorded or not unchanged(recorded[name], program, nvcc)}


def _what_changed(entry, program, nvcc):
    if program["text"] is None:
        return "a source is gone"
    if entry["text"] != program["text"]:
        return "sources changed"
    return "nvcc changed" if nvcc not in (None, entry["nvcc"]) else "compiler options changed"


def verdict(entry, program, nvcc, sass=None):
    """One line. `sass`: the hash of the device code as it is now; None where it was not compiled."""
    if entry is None:
        return "UNVERIFIED (not in the record)"
    where = f"on {entry['device']}, {entry['date']}"
    if not good(entry):
        return f"UNVERIFIED (not clean {where})"
    if unchanged(entry, program, nvcc):
        return f"verified {where}"
    change = _what_changed(entry, program, nvcc)
    if same_code(entry, sass, nvcc):
        return f"verified {where}, by its device code ({change} since)"
    if sass is None:
        code = "not compiled here"
    elif entry["sass"] is None:
        code = "no hash of device code in the record"
    else:
        code = "device code too" if nvcc == entry["nvcc"] else f"nvcc was {entry['nvcc']}"
    return f"UNVERIFIED ({change} since the run {where}; {code})"
