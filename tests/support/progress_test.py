# SPDX-License-Identifier: Apache-2.0
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import progress


class State(unittest.TestCase):
    def text(self, *lines, seconds=60):
        state = progress.State()
        for line in lines:
            state.read(line)
        return state.text(seconds)

    def test_ninja(self):
        self.assertEqual(self.text("[1/9] Building CXX object tests/core/CMakeFiles/core.dir/views.cpp.o",
                                   "[3/9] Building CUDA object tests/ssd/CMakeFiles/ssd_cuda.dir/cuda.cu.o"),
                         "3 of 9, 1 min 00 s passed, about 2 min 00 s left: tests/ssd/cuda.cu")
        self.assertEqual(self.text("[9/9] Linking CXX executable tests/core/core_views"),
                         "9 of 9, 1 min 00 s passed: tests/core/core_views")
        self.assertEqual(self.text("[2/4] Generating a.stamp", seconds=5), "2 of 4, 5 s passed, about 5 s left: Generating a.stamp")

    def test_ctest_names_what_has_run_longest(self):
        lines = ["      Start   1: quick", "      Start   2: slow", "      Start   3: third",
                 "  1/10 Test   #1: quick ............   Passed    0.01 sec"]
        self.assertEqual(self.text(*lines), "1 of 10, 1 min 00 s passed, about 9 min 00 s left: slow")

    def test_nothing_known(self):
        self.assertEqual(self.text("some words", seconds=3), "3 s passed")


class Run(unittest.TestCase):
    def run_python(self, code):
        out, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "new" / "log"
            status = progress.run(log, [sys.executable, "-c", code], out, errors)
            return status, out.getvalue(), errors.getvalue(), log.read_text()

    def test_status_and_log(self):
        self.assertEqual(self.run_python("print('[1/1] x'); print('y')"), (0, "", "", "[1/1] x\ny\n"))

    def test_last_words_of_a_failure(self):
        status, _, errors, log = self.run_python("print('[1/2] x'); print('error: y'); print('[2/2] z'); exit(3)")
        self.assertEqual((status, log), (3, "[1/2] x\nerror: y\n[2/2] z\n"))
        self.assertTrue(errors.startswith("error: y\n-- failed: "), errors)

    def test_never_silent(self):
        with mock.patch.object(progress, "SECONDS_BETWEEN_LINES", 0.05):
            _, out, _, _ = self.run_python("import time; print('[1/2] x', flush=True); time.sleep(1)")
        lines = out.splitlines()
        self.assertGreater(len(lines), 2)
        self.assertRegex(lines[-1], r"^   1 of 2, \d s passed, about \d s left: x$")

    def test_a_command_that_is_not_there(self):
        errors = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(progress.run(f"{folder}/log", ["/nowhere/program"], io.StringIO(), errors), 127)
        self.assertIn("cannot run /nowhere/program", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
