# SPDX-License-Identifier: Apache-2.0
"""The few lines of the safetensors format that case files need."""

import json

import numpy

TYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}


def read(path):
    """(metadata, {name: array})"""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    body = data[8 + size:]
    return metadata, {
        name: numpy.frombuffer(body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()}


def write(path, metadata, tensors):
    header, chunks, offset = {"__metadata__": metadata}, [], 0
    # Widest elements first keep every tensor aligned to its element size.
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        code = next(code for code, layout in TYPES.items() if numpy.dtype(layout) == array.dtype)
        chunk = numpy.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, offset + len(chunk)]}
        chunks.append(chunk)
        offset += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(chunks))
