# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import bundle
import programs
import record
import record_file
import source_text

CLEAN = {"memcheck": {"tests": 1, "clean": True, "summary": "0 errors"}}


def entry(**changes):
    return {"device": "a GPU", "driver": "1", "nvcc": "13.0.88", "date": "2026-01-02", "outcome": "passed", "passed": 3,
            "seconds": 0.5, "sanitizer": CLEAN, "sources": ["tests/x/x.cu"], "text": "t", "options": "o", "sass": "s",
            **changes}


def program(**changes):
    return {"path": "tests/x/x", "arguments": [], "sources": ["tests/x/x.cu"], "text": "t", "options": "o", **changes}


class Verdict(unittest.TestCase):
    def said(self, recorded, now, nvcc="13.0.88", sass=None):
        return record_file.verdict(recorded, now, nvcc, sass)

    def test_unchanged(self):
        self.assertEqual(self.said(entry(), program()), "verified on a GPU, 2026-01-02")
        self.assertEqual(self.said(entry(), {"text": "t"}, nvcc=None), "verified on a GPU, 2026-01-02")

    def test_device_code(self):
        for change in ({"text": "other"}, {"options": "other"}):
            self.assertIn("UNVERIFIED", self.said(entry(), program(**change)))
            self.assertRegex(self.said(entry(), program(**change), sass="s"), "^verified on .* by its device code")
            self.assertRegex(self.said(entry(), program(**change), sass="other"), "^UNVERIFIED .*device code too")
            self.assertRegex(self.said(entry(sass=None), program(**change), sass="s"), "^UNVERIFIED .*no hash of device code")

    def test_another_compiler(self):
        self.assertRegex(self.said(entry(), program(), nvcc="13.1.1", sass="s"), "^UNVERIFIED .*nvcc was 13.0.88")

    def test_runs_that_were_not_good(self):
        errors = {"memcheck": {"tests": 1, "clean": False, "summary": "2 errors"}}
        for recorded in (entry(outcome="failed"), entry(outcome="skipped"), entry(sanitizer=errors)):
            self.assertRegex(self.said(recorded, program(), sass="s"), "^UNVERIFIED .*not clean")

    def test_unknown_and_gone(self):
        self.assertIn("not in the record", self.said(None, program()))
        self.assertRegex(self.said(entry(), {"text": None}, nvcc=None), "^UNVERIFIED .*a source is gone")


