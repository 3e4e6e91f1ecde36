# SPDX-License-Identifier: Apache-2.0
"""Runs a GoogleTest program and reads what it says. Standard library only."""

import json
import pathlib
import subprocess
import tempfile
from dataclasses import dataclass, field


@dataclass
class Run:
    """One run. `tests` is empty where the program ended without a report (a crash, or status 77: no device)."""

    status: int
    output: str
    reported: bool
    tests: list = field(default_factory=list)  # {"name", "seconds", "outcome": passed|failed|skipped}

    def named(self, outcome):
        return [t["name"] for t in self.tests if t["outcome"] == outcome]

    def outcome(self):
        """passed, failed, skipped (nothing ran), or crashed (no report)."""
        if self.status == 77 and not self.reported:
            return "skipped"
        if not self.reported:
            return "crashed"
        if self.status != 0 or self.named("failed"):
            return "failed"
        return "passed" if self.named("passed") else "skipped"


def _outcome(test):
    if test.get("failures"):
        return "failed"
    return "skipped" if test.get("result") == "SKIPPED" or test.get("status") == "NOTRUN" else "passed"


def run(program, name_filter=None, prefix=(), timeout=None):
    """Runs `program`, under the command `prefix` if given; standard error is part of the output."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [*prefix, str(program), f"--gtest_output=json:{report}"]
        if name_filter:
            command.append(f"--gtest_filter={name_filter}")
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                                  check=False)
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, output = -1, (late.stdout or b"") + f"\nstopped after {timeout} s\n".encode()
        try:
            suites = json.loads(report.read_text())["testsuites"]
        except (OSError, ValueError):
            suites = None
    tests = [{"name": f"{suite['name']}.{test['name']}", "seconds": float(test["time"].rstrip("s")),
              "outcome": _outcome(test)}
             for suite in suites or () for test in suite["testsuite"]]
    return Run(status, output.decode(errors="replace"), suites is not None, tests)


def list_tests(program, name_filter="*"):
    """The names of the tests that the filter selects; needs no device."""
    listing = subprocess.run([str(program), "--gtest_list_tests", f"--gtest_filter={name_filter}"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout.decode()
    names, suite = [], ""
    for line in listing.splitlines():
        entry = line.split("#")[0].rstrip()
        if entry.startswith("  "):
            names.append(suite + entry.strip())
        elif entry.endswith("."):
            suite = entry
    return names
