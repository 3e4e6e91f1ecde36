# SPDX-License-Identifier: Apache-2.0
"""known_failures.py ROOT: docs/known_failures.md and the tests say the same.

Every id that a test cites is a row; a row that names tests names files that cite its id and hold the names; a row
without a test says why there is none.
"""

import pathlib
import re
import sys

ID = re.compile(r"\bB\d{3}\b")
NAMED = re.compile(r"((?:`[\w.]+`(?:, )?)+) in `(tests/[^`]+)`")
REASONS = ("not our interface: ", "with the CUDA path", "with the CPU path")


def cited_in(path):
    """Ids in the comments "bugs B001, B002" of a file."""
    text = path.read_text()
    return {i for line in text.splitlines() if "bugs " in line for i in ID.findall(line.split("bugs ", 1)[1])}


def main(root):
    faults = []
    rows = {}
    for line in (root / "docs/known_failures.md").read_text().splitlines():
        if not re.match(r"\| B\d{3} \|", line):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] in rows:
            faults.append(f"not a row of its own with four cells: {line}")
            continue
        rows[cells[0]] = cells[3]

    cited = {}
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".txt"):
            for i in cited_in(path):
                cited.setdefault(i, set()).add(path.relative_to(root).as_posix())
    for i in sorted(cited.keys() - rows.keys()):
        faults.append(f"{i}: cited in {', '.join(sorted(cited[i]))}, but it is no row")

    for i, here in rows.items():
        named = NAMED.findall(here)
        if not named and not here.startswith(REASONS):
            faults.append(f"{i}: names no test and does not begin with one of {REASONS}")
        if not named and any(path.startswith("tests/") for path in re.findall(r"`(tests/[^`]+\.\w+)`", here)):
            faults.append(f"{i}: names a file without a test in it")
        for names, file in named:
            path = root / file
            if not path.is_file():
                faults.append(f"{i}: there is no {file}")
                continue
            if file not in cited.get(i, ()):
                faults.append(f"{i}: {file} does not cite it")
            text = path.read_text()
            for name in re.findall(r"`([\w.]+)`", names):
                if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
                    faults.append(f"{i}: {file} has no {name}")

    if not rows or not cited:
        faults.append("no rows, or nothing cited")
    print("\n".join(faults) or f"{len(rows)} rows, {len(cited)} ids cited")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
