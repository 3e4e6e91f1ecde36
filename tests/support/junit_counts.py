# SPDX-License-Identifier: Apache-2.0
"""junit_counts.py FILE: of CTest's JUnit file, prints what failed and what was skipped to standard error, and
"PASSED FAILED SKIPPED" to standard output."""

import sys
import xml.etree.ElementTree

LINES_SHOWN = 60


def count(path):
    passed = failed = skipped = 0
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        status, name = case.get("status"), case.get("name")
        reason = (case.find("skipped").get("message") or "") if case.find("skipped") is not None else ""
        if status == "run":
            passed += 1
        elif status == "disabled" or (status == "notrun" and reason.startswith("SKIP_")):
            skipped += 1
            print(f"   skipped: {name}", file=sys.stderr)
        else:  # CTest also calls a test whose program is missing or whose fixture failed "notrun"
            failed += 1
            output = (case.findtext("system-out") or reason).rstrip().splitlines()
            print(f"   failed: {name}", *output[-LINES_SHOWN:], sep="\n      ", file=sys.stderr)
    return passed, failed, skipped


if __name__ == "__main__":
    print(*count(sys.argv[1]))
