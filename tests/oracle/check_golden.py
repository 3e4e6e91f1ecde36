# SPDX-License-Identifier: Apache-2.0
"""check_golden.py FOLDER: the oracle against the golden cases that it covers, to 1e-11 relative L2."""

import pathlib
import sys

import numpy

import operators
import safetensors

TOLERANCE = 1e-11


def relative_l2(got, want):
    error, size = numpy.linalg.norm((got - want).ravel()), numpy.linalg.norm(want.ravel())
    return error if size == 0 else error / size


def main(folder):
    agreed, wrong, left_out = 0, 0, []
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        metadata, tensors = safetensors.read(path)
        operator = operators.OPERATORS.get(metadata["op"])
        if operator is None:
            continue
        inputs = {name[3:]: a.astype(numpy.float64) if a.dtype.kind == "f" else a
                  for name, a in tensors.items() if name.startswith("in.")}
        parameters = {name[6:]: value for name, value in metadata.items() if name.startswith("param.")}
        want = {name[4:]: a for name, a in tensors.items() if name.startswith("out.")}
        try:
            got = operator(inputs, parameters)
        except operators.NotCovered as reason:
            left_out.append(f"{path.stem} ({reason})")
            continue
        faults = [f"{name}: not computed" for name in want if name not in got]
        for name in want.keys() & got.keys():
            error = relative_l2(got[name], want[name]) if got[name].shape == want[name].shape else numpy.inf
            if not error <= TOLERANCE:
                faults.append(f"{name}: {got[name].shape} against {want[name].shape}, relative L2 {error:.3g}")
        wrong += bool(faults)
        agreed += not faults
        for fault in faults:
            print(f"{path.stem}: {fault}")
    print(f"{agreed} golden cases agree, {wrong} do not; not covered: {', '.join(left_out)}")
    return 1 if wrong or not agreed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
