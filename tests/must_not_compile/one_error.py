# SPDX-License-Identifier: Apache-2.0
"""one_error.py MESSAGE HEADER... -- COMMAND...: gives each header alone to the compiler, which must refuse it with one
error, and that the message, however much of the header is left."""

import os
import re
import subprocess
import sys


def main():
    split = sys.argv.index("--")
    message, headers, command = sys.argv[1], sys.argv[2:split], sys.argv[split + 1:]
    assert headers, "no header was given"
    failed = False
    for header in headers:
        run = subprocess.run([*command, "-include", header, os.devnull], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True)
        errors = [line for line in run.stdout.splitlines() if re.search(r"\berror: ", line)]
        if run.returncode == 0 or len(errors) != 1 or message not in errors[0]:
            failed = True
            print(f"{header}: status {run.returncode}, {len(errors)} errors, expected one that says: {message}")
            print(run.stdout[:4000])
    return failed


if __name__ == "__main__":
    sys.exit(main())
