# SPDX-License-Identifier: Apache-2.0
"""kernel_count.py MOST NVCC ARGUMENT...: compiles a unit to PTX, unoptimised, and counts the kernels that it instantiates.
Succeeds where there are at most MOST, and, if MOST is not 0, at least one; prints their names where it fails."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def kernel_names(nvcc, arguments):
    with tempfile.TemporaryDirectory() as scratch:
        ptx = pathlib.Path(scratch) / "unit.ptx"
        subprocess.run([nvcc, *arguments, "-ptx", "-Xcicc=-O0", "-o", str(ptx)], check=True)
        return re.findall(r"^\s*(?:\.weak |\.visible )*\.entry (\S+)\(", ptx.read_text(), re.MULTILINE)


def main():
    most, nvcc, *arguments = sys.argv[1:]
    names = kernel_names(nvcc, arguments)
    print(f"{len(names)} kernels, supported: up to {most}")
    if len(names) <= int(most) and (names or most == "0"):
        return 0
    if shutil.which("c++filt"):
        names = subprocess.run(["c++filt", *names], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    print("\n".join(names))
    return 1


if __name__ == "__main__":
    sys.exit(main())
