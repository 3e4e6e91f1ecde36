# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

import device_code

CODE = bytes(range(32))
SM_90A, SM_80 = 0x6005A04, 0x6005004
PROGBITS, RELA, NOBITS = 1, 4, 8


def elf(sections, machine=190, flags=SM_90A):
    """An ELF image of (name, type, content or, without content, size)."""
    sections = [("", 0, b""), *sections, (".shstrtab", 3, b"")]
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in sections if name)
    sections[-1] = (".shstrtab", 3, names)
    body, headers = b"", []
    for name, kind, content in sections:
        size = content if kind == NOBITS else len(content)
        headers.append(struct.pack("<IIQQQQIIQQ", names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0, kind, 0,
                                   0, 64 + len(body), size, 0, 0, 0, 0))
        body += b"" if kind == NOBITS else content
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(headers), len(headers) - 1)
    return head + body + b"".join(headers)


def kernel(name, code=CODE, constants=b"", shared=64, attributes=b"", relocations=b""):
    return [(f".nv.info.{name}", 0x70000000, attributes), (f".rela.text.{name}", RELA, relocations),
            (f".nv.constant2.{name}", PROGBITS, constants), (f".nv.constant0.{name}", PROGBITS, b"\0" * 528),
            (f".text.{name}", PROGBITS, code), (f".nv.shared.{name}", NOBITS, shared)]


def program(*units, kind=2, magic=b"\x7fELF"):
    """A program whose units hold one image each."""
    fatbin = b""
    for image in units:
        image = magic + image[4:]
        entry = struct.pack("<HHIQ", kind, 0x101, 64, len(image)).ljust(64, b"\0") + image
        fatbin += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
        fatbin += b"\0" * (-len(fatbin) % 8)
    return elf([(".text", PROGBITS, b"host"), (".nv_fatbin", PROGBITS, fatbin)], machine=62)


class Hash(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "program"

    def hash(self, content):
        self.file.write_bytes(content)
        return device_code.hash_of(self.file)

    def test_names_order_and_copies_do_not_count(self):
        a, b = kernel("a"), kernel("b", code=CODE[::-1])
        both = self.hash(program(elf(a + b)))
        self.assertEqual(self.hash(program(elf(b + a))), both)
        self.assertEqual(self.hash(program(elf(a), elf(b))), both)
        self.assertEqual(self.hash(program(elf(kernel("other") + b + [(".debug_line", PROGBITS, b"lines")]))), both)
        self.assertEqual(self.hash(program(elf(a + b), elf(kernel("copy_of_a")))), both)
        self.assertNotEqual(self.hash(program(elf(a))), both)

    def test_an_image_by_itself(self):
        self.assertEqual(self.hash(elf(kernel("a"))), self.hash(program(elf(kernel("a")))))

    def test_what_is_executed_counts(self):
        before = self.hash(program(elf(kernel("a"))))
        launch_bounds = struct.pack("<BBHIII", 4, 5, 12, 128, 1, 1)
        place_of_parameters = struct.pack("<BBHII", 4, 0x0A, 8, 7, 0x210)
        for change in ({"code": CODE[:-1] + b"x"}, {"constants": b"1234"}, {"shared": 128}, {"attributes": launch_bounds},
                       {"relocations": struct.pack("<QQq", 8, 7 << 32 | 2, 4)}):
            self.assertNotEqual(self.hash(program(elf(kernel("a", **change)))), before, change)
        self.assertNotEqual(self.hash(program(elf(kernel("a"), flags=SM_80))), before)
        self.assertNotEqual(self.hash(program(elf(kernel("a") + [(".nv.constant3", PROGBITS, b"table")]))), before)
        self.assertEqual(self.hash(program(elf(kernel("a", attributes=place_of_parameters)))), before)

    def test_the_symbol_of_a_relocation_does_not_count(self):
        def relocated(symbol, kind):
            return self.hash(program(elf(kernel("a", relocations=struct.pack("<QQq", 8, symbol << 32 | kind, 4)))))
        self.assertEqual(relocated(7, 2), relocated(8, 2))
        self.assertNotEqual(relocated(7, 2), relocated(7, 3))

    def test_what_cannot_be_read_is_refused(self):
        for content, reason in ((program(), "no device code"), (b"#!/bin/sh\n" * 20, "not a 64-bit"),
                                (program(elf(kernel("a")), magic=b"\x28\xb5\x2f\xfd"), "--no-compress"),
                                (program(elf(kernel("a")), kind=1), "PTX"), (b"", "not laid out"),
                                (program(elf(kernel("a")), kind=9), "unknown kind 9")):
            with self.assertRaisesRegex(device_code.CodeError, reason):
                self.hash(content)


KERNEL = """
namespace { template <class T> __global__ void scale(T* x, int n) {
  __shared__ T part[32];
  part[threadIdx.x % 32] = T(FACTOR) * x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) x[threadIdx.x] = part[(threadIdx.x + 1) % 32];
} }
void launch(float* x, double* y) { scale<<<1, 32>>>(x, 3); scale<<<1, 64>>>(y, 4); }
"""
NVCC = os.environ.get("POLYSTATE_NVCC") or shutil.which("nvcc")


@unittest.skipUnless(NVCC, "no nvcc")
class Compiled(unittest.TestCase):
    """By the compiler itself, in several folders."""

    def hash(self, code, *options, factor=2, name="unit"):
        with tempfile.TemporaryDirectory() as folder:
            source, made = pathlib.Path(folder) / f"{name}.cu", pathlib.Path(folder) / f"{name}.o"
            source.write_text(code)
            subprocess.run([NVCC, "-gencode=arch=compute_90,code=sm_90", "--no-compress", f"-DFACTOR={factor}", *options, "-c", str(source), "-o",
                            str(made)], check=True)
            return device_code.hash_of(made)

    def test_folder_names_lines_and_host_code_do_not_count(self):
        code = KERNEL.replace("scale", "other_name").replace("1, 64", "2, 64").replace("namespace {", "// why\n\nnamespace {")
        self.assertEqual(self.hash(KERNEL), self.hash(code, "-lineinfo", name="other_unit"))

    def test_device_code_counts(self):
        self.assertNotEqual(self.hash(KERNEL), self.hash(KERNEL, factor=3))


if __name__ == "__main__":
    unittest.main()