class File(unittest.TestCase):
    def test_one_line_an_entry(self):
        written = {"programs": {"b": entry(), "a": entry(skipped=["x.y"])}, "mutants": {"m": {"red": True}}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "record.json"
            record_file.write(path, written)
            self.assertEqual(record_file.read(path), {"format": record_file.FORMAT, **written})
            lines = path.read_text().splitlines()
        self.assertEqual([line[:3] for line in lines if line.startswith('"')], ['"pr', '"a"', '"b"', '"mu', '"m"'])

    def test_none_yet_and_another_format(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "record.json"
            self.assertEqual(record_file.read(path)["programs"], {})
            path.write_text('{"format": "other"}')
            with self.assertRaisesRegex(SystemExit, "not a polystate-gpu-record-2 file"):
                record_file.read(path)


class Settings(unittest.TestCase):
    def test_what_decides_the_program(self):
        line = ("cmake -E env A=b ccache /bin/nvcc -ccbin=/c++ -std=c++20 -I/a -isystem /b -isystem=/c -O1 -DNDEBUG '-DX=\"y z\"' -arch=sm_90a -std=c++20 "
                "-Xcompiler=-Wall,-Werror --Werror=all-warnings -MD -MT x.o -MF x.d -x cu -c /p/x.cu -o x.o -Xptxas=-O2")
        self.assertEqual(programs.settings_of(line, ("/bin/c++", "/bin/nvcc"), "/p/x.cu"),
                         '-DNDEBUG -DX="y z" -Xptxas=-O2 -arch=sm_90a -std=c++20')


class Bundle(unittest.TestCase):
    def test_a_folder_and_an_archive_hold_the_same(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(shutil, "which", lambda _: None):
            root = pathlib.Path(folder)
            for name, content in (("list.json", b"{}"), ("tests/x/x", b"program" * 999), ("tests/left_out", b"")):
                (root / "build" / name).parent.mkdir(parents=True, exist_ok=True)
                (root / "build" / name).write_bytes(content)
            (root / "build/tests/x/x").chmod(0o755)
            sizes = [bundle.make(root / "build", ["list.json"], ["tests/x/x"], root / target) for target in ("b", "b.tar.xz")]
            self.assertLess(sizes[1], sizes[0] / 10)
            for target, unpacked in (("b", "unused"), ("b.tar.xz", "unpacked")):
                found = bundle.folder_of(root / target, root / unpacked)
                self.assertEqual(sorted(str(f.relative_to(found)) for f in found.rglob("*") if f.is_file()),
                                 ["list.json", "tests/x/x"])
                self.assertEqual((found / "tests/x/x").read_bytes(), b"program" * 999)
                self.assertTrue((found / "tests/x/x").stat().st_mode & 0o100)


class Renew(unittest.TestCase):
    """record.py renew, of programs that are not there."""

    def test_takes_over_what_has_the_same_device_code(self):
        recorded = {"same": entry(), "untouched": entry(text="u"), "changed": entry(), "never_hashed": entry(sass=None)}
        described = {name: program(path=name, text="new", sources=["tests/x/new.cu"]) for name in (*recorded, "new")}
        described["untouched"] = program(path="untouched", text="u")
        code = {"same": "s", "changed": "other", "never_hashed": "s"}
        asked = []

        def built(_, wanted):
            asked.extend(p["path"] for p in wanted)
            return {path: code[path] for path in asked}

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "record.json"
            record_file.write(path, {"programs": recorded, "mutants": {}})
            with mock.patch.multiple(programs, described=lambda _: described, built=built, nvcc_release=lambda _: "13.0.88"), \
                    mock.patch.object(sys, "argv", ["record.py", "renew", "--record", str(path), "build"]), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                record.main()
            now = record_file.read(path)["programs"]
        self.assertEqual(sorted(asked), ["changed", "never_hashed", "same"])
        self.assertEqual(now["same"], entry(text="new", sources=["tests/x/new.cu"]))
        for name in ("untouched", "changed", "never_hashed"):
            self.assertEqual(now[name], recorded[name])
        self.assertIn("1 programs unchanged, 1 renewed, 3 need a GPU", said.getvalue())


class Project(unittest.TestCase):
    """record.py verify on a copy of this project, whose record is made to fit it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("include", "tests", "examples"):
            shutil.copytree(programs.ROOT / name, self.root / name,
                            ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
        self.file = self.root / "tests" / "gpu_verified.json"
        copy = record_file.read(self.file)
        tree = source_text.Tree(self.root)
        self.reached = {}
        for name, recorded in list(copy["programs"].items()):
            recorded.update(text=tree.hash(recorded["sources"]), outcome="passed", sanitizer=CLEAN)
            self.reached[name] = tree.closure(recorded["sources"])
            if recorded["text"] is None:  # of a program that is gone since the record was written
                del copy["programs"][name], self.reached[name]
        record_file.write(self.file, copy)

    def unverified(self):
        done = subprocess.run([sys.executable, "-B", str(self.root / "tests/gpu/record.py"), "verify"],
                              stdout=subprocess.PIPE, check=True).stdout.decode()
        verdicts = dict(line.strip().split(": ", 1) for line in done.splitlines() if line.startswith("   "))
        self.assertEqual(sorted(verdicts), sorted(self.reached))
        return sorted(name for name, said in verdicts.items() if not said.startswith("verified"))

    def reaching(self, file):
        return sorted(name for name, files in self.reached.items() if file in files)

    def edit(self, file, change):
        path = self.root / file
        text = path.read_text()
        path.write_text(change(text))
        self.assertNotEqual(path.read_text(), text)

    def test_a_comment_in_the_header_of_errors_leaves_every_program_verified(self):
        error = "include/polystate/core/error.hpp"
        self.assertGreater(len(self.reaching(error)), 50)
        self.assertEqual(self.unverified(), [])
        self.edit(error, lambda text: text.replace("#pragma once", "#pragma once\n\n/* why\n */\n// and more"))
        self.assertEqual(self.unverified(), [])
        self.edit(error, lambda text: text.replace("\n  ", "  \n      "))
        self.assertEqual(self.unverified(), [])
        self.edit(error, lambda text: text + "struct more {};\n")
        self.assertEqual(self.unverified(), self.reaching(error))

    def test_a_change_of_a_kernel_concerns_the_programs_that_include_it(self):
        kernel = "include/polystate/cuda/causal_conv1d/forward.cuh"
        self.edit(kernel, lambda text: text + "\nstatic_assert(true);\n")
        self.assertEqual(self.unverified(), self.reaching(kernel))
        self.assertIn("causal_conv1d_cuda_float", self.reaching(kernel))
        self.assertNotIn("ssd_cuda", self.reaching(kernel))

    def test_a_source_that_is_gone(self):
        (self.root / "tests/core/cuda.cu").unlink()
        self.assertEqual(self.unverified(), self.reaching("tests/core/cuda.cu"))


if __name__ == "__main__":
    unittest.main()
