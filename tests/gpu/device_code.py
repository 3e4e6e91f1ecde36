# SPDX-License-Identifier: Apache-2.0
"""A hash of the machine code (SASS) in a program: what its kernels execute, whatever they are called, wherever they lie
and in whatever order they come.

nvcc leaves the code in the program's section .nv_fatbin: containers of ELF images, one an architecture and translation
unit. Our programs are compiled with --no-compress, so the images are read as they are, without CUDA's tools. A kernel
counts with its instructions, its relocations, its constants, its static shared memory and its attributes (parameters,
launch bounds). Names, addresses, line numbers and debug information are left out; a kernel that several units hold
counts once."""

import hashlib
import pathlib
import struct
from dataclasses import dataclass

_CONTAINER = 0xBA55ED50
_KIND_PTX, _KIND_ELF = 1, 2
_CUDA_MACHINE = 190
_RELOCATIONS = {4: ("<QQq", True), 9: ("<QQ", False)}  # section type: RELA, REL
# Attributes of a kernel that hold indices of symbols: the place of the parameters, and external names.
_ATTRIBUTES_OF_PLACE = (0x0A, 0x0F)
# Data of a whole image, which kernels reach by address: variables in constant and in global memory.
_DATA = (".nv.constant3", ".nv.global", ".nv.global.init")


class CodeError(Exception):
    """Device code that cannot be read; says why."""


@dataclass
class _Section:
    name: str
    kind: int
    content: bytes
    size: int


def _sections(image):
    """The sections of a 64-bit little-endian ELF image."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise CodeError("not a 64-bit little-endian ELF image")
    table, = struct.unpack_from("<Q", image, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * entry_size) for i in range(count)]

    def content(header):
        _, kind, _, _, offset, size = header
        return b"" if kind == 8 else image[offset:offset + size]  # 8: takes no room in the file

    names = content(headers[names_index])
    return [_Section(names[h[0]:names.index(b"\0", h[0])].decode(), h[1], content(h), h[5]) for h in headers]


def _images(fatbin):
    """The ELF images in the content of a section .nv_fatbin."""
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header_size, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic == 0:  # padding between two units
            at += 8
            continue
        if magic != _CONTAINER:
            raise CodeError(f"no container of device code at byte {at} of .nv_fatbin")
        at += header_size
        end = at + size
        while at < end:
            kind, _, entry_header_size, entry_size = struct.unpack_from("<HHIQ", fatbin, at)
            payload = fatbin[at + entry_header_size:at + entry_header_size + entry_size]
            at += entry_header_size + entry_size
            if kind == _KIND_ELF:
                if payload[:4] != b"\x7fELF":
                    raise CodeError("the device code is compressed: compile with nvcc's --no-compress")
                yield payload
            elif kind == _KIND_PTX:
                raise CodeError("PTX, which a driver compiles: name architectures as 90a-real")
            else:
                raise CodeError(f"device code of unknown kind {kind}")
        at = (at + 7) // 8 * 8


def _relocations(section):
    """(offset, type, addend), without the symbol."""
    form, with_addend = _RELOCATIONS[section.kind]
    for offset, info, *addend in struct.iter_unpack(form, section.content):
        yield offset, info & 0xFFFFFFFF, addend[0] if with_addend else 0


def _attributes(content):
    """(attribute, value) of a section .nv.info.<kernel>."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:  # the value is the size of what follows
            value = content[at:at + value]
            at += len(value)
        if attribute not in _ATTRIBUTES_OF_PLACE:
            yield attribute, value


def _parts(image):
    """A text of what is executed for each kernel of the image, and for its data."""
    architecture = struct.unpack_from("<I", image, 0x30)[0] >> 8 & 0xFF  # the rest changes with -lineinfo
    sections = _sections(image)
    by_name = {section.name: section for section in sections}

    def of_kernel(name):
        for prefix in (".text.", ".nv.constant2."):
            section = by_name.get(prefix + name)
            yield prefix, section.content.hex() if section else ""
            for kind in (".rel", ".rela"):
                moved = by_name.get(kind + prefix + name)
                yield kind, list(_relocations(moved)) if moved else []
        for prefix in (".nv.constant0.", ".nv.shared.", ".nv.local."):
            section = by_name.get(prefix + name)
            yield prefix, section.size if section else 0
        attributes = by_name.get(".nv.info." + name)
        yield "attributes", sorted(map(repr, _attributes(attributes.content))) if attributes else []

    for section in sections:
        if section.name.startswith(".text."):
            yield repr((architecture, *of_kernel(section.name.removeprefix(".text."))))
        elif section.name in _DATA and section.size:
            yield repr((architecture, section.name, section.size, section.content.hex()))


def kernels_of(program):
    """A digest of each different kernel in a program, and of the data of its images."""
    try:
        content = pathlib.Path(program).read_bytes()
        if struct.unpack_from("<H", content, 0x12)[0] == _CUDA_MACHINE:
            images = [content]
        else:
            fatbin = [s.content for s in _sections(content) if s.name == ".nv_fatbin"]
            images = _images(fatbin[0]) if fatbin else ()
        return {hashlib.sha256(part.encode()).hexdigest() for image in images for part in _parts(image)}
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise CodeError(f"not laid out as expected: {error!r}") from None


def hash_of(program):
    """Of all device code of a program."""
    kernels = kernels_of(program)
    if not kernels:
        raise CodeError("no device code")
    return hashlib.sha256("\n".join(sorted(kernels)).encode()).hexdigest()[:32]
