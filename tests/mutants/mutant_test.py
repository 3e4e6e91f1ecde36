# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import pathlib
import tempfile
import unittest
from unittest import mock

import mutant

HEADER = "# SPDX-License-Identifier: Apache-2.0\nTest: core_views\nWhy: a reason\nFile: include/a.hpp\n"
SOURCE = "int f() {\n  int a = 1;\n  return a;\n}\nint g() {\n  return a;\n}\n"


class Mutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def parsed(self, text):
        path = self.folder / "broken.mutant"
        path.write_text(text)
        return mutant.parse(path)

    def applied(self, edits, source=SOURCE):
        return mutant.apply(self.parsed(HEADER + edits), source)

    def test_applies(self):
        self.assertEqual(self.applied("Find:\nint a = 1;\nReplace:\n  int a = 2;\n"), SOURCE.replace("= 1", "= 2"))
        self.assertEqual(self.applied("Find:\n  int a = 1;\nReplace:\n"), SOURCE.replace("  int a = 1;\n", ""))
        self.assertEqual(self.applied("Find:\nreturn a;\n}\nint g() {\nReplace:\n  return 0;\n}\nint g() {\n"),
                         SOURCE.replace("return a", "return 0", 1))
        self.assertEqual(self.applied("Find:\nint g() {\nReplace:\nint h() {\nFind:\nint f() {\nReplace:\nint e() {\n"),
                         SOURCE.replace("f()", "e()").replace("g()", "h()"))

    def test_white_space_around_a_line_does_not_count(self):
        self.assertEqual(self.applied("Find:\nint a = 1;\nReplace:\n  int a = 2;\n", SOURCE.replace("  ", "\t ")),
                         SOURCE.replace("  ", "\t ").replace("\t int a = 1", "  int a = 2"))

    def test_what_is_found_never_or_twice_is_refused(self):
        for lines, times in (("return a;", 2), ("int a = 3;", 0), ("return a;\nint g() {", 0)):
            with self.assertRaisesRegex(mutant.MutantError, f"broken: include/a.hpp holds {times} times"):
                self.applied(f"Find:\n{lines}\nReplace:\n")

    def test_no_change_and_overlap_are_refused(self):
        with self.assertRaisesRegex(mutant.MutantError, "changes nothing"):
            self.applied("Find:\n  int a = 1;\nReplace:\n  int a = 1;\n")
        with self.assertRaisesRegex(mutant.MutantError, "overlap"):
            self.applied("Find:\nint a = 1;\nReplace:\nFind:\nint f() {\nint a = 1;\nReplace:\n")

    def test_a_file_that_is_no_mutant_is_refused(self):
        edit = "Find:\na\nReplace:\n"
        for text, reason in ((HEADER, "Find"), (HEADER + "Find:\nReplace:\nb\n", "Find"), (HEADER + "what\n" + edit, "'what'"),
                             (HEADER.replace("Why: a reason\n", "") + edit, "Why"),
                             (HEADER.replace("Test: core_views\n", "") + edit, "CUDA test"),
                             (HEADER + "CUDA test: core_cuda\n" + edit, "CUDA test")):
            with self.assertRaisesRegex(mutant.MutantError, reason):
                self.parsed(text)

    def test_check_counts_faults(self):
        def checked(*mutants):
            paths = []
            for name, text in mutants:
                paths.append(self.folder / f"{name}.mutant")
                paths[-1].write_text(text)
            with contextlib.redirect_stdout(io.StringIO()) as said, mock.patch.object(mutant, "ROOT", self.folder):
                return mutant.check(*paths), said.getvalue()

        (self.folder / "include").mkdir()
        (self.folder / "include/a.hpp").write_text(SOURCE)
        good = HEADER + "Find:\nint a = 1;\nReplace:\n"
        self.assertEqual(checked(("a", good)), (0, "1 mutants, 0 faults\n"))
        self.assertEqual(checked(("a", good), ("b", good.replace("= 1", "= 3")))[0], 1)
        self.assertEqual(checked(("a", good.replace("a.hpp", "b.hpp"))), (1, "a: there is no include/b.hpp\n1 mutants, 1 faults\n"))
        on_gpu = good.replace("Test:", "CUDA test:")
        self.assertEqual(checked(("a", on_gpu), ("b", on_gpu), ("c", good))[0], 0)
        status, said = checked(("a", on_gpu), ("b", on_gpu), ("c", on_gpu))
        self.assertEqual(status, 1)
        self.assertIn("include/a.hpp has 3 CUDA mutants, and may have 2", said)
        self.assertEqual(checked()[0], 1)

    def test_prepare_writes_a_copy_and_only_what_differs(self):
        include, copy = self.folder / "include", self.folder / "copy"
        include.mkdir()
        (include / "a.hpp").write_text(SOURCE)
        (include / "b.hpp").write_text("int b;\n")
        copy.mkdir()
        (copy / "gone.hpp").write_text("")
        path = self.folder / "broken.mutant"
        path.write_text(HEADER + "Find:\nint a = 1;\nReplace:\n  int a = 2;\n")
        mutant.prepare(path, include, copy)
        self.assertEqual((copy / "a.hpp").read_text(), SOURCE.replace("= 1", "= 2"))
        self.assertEqual(sorted(file.name for file in copy.iterdir()), ["a.hpp", "b.hpp"])
        before = (copy / "b.hpp").stat().st_mtime_ns
        (include / "a.hpp").write_text(SOURCE + "int c;\n")
        mutant.prepare(path, include, copy)
        self.assertEqual((copy / "b.hpp").stat().st_mtime_ns, before)
        self.assertTrue((copy / "a.hpp").read_text().endswith("int c;\n"))


if __name__ == "__main__":
    unittest.main()
