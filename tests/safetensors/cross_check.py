# SPDX-License-Identifier: Apache-2.0
"""cross_check.py COPY FOLDER: our reader and writer against the format's own implementation.

That implementation writes a file of every dtype, COPY reads it and writes another, and that implementation reads
that. It comes from PyPI into a virtual environment in FOLDER; without network the check is skipped (exit status 77).
"""

import pathlib
import random
import subprocess
import sys
import venv

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
    "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "U16": "uint16",
    "I16": "int16", "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32",
    "U64": "uint64", "I64": "int64", "F64": "float64",
}  # fmt: skip


def python_with_safetensors(folder):
    """The interpreter of an environment that has safetensors, or None and the reason."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "safetensors==0.5.3"],
        capture_output=True, text=True,
    )  # fmt: skip
    return (python, "") if install.returncode == 0 else (None, install.stderr.strip().splitlines()[-1])


def check(copy, folder):
    """Runs in that environment."""
    from safetensors import deserialize, serialize_file

    rng = random.Random(1)
    tensors = {}
    for dtype, size in SIZES.items():
        for shape in ([], [3], [2, 0, 5], [2, 3, 4]):
            count = 1
            for extent in shape:
                count *= extent
            name = f"{dtype} {shape} \u00e9\n"
            tensors[name] = {"dtype": TYPES[dtype], "shape": shape, "data": rng.randbytes(count * size)}
    metadata = {"a": "b", "": "", "unicode \u20ac": 'quoted "\n'}

    theirs, ours = folder / "theirs.safetensors", folder / "ours.safetensors"
    serialize_file(tensors, str(theirs), metadata)
    subprocess.run([copy, theirs, ours], check=True)

    read_back = dict(deserialize(ours.read_bytes()))
    assert read_back.keys() == tensors.keys()
    dtype_names = {TYPES[dtype]: dtype for dtype in TYPES}
    for name, tensor in tensors.items():
        assert read_back[name]["dtype"] == dtype_names[tensor["dtype"]], name
        assert read_back[name]["shape"] == tensor["shape"], name
        assert bytes(read_back[name]["data"]) == tensor["data"], name

    from safetensors import safe_open

    with safe_open(str(ours), framework="numpy") as file:
        assert file.metadata() == metadata
    print(f"{len(tensors)} tensors, {len(SIZES)} dtypes: equal both ways")


def main():
    copy, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if "--in-environment" in sys.argv:
        check(copy, folder)
        return 0
    python, reason = python_with_safetensors(folder / "environment")
    if python is None:
        print(f"skipped: no safetensors from PyPI: {reason}")
        return 77
    return subprocess.run([python, __file__, copy, folder, "--in-environment"]).returncode


sys.exit(main())
