# SPDX-License-Identifier: Apache-2.0
"""check_rows.py PROGRAM OPERATOR: runs a benchmark program for a moment and checks its rows.

They are <operator>/<pass>/<backend>/<shape>, the reference has forward and backward of the same shapes, and every row
has a time, bytes and operations.
"""

import json
import subprocess
import sys


def main(program, operator):
    run = subprocess.run([program, "--benchmark_min_time=0.001", "--benchmark_format=json"],
                         stdout=subprocess.PIPE, text=True, check=True)
    shapes = {"forward": set(), "backward": set()}
    for row in json.loads(run.stdout)["benchmarks"]:
        name = row["name"]
        assert not row.get("error_occurred"), f"{name}: {row.get('error_message')}"
        row_operator, row_pass, backend, shape = name.removesuffix("/real_time").split("/", 3)
        assert row_operator == operator, f"{name}: a row of {operator} starts with it"
        for counter in ("real_time", "bytes", "bytes/s", "flop/s"):
            assert row.get(counter, 0) > 0, f"{name}: {counter} is {row.get(counter)}"
        if backend == "reference" and row_pass in shapes:
            shapes[row_pass].add(shape)
    assert len(shapes["forward"]) >= 2, f"{operator}: reference at {shapes['forward']}, expected a small and a large shape"
    assert shapes["forward"] == shapes["backward"], f"{operator}: forward and backward of the reference differ: {shapes}"


if __name__ == "__main__":
    main(*sys.argv[1:])
